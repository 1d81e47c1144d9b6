"""The index definitions of a metadata table; statistics of Hudi 0.x get a derived definition (MDT-6)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.metadata.keys import HASH64_CHARS
from lakehouse.core.format.metadata.statistics import STAT_ROWS
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.read.layers import DECODED_ROWS, FileLayer, Select, decoded_layer
from lakehouse.core.metadata.read.table import COLUMN_STATS, MetadataTable
from lakehouse.core.metadata.read.unusable import reading
from lakehouse.core.metadata.record_kinds import STATISTICS


def known_definitions(metadata: MetadataTable) -> Mapping[str, Definition]:
    """Return the index definitions; a missing definition of `column_stats` is derived from the stored records.

    Hudi stores definitions since 1.0, and an upgrade of an older table adds none.
    """
    stored = metadata.definitions
    is_known = COLUMN_STATS in stored and metadata.layout.stores_definitions
    if is_known or COLUMN_STATS not in metadata.usable:
        return stored
    return {**stored, **stored_columns(metadata, stored)}


def stored_columns(metadata: MetadataTable, stored: Mapping[str, Definition]) -> dict[str, Definition]:
    """Return the definition of `column_stats` with the columns that have records, after those that `stored` has.

    Of a large base file only the blocks are read in which the records of a column end.
    """
    columns, has_value_types = set[str](), False
    with reading():
        for slice_ in metadata.slices(COLUMN_STATS):
            rows = _sample(metadata.layers(COLUMN_STATS, slice_.file_id))
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


def _sample(layers: list[FileLayer]) -> pa.Table:
    """Return some merged records of a file group, with one at least for each column that has any."""
    parts, gone = [STAT_ROWS.empty_table()], pa.array([], pa.binary())
    for number, layer in reversed([*enumerate(layers)]):
        is_large_base = number == 0 and layer.hfile is not None and layer.count > DECODED_ROWS
        if not layer.has_entries:
            deleted = pa.array([], pa.binary()) if layer.deletes is None else layer.deletes.cast(pa.binary())
        elif is_large_base:
            parts.append(_ends_of_columns(layer, gone))
            continue
        else:
            rows = decoded_layer(layer, STATISTICS.decode, Select(), STAT_ROWS).rows
            parts.append(_live(rows, gone))
            deleted = rows.filter(rows.column("deleted")).column("key").combine_chunks().cast(pa.binary())
        if len(deleted):
            gone = pa.concat_arrays([gone, *(deleted.chunks if isinstance(deleted, pa.ChunkedArray) else [deleted])])
    return pa.concat_tables(parts)


def _live(rows: pa.Table, gone: pa.Array) -> pa.Table:
    """Return the rows that are neither deleted nor among the keys that newer layers delete."""
    is_gone = pc.or_(pc.is_in(rows.column("key").cast(pa.binary()), value_set=gone), rows.column("deleted"))
    return rows.filter(pc.invert(is_gone))


def _ends_of_columns(layer: FileLayer, gone: pa.Array) -> pa.Table:
    """Return live records of each column in a base file; all records of a column only if the first ones are deleted."""
    file, text = layer.hfile, layer.schema
    assert file is not None, "a base file has entries"
    if text is None:
        return decoded_layer(layer, STATISTICS.decode, Select(), STAT_ROWS).rows
    entries = file.last_of_prefixes(HASH64_CHARS)
    remaining = entries.filter(pc.invert(pc.is_in(entries.column("key"), value_set=gone)))
    stored, live = (np.unique(_prefixes(table)) for table in (entries, remaining))
    deleted = np.setdiff1d(stored, live)
    rest = file.find_prefixes(pa.array(deleted, pa.binary())) if len(deleted) else entries.slice(0, 0)
    # One record for each column is enough to know its name.
    chosen = pa.concat_tables([_one_of_each(remaining), rest]).combine_chunks()
    return _live(STATISTICS.decode(chosen, text), gone)


def _one_of_each(entries: pa.Table) -> pa.Table:
    _, places = np.unique(_prefixes(entries), return_index=True)
    return entries.take(pa.array(np.sort(places)))


def _prefixes(entries: pa.Table) -> np.ndarray:
    """Return the part of each key that is the hash of the column."""
    return np.asarray(pc.binary_slice(entries.column("key"), 0, HASH64_CHARS).to_numpy(zero_copy_only=False), "S")
