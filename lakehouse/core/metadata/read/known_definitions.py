"""The index definitions of a metadata table; statistics of Hudi 0.x get a derived definition (MDT-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow.compute as pc

from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.read.table import COLUMN_STATS, MetadataTable


def known_definitions(metadata: MetadataTable) -> Mapping[str, Definition]:
    """Return the index definitions; a missing definition of `column_stats` is derived from the stored records.

    Hudi stores definitions since 1.0, and an upgrade of an older table adds none. The records of one file group are in
    memory at a time.
    """
    stored = metadata.definitions
    is_known = COLUMN_STATS in stored and metadata.layout.stores_definitions
    if is_known or COLUMN_STATS not in metadata.usable:
        return stored
    return {**stored, **stored_columns(metadata, stored)}


def stored_columns(metadata: MetadataTable, stored: Mapping[str, Definition]) -> dict[str, Definition]:
    """Return the definition of `column_stats` with the columns that have records, after those that `stored` has."""
    columns, has_value_types = set[str](), False
    for _, rows in metadata.records_of_groups(COLUMN_STATS):
        columns.update(pc.unique(rows.column("column")).to_pylist())
        has_value_types |= rows.column("type_ordinal").null_count < rows.num_rows
    definition = Definition(
        index_type=COLUMN_STATS,
        function=COLUMN_STATS,
        source_fields=tuple(sorted(columns)),
        version="V2" if has_value_types and metadata.layout.stores_definitions else "V1",
    )
    if COLUMN_STATS in stored:
        names = dict.fromkeys((*stored[COLUMN_STATS].source_fields, *definition.source_fields))
        definition = replace(stored[COLUMN_STATS], source_fields=tuple(names))
    return {COLUMN_STATS: definition}
