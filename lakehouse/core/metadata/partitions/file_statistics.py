"""File bounds for `column_stats` and `partition_stats`: the indexed columns, and the source of their bounds (MDT-4)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lakehouse.core.files.base.column_bounds import bounds_array, converted_bounds, file_bounds, leaf_types
from lakehouse.core.files.log.log_bounds import log_bounds
from lakehouse.core.format.arrow_versions import cached_by_columns
from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.format.metadata.bounds import has_statistics
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, TableFiles
from lakehouse.core.rows.stored_names import evolved_columns
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import Storage
from lakehouse.model.commit import ColumnBounds, WriteStat
from lakehouse.spec.options.metadata import STATISTICS_COLUMNS, STATISTICS_LIMIT
from lakehouse.spec.options.policies import Policies

COLUMN_STATS = "column_stats"
#: These meta columns are always indexed.
META = ("_hoodie_commit_time", "_hoodie_partition_path", "_hoodie_record_key")
_READERS = 8
_NOTHING = ColumnBounds(low=None, high=None, nulls=0, values=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileBounds:
    """A base file or log file with the bounds of its columns; None if they are not known.

    `is_partial` means that rows of a log file lack columns; stored rows keep their values in these columns.
    """

    partition: str
    name: str
    size_bytes: int
    rows: int
    bounds: Mapping[str, ColumnBounds] | None
    is_partial: bool = False

    @property
    def is_log(self) -> bool:
        """Whether this is a log file."""
        return self.name.startswith(".")


def version_of(config: TableConfig) -> str:
    """Return the version of the statistics definition for a table version."""
    return config.layout.index_version


def is_mixed(config: TableConfig) -> bool:
    """Whether a merged row may combine values from several record versions."""
    return config.is_merge_on_read and config.merge_rule.mixes


@cached_by_columns(maxsize=32)
def supported_columns(schema: pa.Schema, version: str) -> tuple[str, ...]:
    """Return the top-level data columns that can have statistics, in the order of the schema."""
    return tuple(field.name for field in schema if has_statistics(field.type, version) and field.name not in META)


def meta_columns(config: TableConfig) -> tuple[str, ...]:
    """Return the meta columns that are always indexed; Hudi 0.15, which stores no definition, indexes all of them."""
    return META if config.layout.stores_definitions else META_COLUMNS


def column_limit(config: TableConfig, policies: Policies) -> int:
    """Return the maximum number of data columns that are indexed if none are declared.

    Without stored definitions Hudi 0.15 indexes all columns, and takes a column without row as null if a condition has
    other columns, too. So all files have all columns.
    """
    if not config.layout.stores_definitions:
        return sys.maxsize
    return int(config.raw.get(STATISTICS_LIMIT, policies.transaction.metadata.max_columns))


def default_columns(schema: pa.Schema | None, config: TableConfig, policies: Policies) -> tuple[str, ...]:
    """Return the indexed columns of a table: meta columns, and the declared columns or the first supported ones.

    Without stored definitions all supported columns are indexed; see `lacks_columns`.
    """
    policy = policies.transaction.metadata
    declared = policy.declared_columns or _declared(config)
    if declared and config.layout.stores_definitions:
        kinds, version = indexed_types(schema), version_of(config)
        usable = [name for name in declared if name not in kinds or has_statistics(kinds[name], version)]
        return tuple(dict.fromkeys((*meta_columns(config), *usable)))
    columns: Sequence[str] = ()
    if schema is not None:
        evolved = evolved_columns(schema)
        columns = [name for name in supported_columns(schema, version_of(config)) if name not in evolved]
    return (*meta_columns(config), *columns[: column_limit(config, policies)])


def measured_columns(
    schema: pa.Schema, config: TableConfig, policies: Policies, definitions: Mapping[str, Definition]
) -> tuple[str, ...] | None:
    """Return the columns that the tasks of a write measure; None if the metadata table has no statistics.

    The definition is read again before the commit. If it contains unmeasured columns then, they are read from the
    files.
    """
    if COLUMN_STATS not in config.metadata_partitions:
        return None
    columns = definitions[COLUMN_STATS].source_fields if COLUMN_STATS in definitions else ()
    return tuple(dict.fromkeys((*columns, *default_columns(schema, config, policies))))


def definition_of_new(table: TableFiles) -> Definition:
    """Return the definition of a table's statistics."""
    columns = default_columns(table.schema, table.config, table.policies)
    return Definition(
        index_type=COLUMN_STATS, function=COLUMN_STATS, source_fields=columns, version=version_of(table.config)
    )


