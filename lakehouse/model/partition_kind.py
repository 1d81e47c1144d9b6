"""Kinds of index partitions in the metadata table (MDT-2). Only this module derives a kind from a partition name."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache


class PartitionKind(StrEnum):
    """Kind of an index partition: the name of the partition, or the prefix of names if users name the index."""

    FILES = "files"
    COLUMN_STATS = "column_stats"
    BLOOM_FILTERS = "bloom_filters"
    RECORD_INDEX = "record_index"
    PARTITION_STATS = "partition_stats"
    SECONDARY_INDEX = "secondary_index_"
    EXPRESSION_INDEX = "expr_index_"

    @property
    def is_named_by_users(self) -> bool:
        """Whether there may be several partitions of this kind, each with the name of an index."""
        return self.value.endswith("_")


_NAMED_BY_USERS = tuple(kind for kind in PartitionKind if kind.is_named_by_users)
_BY_NAME = {kind.value: kind for kind in PartitionKind if not kind.is_named_by_users}


@lru_cache(maxsize=1024)
def partition_kind(partition: str) -> PartitionKind | None:
    """Return the kind of an index partition, or None if this package does not know it."""
    prefixed = (kind for kind in _NAMED_BY_USERS if partition.startswith(kind))
    return _BY_NAME.get(partition) or next(prefixed, None)


def index_name(partition: str) -> str:
    """Return the name of an index without the prefix of its partition."""
    kind = partition_kind(partition)
    return partition.removeprefix(kind) if kind is not None and kind.is_named_by_users else partition
