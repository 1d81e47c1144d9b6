"""How the records of an index partition are decoded, merged and encoded (MDT-4, MDT-5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.entries import Entries, entry_count, entry_table
from lakehouse.core.format.hfile.reader import ENTRIES
from lakehouse.core.format.hfile.writer import LOOKED_UP, SCANNED, Layout
from lakehouse.core.format.metadata.locations import decode_locations, encode_locations
from lakehouse.core.format.metadata.merge import Layer, merge_files, merge_latest, merge_statistics
from lakehouse.core.format.metadata.records import (
    decode_blooms,
    decode_file_parts,
    decode_files,
    decode_secondary,
    encode_blooms,
    encode_files,
    encode_secondary,
)
from lakehouse.core.format.metadata.schema import SCHEMA, RecordSchema, is_current
from lakehouse.core.format.metadata.statistics import decode_statistics, decode_statistics_parts, encode_statistics
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.errors import UnsupportedError

_BLOOM_INDEX = "bloom_filters"
_EXPRESSION = "expr_index_"
_SECONDARY = "secondary_index_"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordKind:
    """Records of one kind as Arrow tables.

    Attributes:
        decode: Entries and the schema of their file to rows; rows have a column `key`.
        merge: The layers of a file slice, oldest first, to merged rows.
        encode: Rows to entries.
        decode_parts: Several tables of entries with one schema to rows of each, with one call of the decoder, whose
            cost hardly depends on the number of entries; None if the decoder drops entries.
        layout: How base files with such records are stored.
        replaces: Which rows replace all older rows of their key; None if the versions of a record are always merged.
            Rows have a column `deleted` then.
    """

    decode: Callable[[pa.Table, str], pa.Table]
    merge: Callable[[Sequence[Layer]], pa.Table]
    encode: Callable[[pa.Table], pa.Table]
    decode_parts: Callable[[Sequence[pa.Table], str], list[pa.Table]] | None = None
    layout: Layout = SCANNED
    replaces: Callable[[pa.Table], pa.ChunkedArray] | None = None


FILES = RecordKind(
    decode=decode_files,
    merge=merge_files,
    encode=encode_files,
    decode_parts=decode_file_parts,
)
STATISTICS = RecordKind(
    decode=decode_statistics,
    merge=merge_statistics,
    encode=encode_statistics,
    decode_parts=decode_statistics_parts,
    replaces=lambda rows: pc.or_(rows.column("tight"), rows.column("deleted")),
)
BLOOMS = RecordKind(decode=decode_blooms, merge=merge_latest, encode=encode_blooms)
LOCATIONS = RecordKind(decode=decode_locations, merge=merge_latest, encode=encode_locations, layout=LOOKED_UP)
SECONDARY = RecordKind(decode=decode_secondary, merge=merge_latest, encode=encode_secondary, layout=LOOKED_UP)

_BY_NAME = {
    "files": FILES,
    "column_stats": STATISTICS,
    "partition_stats": STATISTICS,
    _BLOOM_INDEX: BLOOMS,
    "record_index": LOCATIONS,
}


def written_schema(partition: str, definitions: Mapping[str, Definition], records: RecordSchema) -> str:
    """Return the Avro schema of the records in a new file of an index partition.

    Args:
        partition: The index partition.
        definitions: The index definitions.
        records: The record schema of the metadata table.
    """
    definition = definitions.get(partition) or definitions.get("column_stats")
    has_value_types = definition is not None and definition.version == "V2"
    return SCHEMA if has_value_types and record_kind(partition, definition) is STATISTICS else records.files


def in_schema(entries: Entries, kind: RecordKind, schema: str) -> Entries:
    """Return entries with the form of records in memory in the form of a schema; only statistics differ."""
    if kind is not STATISTICS or is_current(schema) or not entry_count(entries):
        return entries
    return encode_statistics(decode_statistics(entry_table(entries), SCHEMA), schema).cast(ENTRIES)


def record_kind(partition: str, definition: Definition | None) -> RecordKind:
    """Return the kind of records of an index partition.

    Raises:
        UnsupportedError: This package does not know the partition.
    """
    if partition in _BY_NAME:
        return _BY_NAME[partition]
    if partition.startswith(_SECONDARY):
        return SECONDARY
    if partition.startswith(_EXPRESSION) and definition is not None:
        return BLOOMS if definition.index_type == _BLOOM_INDEX else STATISTICS
    raise UnsupportedError(f"the index partition {partition!r} of the metadata table is of an unknown kind")
