"""The log of user actions.

An action is recorded before it is requested, so that a crash leaves a record without effect, never an effect without a
record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.platform.catalog.models import ActionRow, RequestRow
from lakehouse.platform.catalog.run_history import RequestState
from lakehouse.platform.catalog.state_rows import mark_changed
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.spec.actions import dag_run_id
from lakehouse.spec.contracts.pages import ActionRecord, ActionsPage
from lakehouse.spec.quantities import LARGEST_LONG
from lakehouse.spec.secrets import redact, redact_text

#: Limits for lists of actions: characters per JSON document, characters per string, and items per list in it.
_LONGEST_SHOWN, _LONGEST_TEXT, _MOST_PARTS = 16_384, 500, 20
#: Maximum time of an action that a server executes while the user waits.
_LONGEST_DIRECT_MS = 600_000


class ActionState(StrEnum):
    """State of an action."""

    #: It is recorded; its job has not started.
    REQUESTED = "requested"
    #: A job executes it.
    RUNNING = "running"
    #: It is done.
    DONE = "done"
    #: It failed; the result contains the error.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAction:
    """An action to record: its table, kind, parameters and author.

    `scope` is the subject of an action without a table: a namespace, or empty for all tables.
    """

    table: str = ""
    scope: str = ""
    action: str
    parameters: Mapping[str, Any]
    author: str
    dag: str = ""


def record_action(session: Session, new: NewAction, now_ms: int) -> int:
    """Record an action and return its number; raise UnknownTableError for an unknown table."""
    row = ActionRow(
        table_id=table_row(session, new.table).id if new.table else None,
        subject=new.table or new.scope,
        action=new.action,
        parameters=dict(new.parameters),
        author=new.author,
        created_ms=now_ms,
        state=ActionState.REQUESTED,
        dag_id=new.dag,
    )
    session.add(row)
    session.flush()
    row.dag_run_id = dag_run_id(row.id) if new.dag else ""
    return row.id


def request_service(session: Session, action: int, now_ms: int) -> int:
    """Write the service request of an action, and return its number."""
    row = _action(session, action)
    assert row.table_id is not None, "an action of a table that exists"
    chosen = list(row.parameters.get("partitions") or ())
    request = RequestRow(
        table_id=row.table_id,
        service=str(row.parameters["service"]),
        parameters={"partitions": chosen} if chosen else {},
        requested_by=row.author,
        requested_ms=now_ms,
        state=RequestState.OPEN,
    )
    session.add(request)
    session.flush()
    mark_changed(session, [row.table_id], now_ms)
    row.request_id, row.state = request.id, ActionState.DONE
    return request.id


def follow_run(session: Session, action: int, dag: str, run: str) -> None:
    """Record the DAG run of an action, for its link."""
    row = _action(session, action)
    row.dag_id, row.dag_run_id = dag, run


def end_action(session: Session, action: int, state: ActionState, result: Mapping[str, Any]) -> None:
    """Record the state and the result of an action; secrets are redacted, and a long result is shortened."""
    row = _action(session, action)
    row.state = state
    clean = {name: redact_text(part) if isinstance(part, str) else part for name, part in result.items()}
    row.result = shortened(clean)


def read_action(session: Session, action: int) -> ActionRecord:
    """Return an action; raise UserError if it is unknown."""
    return action_record(_action(session, action))


def actions_page(session: Session, paging: Paging, now_ms: int, table: str = "") -> ActionsPage:
    """Return one page of the actions on a table, or on all tables."""
    query = select(ActionRow) if not table else select(ActionRow).where(ActionRow.subject == table)
    total = session.scalar(select(func.count()).select_from(query.with_only_columns(ActionRow.id).subquery()))
    page = query.order_by(ActionRow.id.desc()).offset(paging.offset).limit(paging.limit)
    rows = tuple(_listed(row, now_ms) for row in session.scalars(page))
    return ActionsPage(now_ms=now_ms, total=total or 0, offset=paging.offset, actions=rows)


def shortened(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document; if it is too long for a list of actions, truncate its long strings and lists.

    A truncated document has the key `shortened`. All readers of the list get the document.
    """
    if len(json.dumps(document)) <= _LONGEST_SHOWN:
        return dict(document)
    brief = {name: _brief(part) for name, part in islice(document.items(), _MOST_PARTS)}
    return {**(brief if len(json.dumps(brief)) <= _LONGEST_SHOWN else {}), "shortened": True}


def _brief(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_TEXT else f"{value[:_LONGEST_TEXT]}..."
    if isinstance(value, Mapping):
        return {name: _brief(part) for name, part in islice(value.items(), _MOST_PARTS)}
    return [_brief(part) for part in value[:_MOST_PARTS]] if isinstance(value, list | tuple) else value


def _listed(row: ActionRow, now_ms: int) -> ActionRecord:
    """Return the action of a row for the list: shortened, and failed if its server has ended."""
    record = action_record(row)
    # An earlier version stored passwords of URLs.
    record = replace(record, parameters=shortened(redact(record.parameters)), result=shortened(record.result))
    is_direct = not row.dag_id and row.request_id is None
    if row.state != ActionState.REQUESTED or not is_direct or now_ms - row.created_ms < _LONGEST_DIRECT_MS:
        return record
    error = "the server ended before the action did; check whether it took effect, and request it again if not"
    return replace(record, state=ActionState.FAILED, result={"error": error})


def action_record(row: ActionRow) -> ActionRecord:
    """Return the action of a row."""
    return ActionRecord(
        id=row.id,
        table=row.subject,
        action=row.action,
        parameters=dict(row.parameters or {}),
        author=row.author,
        created_ms=row.created_ms,
        state=row.state,
        request=row.request_id,
        dag=row.dag_id,
        dag_run=row.dag_run_id,
        result=dict(row.result or {}),
    )


def _action(session: Session, action: int) -> ActionRow:
    row = session.get(ActionRow, action) if 0 < action <= LARGEST_LONG else None
    if row is None:
        raise UserError(f"no action {action} in this catalog; `lakehouse action list` lists all", action=action)
    return row
