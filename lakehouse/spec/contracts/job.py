"""Report of a job, for the process that started it (`lakehouse.spec.job_command` has its arguments)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from lakehouse.errors import (
    CommitStateUnknownError,
    CorruptTableError,
    JobStoppedError,
    LakehouseError,
    RetryableError,
    SourceMissingError,
    TableBusyError,
    UnsupportedError,
    UserError,
)
from lakehouse.model.drift import ColumnDrift
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.lineage import JobLineage
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.secrets import redact_text

#: Environment variable with the `spark.hadoop.fs.*` settings of a job as JSON, for a check outside of spark-submit.
STORAGE_SETTINGS = "LAKEHOUSE_STORAGE_SETTINGS"
_SUMMED = (
    "rows",
    "inserts",
    "updates",
    "deletes",
    "files",
    "bytes",
    "bad_records",
    "late_rows_dropped",
    "duplicates_dropped",
    "conflicts",
    "seconds",
)


class JobStatus(StrEnum):
    """The outcome of a job."""

    #: The job committed.
    COMMITTED = "committed"
    #: There was nothing to commit; `code` says why.
    NOTHING_TO_DO = "nothing_to_do"
    #: The job failed; `error` says why.
    FAILED = "failed"


class JobReason(StrEnum):
    """Why a job had nothing to do."""

    #: The job did something, or failed.
    NONE = "none"
    #: The trigger condition of the service does not hold.
    NOT_DUE = "not_due"
    #: No file group, file, action or partition qualifies for the service.
    NO_CANDIDATES = "no_candidates"
    #: A plan of the service is pending and has to be executed first.
    ALREADY_PENDING = "already_pending"
    #: The plan could not be executed and was removed from the timeline.
    PLAN_DROPPED = "plan_dropped"
    #: The service schedules no plans: a run plans and executes.
    SINGLE_STEP = "single_step"
    #: The table already has the requested state.
    NO_CHANGES = "no_changes"
    #: No partition of the table is among those of the request.
    NO_MATCHING_PARTITION = "no_matching_partition"
    #: Another run of the service holds the table's lease.
    OTHER_RUN_ACTIVE = "other_run_active"
    #: An earlier try of this run has committed; `instant` is its commit.
    COMMITTED_BY_EARLIER_TRY = "committed_by_earlier_try"
    #: A commit contains the data interval of the run already.
    INTERVAL_INGESTED = "interval_ingested"
    #: The source has no data that is not ingested yet.
    NO_NEW_DATA = "no_new_data"
    #: No partition of the publication is ready.
    NOTHING_READY = "nothing_ready"


class ErrorCode(StrEnum):
    """The class of a job's error."""

    #: The input is wrong (`UserError`).
    USER = "user"
    #: The table or the request uses a feature that is not supported (`UnsupportedError`).
    UNSUPPORTED = "unsupported"
    #: Stored bytes contradict the table format (`CorruptTableError`).
    CORRUPT_TABLE = "corrupt_table"
    #: A transient fault or a conflict (`RetryableError`).
    RETRYABLE = "retryable"
    #: Another run holds the table (`TableBusyError`).
    TABLE_BUSY = "table_busy"
    #: The input has not arrived yet (`SourceMissingError`).
    SOURCE_MISSING = "source_missing"
    #: A signal stopped the job (`JobStoppedError`).
    JOB_STOPPED = "job_stopped"
    #: The commit may or may not have happened (`CommitStateUnknownError`).
    COMMIT_STATE_UNKNOWN = "commit_state_unknown"
    #: Any other error: a defect, or a broken environment.
    INTERNAL = "internal"


_ERRORS: dict[ErrorCode, type[LakehouseError]] = {
    ErrorCode.USER: UserError,
    ErrorCode.UNSUPPORTED: UnsupportedError,
    ErrorCode.CORRUPT_TABLE: CorruptTableError,
    ErrorCode.RETRYABLE: RetryableError,
    ErrorCode.TABLE_BUSY: TableBusyError,
    ErrorCode.SOURCE_MISSING: SourceMissingError,
    ErrorCode.JOB_STOPPED: JobStoppedError,
    ErrorCode.COMMIT_STATE_UNKNOWN: CommitStateUnknownError,
    ErrorCode.INTERNAL: LakehouseError,
}
_CODES = {kind: code for code, kind in _ERRORS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobError:
    """The error of a failed job.

    Attributes:
        kind: Name of the exception's class, for people; programs use `code`.
        message: What is wrong, and what to do.
        retryable: Whether the same run may succeed later.
        wait_for_s: Maximum total time in seconds to wait for missing data, None if no data is missing.
        code: Class of the error.
    """

    kind: str
    message: str
    retryable: bool
    wait_for_s: float | None = None
    code: ErrorCode = ErrorCode.INTERNAL

    @property
    def exit_code(self) -> int:
        """The exit code of the process."""
        return _ERRORS[self.code].exit_code

    @property
    def is_wait(self) -> bool:
        """Whether the job only waits: its input has not arrived, or another run holds its table."""
        return self.code in (ErrorCode.SOURCE_MISSING, ErrorCode.TABLE_BUSY)

    @classmethod
    def of(cls, error: BaseException) -> JobError:
        """Return an exception as a value. An exception of another package is retryable, as it may be transient."""
        code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ErrorCode.INTERNAL)
        return cls(
            kind=type(error).__name__,
            message=redact_text(str(error)) or type(error).__name__,
            retryable=error.retryable if isinstance(error, LakehouseError) else True,
            wait_for_s=error.wait_for_s if isinstance(error, SourceMissingError) else None,
            code=code,
        )


