"""Column ranges from the metadata table, as columns in the order of files or partitions (MDT-14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.expressions.column_path import path_of, root_of, type_of
from lakehouse.core.format.memory import release_unused
from lakehouse.core.format.metadata.keys import column_stats_keys
from lakehouse.core.format.metadata.statistics import typed_statistics
from lakehouse.core.format.unaligned import load
from lakehouse.core.metadata.read.table import COLUMN_STATS, PARTITION_STATS, MetadataTable
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.ranges import ColumnRanges
from lakehouse.core.rows.stored_names import is_evolved, statistics_name
from lakehouse.core.state.data_files import members, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.instant import Action
from lakehouse.model.predicate import Predicate, columns_of

#: Maximum number of files whose statistics are looked up by key; for more files all statistics are read.
_MOST_KEYS = 2_000
_MOST_PARTITIONS = 500
_WORD = 8
#: Bytes at both ends of a file name from which its number is computed: parts of the file id, and the instant.
_USED = 32
_PRIME = np.uint64(0x9E3779B185EBCA87)
_SHIFT = np.uint64(29)
#: Number of names that are processed together.
_COMPARED = 20_000


def file_ranges(
    table: LoadedTable, slices: FileSlices, where: Predicate, schema: pa.Schema
) -> Mapping[str, ColumnRanges] | None:
    """Return the ranges of a condition's columns in the files of slices, or None if there are no column statistics."""
    return ranges_of_columns(table, slices, indexed_columns(where, schema), schema)


def ranges_of_columns(
    table: LoadedTable, slices: FileSlices, columns: Sequence[str], schema: pa.Schema
) -> Mapping[str, ColumnRanges] | None:
    """Return the ranges of columns, by dotted path, in the files of slices, or None if there are no column statistics.

    A damaged metadata table is no error: `from_metadata` logs it, and None is returned.
    """
    evolved = [name for name in columns if is_evolved(schema.field(root_of(name, schema)))]
    if evolved:
        return _with_evolved(table, slices, [name for name in columns if name not in evolved], evolved, schema)
    files = slices.files
    if not columns or not files.num_rows:
        return None

    def read(metadata: MetadataTable) -> dict[str, ColumnRanges]:
        if files.num_rows * len(columns) > _MOST_KEYS and len(pc.unique(files.column("partition"))) > _MOST_PARTITIONS:
            return {name: _in_whole_table(table, metadata, name, schema, files) for name in columns}
        rows = _rows(metadata, columns, files)
        return {name: _aligned(rows, name, type_of(name, schema), files) for name in columns}

    by_column = from_metadata(table, COLUMN_STATS, read)
    if by_column is None or not (table.config.is_upgraded or table.config.layout.appends_to_logs):
        return by_column
    # A later commit may have appended to a log file of version 6.
    appended = one_array(files.column("is_log"))
    if table.config.is_upgraded:
        appended = pc.and_(appended, pa.array(_named_after_slice(table, slices)))
    place = pc.if_else(appended, pa.scalar(None, pa.int64()), pa.array(np.arange(files.num_rows)))
    return {name: ranges.take(one_array(place)) for name, ranges in by_column.items()}


# parameters: the files, and the columns of both kinds with their schema
def _with_evolved(
    table: LoadedTable, slices: FileSlices, columns: Sequence[str], evolved: Sequence[str], schema: pa.Schema
) -> Mapping[str, ColumnRanges] | None:
    """Return the ranges of columns, some of which have other names in the statistics of some files."""
    ranges = ranges_of_columns(table, slices, columns, schema) if columns else {}
    if ranges is None:
        return None
    combined = dict(ranges)
    encoded = one_array(slices.files.column("instant")).dictionary_encode()
    for name in evolved:
        kind = type_of(name, schema)
        combined[name] = ColumnRanges.unknown(kind, slices.files.num_rows)
        if name not in schema.names:
            continue
        by_instant = [statistics_name(schema.field(name), instant) for instant in encoded.dictionary.to_pylist()]
        stored = pa.array(by_instant, pa.string()).take(encoded.indices)
        for other in sorted({each for each in by_instant if each is not None}):
            of_name = ranges_of_columns(table, slices, [other], pa.schema([(other, kind)]))
            if of_name is None:
                return None
            place = pa.array(np.arange(len(stored)), mask=~np.asarray(pc.fill_null(pc.equal(stored, other), False)))
            combined[name] = _either(of_name[other].take(place), combined[name])
    return combined


