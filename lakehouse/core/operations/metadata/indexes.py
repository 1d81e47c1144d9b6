"""List the indexes of a table: the index of writers, and the indexes of the metadata table (MDT-6, MDT-7)."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.read.known_definitions import known_definitions
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.metadata.show import expression_of, show_metadata
from lakehouse.core.operations.services import index
from lakehouse.core.planning.indexing import FILES, PARTITION_STATS, RECORD_INDEX, in_build_order, is_named_index
from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.index_type import IndexType
from lakehouse.model.indexing import (
    BLOOM_FILTERS,
    COLUMN_STATS,
)
from lakehouse.model.metadata_report import MetadataPartition
from lakehouse.model.partition_kind import PartitionKind, index_name, partition_kind
from lakehouse.spec.contracts.indexes import IndexInfo, IndexState, TableIndexes
from lakehouse.spec.options.policies import Policies

_KINDS = {
    FILES: "file listing",
    COLUMN_STATS: "column statistics",
    BLOOM_FILTERS: "bloom filters",
    RECORD_INDEX: "record index",
    PARTITION_STATS: "partition statistics",
    PartitionKind.SECONDARY_INDEX: "secondary index",
    PartitionKind.EXPRESSION_INDEX: "expression index",
}


def table_indexes(table: LoadedTable, policies: Policies) -> TableIndexes:
    """Return the index of writers, and the indexes of the metadata table that exist or are declared; reads no rows."""
    summary, due = show_metadata(table), index.due(table, policies)
    definitions = _definitions(table)
    stored = {part.partition: part for part in summary.partitions}
    names = in_build_order([*stored, *due.missing, *filter(is_named_index, definitions)])
    return TableIndexes(
        table=table.config.name,
        indexes=(
            _writer_index(table, policies.index.index_type),
            *(_stored_index(name, stored.get(name), definitions, table.config) for name in names),
        ),
    )


def _definitions(table: LoadedTable) -> Mapping[str, Definition]:
    """Return the stored definitions; if the table stores none, with the columns that have statistics."""
    if not table.config.layout.stores_definitions:
        derived = from_metadata(table, COLUMN_STATS, known_definitions)
        if derived is not None:
            return derived
    return read_definitions(table.env.storage)


def _writer_index(table: LoadedTable, kind: IndexType) -> IndexInfo:
    return IndexInfo(
        name=kind.label,
        kind="writer index",
        state=IndexState.IN_USE,
        columns=tuple(table.config.keys.record_key_fields),
    )


def _stored_index(
    name: str, part: MetadataPartition | None, definitions: Mapping[str, Definition], config: TableConfig
) -> IndexInfo:
    definition = definitions.get(name)
    columns = () if definition is None else definition.source_fields
    kind = _KINDS.get(partition_kind(name) or "", "unknown")
    if partition_kind(name) is PartitionKind.EXPRESSION_INDEX and definition is not None and definition.index_type:
        kind = f"{kind}, {_KINDS.get(definition.index_type, definition.index_type)}"
    reason = "`lakehouse index run` builds it" if part is None else part.reason
    return IndexInfo(
        name=index_name(name),
        kind=kind,
        state=_state(part),
        columns=config.keys.record_key_fields if name == RECORD_INDEX else columns,
        expression="" if definition is None else expression_of(definition),
        partition=name,
        bytes=None if part is None else part.bytes,
        reason=reason,
    )


def _state(part: MetadataPartition | None) -> IndexState:
    if part is None:
        return IndexState.DECLARED
    if part.state == "building":
        return IndexState.BUILDING
    return IndexState.UNUSABLE if part.reason else IndexState.IN_USE
