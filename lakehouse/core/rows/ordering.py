"""Ordering values: decide which version of a record is newer (DATA-5.2).

Values are compared as in Java: null is lowest, NaN is greater than all numbers, -0.0 is less than 0.0. Several ordering
columns are compared as a tuple. A column that the rows lack counts as null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.merge import MergeRule

Column: TypeAlias = pa.Array | pa.ChunkedArray

_LOWEST = np.iinfo(np.int64).min


def ordering_columns(rows: pa.Table, rule: MergeRule) -> list[Column] | None:
    """Return the ordering columns of `rows` as comparable values; None if `rule` compares none.

    Raises UnsupportedError for a column whose type has no order.
    """
    if not rule.compared:
        return None
    columns = []
    for name in rule.compared:
        column = rows.column(name) if name in rows.column_names else pa.nulls(rows.num_rows, pa.int64())
        columns.extend(_parts(name, column) if rule.by_parts else [comparable(name, column)])
    return columns


def comparable(name: str, column: Column) -> Column:
    """Return the values of column `name` as values that Arrow compares in the order of the format."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return comparable(name, column.cast(kind.value_type))
    if pa.types.is_nested(kind):
        raise UnsupportedError(f"ordering column {name!r} has type {kind}, which has no order")
    return _float_bits(column) if pa.types.is_floating(kind) else column


def at_least(newer: Sequence[Column] | None, older: Sequence[Column] | None, rows: int) -> np.ndarray:
    """Return the mask of the `rows` pairs in which the newer value is not less than the older one."""
    result = np.ones(rows, dtype=bool)
    if newer is None or older is None:
        return result
    for new, old in zip(reversed(newer), reversed(older), strict=True):
        greater = _mask(pc.greater(new, old)) | (_mask(pc.is_valid(new)) & _mask(pc.is_null(old)))
        equal = _mask(pc.equal(new, old)) | (_mask(pc.is_null(new)) & _mask(pc.is_null(old)))
        result = greater | (equal & result)
    return result


def without_ordering(rows: pa.Table, rule: MergeRule) -> np.ndarray:
    """Return the mask of the rows without ordering value: all columns null, or the int 0 that represents it.

    Zero means no value only for a single ordering column of Arrow type int32, because Java compares classes too.
    """
    columns = ordering_columns(rows, rule) or []
    missing = np.ones(rows.num_rows, dtype=bool)
    for column in columns:
        missing &= _mask(pc.is_null(column))
    if len(columns) == 1 and pa.types.is_int32(columns[0].type):
        missing |= _mask(pc.equal(columns[0], 0))
    return missing


def ranks(columns: Sequence[Column]) -> np.ndarray:
    """Return int64 numbers that order the rows as the tuples of `columns` do; equal tuples have equal numbers."""
    first, *others = [_integers(column) for column in columns]
    for numbers in others:
        _, high = np.unique(first, return_inverse=True)
        distinct, low = np.unique(numbers, return_inverse=True)
        first = high.astype(np.int64) * len(distinct) + low
    return first


def _integers(column: Column) -> np.ndarray:
    kind = column.type
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_temporal(kind) or pa.types.is_boolean(kind) or (pa.types.is_integer(kind) and kind != pa.uint64()):
        values = column.cast(pa.int64())
        if not values.null_count:
            return np.asarray(values.to_numpy())
        lowest = pc.min(values).as_py()
        if lowest is None or lowest > _LOWEST:
            return np.asarray(values.fill_null(_LOWEST).to_numpy())
    return _dense(column)


def _dense(column: Column) -> np.ndarray:
    whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    encoded = whole.dictionary_encode()
    rank = np.empty(len(encoded.dictionary), dtype=np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(rank))
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    numbers: np.ndarray = np.append(rank, -1)[codes]
    return numbers


def _float_bits(column: Column) -> pa.Array:
    # The bits of a double sort like an integer after negative numbers are inverted.
    null = _mask(pc.is_null(column))
    values = np.array(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False), dtype=np.float64)
    values[np.isnan(values)] = np.nan
    bits = values.view(np.int64)
    return pa.array(np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits), mask=null)


def _parts(name: str, column: Column) -> list[Column]:
    try:
        parts = pc.split_pattern(column.cast(pa.string()), ".", max_splits=1)
        return [pc.list_element(parts, place).cast(pa.int64()) for place in (0, 1)]
    except (pa.ArrowInvalid, IndexError) as error:
        raise CorruptTableError(f"ordering column {name!r}: expected values <file>.<position> ({error})") from error


def _mask(flags: Column) -> np.ndarray:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), dtype=bool)
