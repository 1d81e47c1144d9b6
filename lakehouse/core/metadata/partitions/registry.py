"""The registry of index partitions, in the order in which a table initialises them (MDT-2)."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.metadata.partitions.bloom_filters import BloomFiltersPartition
from lakehouse.core.metadata.partitions.column_stats import ColumnStatsPartition
from lakehouse.core.metadata.partitions.expression_index import ExpressionIndexPartition
from lakehouse.core.metadata.partitions.files import FilesPartition
from lakehouse.core.metadata.partitions.partition_stats import PartitionStatsPartition
from lakehouse.core.metadata.partitions.protocol import IndexPartition
from lakehouse.core.metadata.partitions.record_index import RecordIndexPartition
from lakehouse.core.metadata.partitions.secondary_index import SecondaryIndexPartition
from lakehouse.model.partition_kind import PartitionKind, partition_kind

INDEX_PARTITIONS: tuple[IndexPartition, ...] = (
    FilesPartition(),
    ColumnStatsPartition(),
    BloomFiltersPartition(),
    RecordIndexPartition(),
    PartitionStatsPartition(),
    SecondaryIndexPartition(),
    ExpressionIndexPartition(),
)


_BY_KIND: Mapping[PartitionKind | None, IndexPartition] = {partition.kind: partition for partition in INDEX_PARTITIONS}


def partition_named(name: str) -> IndexPartition | None:
    """Return the implementation of the index partition `name`, or None if this package does not implement it."""
    return _BY_KIND.get(partition_kind(name))
