"""Numbers over all tables, for the head of the page Fleet."""

from __future__ import annotations

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import AlarmRow, DecisionRow, RunRow, TablePointRow, TableRow, TableStateRow
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.fleet_views.fleet import total_bytes
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.pages import FleetSummary

_DAY_MS = 86_400_000


def fleet_summary(session: Session, now_ms: int) -> FleetSummary:
    """Return the summary with six queries for any number of tables."""
    attention = case(((TableStateRow.severity > 0) | TableStateRow.error.is_not(None), 1), else_=0)
    counted = select(func.count(TableRow.id), func.sum(attention), func.sum(total_bytes())).select_from(TableRow)
    tables, needing, size = session.execute(counted.outerjoin(TableStateRow)).one()
    running = select(func.count()).select_from(RunRow).where(RunRow.state == RunState.RUNNING)
    newest = select(func.max(DecisionRow.id)).group_by(DecisionRow.table_id, DecisionRow.service)
    active = select(RunRow.id).where(
        RunRow.table_id == DecisionRow.table_id,
        RunRow.service == DecisionRow.service,
        RunRow.state == RunState.RUNNING,
    )
    due = select(func.count(), func.min(DecisionRow.decided_ms)).where(
        DecisionRow.id.in_(newest), DecisionRow.due, DecisionRow.code != DecisionReason.DISABLED, ~active.exists()
    )
    waiting, oldest = session.execute(due).one()
    alarms = select(func.count()).select_from(AlarmRow).where(AlarmRow.resolved_ms.is_(None))
    return FleetSummary(
        now_ms=now_ms,
        tables=tables or 0,
        attention=int(needing or 0),
        running=session.scalar(running) or 0,
        due=waiting or 0,
        oldest_due_ms=oldest,
        bytes=int(size or 0),
        grown_bytes=_growth(session, now_ms),
        alarms=session.scalar(alarms) or 0,
    )


def _growth(session: Session, now_ms: int) -> int | None:
    """Return the growth of the tables since the last hour that ended at least a day ago, or None without a history."""
    before, since = now_ms - _DAY_MS, now_ms - 2 * _DAY_MS
    hours = select(TablePointRow.table_id, func.max(TablePointRow.hour_ms).label("hour_ms"))
    newest = hours.where(TablePointRow.hour_ms.between(since, before)).group_by(TablePointRow.table_id).subquery()
    numbers = TablePointRow.numbers
    size = func.coalesce(numbers["base_bytes"].as_float(), 0.0) + func.coalesce(numbers["log_bytes"].as_float(), 0.0)
    of_hour = (newest.c.table_id == TablePointRow.table_id) & (newest.c.hour_ms == TablePointRow.hour_ms)
    joined = select(func.sum(total_bytes() - size)).select_from(TablePointRow).join(newest, of_hour)
    grown = session.scalar(joined.join(TableStateRow, TableStateRow.table_id == TablePointRow.table_id))
    return None if grown is None else int(grown)
