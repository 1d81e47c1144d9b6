"""Reports that a job writes for the process that started it, with one dataclass per kind of job.

The three kinds share one flat document, version 1, in which the fields of the other kinds have empty values. Earlier
releases can read it, and this module can read their documents. `lakehouse.spec.job_command` defines the arguments of
jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeVar

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
from lakehouse.model.document import parse_json
from lakehouse.model.drift import ColumnDrift
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.lineage import JobLineage
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.secrets import redact_text

#: Settings of Spark that storages understand, too: of object stores, and of HDFS.
STORAGE_PREFIXES = ("spark.hadoop.fs.", "spark.hadoop.dfs.")
#: Environment variable with a job's `spark.hadoop.fs.*` settings as JSON. A check outside of spark-submit reads it.
STORAGE_SETTINGS = "LAKEHOUSE_STORAGE_SETTINGS"


class JobStatus(StrEnum):
    """The outcome of a job."""

    #: The job committed.
    COMMITTED = "committed"
    #: There was nothing to commit; `code` is the reason.
    NOTHING_TO_DO = "nothing_to_do"
    #: The job failed; `error` is the reason.
    FAILED = "failed"


class JobReason(StrEnum):
    """Why a job had nothing to do."""

    #: The job committed or failed, so there is no reason.
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
    #: The request contains no partition of the table.
    NO_MATCHING_PARTITION = "no_matching_partition"
    #: Another run of the service holds the table's lease.
    OTHER_RUN_ACTIVE = "other_run_active"
    #: An earlier try of this run has committed; `instant` is its commit.
    COMMITTED_BY_EARLIER_TRY = "committed_by_earlier_try"
    #: A commit already contains the data interval of the run.
    INTERVAL_INGESTED = "interval_ingested"
    #: All data of the source is already ingested.
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
        message: The problem and its solution.
        retryable: Whether the same run may succeed later.
        wait_for_s: Maximum total time in seconds to wait for missing data; None if no data is missing.
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
        """Convert an exception to a value.

        An exception of another package counts as retryable, because it may be transient.
        """
        code = next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ErrorCode.INTERNAL)
        return cls(
            kind=type(error).__name__,
            message=redact_text(str(error)) or type(error).__name__,
            retryable=error.retryable if isinstance(error, LakehouseError) else True,
            wait_for_s=error.wait_for_s if isinstance(error, SourceMissingError) else None,
            code=code,
        )


#: Unit of a lag in a log that the source retains until the job confirms it.
KEPT = "bytes kept"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLag:
    """How far a table is behind one of its sources after a run.

    Attributes:
        source: The kind and the name of the source, such as `kafka:orders`.
        unit: The unit of `left`, such as `offsets`, `files` or `bytes`.
        left: Number of units that the source contained when the run was planned, without the units that are committed.
        seconds: Age of the newest record that was read; 0 if `left` is 0, None if the age is unknown.
    """

    source: str
    unit: str
    left: int
    seconds: float | None = None

    @property
    def is_kept(self) -> bool:
        """Whether `left` counts the log that the source retains for the table, instead of the input of later runs."""
        return self.unit == KEPT


#: Name of the document field with the kind of the job.
_JOB = "job"
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome(Document):
    """The fields that the reports of all jobs share.

    Attributes:
        status: Outcome of the job.
        table: Name of the table, or all names of a batch.
        seconds: Duration of the job.
        reason: Explanation for people why there was nothing to do.
        code: The same reason for programs.
        error: Error of a failed job.
        warning: A problem that did not affect the commit.
        interval: Data interval of the run, empty for none.
        lineage: Datasets that the job read and wrote; None unless `LAKEHOUSE_LINEAGE` is `true`.
    """

    status: JobStatus
    table: str = ""
    seconds: float = 0.0
    reason: str = ""
    code: JobReason = JobReason.NONE
    error: JobError | None = None
    warning: str = ""
    interval: str = ""
    lineage: JobLineage | None = None

    def __post_init__(self) -> None:
        if (self.status is JobStatus.FAILED) != (self.error is not None):
            raise UserError(
                f"a report of status {self.status} with error {self.error!r}: only a failed one has an error"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOutcome(JobOutcome):
    """The fields that the reports of all committing jobs share.

    Attributes:
        instant: Instant of the commit; None if there was no commit. If an earlier try of the run committed, this is the
            instant of that commit, and so are the numbers.
        rows: Rows that the commit wrote; `inserts`, `updates` and `deletes` are their kinds.
        inserts: Rows whose keys were new.
        updates: Rows that replaced a stored version.
        deletes: Rows that were deleted.
        files: Files that the commit wrote; `bytes` is their size.
        bytes: Size of these files.
    """

    instant: str | None = None
    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport(WriteOutcome):
    """The report of an ingestion: a file that the job writes, and the XCom value of the Airflow task.

    The document has `job`: `ingest`.

    Attributes:
        previous: Instant of the previous commit by the same ingestion; None if there was none.
        bad_records: Bad records, which the job wrote to dead letter files.
        late_rows_dropped: Number of dropped rows that are older than the tombstone of their key.
        duplicates_dropped: Number of dropped rows whose event the table or the batch already contains.
        conflicts: Number of retries after a conflict with another writer.
        folders: Ingested folders and files of the source.
        missing: Skipped folders of the source without data.
        drift: Columns in which the rows differed from the table.
        lag: Lag of the table behind its sources after the run.
        parts: Reports for the single tables of a database; the numbers of this report are their sums.
    """

    CONSTANTS: ClassVar[Mapping[str, Any]] = {_JOB: "ingest", "plans_dropped": 0, "tables": (), "partitions": ()}

    previous: str | None = None
    bad_records: int = 0
    late_rows_dropped: int = 0
    duplicates_dropped: int = 0
    conflicts: int = 0
    folders: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    drift: tuple[ColumnDrift, ...] = ()
    lag: tuple[SourceLag, ...] = ()
    parts: tuple[IngestReport, ...] = ()


#: Fields that only ingestions set. Readers of version 1 expect them in the reports of all jobs.
_OF_INGEST: Mapping[str, Any] = {
    "previous": None,
    "bad_records": 0,
    "late_rows_dropped": 0,
    "duplicates_dropped": 0,
    "conflicts": 0,
    "folders": (),
    "missing": (),
    "drift": (),
    "lag": (),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport(WriteOutcome):
    """The report of a table service: a file that the job writes, and the XCom value of its Airflow task.

    The document has `job`: `service`.

    Attributes:
        plans_dropped: Plans that a service dropped, for example because a write changed their file groups.
        tables: Changes of a metastore sync, one entry per metastore table.
        parts: Reports for the single tables of a batch; the numbers of this report are their sums.
    """

    CONSTANTS: ClassVar[Mapping[str, Any]] = {_JOB: "service", **_OF_INGEST, "partitions": ()}

    plans_dropped: int = 0
    tables: tuple[SyncedTable, ...] = ()
    parts: tuple[ServiceReport, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationReport(JobOutcome):
    """The report of a publication: a file that the job writes, and the XCom value of ArchivePartitionsOperator.

    The document has `job`: `publish`.

    Attributes:
        partitions: Names of the partitions that were published or archived.
    """

    CONSTANTS: ClassVar[Mapping[str, Any]] = {
        _JOB: "publish",
        **_OF_INGEST,
        "instant": None,
        **dict.fromkeys(("rows", "inserts", "updates", "deletes", "files", "bytes"), 0),
        "plans_dropped": 0,
        "tables": (),
        "parts": (),
    }

    partitions: tuple[str, ...] = ()

    @property
    def instant(self) -> None:
        """None: a publication commits nothing to the table."""
        return None

    @property
    def parts(self) -> tuple[PublicationReport, ...]:
        """Nothing: a publication works on one table."""
        return ()


#: Report of a job.
JobReport = IngestReport | ServiceReport | PublicationReport
_KINDS: tuple[type[JobReport], ...] = (IngestReport, ServiceReport, PublicationReport)
ReportT = TypeVar("ReportT", IngestReport, ServiceReport, PublicationReport)
WriteReportT = TypeVar("WriteReportT", IngestReport, ServiceReport)
#: Fields that the report of a batch sums over its tables.
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


def parse_report(text: str | bytes) -> JobReport:
    """Decode the JSON report of any kind of job; raise UserError for other documents."""
    try:
        mapping = parse_json(text)
    except ValueError as error:
        raise UserError(f"not a job report document: {error}; expected JSON: {text[:_SHOWN]!r}") from error
    if not isinstance(mapping, Mapping):
        raise UserError(f"not a job report document: expected an object, not {text[:_SHOWN]!r}")
    return _kind_of(mapping).from_mapping(mapping)


def _kind_of(mapping: Mapping[str, Any]) -> type[JobReport]:
    """Return the kind of a report.

    Reports of the first releases lack `job`. Such a report belongs to the first kind that has a field for each of its
    non-empty values.
    """
    names = {str(kind.CONSTANTS[_JOB]): kind for kind in _KINDS}
    name = mapping.get(_JOB)
    if name is not None:
        if name not in names:
            raise UserError(f"not a job report document: job is {name!r}, not one of {', '.join(names)}", job=name)
        return names[name]
    return next((kind for kind in _KINDS if not _foreign_facts(kind, mapping)), IngestReport)


def _foreign_facts(kind: type[JobReport], mapping: Mapping[str, Any]) -> bool:
    """Return whether a document contains values in fields that this kind of job never sets."""
    values = ((mapping.get(name), constant) for name, constant in kind.CONSTANTS.items() if name != _JOB)
    parts = mapping.get("parts")
    return any(value and value != constant for value, constant in values) or any(
        isinstance(part, Mapping) and _foreign_facts(kind, part) for part in (parts if isinstance(parts, list) else ())
    )


def interval_text(interval: tuple[datetime, datetime]) -> str:
    """Format an interval for reports and commits: `2026-01-01T00:00:00Z/2026-01-02T00:00:00Z`."""
    return "/".join(bound.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z" for bound in interval)


def without_lineage(report: JobReport) -> JobReport:
    """Return a report without the lineage of the job and of a batch's parts."""
    if isinstance(report, IngestReport):
        return replace(report, lineage=None, parts=tuple(replace(part, lineage=None) for part in report.parts))
    if isinstance(report, ServiceReport):
        return replace(report, lineage=None, parts=tuple(replace(part, lineage=None) for part in report.parts))
    return replace(report, lineage=None)


