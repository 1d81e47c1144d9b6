"""Merge the records of base files and log blocks of the metadata table, whole tables at a time (MDT-5.3).

The *layers* of a file slice are its base file and then its log blocks, oldest first. Base file rows are usually in no
log, so they are passed through; only rows with keys that occur again are merged.

Records of `files` differ from other records: a record is a set of files, and its versions are merged. A tombstone
removes the file with the same name. A tombstone without such a file stays, because the file may be in an older layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.metadata.bounds import BYTES, DECIMAL, STRING, decimals_of_bytes
from lakehouse.core.format.metadata.records import FILE_ROWS

I64: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

_ABSENT, _LIVE, _TOMBSTONE = range(3)
_ADDED = ("value_count", "null_count", "size_bytes", "uncompressed_bytes")
_DECIMAL_TYPE = 10


@dataclass(frozen=True, slots=True)
class Layer:
    """The records in a base file or a log block, or the keys that a delete block deletes.

    `rows` have a column `key`, `deletes` are keys of the same type. One of them is empty.
    """

    rows: pa.Table
    deletes: pa.Array | None = None


def merge_files(layers: Sequence[Layer]) -> pa.Table:
    """Return the merged rows of `files`, one per key and file name, as `FILE_ROWS`.

    Tombstones without a matching file are rows with `deleted`. Readers drop them; a compaction keeps them.
    """
    held, changes = _base_and_changes(layers)
    if changes is None:
        return held
    names = changes.column("name").drop_null()
    again = pc.or_(pc.is_in(held.column("name"), value_set=_one(names)), pc.is_null(held.column("name")))
    rows = pa.concat_tables([held.filter(again), changes]).combine_chunks()
    merged = _folded_files(rows.filter(pc.is_valid(rows.column("name"))))
    passed = held.filter(pc.invert(again))
    result = pa.concat_tables([passed, merged])
    empty = pc.unique(rows.column("key").filter(pc.is_null(rows.column("name"))))
    missing = empty.filter(pc.invert(pc.is_in(empty, value_set=_one(result.column("key")))))
    if len(missing):
        count = len(missing)
        nameless = [missing, pa.nulls(count, pa.string()), pa.array(np.zeros(count, np.int64)), pa.repeat(True, count)]
        result = pa.concat_tables([result, pa.table(nameless, schema=FILE_ROWS)])
    return result


def merge_latest(layers: Sequence[Layer]) -> pa.Table:
    """Return the newest row of each key, for record locations, bloom filters and secondary indexes."""
    held, changes = _base_and_changes(layers)
    if changes is None:
        return held
    numbers = _numbers(changes.column("key"))
    last = np.zeros(int(numbers.max(initial=-1)) + 1, np.int64)
    last[numbers] = np.arange(len(numbers))  # NumPy assigns in order, so the last row of each key remains
    newest = changes.take(pa.array(np.sort(last)))
    return pa.concat_tables([_without(held, newest.column("key")), newest])


def merge_statistics(layers: Sequence[Layer]) -> pa.Table:
    """Return the merged statistics of each key as `STAT_ROWS`.

    A newer row replaces an older one if its bounds are tight, or if one of them is deleted. Otherwise the bounds widen
    and the counts add up.
    """
    held, changes = _base_and_changes(layers)
    if changes is None:
        return _live(held)
    again = pc.is_in(held.column("key"), value_set=_one(changes.column("key")))
    rows, numbers = _unreplaced(pa.concat_tables([held.filter(again), changes]).combine_chunks())
    firsts, rounds = _rounds(numbers)
    merged, place = rows.take(pa.array(firsts)), np.arange(len(firsts))
    for group, row in rounds:
        newer = rows.take(pa.array(row))
        older = merged.take(pa.array(place[group]))
        place[group] = merged.num_rows + np.arange(len(group))
        merged = pa.concat_tables([merged, _widened(older, newer)])
    passed = held.filter(pc.invert(again)) if pc.any(again).as_py() else held
    return _live(pa.concat_tables([passed, merged.take(pa.array(place))]))


def widened_statistics(stored: pa.Table, newer: pa.Table) -> pa.Table:
    """Return newer statistics merged with the stored ones of their keys, as `merge_statistics` does.

    Keys are distinct in each table. Stored rows without a newer row are omitted, and deleted ones count as absent.
    """
    stored = _live(stored).combine_chunks()
    place = _one(pc.index_in(newer.column("key"), value_set=_one(stored.column("key"))))
    is_known = place.is_valid()
    again = newer.filter(is_known)
    if not again.num_rows:
        return newer
    merged = _widened(stored.take(place.drop_null()), again)
    return merged if again.num_rows == newer.num_rows else pa.concat_tables([merged, newer.filter(pc.invert(is_known))])


def _live(rows: pa.Table) -> pa.Table:
    """Return the rows that are not deleted; rows are copied only if one is."""
    is_deleted = rows.column("deleted")
    return rows.filter(pc.invert(is_deleted)) if pc.any(is_deleted).as_py() else rows


def _unreplaced(rows: pa.Table) -> tuple[pa.Table, I64]:
    """Remove statistics rows that a later row with the same key replaces. Also return the number of each key."""
    numbers = _numbers(rows.column("key"))
    begins = np.flatnonzero(np.asarray(_one(pc.or_(rows.column("tight"), rows.column("deleted")).fill_null(False))))
    if len(begins) == 0:
        return rows, numbers
    first = np.zeros(int(numbers.max()) + 1, np.int64)
    first[numbers[begins]] = begins  # NumPy assigns in order, so the last row of each key remains
    is_newest = np.arange(len(numbers)) >= first[numbers]
    return rows.filter(pa.array(is_newest)).combine_chunks(), numbers[is_newest]


def _base_and_changes(layers: Sequence[Layer]) -> tuple[pa.Table, pa.Table | None]:
    """Return the live rows of the first layer, and the live rows of the other layers, oldest first.

    A deletion removes the rows of older layers. The second table is None if there are no later rows.
    """
    tables: list[pa.Table] = []
    for layer in layers:
        if layer.deletes is not None and len(layer.deletes):
            tables = [_without(table, layer.deletes) for table in tables]
        tables.append(layer.rows)
    changes = [table for table in tables[1:] if table.num_rows]
    return tables[0], pa.concat_tables(changes).combine_chunks() if changes else None


def _without(rows: pa.Table, keys: Any) -> pa.Table:
    """Return rows whose key is not one of `keys`."""
    return rows.filter(pc.invert(pc.is_in(rows.column("key"), value_set=_one(keys)))) if rows.num_rows else rows


def _folded_files(rows: pa.Table) -> pa.Table:
    """Return one row per key and name from rows in the order of their layers."""
    keys, names = _numbers(rows.column("key")), _numbers(rows.column("name"))
    firsts, rounds = _rounds(keys * (int(names.max(initial=0)) + 1) + names)
    sizes = np.asarray(rows.column("size_bytes").fill_null(0)).copy()
    is_deleted = np.asarray(rows.column("deleted"))
    size, state = sizes[firsts], np.where(is_deleted[firsts], _TOMBSTONE, _LIVE)
    for group, row in rounds:
        older, dead = state[group], is_deleted[row]
        both_live = (older == _LIVE) & ~dead
        size[group] = np.where(both_live, np.maximum(size[group], sizes[row]), sizes[row])
        state[group] = np.where(dead, np.where(older == _LIVE, _ABSENT, _TOMBSTONE), _LIVE)
    is_present = state != _ABSENT
    files = rows.take(pa.array(firsts[is_present]))
    merged_sizes, deleted = pa.array(size[is_present]), pa.array(state[is_present] == _TOMBSTONE)
    return pa.table([files.column("key"), files.column("name"), merged_sizes, deleted], schema=FILE_ROWS)


def _rounds(groups: I64) -> tuple[I64, list[tuple[I64, I64]]]:
    """Return the first row of each group, and the later rows in rounds.

    Round n has the row n of every group that has more than n rows: positions among the groups, and rows.
    """
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]
    begins = np.flatnonzero(is_first)
    counts = np.diff(np.append(begins, len(ordered)))
    rounds = []
    for number in range(1, int(counts.max(initial=0))):
        group = np.flatnonzero(counts > number)
        rounds.append((group, order[begins[group] + number]))
    return order[begins], rounds


def _widened(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Merge two versions of statistics, row by row."""
    older, newer = older.combine_chunks(), newer.combine_chunks()
    replaces = pc.or_(pc.or_(newer.column("tight"), newer.column("deleted")), older.column("deleted"))
    columns = {name: newer.column(name) for name in newer.column_names}
    for name in _ADDED:
        total = pc.add(older.column(name).fill_null(0), newer.column(name).fill_null(0))
        columns[name] = pc.if_else(replaces, newer.column(name), total)
    for bound, is_better in (("min", pc.less), ("max", pc.greater)):
        use_older, use_none = _choice(older, newer, bound, is_better)
        for part in ("wrapper", "number", "real", "data"):
            name = f"{bound}_{part}"
            nothing = pa.scalar(0 if part == "wrapper" else None, newer.schema.field(name).type)
            chosen = pc.if_else(pa.array(use_none), nothing, newer.column(name))
            chosen = pc.if_else(pa.array(use_older), older.column(name), chosen)
            columns[name] = pc.if_else(replaces, newer.column(name), chosen)
    untyped = pc.and_(pc.invert(replaces), pc.equal(newer.column("min_wrapper"), 0))
    for name in ("type_ordinal", "type_info"):
        columns[name] = pc.if_else(untyped, older.column(name), newer.column(name))
    return pa.table([columns[field.name] for field in newer.schema], schema=newer.schema)


