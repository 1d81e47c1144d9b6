"""Output of `lakehouse fleet scan`: the tables below a place, and the support for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from lakehouse.spec.contracts.document import Document


class TableKind(StrEnum):
    """The format of a table."""

    #: A Hudi table of any version.
    HUDI = "hudi"
    #: Parquet files in one folder, or in the folders of partitions.
    PARQUET = "parquet"
    #: A Delta table, which is not read.
    DELTA = "delta"
    #: An Iceberg table, which is not read.
    ICEBERG = "iceberg"
    #: A table of a metastore in another format, such as ORC or text, which is not read.
    OTHER = "other"
    #: A folder that cannot be listed.
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeature:
    """A feature that a table uses, such as `payload class`, with its value."""

    feature: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An operation that the table does not support, and the reason. It is `read`, `write`, or the name of a service."""

    operation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedPolicy:
    """Settings of a service with which the table is registered, and the reason for them."""

    service: str
    settings: Mapping[str, Any]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedTable:
    """One table below a place.

    Attributes:
        location: Path or URL of the table.
        kind: Format of the table.
        table: Name with which the table is registered; empty for a table that cannot be registered.
        version: Version of the Hudi format; None for other formats.
        type: COPY_ON_WRITE or MERGE_ON_READ; empty for other formats.
        partitioned_by: Partition columns. A level of date folders has an empty name.
        partitions: Number of partitions; None if it needs a listing of the whole table.
        files: Number of data files; None if it needs a listing.
        bytes: Size of the data files in bytes; None if it needs a listing.
        newest_write: Requested time of the newest write on the timeline.
        features: Features that the table uses.
        readable: Whether the table can be read.
        writable: Whether the table can be written.
        services: Services that can run on the table.
        refusals: Operations that the table does not support, with reasons.
        policies: Proposed policies.
        next: Commands to run next, or sentences.
        registered: Name of the table in the catalog; empty if it is not registered.
        problem: Why the table was not registered, or the folder not listed; empty otherwise.
        metastore_tables: Names of the table in the metastore that was scanned.
    """

    location: str
    kind: TableKind
    table: str = ""
    version: int | None = None
    type: str = ""
    partitioned_by: tuple[str, ...] = ()
    partitions: int | None = None
    files: int | None = None
    bytes: int | None = None
    newest_write: str = ""
    features: tuple[TableFeature, ...] = ()
    readable: bool = False
    writable: bool = False
    services: tuple[str, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    policies: tuple[ProposedPolicy, ...] = ()
    next: tuple[str, ...] = ()
    registered: str = ""
    problem: str = ""
    metastore_tables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetScan(Document):
    """Result of `lakehouse fleet scan`, with the tables sorted by location.

    Attributes:
        place: Path or URL that was scanned.
        started_ms: Begin of the scan in UTC milliseconds.
        seconds: Duration of the scan.
        folders: Number of folders that were listed.
        tables: Tables below the place.
        other_folders: Folders with files that belong to no table.
        cut_folders: Folders below which the scan did not descend, because of the maximum depth.
    """

    place: str
    started_ms: int = 0
    seconds: float = 0.0
    folders: int = 0
    tables: tuple[ScannedTable, ...] = field(default=())
    other_folders: tuple[str, ...] = ()
    cut_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanSummary:
    """The newest scan of a place: its author, begin in UTC milliseconds, duration, and the numbers of its result."""

    place: str
    author: str = ""
    started_ms: int = 0
    seconds: float = 0.0
    folders: int = 0
    tables: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanTotals:
    """Numbers over all tables of a scan: tables of Hudi, folders that cannot be read, tables in the catalog now."""

    tables: int = 0
    hudi: int = 0
    unreadable: int = 0
    registered: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanPage(Document):
    """One page of scanned tables, and all recorded scans, the newest first.

    Attributes:
        now_ms: Time of the answer in UTC milliseconds.
        scans: The newest scan of each place.
        place: The place of the tables; empty if no scan is recorded.
        totals: Numbers over all tables of the place.
        total: Number of tables that match the filters.
        offset: Number of matching tables before the first one of this page.
        tables: The tables, by location.
    """

    now_ms: int
    scans: tuple[ScanSummary, ...] = ()
    place: str = ""
    totals: ScanTotals = field(default_factory=ScanTotals)
    total: int = 0
    offset: int = 0
    tables: tuple[ScannedTable, ...] = ()
