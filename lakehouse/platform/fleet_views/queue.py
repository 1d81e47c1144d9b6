"""The page Queue: due services, active runs, and runs of the last day; a page takes two queries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import DecisionRow, LeaseRow, RunRow, TableRow, TableStateRow
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.fleet_views.fleet import full_name_column
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.platform.fleet_views.records import decision_record, run_record
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.pages import DueLine, QueuePage, QueueSection, RunRecord

_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueQuery:
    """A section of the queue, with filters by table and service, and its page."""

    section: QueueSection = QueueSection.DUE
    search: str = ""
    service: str = ""
    paging: Paging = field(default_factory=Paging)


def queue_page(session: Session, query: QueueQuery, now_ms: int) -> QueuePage:
    """Return one page of a queue section."""
    if query.section is QueueSection.DUE:
        total, due = _due(session, query)
        return QueuePage(now_ms=now_ms, section=query.section, total=total, offset=query.paging.offset, due=due)
    total, runs = _runs(session, query, now_ms)
    return QueuePage(now_ms=now_ms, section=query.section, total=total, offset=query.paging.offset, runs=runs)


def _due(session: Session, query: QueueQuery) -> tuple[int, tuple[DueLine, ...]]:
    """Return the due services that do not run: first overdue services, then by score."""
    newest = select(func.max(DecisionRow.id)).group_by(DecisionRow.table_id, DecisionRow.service)
    active = select(RunRow.id).where(
        RunRow.table_id == DecisionRow.table_id,
        RunRow.service == DecisionRow.service,
        RunRow.state == RunState.RUNNING,
    )
    name = full_name_column()
    statement: Any = select(DecisionRow, name, TableStateRow).join(TableRow, TableRow.id == DecisionRow.table_id)
    statement = statement.outerjoin(TableStateRow, TableStateRow.table_id == TableRow.id)
    # A disabled service does not wait.
    enabled = DecisionRow.code != DecisionReason.DISABLED
    statement = statement.where(DecisionRow.id.in_(newest), DecisionRow.due, enabled, ~active.exists())
    statement = _filtered(statement, query, DecisionRow.service)
    total = session.scalar(select(func.count()).select_from(statement.with_only_columns(DecisionRow.id).subquery()))
    order = (DecisionRow.deadline_ms.is_(None), DecisionRow.deadline_ms, DecisionRow.priority.desc(), DecisionRow.id)
    page = statement.order_by(*order).offset(query.paging.offset).limit(query.paging.limit)
    lines = tuple(_line(row, table, state) for row, table, state in session.execute(page))
    return total or 0, lines


def _line(row: DecisionRow, table: str, state: TableStateRow | None) -> DueLine:
    stored: Mapping[str, Any] = (state.due or {}).get(row.service) or {} if state else {}
    return DueLine(
        table=table,
        service=row.service,
        decision=decision_record(row),
        since_ms=stored.get("since_ms"),
        starts_ms=stored.get("starts_ms"),
        requested=bool(stored.get("requested", row.code == "requested")),
    )


def _runs(session: Session, query: QueueQuery, now_ms: int) -> tuple[int, tuple[RunRecord, ...]]:
    name = full_name_column()
    lease = (LeaseRow.key == name + "/" + RunRow.service) & (LeaseRow.owner == RunRow.run_id)
    statement: Any = select(RunRow, name, LeaseRow.expires_ms).join(TableRow, TableRow.id == RunRow.table_id)
    statement = _filtered(statement.outerjoin(LeaseRow, lease), query, RunRow.service)
    order: Any
    if query.section is QueueSection.RUNNING:
        statement, order = statement.where(RunRow.state == RunState.RUNNING), RunRow.started_ms.asc()
    else:
        statement, order = statement.where(RunRow.ended_ms >= now_ms - _DAY_MS), RunRow.ended_ms.desc()
    total = session.scalar(select(func.count()).select_from(statement.with_only_columns(RunRow.id).subquery()))
    page = statement.order_by(order, RunRow.id).offset(query.paging.offset).limit(query.paging.limit)
    rows = tuple(
        run_record(row, table, has_lease=(expires_ms or 0) > now_ms) for row, table, expires_ms in session.execute(page)
    )
    return total or 0, rows


def _filtered(statement: Any, query: QueueQuery, service: Any) -> Any:
    if query.service:
        statement = statement.where(service == query.service)
    if query.search:
        statement = statement.where(func.lower(full_name_column()).contains(query.search.lower(), autoescape=True))
    return statement
