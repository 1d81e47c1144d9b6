"""Contract of a table's asset event."""

from __future__ import annotations

from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.contracts.table_event import TableEvent
from lakehouse.spec.job_command import IngestCommand


def test_table_event_has_the_numbers_of_the_report_and_round_trips_through_json() -> None:
    interval = {"interval_start": "2026-01-01T00:00:00Z", "interval_end": "2026-01-02T00:00:00Z"}
    command = IngestCommand(table="orders.yaml", **interval)
    drift = (ColumnDrift(column="price", change=Drift.ADDED, rows=3),)
    report = IngestReport(
        status=JobStatus.COMMITTED, instant="20260101000000001", rows=7, seconds=1.5, missing=("a", "b"), drift=drift
    )
    event = TableEvent.of(command, report)
    assert (event.instant, event.rows, event.seconds, event.missing) == ("20260101000000001", 7, 1.5, 2)
    assert (event.interval_start, event.interval_end) == tuple(interval.values())
    assert TableEvent.from_json(event.to_json()) == event