def indexed_columns(commit: MetadataCommit) -> Definition:
    """Add the columns that this commit adds to the table to the definition, up to the maximum number of columns.

    A column that is new in the table is null in all stored files, as readers assume for a missing row. Earlier columns
    of the table are not added, because stored files contain values for them. A column is removed if its new type has no
    statistics in this version of the index; see `unsupported_columns`.
    """
    definition = commit.definitions[COLUMN_STATS]
    if not definition.source_fields:
        # No definition is stored, and no file has statistics yet.
        columns = default_columns(commit.schema, commit.config, commit.policies)
        definition = replace(definition, source_fields=columns)
    gone = {*unsupported_columns(commit), *commit.change.evolved}
    if gone:
        usable = tuple(name for name in definition.source_fields if name not in gone)
        definition = replace(definition, source_fields=usable)
    is_declared = commit.config.layout.stores_definitions and bool(_declared(commit.config))
    if is_declared or commit.schema is None:
        return definition
    limit = column_limit(commit.config, commit.policies)
    supported = supported_columns(commit.schema, definition.version)
    candidates = [name for name in supported if name not in definition.source_fields and name not in gone]
    free = limit - sum(name not in META_COLUMNS for name in definition.source_fields)
    if not candidates or free <= 0:
        return definition
    before = commit.previous_schema()
    added = [name for name in candidates if before is None or name not in before.names][:free]
    return replace(definition, source_fields=(*definition.source_fields, *added)) if added else definition


def lacks_columns(layout: TableLayout, definition: Definition, schema: pa.Schema | None) -> bool:
    """Return whether a table that stores no definitions has a column without statistics, so that files get none.

    Hudi 0.15 takes a column without row as null, if the condition has another column with a row, and skips the file.
    Columns of lists, maps and structs are not affected.
    """
    if layout.stores_definitions or schema is None:
        return False
    fields = frozenset(definition.source_fields)
    return any(field.name not in fields and not pa.types.is_nested(field.type) for field in schema)


def columns_to_delete(commit: MetadataCommit) -> tuple[str, ...]:
    """Return the columns whose stored rows are deleted: columns whose new type or name has no statistics any more.

    These are all columns if the table stores no definitions; see `lacks_columns`.
    """
    before = commit.definitions[COLUMN_STATS].source_fields
    unsupported = unsupported_columns(commit)
    if commit.config.layout.stores_definitions:
        return unsupported
    return before if unsupported or commit.change.evolved else ()


def unsupported_columns(commit: MetadataCommit) -> tuple[str, ...]:
    """Return the indexed columns whose new type has no statistics in this version of the index.

    Version V1 does not support bounds for decimals with many digits. All stored rows of such a column are deleted: if
    only some files have rows for a column, engines treat it as null in the others.
    """
    definition, kinds = commit.definitions[COLUMN_STATS], indexed_types(commit.schema)
    if definition.version == "V2":
        return ()
    version = definition.version
    return tuple(
        name for name in definition.source_fields if name in kinds and not has_statistics(kinds[name], version)
    )


@cached_by_columns(maxsize=32)
def indexed_types(schema: pa.Schema | None) -> Mapping[str, pa.DataType]:
    """Return the types of a table's columns, including meta columns, by dotted path."""
    return {} if schema is None else leaf_types(with_meta_fields(schema))


def bounds_of_commit(commit: MetadataCommit, columns: Sequence[str]) -> list[FileBounds]:
    """Return the bounds of each file in a commit: measured by its tasks, or read from the file."""
    if "bounds" not in commit.shared:
        commit.shared["bounds"] = _bounds_of_commit(commit, columns)
    bounds: list[FileBounds] = commit.shared["bounds"]
    return bounds


def _bounds_of_commit(commit: MetadataCommit, columns: Sequence[str]) -> list[FileBounds]:
    wanted = _wanted(columns, commit.schema)
    stats = [stat for stat in commit.change.stats if stat.path]
    read = partial(_of_stat, commit.env.storage, wanted)
    if len(stats) == 1 or all(stat.bounds is not None for stat in stats):
        return [read(stat) for stat in stats]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(read, stats))


def _wanted(columns: Sequence[str], schema: pa.Schema | None) -> dict[str, pa.DataType]:
    """Return the columns that exist in the table, with their types."""
    kinds = indexed_types(schema)
    return {name: kinds[name] for name in columns if name in kinds}


def _of_stat(storage: Storage, kinds: Mapping[str, pa.DataType], stat: WriteStat) -> FileBounds:
    name = stat.path.rpartition("/")[2]
    is_partial = stat.is_partial
    bounds = None if stat.bounds is None else _in_table_types(stat.bounds, kinds)
    if bounds is None or not (is_partial or bounds.keys() >= kinds.keys()):
        # The tasks did not measure a column, for example because an index was created or another writer changed the
        # type of a column in between.
        bounds, is_partial = _read(storage, stat.path, kinds)
    return FileBounds(
        partition=stat.partition,
        name=name,
        size_bytes=stat.size_bytes,
        rows=stat.num_writes,
        bounds=bounds,
        is_partial=is_partial,
    )


