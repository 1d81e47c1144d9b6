"""Evaluate a predicate on column ranges of many files or partitions (MDT-14).

The range of a column in an item (a file, a partition) consists of a lower and an upper bound, a null count and a value
count. A bound or count that is null is unknown. The result is one flag per item: whether it may have a matching row.
There is one kernel pass per condition and no loop over items. An item is excluded only if its ranges prove that no row
matches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.column_path import type_of
from lakehouse.core.expressions.literals import arrow_values, typed_comparison, typed_list
from lakehouse.core.planning.predicate import function_of, result_field
from lakehouse.core.rows.result_values import NoValuesError
from lakehouse.model.predicate import (
    And,
    Applied,
    Call,
    Comparison,
    Evaluated,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
)

Flags = np.ndarray[Any, Any]

_NEGATED: dict[str, Any] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
#: The first character from which Java's order of strings (by UTF-16 code units) differs from the order of code points.
_FIRST_REORDERED = "\ue000"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRanges:
    """The ranges of one column, one row per item.

    Attributes:
        low: A lower bound for the values that are not null; null if unknown.
        high: An upper bound; null if unknown.
        nulls: The number of nulls; null if unknown.
        values: The number of values, nulls included; null if unknown.
        java_order: Whether the bounds of strings may be ordered by UTF-16 code units.
        ignores_nan: Whether the bounds of floats may ignore NaN. If False, an item with NaN has unknown bounds.
    """

    low: pa.Array
    high: pa.Array
    nulls: pa.Array
    values: pa.Array
    java_order: bool = False
    ignores_nan: bool = False

    @classmethod
    def unknown(cls, kind: pa.DataType, rows: int) -> ColumnRanges:
        """Return unknown ranges for `rows` items."""
        bound, number = pa.nulls(rows, kind), pa.nulls(rows, pa.int64())
        return cls(low=bound, high=bound, nulls=number, values=number)

    @classmethod
    def of_values(cls, value: pa.Array) -> ColumnRanges:
        """Return the ranges of items whose rows all have the same value; a null value is unknown."""
        null_counts = pc.if_else(pc.is_valid(value), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
        return cls(low=value, high=value, nulls=null_counts, values=pa.nulls(len(value), pa.int64()))

    @property
    def nbytes(self) -> int:
        """The size of the ranges in memory."""
        return int(self.low.nbytes + self.high.nbytes + self.nulls.nbytes + self.values.nbytes)

    def take(self, rows: pa.Array) -> ColumnRanges:
        """Return the ranges at these rows; a null row has an unknown range."""
        return ColumnRanges(
            low=self.low.take(rows),
            high=self.high.take(rows),
            nulls=self.nulls.take(rows),
            values=self.values.take(rows),
            java_order=self.java_order,
            ignores_nan=self.ignores_nan,
        )


def may_match(where: Predicate, ranges: Mapping[str, ColumnRanges], schema: pa.Schema, rows: int) -> Flags:
    """Return for each of `rows` items whether it may have a row that meets the condition.

    Args:
        where: The condition; its columns and literals were checked.
        ranges: Ranges by column name, or by function call as a string. A column without ranges excludes nothing.
        schema: The schema of the rows.
        rows: The number of items.
    """
    if isinstance(where, And | Or):
        flags = np.full(rows, isinstance(where, And))
        for part in where.parts:
            matched = may_match(part, ranges, schema, rows)
            flags = flags & matched if isinstance(where, And) else flags | matched
        return flags
    if isinstance(where, Evaluated):
        return np.ones(rows, bool) if where.implied is None else may_match(where.implied, ranges, schema, rows)
    if isinstance(where, Applied):
        return may_match(where.part, *_of_call(where.call, ranges, schema), rows)
    if isinstance(where, Not) and isinstance(where.part, Applied):
        return may_match(Not(where.part.part), *_of_call(where.part.call, ranges, schema), rows)
    if isinstance(where, Not) and isinstance(where.part, IsNull):
        column_ranges = ranges.get(where.part.column)
        return np.ones(rows, bool) if column_ranges is None else ~_only_nulls(column_ranges)
    if isinstance(where, Not):
        inverse = _inverse(where.part)
        return np.ones(rows, bool) if inverse is None else may_match(inverse, ranges, schema, rows)
    if where.column not in ranges:
        return np.ones(rows, bool)
    kind = type_of(where.column, schema)
    if isinstance(where, Comparison):
        compared = typed_comparison(where, kind)
        if not isinstance(compared, Comparison):
            return may_match(compared, ranges, schema, rows)
        return _compared(compared, ranges[where.column], kind) & ~_only_nulls(ranges[where.column])
    return _leaf(where, ranges[where.column], kind)


def matches_of_leaves(where: Predicate, rows: int, of_leaf: Callable[[Predicate], Flags]) -> Flags:
    """Combine the flags of a condition's leaves according to its AND, OR and NOT.

    Each leaf compares one column. So if the rows of an item come from several files, the flags of a leaf may be
    combined over these files, even if a row has values from several files.
    """
    if isinstance(where, And | Or):
        matches = np.full(rows, isinstance(where, And))
        for part in where.parts:
            flags = matches_of_leaves(part, rows, of_leaf)
            matches = matches & flags if isinstance(where, And) else matches | flags
        return matches
    if isinstance(where, Not) and isinstance(where.part, And | Or | Not):
        inverse = _inverse(where.part)
        return np.ones(rows, bool) if inverse is None else matches_of_leaves(inverse, rows, of_leaf)
    return of_leaf(where)


def _of_call(
    call: Call, ranges: Mapping[str, ColumnRanges], schema: pa.Schema
) -> tuple[Mapping[str, ColumnRanges], pa.Schema]:
    """Return the ranges of a call's results, and a schema with the results as its only column.

    If the ranges of the results are not stored, a function that keeps the order of values is applied to the column's
    bounds.
    """
    of_result = pa.schema([result_field(call, schema)])
    if call.text in ranges or call.column not in ranges or not function_of(call).keeps_order:
        return ranges, of_result
    column_ranges = ranges[call.column]
    try:
        low, high = (function_of(call).evaluate(bound) for bound in (column_ranges.low, column_ranges.high))
    except NoValuesError:
        return ranges, of_result
    return {call.text: replace(column_ranges, low=low, high=high)}, of_result


def _inverse(part: Predicate) -> Predicate | None:
    """Return a condition without NOT that holds wherever NOT `part` holds, or None if there is no useful one."""
    if isinstance(part, Not):
        return part.part
    if isinstance(part, And | Or):
        inverses = tuple(_inverse(inner) or And(()) for inner in part.parts)
        return Or(inverses) if isinstance(part, And) else And(inverses)
    if isinstance(part, IsNull | Applied):
        return Not(part)
    if isinstance(part, Comparison):
        return Comparison(part.column, _NEGATED[part.operator], part.value)
    return None


def _leaf(where: In | IsNull | StartsWith, ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    if isinstance(where, IsNull):
        return _true_or_unknown(pc.greater(ranges.nulls, 0))
    if isinstance(where, StartsWith):
        flags = _starts(where.prefix, ranges, kind)
    else:
        flags = _one_of(typed_list(where, kind).values, ranges, kind)
    return flags & ~_only_nulls(ranges)


def _only_nulls(ranges: ColumnRanges) -> Flags:
    """Return for each item whether all its values are null, so that only IS NULL can hold.

    A log file with deletes only contains no values, so it has no bounds.
    """
    no_bounds = pc.and_(pc.is_null(ranges.low), pc.is_null(ranges.high))
    all_null = pc.and_(pc.equal(ranges.nulls, ranges.values), pc.or_(pc.greater(ranges.values, 0), no_bounds))
    return _flags(all_null.fill_null(False))


def _compared(where: Comparison, ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    """Return for each item whether it may have a value that meets a comparison with a typed literal."""
    rows, value = len(ranges.low), where.value
    if _is_reordered(value, ranges) or (pa.types.is_floating(kind) and _may_hold_for_nan(where, ranges)):
        return np.ones(rows, bool)
    if where.operator == "!=":
        same = pc.and_(pc.equal(ranges.low, value), pc.equal(ranges.high, value))
        return ~_flags(same.fill_null(False))
    if where.operator in ("<", "<="):
        return _true_or_unknown((pc.less if where.operator == "<" else pc.less_equal)(ranges.low, value))
    if where.operator in (">", ">="):
        return _true_or_unknown((pc.greater if where.operator == ">" else pc.greater_equal)(ranges.high, value))
    low, high = pc.less_equal(ranges.low, value), pc.greater_equal(ranges.high, value)
    return _true_or_unknown(low) & _true_or_unknown(high)


def _may_hold_for_nan(where: Comparison, ranges: ColumnRanges) -> bool:
    """Return whether a comparison of floats may hold for NaN, which is greater than all numbers and unequal to them."""
    if where.operator in (">", ">="):
        return ranges.ignores_nan or _is_nan(where.value)
    return where.operator == "!=" or _is_nan(where.value)


def _is_nan(value: pa.Scalar) -> bool:
    return bool(pa.types.is_floating(value.type) and math.isnan(value.as_py()))


def _one_of(values: Sequence[pa.Scalar], ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    rows = len(ranges.low)
    listed = arrow_values(values, kind)
    if _has_reordered(listed.array, ranges) or (pa.types.is_floating(kind) and pc.any(pc.is_nan(listed.array)).as_py()):
        return np.ones(rows, bool)
    ordered = listed.ordered
    if not len(ordered):
        return np.zeros(rows, bool)
    has_bounds = pc.is_valid(ranges.low)
    # Only the smallest list value that is not below the lower bound is relevant.
    first = _values_below(ordered, ranges.low.filter(has_bounds))
    next_value = ordered.take(pa.array(np.minimum(first, len(ordered) - 1)))
    in_range = (first < len(ordered)) & _true_or_unknown(pc.less_equal(next_value, ranges.high.filter(has_bounds)))
    flags = _true_or_unknown(pc.greater_equal(ranges.high, ordered[0]))
    flags[np.flatnonzero(_flags(has_bounds))] &= in_range
    return flags


def _values_below(ordered: pa.Array, items: pa.Array) -> Flags:
    """Return for each item the number of values in `ordered` that are smaller."""
    order = pc.array_sort_indices(pa.concat_arrays([items, ordered])).to_numpy()
    is_value = order >= len(items)
    below = np.empty(len(items), np.int64)
    # The sort is stable, so an item precedes the values that equal it.
    below[order[~is_value]] = np.cumsum(is_value)[~is_value]
    return below


def _starts(prefix: str, ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    value = pa.scalar(prefix, kind)
    if _is_reordered(value, ranges):
        return np.ones(len(ranges.low), bool)
    reaches = _true_or_unknown(pc.greater_equal(ranges.high, value))
    begins = pc.or_(pc.less_equal(ranges.low, value), pc.starts_with(ranges.low, prefix))
    return reaches & _true_or_unknown(begins)


def _has_reordered(values: pa.Array, ranges: ColumnRanges) -> bool:
    """Return whether bounds may be ordered differently than column values around one of these literals."""
    kind = values.type
    if not ranges.java_order or not len(values):
        return False
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if is_text and pc.all(pc.string_is_ascii(values)).as_py():
        return False
    return any(_is_reordered(value, ranges) for value in values)


def _is_reordered(value: pa.Scalar, ranges: ColumnRanges) -> bool:
    """Return whether bounds may be ordered differently than column values around this literal."""
    if not ranges.java_order:
        return False
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        return any(character >= _FIRST_REORDERED for character in value.as_py())
    return bool(pa.types.is_binary(value.type) or pa.types.is_large_binary(value.type))


def _true_or_unknown(flags: pa.Array) -> Flags:
    return _flags(flags.fill_null(True))


def _flags(flags: pa.Array) -> Flags:
    array: Flags = flags.to_numpy(zero_copy_only=False).astype(bool)
    return array