def _choice(older: pa.Table, newer: pa.Table, bound: str, is_better: Callable[..., Any]) -> tuple[Mask, Mask]:
    """Return the mask of rows that use the older row's bound, and the mask of merged rows without a bound.

    A row without bound has no values, or its values are unknown. In the latter case the merged row has no bound.
    """
    wrappers = [np.asarray(table.column(f"{bound}_wrapper")) for table in (older, newer)]
    is_decimal = [
        np.asarray(pc.equal(table.column("type_ordinal"), _DECIMAL_TYPE).fill_null(False)) | (wrapper == DECIMAL)
        for table, wrapper in zip((older, newer), wrappers, strict=True)
    ]
    better = np.zeros(older.num_rows, np.bool_)
    for part in ("number", "real", "data"):
        pair = (older.column(f"{bound}_{part}"), newer.column(f"{bound}_{part}"))
        better |= np.asarray(is_better(*pair).fill_null(False))
        if part == "real":
            # NaN is greater than all numbers, and every comparison with it is false.
            nan, other = pair if bound == "max" else (pair[1], pair[0])
            is_nan, is_number = pc.is_nan(nan).fill_null(False), pc.invert(pc.is_nan(other)).fill_null(False)
            better |= np.asarray(pc.and_(is_nan, is_number))
        both_decimal = is_decimal[0] & is_decimal[1]
        if part == "data" and both_decimal.any():
            decimals = [decimals_of_bytes(_one(values), 0) for values in pair]
            by_number = np.asarray(is_better(*decimals).fill_null(False))
            better = np.where(both_decimal, by_number, better)
    without = [_has_no_values(table, wrapper, wrappers[1 - at], is_decimal[1 - at])
               for at, (table, wrapper) in enumerate(zip((older, newer), wrappers, strict=True))]  # fmt: skip
    infos = [table.column("type_info").fill_null("") for table in (older, newer)]
    comparable = (wrappers[0] == wrappers[1]) & (is_decimal[0] == is_decimal[1])
    comparable &= np.asarray(pc.equal(*infos)) | ~is_decimal[0]
    use_older = (comparable & (wrappers[0] != 0) & better) | (without[1] & (wrappers[0] != 0))
    keep_newer = (comparable & (wrappers[1] != 0) & ~better) | (without[0] & (wrappers[1] != 0))
    return use_older, ~(use_older | keep_newer)


def _has_no_values(rows: pa.Table, wrapper: NDArray[Any], other: NDArray[Any], other_is_decimal: Mask) -> Mask:
    """Return the rows without bound that certainly have no values except nulls (MDT-14).

    Hudi stores long strings as rows without bounds, with as many nulls as values.
    """
    values, nulls = (np.asarray(rows.column(name).fill_null(-1)) for name in ("value_count", "null_count"))
    is_text = np.isin(other, (STRING, BYTES)) & ~other_is_decimal
    is_empty: Mask = (wrapper == 0) & ((values == 0) | ((values == nulls) & (values >= 0) & ~is_text))
    return is_empty


def _numbers(column: Any) -> I64:
    """Return a number for each value; equal values have equal numbers."""
    indices: I64 = np.asarray(_one(column).dictionary_encode().indices).astype(np.int64)
    return indices


def _one(column: Any) -> Any:
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
