"""Asset event of a commit to a table."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lakehouse.model.drift import ColumnDrift
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import IngestReport, JobReport
from lakehouse.spec.job_command import IntervalArguments, JobCommand


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvent(Document):
    """The `extra` value of a table's asset event: the instant and the numbers of one commit.

    The other fields mean the same as in IngestReport.

    Attributes:
        missing: Number of source folders without data.
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
        shared = {field.name: getattr(report, field.name) for field in fields(cls) if hasattr(report, field.name)}
        if isinstance(report, IngestReport):
            shared["missing"] = len(report.missing)
        if isinstance(command, IntervalArguments):
            shared |= {"interval_start": command.interval_start, "interval_end": command.interval_end}
        return cls(**shared)
