"""Use the metadata table of a loaded table if it is usable, otherwise storage listings (MDT-7).

Planners of reads, writes and services call this module for the files of partitions. It reads them from the metadata
table if that is usable, otherwise from a storage listing. Validation, and operations that search for files that no
commit lists, use `listing` instead.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import pyarrow as pa

from lakehouse.core.metadata.read.table import FILES, MetadataTable, open_for_reading
from lakehouse.core.metadata.read.unusable import MetadataUnusableError, Unusable
from lakehouse.core.operations.load.listing import list_columns
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.partitions import PartitionFilter

logger = logging.getLogger(__name__)

T = TypeVar("T")


def metadata_of(table: LoadedTable) -> MetadataTable | None:
    """Return the metadata table of a loaded table, or None if it has no usable one.

    It is opened once for each load of the table. A damaged or outdated metadata table is logged as a warning.
    """
    cache = table.metadata.cache
    if cache.opened is None or cache.opened[0] is not table:
        opened = open_for_reading(table.metadata, table.timeline)
        if isinstance(opened, Unusable) and opened.is_fault:
            _warn(opened.reason)
        cache.opened = (table, opened)
    opened = cache.opened[1]
    return opened if isinstance(opened, MetadataTable) else None


def from_metadata(table: LoadedTable, partition: str, read: Callable[[MetadataTable], T]) -> T | None:
    """Return the result of `read` for the metadata table, or None if the metadata table cannot be used.

    Only this function handles a damaged metadata table, by falling back to the files of the data table. It logs a
    warning with the damaged file. The metadata table is not used again until the table is reloaded.

    Args:
        table: The loaded table.
        partition: The index partition that `read` uses.
        read: Reads the metadata table.
    """
    metadata = metadata_of(table)
    if metadata is None or partition not in metadata.usable:
        return None
    try:
        return read(metadata)
    except MetadataUnusableError as error:
        _warn(error.message)
        table.metadata.cache.opened = (table, Unusable(error.message, is_fault=True))
        return None


def _warn(reason: str) -> None:
    logger.warning("The metadata table is not used; files are listed and footers are read instead: %s", reason)


Keep = Callable[[str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFiles:
    """Files of partitions.

    Attributes:
        files: The files, with the columns of a listing (see `core.state.data_files`).
        from_metadata: Whether they come from the metadata table.
        identity: A value that changes when files of the table change; None if only some partitions are listed, or if
            unknown.
    """

    files: pa.Table
    from_metadata: bool
    identity: Hashable | None = None


def known_files(
    table: LoadedTable,
    partitions: Iterable[str] | None = None,
    keep: Keep | None = None,
    *,
    on_storage: bool = False,
) -> KnownFiles:
    """Return the files of some partitions, or of the whole table.

    Args:
        table: The loaded table.
        partitions: Partition paths; None for all.
        keep: Returns whether a directory is listed, see `list_data_files`.
        on_storage: List storage even if the metadata table is usable.
    """
    wanted = None if partitions is None else list(partitions)
    if not on_storage:
        named = from_metadata(table, FILES, lambda metadata: _listed(metadata, wanted, keep))
        if named is not None:
            return named
    return KnownFiles(files=list_columns(table, wanted, keep), from_metadata=False)


def known_partitions(table: LoadedTable) -> pa.Array | None:
    """Return the sorted partition paths in the metadata table; None if it cannot be used."""
    return from_metadata(table, FILES, lambda metadata: metadata.partition_paths())


def levels(partition: str) -> list[str]:
    """Return the parent directories of a partition, then the partition itself."""
    names = partition.split("/") if partition else []
    return ["/".join(names[:depth]) for depth in range(1, len(names) + 1)]


def _listed(metadata: MetadataTable, partitions: list[str] | None, keep: Keep | None) -> KnownFiles:
    if partitions is None and keep is None:
        files = metadata.listing()
        return KnownFiles(files=files, from_metadata=True, identity=metadata.identity(FILES))
    return KnownFiles(files=_of_partitions(metadata, partitions, keep), from_metadata=True)


def _of_partitions(metadata: MetadataTable, partitions: list[str] | None, keep: Keep | None) -> pa.Table:
    if partitions is not None:
        return metadata.listing([path for path in partitions if keep is None or keep(path)])
    assert keep is not None, "the whole table is listed without a filter"
    paths = metadata.partition_paths()
    if isinstance(keep, PartitionFilter):
        return metadata.listing(paths.filter(pa.array(keep.select(paths))).to_pylist())
    selects = cache(keep)
    return metadata.listing([path for path in paths.to_pylist() if all(map(selects, levels(path)))])
