"""Actions of users: the log, and its changes.

An action is recorded before it is requested, so that a crash leaves a record without effect, never an effect without a
record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.platform.catalog.models import ActionRow, RequestRow
from lakehouse.platform.catalog.run_history import RequestState
from lakehouse.platform.catalog.state_rows import mark_changed
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.spec.contracts.pages import ActionRecord, ActionsPage
from lakehouse.spec.secrets import redact_text


class ActionState(StrEnum):
    """State of an action."""

    #: It is recorded, and its request or DAG run is on its way.
    REQUESTED = "requested"
    #: A job does it.
    RUNNING = "running"
    #: It is done.
    DONE = "done"
    #: It failed; the result has the error.
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAction:
    """An action to record: its table, kind, parameters and author.

    `scope` is the subject of an action that is about no table: a namespace, or empty for all tables.
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


def dag_run_id(action: int) -> str:
    """Return the id of the DAG run that does an action; it is the same when the start is repeated."""
    return f"lakehouse_action_{action}"


def request_service(session: Session, action: int, now_ms: int) -> int:
    """Write the request of a service that an action asks for, and return its number."""
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
    """Record the DAG run that an action is about, for its link."""
    row = _action(session, action)
    row.dag_id, row.dag_run_id = dag, run


def end_action(session: Session, action: int, state: ActionState, result: Mapping[str, Any]) -> None:
    """Record the state and the result of an action; secrets in texts are hidden."""
    row = _action(session, action)
    row.state = state
    row.result = {name: redact_text(part) if isinstance(part, str) else part for name, part in result.items()}


def read_action(session: Session, action: int) -> ActionRecord:
    """Return an action; raise UserError if it is unknown."""
    return action_record(_action(session, action))


def actions_page(session: Session, paging: Paging, now_ms: int, table: str = "") -> ActionsPage:
    """Return one page of the actions on a table, or on all tables."""
    query = select(ActionRow) if not table else select(ActionRow).where(ActionRow.subject == table)
    total = session.scalar(select(func.count()).select_from(query.with_only_columns(ActionRow.id).subquery()))
    page = query.order_by(ActionRow.id.desc()).offset(paging.offset).limit(paging.limit)
    rows = tuple(map(action_record, session.scalars(page)))
    return ActionsPage(now_ms=now_ms, total=total or 0, offset=paging.offset, actions=rows)


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
    row = session.get(ActionRow, action)
    if row is None:
        raise UserError(f"no action {action} in this catalog; `lakehouse action list` lists all", action=action)
    return row
