"""Output of commands that describe, validate or delete from one table."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.model.validation import Finding, Severity, ValidationReport
from lakehouse.spec.contracts.document import Document, mirror


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnInfo:
    """One column of a table; `type` is the name of its Arrow type."""

    column: str
    type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionInfo:
    """The newest file slices of one partition.

    `log_ratio` is the size of log files divided by the size of base files; None if there are no base files.
    `planned_groups` is the number of file groups in pending plans. `expires_ms` is the time in UTC milliseconds at
    which partition TTL expires the partition by its age; `expired` explains why it is expired; empty if it is not
    expired. `small_files` is the number of base files below the size under which a file is small. `written_ms` is the
    time of the newest write in UTC milliseconds: from the newest commits, otherwise from the names of its base files;
    None if it is unknown.
    """

    partition: str
    file_groups: int = 0
    base_bytes: int = 0
    log_bytes: int = 0
    log_files: int = 0
    planned_groups: int = 0
    log_ratio: float | None = None
    expires_ms: int | None = None
    expired: str = ""
    base_files: int = 0
    small_files: int = 0
    written_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingPlan:
    """A pending plan of a service, its state, and the number of file groups that it holds."""

    instant: str
    action: str
    state: str
    file_groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptCommit:
    """A commit that a savepoint keeps, with the number of its files and the author of the savepoint."""

    instant: str
    files: int
    by: str = ""
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """A completed commit with the sums of its write statistics."""

    instant: str
    completed: str | None
    operation: str
    files: int
    inserts: int
    updates: int
    deletes: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSummary(Document):
    """Result of `Table.describe` and `lakehouse table describe`.

    `type` contains the table type, the format version and the merge mode. `commits` are the newest ones, oldest first.
    """

    table: str
    location: str
    type: str
    record_key: tuple[str, ...] = ()
    partitioned_by: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    schema: tuple[ColumnInfo, ...] = ()
    partitions: tuple[PartitionInfo, ...] = ()
    pending_plans: tuple[PendingPlan, ...] = ()
    pending_restore: str | None = None
    savepoints: tuple[KeptCommit, ...] = ()
    commits: tuple[CommitInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedSnapshot(Document):
    """Result of `lakehouse export parquet` and `hudi`: a complete copy of one version.

    `instant` is the newest write that it contains. `rows` are the rows of the files; for `hudi` only of this run.
    """

    table: str
    location: str
    instant: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedRows(Document):
    """Result of `lakehouse table delete`.

    `rows` is the number of deleted rows, or for a dry run of matching rows. `instant` is the commit. If there is no
    commit, it is None and `reason` explains why.
    """

    dry_run: bool
    rows: int
    instant: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionChange(Document):
    """Result of `lakehouse table upgrade` and `downgrade`: a change of the table version, or its plan.

    `source` and `target` are table versions, and `steps` sentences in their order. `is_done` is False for a dry run
    and for a table that has the version already. `readers_lost` are the engines that cannot read the target; `blockers`
    are the reasons that prevent the change, and `warnings` its other effects. `run` is the id of the run in the
    catalog; empty for a dry run and for a table that is given by its location.
    """

    table: str
    source: int
    target: int
    is_done: bool
    run: str = ""
    steps: tuple[str, ...] = ()
    readers_lost: tuple[str, ...] = ()
    blockers: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingInfo:
    """A violation of a format invariant. `repair` describes how to repair the table."""

    invariant: str
    severity: Severity
    problem: str
    repair: str
    path: str = ""
    instant: str = ""

    @classmethod
    def of(cls, finding: Finding) -> FindingInfo:
        """Convert a finding of a validation to its contract."""
        return mirror(cls, finding, repair=finding.way_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableValidation(Document):
    """Result of `lakehouse table validate`, with findings in descending severity.

    `instants`, `files`, `file_groups` and `rows` count the checked objects; `rows` is 0 unless the validation was deep.
    """

    location: str
    deep: bool
    instants: int
    files: int
    file_groups: int
    rows: int = 0
    corrupt: int = 0
    warnings: int = 0
    findings: tuple[FindingInfo, ...] = ()

    @classmethod
    def of(cls, report: ValidationReport) -> TableValidation:
        """Convert the report of a validation to its contract."""
        return mirror(
            cls,
            report,
            corrupt=len(report.corrupt),
            warnings=len(report.warnings),
            findings=tuple(map(FindingInfo.of, report.findings)),
        )