#: The unit of the log that a source keeps until it is confirmed.
KEPT = "bytes kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """How far a table is behind one of its sources after a run.

    Attributes:
        source: The kind and the name of the source, such as `kafka:orders`.
        unit: What `left` counts, such as `offsets`, `files` or `bytes`.
        left: The number of units that the source had when the run was planned, and that no commit has.
        seconds: The age of the newest record that was read, if units are left; 0 if none are, None if it is unknown.
    """

    source: str
    unit: str
    left: int
    seconds: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether `left` is the log that the source keeps for the table, and not what a later run reads."""
        return self.unit == KEPT


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport(Document):
    """The outcome of a job: a file that the job writes, and the XCom value of its Airflow task.

    Attributes:
        status: Outcome of the job.
        table: Name of the table; of a batch, all names.
        instant: Instant of the commit, None without a commit. A run that had nothing to do has the one of its earlier
            try, with the numbers of that commit.
        previous: Instant of the commit before the run, of the same ingestion; None if there was none.
        rows: Rows that the commit wrote; `inserts`, `updates` and `deletes` are their kinds.
        inserts: Rows whose keys were new.
        updates: Rows that replaced a stored version.
        deletes: Rows that were deleted.
        files: Files that the commit wrote; `bytes` is their size.
        bytes: Size of these files.
        bad_records: Bad records, which the job wrote to dead letter files.
        late_rows_dropped: Rows that are older than a tombstone of their key.
        duplicates_dropped: Rows of events that the table or the batch had already.
        conflicts: Number of retries after a conflict with another writer.
        seconds: Duration of the job.
        reason: Text for people: why there was nothing to do. `code` is the same for programs.
        code: Reason for programs.
        error: Error of a failed job.
        partitions: Names of the partitions that were published or archived.
        parts: Reports of the tables of a batch; the numbers of the batch are their sums.
        warning: A problem that did not affect the commit.
        interval: Data interval of the run, empty for none.
        folders: Folders and files of the source that were ingested.
        missing: Folders of the source that had no data and were skipped.
        drift: Columns in which the rows differed from the table.
        lag: How far the table is behind its sources after the run.
        plans_dropped: Plans that a service dropped, for example because a write changed their file groups.
        tables: Changes of a metastore sync, one entry per table of the metastore.
        lineage: Datasets that the job read and wrote; None unless `LAKEHOUSE_LINEAGE` is `true`.
    """

    status: JobStatus
    table: str = ""
    instant: str | None = None
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0
    bad_records: int = 0
    late_rows_dropped: int = 0
    duplicates_dropped: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    reason: str = ""
    code: JobReason = JobReason.NONE
    error: JobError | None = None
    partitions: tuple[str, ...] = ()
    parts: tuple[JobReport, ...] = ()
    warning: str = ""
    interval: str = ""
    folders: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    drift: tuple[ColumnDrift, ...] = ()
    lag: tuple[SourceLag, ...] = ()
    plans_dropped: int = 0
    tables: tuple[SyncedTable, ...] = ()
    lineage: JobLineage | None = None
    previous: str | None = None

    def __post_init__(self) -> None:
        if (self.status is JobStatus.FAILED) != (self.error is not None):
            raise UserError(
                f"a report of status {self.status} with error {self.error!r}: only a failed one has an error"
            )


def interval_text(interval: tuple[datetime, datetime]) -> str:
    """Return the text of an interval in reports and commits: `2026-01-01T00:00:00Z/2026-01-02T00:00:00Z`."""
    return "/".join(bound.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z" for bound in interval)


def combined(reports: Sequence[JobReport]) -> JobReport:
    """Return the report of a batch of tables.

    The batch failed if one table failed. Its error is the first retryable one, so that Airflow retries the batch.
    `TABLE_BUSY` is the error of the batch only if no table failed for another reason.
    """
    failed = [report for report in reports if report.error is not None]
    committed = any(report.status is JobStatus.COMMITTED for report in reports)
    status = JobStatus.FAILED if failed else JobStatus.COMMITTED if committed else JobStatus.NOTHING_TO_DO
    codes = {report.code for report in reports}
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _SUMMED}
    return JobReport(
        status=status,
        table=", ".join(report.table for report in reports),
        code=codes.pop() if status is JobStatus.NOTHING_TO_DO and len(codes) == 1 else JobReason.NONE,
        error=_combined_error(reports) if failed else None,
        parts=tuple(reports),
        warning="; ".join(report.warning for report in reports if report.warning),
        **sums,
    )


def _combined_error(reports: Sequence[JobReport]) -> JobError:
    errors = [(report.table, report.error) for report in reports if report.error is not None]
    _, first = min(errors, key=lambda pair: (not pair[1].retryable, pair[1].code is ErrorCode.TABLE_BUSY))
    messages = "; ".join(f"{table}: {error.kind}: {error.message}" for table, error in errors)
    message = f"{len(errors)} of {len(reports)} tables: {messages}"
    return replace(first, message=message, wait_for_s=None)