def _either(ranges: ColumnRanges, others: ColumnRanges) -> ColumnRanges:
    """Return for each file the range that is known; at most one is."""
    return ColumnRanges(
        low=pc.coalesce(ranges.low, others.low),
        high=pc.coalesce(ranges.high, others.high),
        nulls=pc.coalesce(ranges.nulls, others.nulls),
        values=pc.coalesce(ranges.values, others.values),
        java_order=ranges.java_order or others.java_order,
    )


def _named_after_slice(table: LoadedTable, slices: FileSlices) -> np.ndarray[Any, Any]:
    """Return the mask of files named after the instant of their slice or after a pending compaction."""
    instants = one_array(slices.files.column("instant"))
    own = one_array(slices.base_instants).take(pa.array(slices.slice_of_file))
    pending = sorted(i.requested for i in table.timeline.where(action=Action.COMPACTION, pending=True))
    named = pc.or_(pc.equal(instants, own), members(instants, pending))
    flags: np.ndarray[Any, Any] = named.to_numpy(zero_copy_only=False)
    return flags


def ranges_of_partitions(
    table: LoadedTable, partitions: pa.Array, where: Predicate, schema: pa.Schema
) -> Mapping[str, ColumnRanges] | None:
    """Return the ranges of a condition's columns in partitions, or None if there are no partition statistics.

    They describe the newest version of the table. Apache Hudi combines the ranges of files and ignores a file without
    a range: one with NaN, or with very long strings. So ranges of floats and strings prove nothing.
    """
    # A partition has one range by name for all its files.
    columns = [
        name
        for name in indexed_columns(where, schema)
        if _is_combinable(type_of(name, schema)) and not is_evolved(schema.field(root_of(name, schema)))
    ]
    if not columns or not len(partitions):
        return None

    def read(metadata: MetadataTable) -> dict[str, ColumnRanges]:
        if len(partitions) > _MOST_PARTITIONS:
            return {name: _of_all_partitions(table, metadata, name, schema, partitions) for name in columns}
        rows = metadata.partition_ranges(columns, partitions.to_pylist())
        return {name: _by_partition(rows, name, type_of(name, schema), partitions) for name in columns}

    return from_metadata(table, PARTITION_STATS, read)


def indexed_columns(where: Predicate, schema: pa.Schema) -> list[str]:
    """Return the columns of a condition that statistics can describe, by dotted path, each once."""
    names = dict.fromkeys(columns_of(where))
    # A dot in the name of a column is ambiguous, because it separates nested fields, too.
    return [name for name in names if ".".join(path_of(name, schema)) == name and _dots_nest(name, schema)]


def _is_combinable(kind: pa.DataType) -> bool:
    return not (pa.types.is_floating(kind) or pa.types.is_string(kind) or pa.types.is_binary(kind))


def _dots_nest(name: str, schema: pa.Schema) -> bool:
    return len(path_of(name, schema)) == name.count(".") + 1


def _rows(metadata: MetadataTable, columns: Sequence[str], files: pa.Table) -> pa.Table:
    """Return statistics of the columns, with rows for at least these files."""
    if files.num_rows * len(columns) <= _MOST_KEYS:
        return metadata.ranges(columns, files)
    return metadata.ranges_in(columns, pc.unique(files.column("partition")).to_pylist())


# parameters: the source and the cache of ranges, and the items that the ranges describe
def _in_whole_table(
    table: LoadedTable, metadata: MetadataTable, column: str, schema: pa.Schema, files: pa.Table
) -> ColumnRanges:
    """Return the ranges of a column in files of the whole table; the last result is cached while nothing changes."""
    kind, identity = type_of(column, schema), metadata.identity(COLUMN_STATS)

    def read() -> tuple[tuple[pa.Table, ColumnRanges], int]:
        # The listing was built just before, and Arrow's allocator still holds the memory that it needed.
        release_unused(after=files)
        ranges = _placed(metadata, column, kind, files)
        if ranges is None:
            ranges = _aligned(metadata.ranges([column]), column, kind, files)
        release_unused(after=files)
        return (files, ranges), ranges.nbytes

    return _kept(table, ("file ranges", column, str(kind), identity), files, read)


