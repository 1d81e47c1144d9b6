"""The index partition `column_stats`: bounds and counts per file and indexed column (MDT-4, MDT-14).

A file has a row for every indexed column or for none: readers take a missing column of a known file as all null. A log
file has no row if its rows lack columns, or if the table mixes values from several record versions: a merged row may
match although neither of its versions does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.metadata.groups import metadata_file_id, shards
from lakehouse.core.format.metadata.keys import column_stats_keys
from lakehouse.core.format.metadata.statistics import STAT_ROWS, encode_statistics, statistics_of
from lakehouse.core.metadata.partitions.file_statistics import (
    COLUMN_STATS,
    FileBounds,
    bounds_of_commit,
    bounds_of_live,
    column_values,
    columns_by_type,
    columns_to_delete,
    definition_of_new,
    indexed_columns,
    indexed_types,
    is_mixed,
    lacks_columns,
)
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.state.data_files import one_array
from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies


class ColumnStatsPartition:
    """One record per file and indexed column."""

    kind = PartitionKind.COLUMN_STATS

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        return None if definition is not None else "it has no index definition, so its columns are not known"

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        policy = policies.transaction.metadata
        return (COLUMN_STATS,) if policy.enable and policy.column_stats else ()

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        return definition_of_new(table)

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        return [
            metadata_file_id(COLUMN_STATS, number)
            for number in range(table.policies.transaction.metadata.column_stats_groups)
        ]

    def build(self, name: str, table: TableFiles) -> pa.Table:
        definition = table.definitions[COLUMN_STATS]
        described = table.newest if table.described is None else table.described
        files = bounds_of_live(table.env.storage, described, definition.source_fields, table.schema)
        held = complete_files(files, table.config, definition, table.schema)
        return _entries(held, definition, table.schema)

    def update(self, name: str, commit: MetadataCommit) -> Update:
        definition = indexed_columns(commit)
        bounds = bounds_of_commit(commit, definition.source_fields)
        deletes = [deleted_keys(commit.change.removed, definition.source_fields)]
        gone = columns_to_delete(commit)
        if gone:
            deletes.append(one_array(commit.reader().ranges(gone).column("key").cast(pa.binary())))
        held = complete_files(bounds, commit.config, definition, commit.schema)
        return Update(
            # A file's row never changes, so it is harmless if a concurrent build of the partition also contains it.
            entries=_entries(held, definition, commit.schema, tight=commit.is_building),
            deletes=pa.concat_arrays(deletes).unique(),
            definition=definition,
        )

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        return pa.array(shards(keys, len(groups)))


def complete_files(
    files: Sequence[FileBounds], config: TableConfig, definition: Definition, schema: pa.Schema | None
) -> list[FileBounds]:
    """Return the files with rows in `column_stats`; `schema` has the data columns of the table."""
    if lacks_columns(config.layout, definition, schema):
        return []
    mixed = is_mixed(config)
    return [file for file in files if _is_complete(file, definition.source_fields, mixed=mixed)]


def _entries(
    held: Sequence[FileBounds], definition: Definition, schema: pa.Schema | None, *, tight: bool = False
) -> pa.Table:
    names, partitions = [file.name for file in held], [file.partition for file in held]
    by_type = columns_by_type(definition.source_fields if held else (), indexed_types(schema))
    columns = [column for of_type in by_type.values() for column in of_type]
    keys = _keys(columns, pa.array(partitions, pa.string()), pa.array(names, pa.string()))
    tables, start = [], 0
    for kind, of_type in by_type.items():
        values = column_values(held, names, of_type, kind, tight=tight)
        of_rows = pa.array(of_type, pa.string()).take(pa.array(np.repeat(np.arange(len(of_type)), len(held))))
        of_keys = keys.slice(start, values.num_rows)
        tables.append(statistics_of(values, of_rows, of_keys, version=definition.version))
        start += values.num_rows
    return encode_statistics(pa.concat_tables(tables) if tables else STAT_ROWS.empty_table())


def _is_complete(file: FileBounds, columns: Sequence[str], *, mixed: bool) -> bool:
    """Return whether a file may have rows in the index: all its bounds are known, and its rows are complete records."""
    if file.bounds is None or file.is_partial or (file.is_log and mixed):
        return False
    return all(file.bounds[name].known for name in columns if name in file.bounds)


def deleted_keys(removed: pa.Table, columns: Sequence[str]) -> pa.Array:
    """Return the keys of removed files; change logs have no rows."""
    if not removed.num_rows:
        return pa.array([], pa.binary())
    files = removed.filter(pc.invert(pc.ends_with(removed.column("name"), ".cdc"))).combine_chunks()
    partitions, names = (_one_array(files.column(name)) for name in ("partition", "name"))
    return _keys(columns, partitions, names).cast(pa.binary())


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def _keys(columns: Sequence[str], partitions: pa.Array, names: pa.Array) -> pa.Array:
    """Return the record keys of files, column by column. File names are hashed once for all columns."""
    if not columns or not len(names):
        return pa.array([], pa.string())
    of_rows = pa.array(np.repeat(np.arange(len(columns)), len(names)))
    of_files = pa.array(np.tile(np.arange(len(names)), len(columns)))
    return column_stats_keys(
        pa.array(columns, pa.string()).take(of_rows), partitions.take(of_files), names.take(of_files)
    )
