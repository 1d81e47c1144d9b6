"""Output of commands about a catalog's tables, specs and policies, and about a table's timeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lakehouse.spec.contracts.document import Document


class SpecState(StrEnum):
    """The relation between a spec file and the version of the spec in the catalog."""

    #: The catalog applies the spec of the file.
    IN_FORCE = "in_force"
    #: The file differs from the version that the catalog applies.
    DIFFERS = "differs"
    #: The sync applied the changed file.
    CHANGED = "put_in_force"
    #: The sync registered the table.
    ENTERED = "entered"
    #: The catalog does not contain the table.
    UNKNOWN = "not_in_catalog"
    #: The file cannot be used; `reason` explains why.
    REFUSED = "refused"
    #: The catalog contains the table, but no file declares it.
    NO_FILE = "no_file"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTable:
    """One table of a catalog. `drift` is the difference between the spec file and the version in the catalog."""

    table: str
    type: str
    spec_version: int | None
    author: str | None
    location: str
    drift: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogTables(Document):
    """Result of `lakehouse table list`."""

    tables: tuple[CatalogTable, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFileStatus:
    """One table: the version in the catalog, its spec file, and the changes between the two."""

    table: str
    state: SpecState
    spec_version: int | None = None
    file: str | None = None
    changes: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFiles(Document):
    """Result of `lakehouse table sync` and `lakehouse table drift`."""

    specs: tuple[SpecFileStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecVersion:
    """One version of a table's spec in the catalog, and its changes to the previous version."""

    spec_version: int
    at: str
    author: str | None
    file: str | None = None
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecHistory(Document):
    """Result of `lakehouse table history`, the oldest version first."""

    table: str
    versions: tuple[SpecVersion, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLocation(Document):
    """Result of `lakehouse table create`, `bootstrap`, `register` and `accept`; `table_version` is of the Hudi format.

    `table_id` is the id in the properties of the table; None for a table that cannot be written. `unsupported` are the
    operations that the table refuses: `read`, `write` and services, each with the reason.
    """

    table: str
    location: str
    table_version: int
    table_id: str | None = None
    unsupported: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdatedSpec(Document):
    """Result of `lakehouse table update`: the new version of the table's spec in the catalog."""

    table: str
    spec_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DroppedTable(Document):
    """Result of `lakehouse table drop`.

    `kept` are the paths below the location that a purge left: files that do not belong to the table, their folders,
    nested tables, and symbolic links.
    """

    table: str
    files_deleted: bool
    kept: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChange(Document):
    """Result of `lakehouse policy set` and `remove`.

    `scope` is a namespace or a table, `pattern` a regular expression for partition paths, empty for all. `changed` is
    False if there was no policy to remove. `warnings` are the reasons why settings of the policy have no effect.
    """

    scope: str
    service: str
    pattern: str = ""
    changed: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UpgradedCatalog(Document):
    """Result of `lakehouse catalog upgrade`: the URL of the catalog without password, and its schema revision."""

    catalog: str
    schema_revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineInstant:
    """One instant of a timeline. Fields that its metadata does not contain are None or empty.

    Attributes:
        requested: Requested time.
        completed: Completion time; None for a pending instant.
        action: Action, as in the name of its file.
        state: `REQUESTED`, `INFLIGHT` or `COMPLETED`.
        service: The service behind it, or `write`: a completed compaction has the action `commit`. `replacement` is
            clustering, TTL or an overwrite whose metadata was not read.
        operation: Operation of a commit, such as `UPSERT`.
        begin_ms: Requested time in UTC milliseconds.
        seconds: Time from request to completion; None for a savepoint.
        rows: Inserted, updated and deleted rows of a write; rewritten rows of a compaction or clustering.
        files: Written files; of a clean or rollback, deleted files; of a savepoint, files that it keeps.
        bytes: Size of the written files.
        partitions: Number of written partitions.
        author: User that requested a savepoint.
        engine: Program that wrote it, as far as its metadata identifies it.
        run: Id of the run that made it; `dag/run/task` if Airflow started it.
        note: The instant that a rollback undid, the comment of a savepoint, or why the metadata cannot be read.
    """

    requested: str
    completed: str | None
    action: str
    state: str
    service: str = ""
    operation: str = ""
    begin_ms: int = 0
    seconds: float | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    partitions: int | None = None
    author: str = ""
    engine: str = ""
    run: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineInstants(Document):
    """Result of `lakehouse timeline show`: the newest instants that match, oldest first.

    `total` is the number of instants that match; None if more instants may match in partitions that were not searched.
    """

    instants: tuple[TimelineInstant, ...] = ()
    total: int | None = None