class _UnclearNamesError(Exception):
    """Statistics cannot be assigned to files by name."""


def _placed(metadata: MetadataTable, column: str, kind: pa.DataType, files: pa.Table) -> ColumnRanges | None:
    """Return the ranges of a column in the order of files; None if statistics cannot be assigned by file name.

    Each file group's statistics are reduced to bounds and positions, because names and keys are much larger.
    """
    names = NumberedNames(one_array(files.column("name")))

    def placed(rows: pa.Table) -> pa.Table:
        rows = _of_column(rows, column)
        place = places_of_names(one_array(rows.column("name")), names)
        if place is None:
            raise _UnclearNamesError
        return pa.table({"place": place.cast(pa.int64()), **_bounds(rows, kind)})

    try:
        placed_rows = metadata.ranges([column], each=placed)
    except _UnclearNamesError:
        return None
    placed_rows = placed_rows.filter(pc.is_valid(placed_rows.column("place")))
    place = np.asarray(one_array(placed_rows.column("place")))
    row_of = np.full(files.num_rows, -1)
    row_of[place] = np.arange(len(place))
    if np.count_nonzero(row_of >= 0) < len(place):
        return None
    return _taken(placed_rows, pa.array(row_of, mask=row_of < 0))


# parameters: the source and the cache of ranges, and the items that the ranges describe
def _of_all_partitions(
    table: LoadedTable, metadata: MetadataTable, column: str, schema: pa.Schema, partitions: pa.Array
) -> ColumnRanges:
    kind, identity = type_of(column, schema), metadata.identity(PARTITION_STATS)

    def read() -> tuple[tuple[pa.Array, ColumnRanges], int]:
        ranges = _by_partition(metadata.partition_ranges([column]), column, kind, partitions)
        return (partitions, ranges), ranges.nbytes

    return _kept(table, ("partition ranges", column, str(kind), identity), partitions, read)


def _kept(
    table: LoadedTable, key: tuple[Any, ...], items: Any, read: Callable[[], tuple[tuple[Any, ColumnRanges], int]]
) -> ColumnRanges:
    """Return the ranges of items from the cache if it contains the same items; otherwise read and cache them."""
    held, ranges = table.metadata.cache.get(key, read)
    if held is items or held.equals(items):
        return ranges
    value, size = read()
    table.metadata.cache.put(key, value, size)
    return value[1]


def _aligned(rows: pa.Table, column: str, kind: pa.DataType, files: pa.Table) -> ColumnRanges:
    """Return statistics of a column in the order of files."""
    release_unused(after=rows)
    rows = _of_column(rows, column)
    stored, names = one_array(rows.column("name")), one_array(files.column("name"))
    places = places_of_names(names, NumberedNames(stored))
    if places is not None:
        place = places
    elif pc.count_distinct(stored).as_py() == len(stored):
        place = pc.index_in(names, value_set=stored)
    else:
        # Files of several partitions have the same name, so the keys, which contain the partition, decide.
        partitions = one_array(files.column("partition"))
        keys = column_stats_keys(pa.repeat(pa.scalar(column), len(names)), partitions, names)
        place = pc.index_in(keys, value_set=one_array(rows.column("key")))
    # Names and keys are much larger than the rest of the rows, and are not needed any more.
    del stored, names, places
    position = rows.schema.get_field_index("name")
    rows = rows.set_column(position, rows.schema.field(position), pa.nulls(rows.num_rows, pa.string()))
    rows = rows.drop_columns(["key"])
    release_unused(after=rows)
    return _ranges(rows, kind, place)


def _by_partition(rows: pa.Table, column: str, kind: pa.DataType, partitions: pa.Array) -> ColumnRanges:
    rows = _of_column(rows, column)
    return _ranges(rows, kind, pc.index_in(partitions, value_set=one_array(rows.column("name"))))


def _of_column(rows: pa.Table, column: str) -> pa.Table:
    """Return the live rows of a column; rows are copied only if some are excluded."""
    wanted = pc.and_(pc.equal(rows.column("column"), column), pc.invert(rows.column("deleted")))
    return rows if pc.all(wanted, min_count=0, skip_nulls=False).as_py() else rows.filter(wanted)


