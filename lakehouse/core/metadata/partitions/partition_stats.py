"""The index partition `partition_stats`: bounds and counts per partition and indexed column (MDT-4, MDT-14).

A build computes tight rows from the files in the newest slices. A commit that only adds files to a partition widens its
rows. A commit that supersedes files computes the rows of the partition (`live_statistics`), or widens them if that is
not possible: the bounds may then be wider than the values in the newest rows, never narrower. Rows of a partition
without files are deleted. If a column's type changed, stored rows with bounds of the old type are converted first.

A commit reads the rows that it widens, and writes complete rows that replace them (`tight`). Without reading, a commit
could write partial rows that readers merge. But Hudi fails to merge a row of nulls with a row of values, because their
types differ. While an older write is pending, a commit writes partial rows, because a complete row would replace the
rows of the older write, which completes later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.column_bounds import united
from lakehouse.core.format.metadata.bounds import BYTES, NULL_TYPE, STRING, value_type
from lakehouse.core.format.metadata.groups import metadata_file_id, shards
from lakehouse.core.format.metadata.keys import partition_stats_keys
from lakehouse.core.format.metadata.merge import widened_statistics
from lakehouse.core.format.metadata.records import sorted_by_key
from lakehouse.core.format.metadata.statistics import (
    STAT_ROWS,
    encode_statistics,
    retyped_statistics,
    statistics_of,
)
from lakehouse.core.metadata.partitions.file_statistics import (
    COLUMN_STATS,
    FileBounds,
    absent,
    bounds_of_commit,
    bounds_of_files,
    bounds_of_live,
    bounds_table,
    columns_by_type,
    indexed_columns,
    indexed_types,
    unsupported_columns,
)
from lakehouse.core.metadata.partitions.live_statistics import live_statistics
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.state.data_files import one_array
from lakehouse.core.state.table_config import TableConfig
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import ColumnBounds, Operation
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

PARTITION_STATS = "partition_stats"
_TEXTS = pa.array([STRING, BYTES], pa.int8())


class PartitionStatsPartition:
    """One record per partition and indexed column; it uses the columns of `column_stats`."""

    kind = PartitionKind.PARTITION_STATS

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        if config.is_merge_on_read and config.merge_rule.merger is not None:
            return "the merger of the table may return values that no file has"
        return None

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        policy = policies.transaction.metadata
        if not (policy.enable and policy.column_stats and config.is_partitioned):
            return ()
        return () if self.refusal(PARTITION_STATS, config, None) else (PARTITION_STATS,)

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        return None

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        groups = table.policies.transaction.metadata.partition_stats_groups
        return [metadata_file_id(PARTITION_STATS, number) for number in range(groups)]

    def build(self, name: str, table: TableFiles) -> pa.Table:
        definition = table.definitions[COLUMN_STATS]
        files = bounds_of_files(table, definition.source_fields)
        return encode_statistics(_rows(files, definition, table.schema, tight=True))

    def update(self, name: str, commit: MetadataCommit) -> Update:
        update, unsupported = self._updated(commit), unsupported_columns(commit)
        if not unsupported:
            return update
        keys = one_array(commit.reader().partition_ranges(unsupported).column("key").cast(pa.binary()))
        return replace(update, deletes=pa.concat_arrays([update.deletes.cast(pa.binary()), keys]))

    def _updated(self, commit: MetadataCommit) -> Update:
        definition = indexed_columns(commit)
        gone = emptied_partitions(commit)
        bounds = bounds_of_commit(commit, definition.source_fields)
        if not commit.is_last:
            files = [file for file in bounds if file.partition not in gone]
            entries = encode_statistics(_rows(files, definition, commit.schema, tight=False))
            return Update(entries=entries, deletes=_keys(definition.source_fields, sorted(gone)))
        live = live_statistics(commit, definition.source_fields, indexed_types(commit.schema), bounds)
        gone |= set(live.empty)
        computed = {column: {*gone, *_names(live.columns.get(column))} for column in definition.source_fields}
        widened = _rows(bounds, definition, commit.schema, tight=False, computed=computed)
        if widened.num_rows:
            keys = widened.column("key").combine_chunks().cast(pa.binary())
            stored = commit.reader().found(PARTITION_STATS, keys.take(pc.sort_indices(keys)))
            stored = retyped_statistics(stored, indexed_types(commit.schema), definition.version)
            doubtful = _doubtful(stored, widened)
            if doubtful.num_rows:
                widened = widened.filter(pc.invert(pc.is_in(widened.column("key"), value_set=doubtful.column("key"))))
            widened = pa.concat_tables(
                [_widened(stored, widened, commit.schema), _from_files(commit, definition, doubtful)]
            )
        tight = [
            _stat_rows(values, pa.repeat(pa.scalar(column), values.num_rows), definition)
            for column, values in live.columns.items()
            if values.num_rows
        ]
        rows = sorted_by_key(pa.concat_tables([widened, *tight])).combine_chunks()
        return Update(entries=encode_statistics(rows), rows=rows, deletes=_keys(definition.source_fields, sorted(gone)))

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        return pa.array(shards(keys, len(groups)))


def emptied_partitions(commit: MetadataCommit) -> set[str]:
    """Return the partitions that the action removes, or in which it removes all files."""
    gone = set(commit.change.removed_partitions)
    if commit.change.operation == Operation.DELETE_PARTITION:
        gone |= set(commit.change.touched_partitions)
    return gone


def _rows(
    files: Sequence[FileBounds],
    definition: Definition,
    schema: pa.Schema | None,
    *,
    tight: bool,
    computed: Mapping[str, Collection[str]] | None = None,
) -> pa.Table:
    """Return the rows for the partitions with these files. `computed` contains the partitions to skip, by column."""
    of_partition = dict[str, list[FileBounds]]()
    for file in files:
        of_partition.setdefault(file.partition, []).append(file)
    partitions = sorted(of_partition)
    tables = []
    by_type = columns_by_type(definition.source_fields if partitions else (), indexed_types(schema))
    for kind, columns in by_type.items():
        wanted = [
            (column, name) for column in columns for name in partitions if name not in (computed or {}).get(column, ())
        ]
        bounds = [bounds_of_column(of_partition[name], column) for column, name in wanted]
        values = bounds_table([name for _, name in wanted], bounds, kind, tight=tight)
        tables.append(_stat_rows(values, pa.array([column for column, _ in wanted], pa.string()), definition))
    return pa.concat_tables(tables) if tables else STAT_ROWS.empty_table()


def _names(rows: pa.Table | None) -> list[str]:
    return [] if rows is None else list(rows.column("name").to_pylist())


def _stat_rows(values: pa.Table, columns: pa.Array, definition: Definition) -> pa.Table:
    keys = partition_stats_keys(columns, values.column("name"))
    return statistics_of(values, columns, keys, version=definition.version, partition_stats=True)


def _widened(stored: pa.Table, loose: pa.Table, schema: pa.Schema | None) -> pa.Table:
    """Add the bounds and counts of stored rows to new rows. A row with bounds has the type of its column."""
    if not loose.num_rows:
        return loose
    # New rows without bounds have nulls only. Without counts they change no bound, even of a string column.
    nulls = _is_all_null(loose)
    counts = {name: pc.if_else(nulls, loose.column(name), 0) for name in ("value_count", "null_count")}
    for name in counts:
        rest = pc.if_else(nulls, 0, loose.column(name))
        loose = loose.set_column(loose.schema.get_field_index(name), loose.schema.field(name), rest)
    merged = widened_statistics(stored, loose).combine_chunks()
    place = pc.index_in(merged.column("key"), value_set=one_array(loose.column("key")))
    for name, added in counts.items():
        total = pc.add(merged.column(name).fill_null(0), one_array(added).take(place))
        merged = merged.set_column(merged.schema.get_field_index(name), merged.schema.field(name), total)
    position = merged.schema.get_field_index("tight")
    merged = merged.set_column(position, merged.schema.field(position), pa.repeat(pa.scalar(True), merged.num_rows))
    kinds = {name: value_type(kind) for name, kind in indexed_types(schema).items()}
    place = pc.index_in(merged.column("column"), value_set=pa.array(list(kinds), pa.string()))
    is_null_type = pc.equal(merged.column("type_ordinal"), NULL_TYPE)
    is_mistyped = pc.and_(is_null_type, pc.not_equal(merged.column("min_wrapper"), 0)).fill_null(False)
    for number, name in ((0, "type_ordinal"), (1, "type_info")):
        field = merged.schema.field(name)
        typed = pa.array([None if kind is None else kind[number] for kind in kinds.values()], field.type).take(place)
        chosen = pc.if_else(is_mistyped, typed, merged.column(name))
        merged = merged.set_column(merged.schema.get_field_index(name), field, chosen)
    return merged


def _is_all_null(rows: pa.Table) -> pa.ChunkedArray:
    """Return whether rows have no bounds and only nulls."""
    has_none = pc.and_(pc.equal(rows.column("min_wrapper"), 0), pc.equal(rows.column("max_wrapper"), 0))
    return pc.and_(has_none, pc.equal(rows.column("value_count"), rows.column("null_count"))).fill_null(False)


def _doubtful(stored: pa.Table, loose: pa.Table) -> pa.Table:
    """Return the new rows whose stored row has no bounds but may describe values.

    The stored row of a string column may be a row of nulls, or a row of Hudi for strings whose bounds the footer omits
    (MDT-14). Bounds that cannot be converted to the column type are missing as well. If a partition contains values
    that are not null, a row without bounds would make Hudi skip it.
    """
    is_text = pc.is_in(loose.column("min_wrapper"), value_set=_TEXTS)
    lacks = pc.or_(pc.equal(stored.column("min_wrapper"), 0), pc.equal(stored.column("max_wrapper"), 0))
    has_values = pc.not_equal(stored.column("value_count"), stored.column("null_count")).fill_null(True)
    empty, unknown = (stored.filter(flags).column("key") for flags in (lacks, pc.and_(lacks, has_values)))
    keys = loose.column("key")
    return loose.filter(
        pc.or_(
            pc.and_(is_text, pc.is_in(keys, value_set=one_array(empty))), pc.is_in(keys, value_set=one_array(unknown))
        )
    )


def _from_files(commit: MetadataCommit, definition: Definition, doubtful: pa.Table) -> pa.Table:
    """Compute these rows from the files in the newest slices of their partitions."""
    if not doubtful.num_rows:
        return STAT_ROWS.empty_table()
    partitions = set(doubtful.column("name").to_pylist())
    live = commit.live_files(sorted(partitions))
    if live is None:
        partition, column = doubtful.column("name")[0].as_py(), doubtful.column("column")[0].as_py()
        raise UnsupportedError(
            f"the newest files of partition {partition!r} cannot be determined, so the bounds of {column!r} in "
            f"{PARTITION_STATS} would be wrong; drop it with `lakehouse index drop` and build it again",
            column=column,
        )
    wanted: dict[str, set[str]] = {}
    for column, partition in zip(*(doubtful.column(n).to_pylist() for n in ("column", "name")), strict=True):
        wanted.setdefault(column, set()).add(partition)
    files = bounds_of_live(commit.env.storage, live, sorted(wanted), commit.schema)
    tables = [
        _rows(
            files,
            replace(definition, source_fields=(column,)),
            commit.schema,
            tight=True,
            computed={column: partitions - paths},
        )
        for column, paths in wanted.items()
    ]
    return pa.concat_tables(tables)


def bounds_of_column(files: Sequence[FileBounds], column: str) -> ColumnBounds:
    """Return the bounds of a column in all files of a partition; raise UnsupportedError if one is not known."""
    total: ColumnBounds | None = None
    for file in files:
        bounds = None if file.bounds is None else file.bounds.get(column)
        if file.bounds is None or (bounds is not None and not bounds.known):
            raise UnsupportedError(
                f"{file.name} of partition {file.partition!r}: the bounds of {column!r} cannot be determined, so "
                f"{PARTITION_STATS} would be wrong; drop it with `lakehouse index drop`",
                column=column,
            )
        # If a row lacks a column, an existing record keeps its stored value, and a new record has a null.
        added = bounds or absent(file)
        total = added if total is None else united(total, added)
    return total or ColumnBounds(low=None, high=None, nulls=0, values=0)


def _keys(columns: Sequence[str], partitions: Sequence[str]) -> pa.Array:
    names = [column for column in columns for _ in partitions]
    keys = partition_stats_keys(pa.array(names, pa.string()), pa.array([*partitions] * len(columns), pa.string()))
    return keys.cast(pa.binary())