def combined(reports: Sequence[WriteReportT]) -> WriteReportT:
    """Return the report for a batch of tables.

    The batch failed if one table failed. Its error is the first retryable one, so that Airflow retries the batch.
    `TABLE_BUSY` is the error of the batch only if no table failed for another reason.
    """
    kind = type(reports[0])
    errors = [(report.table, report.error) for report in reports if report.error is not None]
    committed = any(report.status is JobStatus.COMMITTED for report in reports)
    status = JobStatus.FAILED if errors else JobStatus.COMMITTED if committed else JobStatus.NOTHING_TO_DO
    codes = {report.code for report in reports}
    names = {field.name for field in fields(kind)}
    sums: dict[str, Any] = {name: sum(getattr(report, name) for report in reports) for name in _SUMMED if name in names}
    return kind(
        status=status,
        table=", ".join(report.table for report in reports),
        code=codes.pop() if status is JobStatus.NOTHING_TO_DO and len(codes) == 1 else JobReason.NONE,
        error=_combined_error(errors, len(reports)) if errors else None,
        parts=tuple(reports),
        warning="; ".join(report.warning for report in reports if report.warning),
        **sums,
    )


def _combined_error(errors: Sequence[tuple[str, JobError]], tables: int) -> JobError:
    _, first = min(errors, key=lambda pair: (not pair[1].retryable, pair[1].code is ErrorCode.TABLE_BUSY))
    messages = "; ".join(f"{table}: {error.kind}: {error.message}" for table, error in errors)
    return replace(first, message=f"{len(errors)} of {tables} tables: {messages}", wait_for_s=None)
