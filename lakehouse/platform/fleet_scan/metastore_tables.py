"""Scan a Hive Metastore for tables: list its databases, then examine the location of each table.

Several tables of a metastore have one location, such as the tables `_ro` and `_rt` of a merge-on-read table: they are
one table of the scan. Views and tables without a location are skipped. Partitions of a Hive table may be anywhere, so
their number and columns come from the metastore.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol
from urllib.parse import urlsplit

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.fleet_scan.discover import Place, discover
from lakehouse.platform.fleet_scan.examine import examine
from lakehouse.platform.fleet_scan.scan import can_be_registered, with_names
from lakehouse.platform.metastore.protocol import HiveTable
from lakehouse.spec.contracts.fleet_scan import FleetScan, Refusal, ScannedTable, TableKind

SCHEME = "hms://"
_THREADS = 8
_VIEWS = re.compile(r"_(ro|rt)$")
_FORMATS = ("parquet", "hudi", "hoodie", "iceberg", "delta")


class MetastoreListing(Protocol):
    """The calls of a metastore that a scan needs. Each raises RetryableError if no server answers in time."""

    def databases(self) -> tuple[str, ...]:
        """Return the names of all databases, sorted."""
        ...

    def table_names(self, database: str) -> tuple[str, ...]:
        """Return the names of all tables of a database, sorted."""
        ...

    def table(self, database: str, name: str) -> HiveTable | None:
        """Return a table, or None if it does not exist."""
        ...

    def partition_names(self, database: str, name: str) -> tuple[str, ...]:
        """Return the escaped names of all partitions, sorted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class MetastorePlace:
    """The place `hms://host:port[,host:port]/database`: its addresses, and the database (empty: all databases)."""

    uris: str
    database: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Declared:
    """The metastore tables of one location, and the number of partitions; None if there are no partition columns."""

    tables: tuple[HiveTable, ...]
    partitions: int | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{table.database}.{table.name}" for table in self.tables)


def metastore_place(place: str) -> MetastorePlace:
    """Return the addresses and the database of a place; raise UserError if it has no host or a longer path."""
    parts = urlsplit(place)
    database = parts.path.strip("/")
    hosts = [host for host in parts.netloc.split(",") if host]
    if not place.startswith(SCHEME) or not hosts or "/" in database:
        raise UserError(
            f"{place!r} is not the address of a metastore, such as hms://host:9083 or hms://host:9083/sales"
        )
    return MetastorePlace(
        uris=",".join(f"thrift://{host}" if ":" in host else f"thrift://{host}:9083" for host in hosts),
        database=database,
    )


# parameters: the place with its client, and the parameters of a scan
def scan_metastore(
    place: str,
    metastore: MetastoreListing,
    registered: Mapping[str, str] | None = None,
    *,
    namespace: str = "",
    clock: Clock | None = None,
) -> FleetScan:
    """Find and examine the tables of a metastore; nothing is written.

    Args:
        place: The address, `hms://host:port[/database]`.
        metastore: Its client.
        registered: Locations of the tables in a catalog, by name.
        namespace: Namespace of the proposed names; empty for the database of each table.
        clock: The clock; None for the clock of the system.

    Raises:
        UserError: The database does not exist.
        RetryableError: The metastore does not answer.
    """
    now, wanted = clock or SystemClock(), metastore_place(place).database
    started = now.now_ms()
    databases = metastore.databases()
    if wanted and wanted.lower() not in databases:
        raise UserError(f"{place}: there is no database {wanted!r}; databases are {', '.join(databases) or 'none'}")
    declared = _declared(metastore, (wanted.lower(),) if wanted else databases)
    with ThreadPoolExecutor(_THREADS) as pool:
        tables = list(pool.map(_examined, declared.values()))
    names = dict(_proposals(tables, namespace, registered or {}))
    return FleetScan(
        place=place.rstrip("/"),
        started_ms=started,
        seconds=round((now.now_ms() - started) / 1000, 3),
        folders=len(declared),
        tables=tuple(sorted(with_names(tables, names, registered or {}), key=lambda table: table.location)),
    )


def _declared(metastore: MetastoreListing, databases: tuple[str, ...]) -> dict[str, _Declared]:
    """Return the tables with a location by that location; a table that was dropped meanwhile is skipped."""
    located: dict[str, list[HiveTable]] = {}
    for database in databases:
        for name in metastore.table_names(database):
            table = metastore.table(database, name)
            if table is not None and table.location:
                located.setdefault(table.location.rstrip("/"), []).append(table)
    return {
        location: _Declared(tables=tuple(tables), partitions=_partitions(metastore, tables[0]))
        for location, tables in located.items()
    }


def _partitions(metastore: MetastoreListing, table: HiveTable) -> int | None:
    if not table.partition_columns:
        return None
    try:
        return len(metastore.partition_names(table.database, table.name))
    except UserError:
        # The table was dropped after it was read.
        return None


def _examined(declared: _Declared) -> ScannedTable:
    """Return the description of the table at a location; a location that cannot be listed is described, too."""
    location = declared.tables[0].location.rstrip("/")
    try:
        storage = open_storage(location)
        storage.list_dir("")
        places = discover(storage, depth=0).places
        described = examine(storage, places[0]) if places else _without_files(storage.root, declared)
    except LakehouseError as error:
        described = _unreadable(location, error.message)
    if described.kind is not TableKind.HUDI and declared.partitions is not None:
        columns = tuple(column.name for column in declared.tables[0].partition_columns)
        described = replace(described, partitioned_by=columns, partitions=declared.partitions, files=None, bytes=None)
    return replace(described, metastore_tables=declared.names)


def _unreadable(location: str, problem: str) -> ScannedTable:
    refusal = Refusal(operation="read", reason=problem)
    return ScannedTable(location=location, kind=TableKind.UNREADABLE, refusals=(refusal,), problem=problem)


def _without_files(location: str, declared: _Declared) -> ScannedTable:
    """Return the description of a table whose location has no table: partitions elsewhere, or another format."""
    stored = declared.tables[0].format.input_format
    if any(word in stored.lower() for word in _FORMATS):
        return examine(open_storage(location), Place(path="", kind=TableKind.PARQUET))
    name = stored.rpartition(".")[2] or "an unknown format"
    reason = f"files of {name} are not read; write the rows to Parquet first"
    refusal = Refusal(operation="read", reason=reason)
    return ScannedTable(location=location, kind=TableKind.OTHER, refusals=(refusal,), next=(f"skipped: {reason}",))


def _proposals(tables: list[ScannedTable], namespace: str, registered: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield location and name of each table that can be registered: its name there without `_ro` or `_rt`."""
    by_location = {location.rstrip("/"): name for name, location in registered.items()}
    used = set(registered)
    for table in sorted(tables, key=lambda table: table.metastore_tables):
        if not can_be_registered(table):
            continue
        present = by_location.get(table.location.rstrip("/"))
        if present is not None:
            yield table.location, present
            continue
        database, _, name = table.metastore_tables[0].partition(".")
        plain = _VIEWS.sub("", name) if table.type == "MERGE_ON_READ" else name
        options = (f"{namespace or database}.{plain}", f"{namespace or database}.{database}_{name}")
        chosen = next((option for option in options if option not in used), "")
        used.add(chosen)
        yield table.location, chosen
