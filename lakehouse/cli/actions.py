"""`lakehouse action`: actions of users, as pages request them and the DAG `lakehouse.actions` does them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from lakehouse.cli import remote
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.specs import author
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.fleet_views.actions import (
    ActionState,
    NewAction,
    actions_page,
    end_action,
    read_action,
    record_action,
)
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.platform.remote.client import api_client
from lakehouse.spec.actions import action_on, action_spec, check_parameters, command_words
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.contracts.pages import ActionRecord, ActionResult
from lakehouse.spec.yaml_section import read_value

_LISTS = ("partitions",)
#: In the result of an action: it failed, and another try of its job may succeed.
_RETRYABLE = "retryable"


def list_actions(given: Given) -> None:
    """Print the newest actions of users."""
    client = api_client()
    if client is not None:
        recorded = remote.actions(client, given)
        show_document(recorded, given.output, rows=[encode(action) for action in recorded.actions])
        return
    with load_catalog(given.catalog) as catalog, catalog.database.reading() as session:
        found = actions_page(session, Paging(limit=given.limit), catalog.clock.now_ms(), given.table or "")
    show_document(found, given.output, rows=[encode(action) for action in found.actions])


def run_action(given: Given) -> int:
    """Do a recorded action, or record one and do it; its result is in the catalog afterwards."""
    client = api_client()
    if client is not None:
        show_document(remote.run_action(client, given, _parameters(given.set)), given.output)
        return 0
    with load_catalog(given.catalog) as catalog:
        number = given.id if given.id is not None else _recorded(catalog, given)
        with catalog.database.session() as session:
            action = read_action(session, number)
            if action.state == ActionState.DONE:
                # A retry of the task finds the result of the earlier try.
                show_document(ActionResult(action=action), given.output)
                return 0
            _require_not_failed(action)
            end_action(session, number, ActionState.RUNNING, {})
        code, result = _done(action)
        if code == RetryableError.exit_code:
            result = {**result, _RETRYABLE: True}
        state = ActionState.FAILED if code else ActionState.DONE
        with catalog.database.session() as session:
            end_action(session, number, state, result)
            ended = read_action(session, number)
    show_document(ActionResult(action=ended), given.output)
    return code


def _require_not_failed(action: ActionRecord) -> None:
    """Raise UserError for an action that has failed, unless another try may succeed.

    The table may have changed since the user saw what the action would do.
    """
    if action.state == ActionState.FAILED and not action.result.get(_RETRYABLE):
        raise UserError(
            f"action {action.id} has failed, so it is not done again: {action.result.get('error', 'see its log')}. "
            "Request the action again, which shows what it would do now",
            action=action.id,
        )


def _recorded(catalog: Catalog, given: Given) -> int:
    if not given.table or not given.action:
        raise UserError("an action needs --id of a recorded one, or --table and --action of a new one")
    spec, parameters = action_on("table", given.action), _parameters(given.set)
    check_parameters(spec, parameters)
    if not spec.command:
        raise UserError(f"{spec.name} is requested by pages and the REST API only; set LAKEHOUSE_API to request it")
    new = NewAction(table=given.table, action=spec.name, parameters=parameters, author=author(os.environ))
    with catalog.database.session() as session:
        return record_action(session, new, catalog.clock.now_ms())


def _parameters(pairs: tuple[str, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair!r}: expected name=value", setting=pair)
        if name in _LISTS:
            found[name] = [*found.get(name, []), text]
        else:
            found[name] = read_value(text, source=name) if name == "settings" else text
    return found


def _done(action: ActionRecord) -> tuple[int, Mapping[str, Any]]:
    """Run the command of an action in this process; return its exit code, and its result or error."""
    spec, parameters = action_spec(action.action), dict(action.parameters)
    if "user" in spec.optional:
        parameters["user"] = action.author
    words = command_words(spec.command, action.table, parameters)
    # The program imports its commands by name, so this module cannot import the program.
    program = import_module("lakehouse.cli.main")
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            program.run(words)
    except LakehouseError as error:
        return error.exit_code, {"error": f"{type(error).__name__}: {error}"}
    return 0, json.loads(printed.getvalue() or "{}")
