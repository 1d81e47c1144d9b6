"""Asset event of a commit to a table."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.drift import ColumnDrift
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobReport
from lakehouse.spec.job_command import IntervalArguments, JobCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvent(Document):
    """The `extra` of an event of a table's asset: the instant and the numbers of one commit.

    The other fields have the meaning of those of JobReport.

    Attributes:
        missing: Number of folders of the source that had no data.
        interval_start: Start of the data interval in ISO 8601, None if the run has no interval.
        interval_end: End of the data interval, exclusive.
    """

    instant: str | None
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0
    bad_records: int = 0
    late_rows_dropped: int = 0
    seconds: float = 0.0
    drift: tuple[ColumnDrift, ...] = ()
    missing: int = 0
    interval_start: str | None = None
    interval_end: str | None = None

    @classmethod
    def of(cls, command: JobCommand, report: JobReport) -> TableEvent:
        """Return the event of a job that committed."""
        start, end = None, None
        if isinstance(command, IntervalArguments):
            start, end = command.interval_start, command.interval_end
        return cls(
            instant=report.instant,
            rows=report.rows,
            inserts=report.inserts,
            updates=report.updates,
            deletes=report.deletes,
            files=report.files,
            bytes=report.bytes,
            bad_records=report.bad_records,
            late_rows_dropped=report.late_rows_dropped,
            seconds=report.seconds,
            drift=report.drift,
            missing=len(report.missing),
            interval_start=start,
            interval_end=end,
        )
