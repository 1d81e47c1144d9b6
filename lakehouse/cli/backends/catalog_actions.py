"""User actions in a catalog: record an action, and run its command in this process."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any

from lakehouse.cli.backends.protocol import ActionRequest
from lakehouse.cli.specs import author
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.fleet_views.actions import ActionState, NewAction, end_action, read_action, record_action
from lakehouse.spec.actions import action_on, action_spec, check_parameters, command_words
from lakehouse.spec.contracts.pages import ActionRecord, ActionResult

#: Key in the result of an action: it failed, but a retry of its job may succeed.
_RETRYABLE = "retryable"


def run_recorded(catalog: Catalog, request: ActionRequest) -> tuple[int, ActionResult]:
    """Run a recorded action, or record a new one and run it. Return the exit code and the record with the result."""
    number = request.id if request.id is not None else _recorded(catalog, request)
    with catalog.database.session() as session:
        action = read_action(session, number)
        if action.state == ActionState.DONE:
            # A retried task returns the result of its first try instead of repeating the action.
            return 0, ActionResult(action=action)
        _require_not_failed(action)
        end_action(session, number, ActionState.RUNNING, {})
    code, result = _done(action)
    if code == RetryableError.exit_code:
        result = {**result, _RETRYABLE: True}
    state = ActionState.FAILED if code else ActionState.DONE
    with catalog.database.session() as session:
        end_action(session, number, state, result)
        return code, ActionResult(action=read_action(session, number))


def _require_not_failed(action: ActionRecord) -> None:
    """Raise UserError for a failed action, unless a retry may succeed.

    The table may have changed since the user saw what the action would do.
    """
    if action.state == ActionState.FAILED and not action.result.get(_RETRYABLE):
        raise UserError(
            f"action {action.id} has failed, so it is not repeated: {action.result.get('error', 'see its log')}. "
            "Request the action again, which shows what it would do now",
            action=action.id,
        )


def _recorded(catalog: Catalog, request: ActionRequest) -> int:
    if not request.table or not request.action:
        raise UserError("an action needs --id of a recorded one, or --table and --action of a new one")
    spec = action_on("table", request.action)
    check_parameters(spec, request.parameters)
    if not spec.command:
        raise UserError(f"{spec.name} is requested by pages and the REST API only; set LAKEHOUSE_API to request it")
    new = NewAction(table=request.table, action=spec.name, parameters=request.parameters, author=author(os.environ))
    with catalog.database.session() as session:
        return record_action(session, new, catalog.clock.now_ms())


def _done(action: ActionRecord) -> tuple[int, Mapping[str, Any]]:
    """Run the command of an action in this process, and return its exit code with its result or error."""
    spec, parameters = action_spec(action.action), dict(action.parameters)
    if "user" in spec.optional:
        parameters["user"] = action.author
    words = command_words(spec.command, action.table, parameters)
    # The module `main` imports the command modules by name, so an import of `main` at the top here would be a cycle.
    program = import_module("lakehouse.cli.main")
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            program.run(words)
    except LakehouseError as error:
        return error.exit_code, {"error": f"{type(error).__name__}: {error}"}
    return 0, json.loads(printed.getvalue() or "{}")