def _ranges(rows: pa.Table, kind: pa.DataType, place: pa.Array) -> ColumnRanges:
    """Return the rows at these places as ranges; a null place is an item without statistics."""
    return _taken(_bounds(rows, kind), place)


def _bounds(rows: pa.Table, kind: pa.DataType) -> dict[str, pa.Array]:
    """Return the columns `low`, `high`, `nulls` and `values` of statistics; null where they prove nothing."""
    typed = typed_statistics(rows, kind)
    is_stated = one_array(typed.column("known"))
    stored = {"low": "min", "high": "max", "nulls": "null_count", "values": "value_count"}
    bounds = {name: _where(is_stated, one_array(typed.column(column))) for name, column in stored.items()}
    return bounds | {name: bounds[name].cast(pa.int64()) for name in ("nulls", "values")}


def _taken(bounds: pa.Table | Mapping[str, pa.Array], place: pa.Array) -> ColumnRanges:
    low, high, nulls, values = (one_array(bounds[name]).take(place) for name in ("low", "high", "nulls", "values"))
    return ColumnRanges(low=low, high=high, nulls=nulls, values=values, java_order=True)


def _where(is_stated: pa.Array, values: pa.Array) -> pa.Array:
    return pc.if_else(is_stated, values, pa.scalar(None, values.type))


class NumberedNames:
    """File names that are searched by numbers, which are computed from them and sorted at the first search.

    A hash table of 200,000 names takes 60 MB, and their sorted numbers 3 MB.
    """

    def __init__(self, names: pa.Array) -> None:
        self.names = names

    @cached_property
    def by_number(self) -> tuple[NDArray[np.int64], NDArray[np.uint64]] | None:
        """The order of the numbers, and the sorted numbers; None if a name is short or two numbers are equal."""
        numbers = _numbers(self.names)
        if numbers is None:
            return None
        order = np.argsort(numbers)
        ordered = numbers[order]
        return None if (ordered[1:] == ordered[:-1]).any() else (order, ordered)


def places_of_names(names: pa.Array, stored: NumberedNames) -> pa.Array | None:
    """Return the position in `stored` of each file name, null for those that it lacks.

    Equal numbers prove nothing, so the names are compared.

    Returns None if the positions are not known, because a name is short or occurs more than once in `stored`.
    """
    numbers, by_number = _numbers(names), stored.by_number
    if numbers is None or by_number is None:
        return None
    order, ordered = by_number
    near = np.minimum(np.searchsorted(ordered, numbers), max(len(ordered) - 1, 0))
    is_found = ordered[near] == numbers if len(ordered) else np.zeros(len(numbers), bool)
    place = pa.array(order[near] if len(ordered) else np.zeros(len(numbers), np.int64), mask=~is_found)
    for start in range(0, len(names), _COMPARED):
        some = place.slice(start, _COMPARED)
        same = pc.equal(stored.names.take(some), names.slice(start, _COMPARED))
        if not pc.all(same, min_count=0).as_py():
            return None
    return place


def _numbers(names: pa.Array) -> NDArray[np.uint64] | None:
    """Return a number for each name, which depends on the name only; None if a name is null or short."""
    if not len(names):
        return np.array([], np.uint64)
    _, offsets, data = names.buffers()
    bounds = np.frombuffer(offsets, np.int32)[names.offset : names.offset + len(names) + 1].astype(np.int64)
    if names.null_count or int(np.diff(bounds).min()) < _USED:
        return None
    stored = np.frombuffer(data, np.uint8)
    parts = [_mixed(stored, bounds[at : at + _COMPARED + 1]) for at in range(0, len(names), _COMPARED)]
    return np.concatenate(parts)


def _mixed(stored: NDArray[np.uint8], bounds: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the numbers of the names between these positions in the stored bytes."""
    numbers: Any = np.zeros(len(bounds) - 1, np.uint64)
    for begins in (bounds[:-1], bounds[1:] - _USED):
        for step in range(0, _USED, _WORD):
            numbers = (numbers ^ load(stored, begins + step, np.dtype(np.uint64))) * _PRIME
            numbers ^= numbers >> _SHIFT
    return np.asarray(numbers)
