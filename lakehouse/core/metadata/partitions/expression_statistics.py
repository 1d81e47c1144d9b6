"""Rows of an index on an expression: bounds and counts of the results in files and partitions (MDT-4.8).

    file        bounds of its results; `value_count` does not count nulls, unlike in `column_stats`
    partition   bounds of the results in the files of its newest slices

Engines skip a partition that has no row, so each partition with rows has one. A commit computes the rows of the
partitions that it touches. If that is not possible, it writes a row that readers merge with the stored row: the bounds
are then wider than the values, never narrower. This applies while the index is being built, and while an older write is
pending: its row would be merged below a complete row of this commit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.column_bounds import bounds_array
from lakehouse.core.files.base.expression_values import Expression, IndexedFile, has_rows, statistics_of_files
from lakehouse.core.format.metadata.bounds import value_type
from lakehouse.core.format.metadata.keys import column_stats_keys, partition_stats_keys
from lakehouse.core.format.metadata.statistics import STAT_ROWS, statistics_of, typed_statistics
from lakehouse.core.metadata.change import MetadataChange
from lakehouse.core.metadata.partitions.live_statistics import grouped_rows, part_rows
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit
from lakehouse.core.metadata.read.unusable import MetadataUnusableError
from lakehouse.core.state.data_files import one_array
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import ColumnBounds, Operation

logger = logging.getLogger(__name__)

#: Files per task, and the maximum number of file rows that a commit reads.
_FILES_AT_ONCE = 8
_MOST_ROWS = 50_000
#: The maximum number of stored files without a row that a commit examines.
_MOST_EXAMINED = 64
_SIZES = ("size_bytes", "uncompressed_bytes")

Run = Callable[[Callable[[Attempt, Any], Any], Sequence[Any]], list[Any]]


def measured_files(expression: Expression, files: Sequence[IndexedFile], run: Run) -> pa.Table:
    """Return the statistics of the files with rows, one row per file.

    The columns are `partition` and the columns of `statistics_of`; bounds have the result type.
    """
    tasks = [files[start : start + _FILES_AT_ONCE] for start in range(0, len(files), _FILES_AT_ONCE)]
    results = run(partial(statistics_of_files, expression), tasks) if tasks else []
    of_files = [of_file for of_task in results for of_file in of_task]
    pairs = [(file, bounds) for file, bounds in zip(files, of_files, strict=True) if bounds is not None]
    kind = expression.function.result_type(expression.field.type)
    return _values([file for file, _ in pairs], [bounds for _, bounds in pairs], kind)


def _values(files: Sequence[IndexedFile], bounds: Sequence[ColumnBounds], kind: pa.DataType) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([file.partition for file in files], pa.string()),
            "name": pa.array([file.name for file in files], pa.string()),
            "min": bounds_array([of_file.low for of_file in bounds], kind),
            "max": bounds_array([of_file.high for of_file in bounds], kind),
            "value_count": pa.array([of_file.values - of_file.nulls for of_file in bounds], pa.int64()),
            "null_count": pa.array([of_file.nulls for of_file in bounds], pa.int64()),
            "size_bytes": pa.array([of_file.size_bytes for of_file in bounds], pa.int64()),
            "uncompressed_bytes": pa.array([of_file.raw_bytes for of_file in bounds], pa.int64()),
            # A file's row never changes, so a build and a commit may both write it.
            "tight": pa.array(np.ones(len(files), np.bool_)),
        }
    )


def evaluated_in_utc(rows: pa.Table) -> pa.Array:
    """Return for each row whether this package evaluated the function, in UTC, for all of its files.

    Definitions contain no time zone: Hudi evaluates functions on times in its session time zone. The field for the
    uncompressed data size, which no engine uses, identifies the writer: Hudi writes twice the file size, this package
    the file size itself. For a partition row engines add up both sizes, so they are equal only if this package wrote
    all rows.
    """
    sizes, uncompressed = (one_array(rows.column(name)) for name in _SIZES)
    return pc.and_(pc.greater(sizes, 0), pc.equal(sizes, uncompressed)).fill_null(False)


def built_rows(definition: Definition, statistics: pa.Table) -> pa.Table:
    """Return the rows of a build as `STAT_ROWS`: a row for each of the newest files and each partition."""
    paths = sorted(set(statistics.column("partition").to_pylist()))
    number = {path: index for index, path in enumerate(paths)}
    parts = _parts(statistics, number)
    partitions = _partition_rows(definition, grouped_rows(parts, np.ones(len(paths), np.bool_), paths), tight=True)
    return pa.concat_tables([_file_rows(definition, statistics), partitions])


def deleted_keys(column: str, change: MetadataChange) -> pa.Array:
    """Return the keys of removed files; change logs have no rows."""
    files = change.removed.filter(pc.invert(pc.ends_with(change.removed.column("name"), ".cdc")))
    names = pa.repeat(pa.scalar(column), files.num_rows)
    return column_stats_keys(names, files.column("partition"), files.column("name")).cast(pa.binary())


def rows_of_commit(
    name: str, commit: MetadataCommit, written: Sequence[IndexedFile], statistics: pa.Table | None
) -> tuple[pa.Table, pa.Array]:
    """Return the rows that a commit writes, `STAT_ROWS`, and the keys of the partition rows that it deletes.

    Args:
        name: The index partition.
        commit: The commit.
        written: The files that it writes.
        statistics: The statistics of the written files that contain rows; None if it writes no file.
    """
    definition = commit.definitions[name]
    touched = {file.partition for file in written} | set(commit.change.replaced.column("partition").to_pylist())
    if commit.change.operation == Operation.DELETE_PARTITION:
        touched |= set(commit.change.touched_partitions)
    paths = sorted(touched)
    number = {path: index for index, path in enumerate(paths)}
    rows, gone = [], set[str]()
    complete = np.zeros(len(paths), np.bool_)
    live = commit.live_files(paths) if commit.is_last and paths else None
    if live is not None:
        values, complete = _live_values(name, commit, live, written, statistics, number)
        tight = grouped_rows(_parts(values, number), complete, paths)
        rows.append(_partition_rows(definition, tight, tight=True))
        held = set(tight.column("name").to_pylist())
        gone = {path for path in paths if complete[number[path]] and path not in held}
    if commit.is_last:
        gone |= set(commit.change.removed_partitions)
    if statistics is not None:
        loose = grouped_rows(_parts(statistics, number), ~complete, paths)
        rows += [_file_rows(definition, statistics), _partition_rows(definition, loose, tight=False)]
    keys = _partition_keys(definition.source_fields[0], pa.array(sorted(gone), pa.string()))
    return pa.concat_tables([STAT_ROWS.empty_table(), *rows]), keys.cast(pa.binary())


# parameters: the commit and its files, and the partitions that it touches
def _live_values(
    name: str,
    commit: MetadataCommit,
    live: pa.Table,
    written: Sequence[IndexedFile],
    statistics: pa.Table | None,
    number: Mapping[str, int],
) -> tuple[pa.Table, np.ndarray[Any, Any]]:
    """Return the statistics of the live files with rows, and for each partition whether all of them are known."""
    complete = np.ones(len(number), np.bool_)
    places = _places(live)
    is_new = pc.is_in(places, value_set=pa.array([f"{file.partition}\0{file.name}" for file in written], pa.string()))
    old = live.filter(pc.invert(is_new))
    if statistics is None:
        # The type of the function's results is unknown, so the statistics of partitions that contain files stay
        # unchanged.
        complete[[number[path] for path in pc.unique(old.column("partition")).to_pylist()]] = False
        return _values([], [], pa.null()), complete
    new = statistics.filter(pc.is_in(_places(statistics), value_set=places))
    if not old.num_rows:
        return new, complete
    numbers = np.array([number[path] for path in old.column("partition").to_pylist()], np.int64)
    stored = _stored_rows(name, commit, old) if old.num_rows <= _MOST_ROWS else None
    if stored is None:
        complete[numbers] = False
        return new, complete
    at = pc.index_in(_file_keys(commit.definitions[name], old), value_set=one_array(stored.column("key")))
    is_stored = at.is_valid().to_numpy(zero_copy_only=False)
    for position in np.flatnonzero(~is_stored)[:_MOST_EXAMINED].tolist():
        partition, file_name = (old.column(column)[position].as_py() for column in ("partition", "name"))
        file = IndexedFile(partition=partition, name=file_name, size_bytes=0)
        complete[numbers[position]] &= not has_rows(commit.env.storage, file)
    complete[numbers[np.flatnonzero(~is_stored)[_MOST_EXAMINED:]]] = False
    rows = stored.take(at.drop_null())
    typed = typed_statistics(rows, statistics.schema.field("min").type)
    complete[numbers[is_stored][_lacks_bounds(typed)]] = False
    for column in _SIZES:
        typed = typed.append_column(column, rows.column(column))
    typed = typed.append_column("partition", old.column("partition").filter(pa.array(is_stored)))
    typed = typed.append_column("tight", rows.column("tight"))
    return pa.concat_tables([new, typed.select(new.column_names).cast(new.schema)]), complete


def _lacks_bounds(typed: pa.Table) -> np.ndarray[Any, Any]:
    """Return which file rows have results but no bounds, such as results of another type."""
    has_bounds = pc.and_(typed.column("min").is_valid(), typed.column("max").is_valid())
    has_results = pc.not_equal(typed.column("value_count"), 0).fill_null(True)
    lacks: np.ndarray[Any, Any] = np.asarray(one_array(pc.and_(has_results, pc.invert(has_bounds)))).astype(np.bool_)
    return lacks


def _stored_rows(name: str, commit: MetadataCommit, files: pa.Table) -> pa.Table | None:
    keys = _file_keys(commit.definitions[name], files).cast(pa.binary())
    try:
        rows: pa.Table = commit.reader().found(name, keys.take(pc.sort_indices(keys)))
    except MetadataUnusableError as error:
        logger.warning("The statistics of partitions in %s are widened, not computed: %s", name, error.message)
        return None
    return rows


def _places(files: pa.Table) -> pa.Array:
    return one_array(pc.binary_join_element_wise(files.column("partition"), files.column("name"), "\0"))


def _file_keys(definition: Definition, files: pa.Table) -> pa.Array:
    columns = pa.repeat(pa.scalar(definition.source_fields[0]), files.num_rows)
    return column_stats_keys(columns, files.column("partition"), files.column("name"))


def _partition_keys(column: str, paths: pa.Array) -> pa.Array:
    return partition_stats_keys(pa.repeat(pa.scalar(column), len(paths)), paths, expression=True)


def _parts(values: pa.Table, number: Mapping[str, int]) -> pa.Table:
    numbers = [number[path] for path in values.column("partition").to_pylist()]
    return part_rows(values, values.schema.field("min").type, numbers)


def _file_rows(definition: Definition, values: pa.Table) -> pa.Table:
    return _typed_rows(definition, values.drop_columns(["partition"]), _file_keys(definition, values), of_files=True)


def _partition_rows(definition: Definition, values: pa.Table, *, tight: bool) -> pa.Table:
    position = values.schema.get_field_index("tight")
    values = values.set_column(position, "tight", pa.repeat(pa.scalar(tight), values.num_rows))
    keys = _partition_keys(definition.source_fields[0], one_array(values.column("name")))
    return _typed_rows(definition, values, keys, of_files=False)


def _typed_rows(definition: Definition, values: pa.Table, keys: pa.Array, *, of_files: bool) -> pa.Table:
    """Convert values to `STAT_ROWS`. In version V2 each row has the result type, even a row of nulls."""
    rows = statistics_of(
        values, definition.source_fields[0], keys, version=definition.version, partition_stats=not of_files
    )
    kind = value_type(values.schema.field("min").type)
    if definition.version != "V2" or kind is None:
        return rows
    for name, value in zip(("type_ordinal", "type_info"), kind, strict=True):
        position = rows.schema.get_field_index(name)
        field = rows.schema.field(name)
        rows = rows.set_column(position, field, pa.repeat(pa.scalar(value, field.type), rows.num_rows))
    return rows
