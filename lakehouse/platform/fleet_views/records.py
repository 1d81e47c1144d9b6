"""Convert catalog rows into parts of documents."""

from __future__ import annotations

from lakehouse.platform.catalog.models import DecisionRow, RunRow
from lakehouse.platform.catalog.run_history import LEASE_EXPIRED, RunState, counted_tries, error_of
from lakehouse.spec.contracts.document import mirror
from lakehouse.spec.contracts.pages import DecisionRecord, RunRecord
from lakehouse.spec.decision_text import work_text

#: A key of `actual` that the run history uses itself.
_INTERNAL = ("after",)


def decision_record(row: DecisionRow) -> DecisionRecord:
    """Return a decision."""
    return mirror(
        DecisionRecord,
        row,
        score=round(row.priority, 3),
        inputs=dict(row.inputs or {}),
        predicted=dict(row.predicted or {}),
        work=work_text(row.service, row.predicted or {}),
    )


def run_record(row: RunRow, table: str, *, has_lease: bool = True) -> RunRecord:
    """Return a run; a run in the state running without a lease has died."""
    died = row.state == RunState.RUNNING and not has_lease
    return RunRecord(
        table=table,
        service=row.service,
        run=row.run_id,
        state=RunState.DIED if died else row.state,
        tries=counted_tries(row),
        started_ms=row.started_ms,
        ended_ms=row.ended_ms,
        instant=row.instant,
        predicted=dict(row.predicted or {}),
        actual={name: value for name, value in (row.actual or {}).items() if name not in _INTERNAL},
        progress=dict(row.progress or {}),
        error=LEASE_EXPIRED if died else error_of(row),
    )
