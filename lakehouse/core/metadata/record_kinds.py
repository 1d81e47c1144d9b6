"""Defines how records of an index partition are decoded, merged and encoded (MDT-4, MDT-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.entries import ENTRIES, Entries, entry_count, entry_table
from lakehouse.core.format.hfile.writer import LOOKED_UP, SCANNED, Layout
from lakehouse.core.format.metadata.locations import LOCATION_ROWS, decode_locations, encode_locations
from lakehouse.core.format.metadata.merge import Layer, merge_files, merge_latest, merge_statistics
from lakehouse.core.format.metadata.records import (
    BLOOM_ROWS,
    FILE_ROWS,
    SECONDARY_ROWS,
    decode_blooms,
    decode_file_parts,
    decode_files,
    decode_secondary,
    encode_blooms,
    encode_files,
    encode_secondary,
)
from lakehouse.core.format.metadata.schema import SCHEMA, RecordSchema, is_current, lacks_value_types
from lakehouse.core.format.metadata.statistics import (
    STAT_ROWS,
    decode_statistics,
    decode_statistics_parts,
    encode_statistics,
    without_value_types,
)
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.errors import UnsupportedError
from lakehouse.model.indexing import BLOOM_FILTERS
from lakehouse.model.partition_kind import PartitionKind, partition_kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """Records of one kind as Arrow tables.

    Attributes:
        rows: The schema of rows.
        decode: Converts entries and the schema of their file to rows with a column `key`.
        merge: Converts the layers of a file slice, oldest first, to merged rows.
        encode: Converts rows to entries.
        decode_parts: Converts several tables of entries with the same schema to rows, with one call of the decoder,
            because its cost hardly depends on the number of entries; None if the decoder drops entries.
        layout: How base files with such records are stored.
        replaces: Returns which rows replace all older rows with the same key; None if the versions of a record are
            always merged. If it is set, rows have a column `deleted`.
    """

    rows: pa.Schema
    decode: Callable[[pa.Table, str], pa.Table]
    merge: Callable[[Sequence[Layer]], pa.Table]
    encode: Callable[[pa.Table], pa.Table]
    decode_parts: Callable[[Sequence[pa.Table], str], list[pa.Table]] | None = None
    layout: Layout = SCANNED
    replaces: Callable[[pa.Table], pa.ChunkedArray] | None = None


FILES = RecordKind(
    rows=FILE_ROWS,
    decode=decode_files,
    merge=merge_files,
    encode=encode_files,
    decode_parts=decode_file_parts,
)
STATISTICS = RecordKind(
    rows=STAT_ROWS,
    decode=decode_statistics,
    merge=merge_statistics,
    encode=encode_statistics,
    decode_parts=decode_statistics_parts,
    replaces=lambda rows: pc.or_(rows.column("tight"), rows.column("deleted")),
)
BLOOMS = RecordKind(rows=BLOOM_ROWS, decode=decode_blooms, merge=merge_latest, encode=encode_blooms)
LOCATIONS = RecordKind(
    rows=LOCATION_ROWS, decode=decode_locations, merge=merge_latest, encode=encode_locations, layout=LOOKED_UP
)
SECONDARY = RecordKind(
    rows=SECONDARY_ROWS, decode=decode_secondary, merge=merge_latest, encode=encode_secondary, layout=LOOKED_UP
)

_BY_KIND: Mapping[PartitionKind | None, RecordKind] = {
    PartitionKind.FILES: FILES,
    PartitionKind.COLUMN_STATS: STATISTICS,
    PartitionKind.PARTITION_STATS: STATISTICS,
    PartitionKind.BLOOM_FILTERS: BLOOMS,
    PartitionKind.RECORD_INDEX: LOCATIONS,
    PartitionKind.SECONDARY_INDEX: SECONDARY,
}


def written_schema(partition: str, definitions: Mapping[str, Definition], records: RecordSchema) -> str:
    """Return the Avro schema of the records in a new file of an index partition.

    Args:
        partition: The index partition.
        definitions: The index definitions.
        records: The record schema of the metadata table.
    """
    definition = definitions.get(partition) or definitions.get(PartitionKind.COLUMN_STATS)
    has_value_types = definition is not None and definition.version == "V2"
    return SCHEMA if has_value_types and record_kind(partition, definition) is STATISTICS else records.files


def in_schema(entries: Entries, kind: RecordKind, schema: str) -> Entries:
    """Convert entries from the form in memory to the form of a schema. Only statistics records differ."""
    if kind is not STATISTICS or is_current(schema) or not entry_count(entries):
        return entries
    untyped = without_value_types(entries) if lacks_value_types(schema) else None
    if untyped is not None:
        return untyped
    return encode_statistics(decode_statistics(entry_table(entries), SCHEMA), schema).cast(ENTRIES)


def record_kind(partition: str, definition: Definition | None) -> RecordKind:
    """Return the kind of records in an index partition.

    Raises:
        UnsupportedError: This package does not know the partition.
    """
    kind = partition_kind(partition)
    if kind is PartitionKind.EXPRESSION_INDEX and definition is not None:
        return BLOOMS if definition.index_type == BLOOM_FILTERS else STATISTICS
    records = _BY_KIND.get(kind)
    if records is None:
        raise UnsupportedError(f"the index partition {partition!r} of the metadata table is of an unknown kind")
    return records