def _in_table_types(
    bounds: Mapping[str, ColumnBounds], kinds: Mapping[str, pa.DataType]
) -> Mapping[str, ColumnBounds] | None:
    """Convert measured bounds to the column types at the commit. Return None if one cannot be converted."""
    others = {
        name: of_column
        for name, of_column in bounds.items()
        if of_column.kind is not None and name in kinds and of_column.kind != kinds[name]
    }
    if not others:
        return bounds
    converted = {name: converted_bounds(of_column, of_column.kind, kinds[name]) for name, of_column in others.items()}
    usable = {name: of_column for name, of_column in converted.items() if of_column is not None}
    return {**bounds, **usable} if len(usable) == len(others) else None


def bounds_of_files(table: TableFiles, columns: Sequence[str]) -> list[FileBounds]:
    """Return the bounds of the files in the newest slices, read from the files."""
    return bounds_of_live(table.env.storage, table.newest, columns, table.schema)


def bounds_of_live(
    storage: Storage, files: pa.Table, columns: Sequence[str], schema: pa.Schema | None
) -> list[FileBounds]:
    """Read the bounds of files. `files` has the columns `partition`, `name` and optionally `size_bytes`.

    The bounds have the types of `schema`, the data columns of the table.
    """
    kinds = _wanted(columns, schema)
    sizes = files.column("size_bytes").to_pylist() if "size_bytes" in files.column_names else [0] * files.num_rows
    rows = zip(files.column("partition").to_pylist(), files.column("name").to_pylist(), sizes, strict=True)
    items = [item for item in rows if not item[1].endswith(".cdc")]
    with ThreadPoolExecutor(_READERS) as pool:
        return list(pool.map(lambda item: _of_file(storage, kinds, *item), items))


def _of_file(
    storage: Storage, kinds: Mapping[str, pa.DataType], partition: str, name: str, size_bytes: int
) -> FileBounds:
    path = f"{partition}/{name}" if partition else name
    bounds, is_partial = _read(storage, path, kinds)
    rows = max((of_column.values for of_column in (bounds or {}).values()), default=0)
    return FileBounds(
        partition=partition, name=name, size_bytes=size_bytes, rows=rows, bounds=bounds, is_partial=is_partial
    )


def _read(
    storage: Storage, path: str, kinds: Mapping[str, pa.DataType]
) -> tuple[Mapping[str, ColumnBounds] | None, bool]:
    """Return the bounds of a file, and whether its rows lack columns."""
    if path.rpartition("/")[2].startswith("."):
        return log_bounds(storage, path, kinds)
    return file_bounds(storage, path, kinds), False


def column_values(
    files: Sequence[FileBounds], names: Sequence[str], columns: Sequence[str], kind: pa.DataType, *, tight: bool
) -> pa.Table:
    """Return the bounds of columns with the same type, column by column, in the form of `statistics_of`.

    A column that a file lacks is null.
    """
    values = [(file.bounds or {}).get(column) or absent(file) for column in columns for file in files]
    return bounds_table([*names] * len(columns), values, kind, tight=tight)


def columns_by_type(columns: Iterable[str], kinds: Mapping[str, pa.DataType]) -> Mapping[pa.DataType, Sequence[str]]:
    """Group the columns by type, so that a kernel runs once per type. Unknown columns count as strings."""
    by_type: dict[pa.DataType, list[str]] = {}
    for column in columns:
        by_type.setdefault(kinds.get(column, pa.string()), []).append(column)
    return by_type


def bounds_table(names: Sequence[str], values: Sequence[ColumnBounds], kind: pa.DataType, *, tight: bool) -> pa.Table:
    """Return bounds of columns with one type in the form of `statistics_of`."""
    return pa.table(
        {
            "name": pa.array(names, pa.string()),
            "min": bounds_array([bounds.low for bounds in values], kind),
            "max": bounds_array([bounds.high for bounds in values], kind),
            "value_count": pa.array([bounds.values for bounds in values], pa.int64()),
            "null_count": pa.array([bounds.nulls for bounds in values], pa.int64()),
            "size_bytes": pa.array([bounds.size_bytes for bounds in values], pa.int64()),
            "uncompressed_bytes": pa.array([bounds.raw_bytes for bounds in values], pa.int64()),
            "tight": pa.repeat(pa.scalar(tight), len(names)),
        }
    )


def absent(file: FileBounds) -> ColumnBounds:
    """Return the bounds for a column that a file lacks: null in all rows."""
    return _NOTHING._replace(nulls=file.rows, values=file.rows)


def _declared(config: TableConfig) -> tuple[str, ...]:
    text = config.raw.get(STATISTICS_COLUMNS, "")
    return tuple(name.strip() for name in text.split(",") if name.strip())
