"""Read the partitions of a published table, and their files, from the metastore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from lakehouse.core.format.publication import decode_manifest
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.metastore.protocol import HivePartition, HiveTable, Metastore

#: Parameters of the metastore's table and its partitions.
TABLE = "lakehouse.table"
STATE = "lakehouse.state"
INSTANT = "lakehouse.instant"
COMPLETION = "lakehouse.completion"
EVENT_TIME = "lakehouse.event_time"
POINTER, COPY = "pointer", "copy"
_READERS = 16
NO_OPTIONS: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPartition:
    """A partition with its column values. A pointer has `files` with URLs; a copy is the folder `location`."""

    values: Mapping[str, str]
    location: str
    is_copy: bool
    files: tuple[str, ...] = ()


def published_table(metastore: Metastore, name: str) -> HiveTable:
    """Return the table `database.table`; raise UserError if it does not exist or is not a publication."""
    database, _, table = name.rpartition(".")
    registered = metastore.table(database or "default", table)
    if registered is None:
        raise UserError(f"{metastore.name}: there is no table {name}", table=name)
    if TABLE not in registered.parameters:
        raise UserError(f"{metastore.name}: {name} is not published by lakehouse; read it as a Hive table", table=name)
    return registered


def shown_partitions(
    table: HiveTable,
    partitions: Sequence[HivePartition],
    storage_options: Mapping[str, str] = NO_OPTIONS,
    *,
    list_copies: bool = False,
) -> tuple[ShownPartition, ...]:
    """Return partitions with their files; reads manifests, and with `list_copies` lists copies, concurrently.

    Raises UserError for a partition that another program created.
    """
    columns = [column.name for column in table.partition_columns]

    def shown(partition: HivePartition) -> ShownPartition:
        state, location = partition.parameters.get(STATE), partition.location
        if state not in (POINTER, COPY):
            raise UserError(
                f"{table.database}.{table.name}: partition {'/'.join(partition.values)} at {location} is not "
                "published by lakehouse; drop it, or publish it",
                partition=partition.values,
            )
        files: tuple[str, ...] = ()
        if state == POINTER:
            files = decode_manifest(open_storage(location, storage_options).get("manifest"))
        elif list_copies:
            listed = open_storage(location, storage_options).list("")
            files = tuple(f"{location}/{file.path}" for file in listed if not file.name.startswith(("_", ".")))
        values = dict(zip(columns, partition.values, strict=True))
        return ShownPartition(values=values, location=location, is_copy=state == COPY, files=files)

    with ThreadPoolExecutor(_READERS) as pool:
        return tuple(pool.map(shown, partitions))
