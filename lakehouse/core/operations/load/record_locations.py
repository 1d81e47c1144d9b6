"""The record index of a loaded table, as writes use it (MDT-4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lakehouse.core.metadata.partitions.record_index import RECORD_INDEX, is_partitioned_by
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.table import LoadedTable

T = TypeVar("T")


def with_record_locations(table: LoadedTable, find: Callable[[MetadataTable], T], *, by_partition: bool) -> T | None:
    """Return what `find` returns for the record index of the table, or of each partition.

    Returns None if the table has no such index, or none that can be used; a damaged one is logged as a warning.
    """

    def found(metadata: MetadataTable) -> T | None:
        if is_partitioned_by(metadata.definitions.get(RECORD_INDEX)) != by_partition:
            return None
        return find(metadata)

    return from_metadata(table, RECORD_INDEX, found)
