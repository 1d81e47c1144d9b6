"""The registry of index partitions, in the order in which a table initialises them (MDT-2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.metadata.partitions.bloom_filters import BloomFiltersPartition
from lakehouse.core.metadata.partitions.column_stats import ColumnStatsPartition
from lakehouse.core.metadata.partitions.expression_index import ExpressionIndexPartition
from lakehouse.core.metadata.partitions.files import FilesPartition
from lakehouse.core.metadata.partitions.partition_stats import PartitionStatsPartition
from lakehouse.core.metadata.partitions.protocol import Definition, IndexPartition
from lakehouse.core.metadata.partitions.record_index import RecordIndexPartition, is_partitioned_by
from lakehouse.core.metadata.partitions.secondary_index import SecondaryIndexPartition
from lakehouse.core.state.table_config import TableConfig
from lakehouse.errors import UnsupportedError
from lakehouse.model.partition_kind import PartitionKind, partition_kind
from lakehouse.spec.options.indexing import PARTITIONED_RECORD_INDEX_ENABLE, RECORD_INDEX_ENABLE
from lakehouse.spec.options.policies import Policies

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


def partition_refusal(name: str, config: TableConfig, definition: Definition | None) -> str | None:
    """Return why this package cannot maintain an index partition of a table, or None if it can."""
    partition = partition_named(name)
    if partition is None:
        return "this package has no implementation of it"
    if partition.kind not in config.layout.index_kinds or _has_newer_options(config, definition):
        return f"other writers of tables of version {config.version} do not maintain it"
    return partition.refusal(name, config, definition)


def maintained_names(names: Iterable[str], layout: TableLayout) -> tuple[str, ...]:
    """Return the index partitions among `names` that writers of a table version maintain, in the same order."""
    return tuple(name for name in names if partition_kind(name) in layout.index_kinds)


def wanted_partitions(policies: Policies, config: TableConfig) -> list[str]:
    """Return the index partitions that the options declare, in the order in which a table initialises them.

    Raises UnsupportedError for a record index that writers of the table version do not maintain.
    """
    if policies.indexing.partitioned_record_index and not config.layout.stores_definitions:
        raise UnsupportedError(
            f"{PARTITIONED_RECORD_INDEX_ENABLE}=true: a record index for each partition is not maintained by other "
            f"writers of tables of version {config.version}; use {RECORD_INDEX_ENABLE}=true, which has one index for "
            "the table, or an index type such as SIMPLE or BLOOM, or create a table of version 9"
        )
    kinds = [partition for partition in INDEX_PARTITIONS if partition.kind in config.layout.index_kinds]
    return [name for partition in kinds for name in partition.wanted(policies, config)]


def _has_newer_options(config: TableConfig, definition: Definition | None) -> bool:
    """Return whether an index has one index for each partition of the table, which is newer than its version."""
    return not config.layout.stores_definitions and is_partitioned_by(definition)


def partition_named(name: str) -> IndexPartition | None:
    """Return the implementation of the index partition `name`, or None if this package does not implement it."""
    return _BY_KIND.get(partition_kind(name))
