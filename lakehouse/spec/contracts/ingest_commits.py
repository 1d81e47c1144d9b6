"""The newest commits of an ingestion. Airflow emits missing asset events for them."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.drift import ColumnDrift
from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCommit:
    """One commit of an ingestion; the numbers mean the same as in IngestReport.

    Attributes:
        instant: Requested time of the commit.
        completed: Completion time of the commit.
        run_id: Id of the run that committed; None for a manual run without an id.
        interval: Data interval of the run; empty if it has none.
    """

    instant: str
    completed: str
    run_id: str | None = None
    interval: str = ""
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0
    bad_records: int = 0
    late_rows_dropped: int = 0
    drift: tuple[ColumnDrift, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestCommits(Document):
    """The newest commits of an ingestion on the active timeline.

    Attributes:
        table: Name of the table.
        commits: The commits, the latest completion first.
    """

    table: str
    commits: tuple[IngestCommit, ...] = ()
