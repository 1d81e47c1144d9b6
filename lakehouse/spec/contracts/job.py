"""Arguments and report of a job: the contract between a job and the process that starts it.

Encoders and decoders of both are in this module, so that the Airflow operator and the command line always agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    nearest,
)
from lakehouse.model.drift import ColumnDrift
from lakehouse.model.texts import text_list
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.lineage import JobLineage
from lakehouse.spec.contracts.sync import SyncedTable
from lakehouse.spec.job_flags import JOB_FLAGS, FlagForm, JobFlag
from lakehouse.spec.quantities import parse_duration
from lakehouse.spec.secrets import redact_text, refuse_secrets

#: Environment variable with the `spark.hadoop.fs.*` settings of a job as JSON, for a check outside of spark-submit.
STORAGE_SETTINGS = "LAKEHOUSE_STORAGE_SETTINGS"
_OUTPUTS = ("text", "json")
#: The action of a job that repeats an ingestion.
STREAM = "stream"


_FLAGS = {flag.flag: flag for flag in JOB_FLAGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """The arguments of one run of a job.

    Attributes:
        verb: Noun of the command line, such as `ingest` or `clean`.
        action: Verb of the command line, such as `run`.
        table: Path of a table spec, location of a table, or its name in a catalog.
        input: Name of the input of a spec with several; None for other specs.
        interval_start: Start of the data interval in ISO 8601, inclusive; both bounds or none.
        interval_end: End of the data interval, exclusive.
        run_id: Identity of the run; every try of a run has the same one.
        report: Path of the file for the JobReport.
        full_refresh: Ingest again what earlier commits contain.
        every: Time between the starts of two commits of a stream, such as `30s`; None for that of the spec.
        run_for: Time after which a stream ends; None for that of the spec.
        resnapshot: Tables of a database whose snapshots are read again.
        instant: Instant of the plan that a table service executes.
        commit: Instant of the commit whose dead letters are read again; None for all commits.
        dead_letters: Address of the folder whose dead letters are read again.
        force: Run a table service that is not due.
        also: More tables of the catalog for the same process.
        partitions: The only partitions that a table service works on; empty for all.
        options: Options of this run only, by their keys.
        check: Check the command and its table, and run nothing.
        end_if_idle: With `check`: end the run of an ingestion, with its report, if its source has no new data.
        output: Form of what the job prints: `text` or `json`; None for text.
        debug: Print the traceback of an unexpected error.
    """

    verb: str
    action: str
    table: str
    input: str | None = None
    interval_start: str | None = None
    interval_end: str | None = None
    run_id: str | None = None
    report: str | None = None
    full_refresh: bool = False
    every: str | None = None
    run_for: str | None = None
    resnapshot: tuple[str, ...] = ()
    instant: str | None = None
    commit: str | None = None
    dead_letters: str | None = None
    force: bool = False
    also: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    check: bool = False
    end_if_idle: bool = False
    output: str | None = None
    debug: bool = False

    @property
    def tables(self) -> tuple[str, ...]:
        """The tables of the run, `table` first."""
        return (self.table, *self.also)

    def __post_init__(self) -> None:
        for name in ("also", "partitions", "resnapshot"):
            object.__setattr__(self, name, text_list(getattr(self, name), name, allow_empty=True))
        if (self.interval_start is None) != (self.interval_end is None):
            raise UserError("a data interval needs both --interval-start and --interval-end")
        interval = self.interval
        if interval is not None and interval[0] >= interval[1]:
            raise UserError(f"--interval-start {self.interval_start} is not before --interval-end {self.interval_end}")
        if self.commit is not None and self.dead_letters is not None:
            raise UserError("--commit and --dead-letters both name dead letters; give one", flag="--commit")
        if self.output not in (None, *_OUTPUTS):
            raise UserError(f"--output {self.output}: expected text or json", flag="--output")
        if self.input is not None and self.verb != "ingest":
            raise UserError(f"--input: {self.verb} works on the whole table, not on an input", flag="--input")
        if self.also and self.verb == "ingest":
            raise UserError(f"ingest works on one table; --table was given {len(self.tables)} times", flag="--table")
        self._check_stream()
        if self.end_if_idle and not (self.check and (self.verb, self.action) == ("ingest", "run")):
            raise UserError(
                f"--end-if-idle: `{self.verb} {self.action}` is not `ingest run --check`",
                flag="--end-if-idle",
            )
        for key in self.options:
            if not key or "=" in key:
                raise UserError(f"--option: {key!r} is not the name of an option", option=key)
        refuse_secrets(self.options, "--option")

    def _check_stream(self) -> None:
        """Raise UserError for flags of streams on another job, for a wrong duration, and for what streams cannot do."""
        for flag, text in (("--every", self.every), ("--run-for", self.run_for)):
            if text is None:
                continue
            if self.action != STREAM:
                raise UserError(f"{flag}: `{self.verb} {self.action}` runs once; use `ingest stream`", flag=flag)
            if parse_duration(flag, text) == 0:
                raise UserError(f"{flag} {text}: must be longer than 0 seconds", flag=flag)
        once = {"--interval-start": self.interval, "--full-refresh": self.full_refresh, "--resnapshot": self.resnapshot}
        for name, value in once.items():
            if self.action == STREAM and value:
                raise UserError(f"{name}: a stream continues from the checkpoint; use `ingest run`", flag=name)

    @property
    def interval(self) -> tuple[datetime, datetime] | None:
        """The data interval with time zones; a bound without a time zone is in UTC."""
        if self.interval_start is None or self.interval_end is None:
            return None
        return _moment("--interval-start", self.interval_start), _moment("--interval-end", self.interval_end)

    @property
    def interval_name(self) -> str:
        """The text of the data interval in reports and commits, empty for none."""
        return "" if self.interval is None else interval_text(self.interval)

    def to_argv(self) -> tuple[str, ...]:
        """Return command line arguments from which `from_argv` builds an equal command."""
        words = [self.verb, self.action]
        for flag in JOB_FLAGS:
            value = getattr(self, flag.field)
            if flag.form is FlagForm.SWITCH:
                words += [flag.flag] if value else []
            elif flag.form is FlagForm.PAIRS:
                words += [word for key, text in sorted(value.items()) for word in (flag.flag, f"{key}={text}")]
            elif flag.form is FlagForm.REPEATED:
                words += [word for text in value for word in (flag.flag, text)]
            elif value is not None:
                words += [flag.flag, value]
        return tuple(words)

    @classmethod
    def from_argv(cls, argv: Sequence[str]) -> JobCommand:
        """Parse `verb action --flag value ...`; raise UserError for unknown, missing and repeated arguments."""
        verb, action, *rest = (*argv, "", "")[: max(2, len(argv))]
        if not verb or not action or verb.startswith("--") or action.startswith("--"):
            raise UserError(f"expected a verb and an action, as in 'ingest run', not {' '.join(argv[:2])!r}")
        values: dict[str, Any] = {}
        options: dict[str, str] = {}
        lists: dict[str, list[str]] = {flag.field: [] for flag in JOB_FLAGS if flag.form is FlagForm.REPEATED}
        for flag, value in _flags(rest):
            if flag.form is FlagForm.PAIRS:
                key, equals, text = value.partition("=")
                if not equals or not key or key in options:
                    raise UserError(f"--option {key}: expected key=value, each key once", option=key)
                options[key] = text
            elif flag.form is FlagForm.REPEATED:
                lists[flag.field].append(value)
            elif flag.field in values:
                raise UserError(f"{flag.flag} was given twice", flag=flag.flag)
            else:
                values[flag.field] = True if flag.form is FlagForm.SWITCH else value
        if not lists["tables"]:
            raise UserError(f"{verb} {action} needs --table: a table spec, a table's location, or namespace.table")
        table, *also = lists["tables"]
        return cls(
            verb=verb,
            action=action,
            table=table,
            also=tuple(also),
            partitions=tuple(lists["partitions"]),
            resnapshot=tuple(lists["resnapshot"]),
            options=options,
            **values,
        )


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


def _flags(words: Sequence[str]) -> Iterator[tuple[JobFlag, str]]:
    """Yield (flag, value) from `--flag value` and `--flag=value`."""
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        flag = _FLAGS.get(name)
        if flag is None:
            known = ", ".join(_FLAGS)
            raise UserError(f"unknown argument {word!r}.{nearest(name, _FLAGS)} Known: {known}.", flag=name)
        if flag.form is FlagForm.SWITCH:
            if equals:
                raise UserError(f"{name} takes no value", flag=name)
        elif not equals:
            following = next(rest, None)
            if following is None:
                raise UserError(f"{name} needs a value", flag=name)
            value = following
        yield flag, value


def _moment(flag: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise UserError(f"{flag} {text!r} is not a time in ISO 8601, such as 2026-01-31T00:00:00+00:00") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
