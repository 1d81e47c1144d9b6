"""The registry of index partitions, in the order in which a table initialises them (MDT-2)."""

from __future__ import annotations

from lakehouse.core.metadata.partitions.bloom_filters import BloomFiltersPartition
from lakehouse.core.metadata.partitions.column_stats import ColumnStatsPartition
from lakehouse.core.metadata.partitions.expression_index import ExpressionIndexPartition
from lakehouse.core.metadata.partitions.files import FilesPartition
from lakehouse.core.metadata.partitions.partition_stats import PartitionStatsPartition
from lakehouse.core.metadata.partitions.protocol import IndexPartition
from lakehouse.core.metadata.partitions.record_index import RecordIndexPartition
from lakehouse.core.metadata.partitions.secondary_index import SecondaryIndexPartition

INDEX_PARTITIONS: tuple[IndexPartition, ...] = (
    FilesPartition(),
    ColumnStatsPartition(),
    BloomFiltersPartition(),
    RecordIndexPartition(),
    PartitionStatsPartition(),
    SecondaryIndexPartition(),
    ExpressionIndexPartition(),
)


def partition_named(name: str) -> IndexPartition | None:
    """Return the implementation of the index partition `name`, or None if this package has none."""
    return next((kind for kind in INDEX_PARTITIONS if kind.is_named(name)), None)
