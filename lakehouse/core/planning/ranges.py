"""Evaluate a predicate on column ranges of many files or partitions at once (MDT-14).

For each item (a file, a partition) a column has a smallest and a largest value, and numbers of nulls and of values. A
bound or a number that is null is unknown. The result says for each item whether it may have a matching row: one kernel
pass per condition, no loop over items. An item is excluded only if its ranges prove that no row matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.planning.column_path import type_of
from lakehouse.core.planning.predicate import function_of, literal, result_field
from lakehouse.core.rows.result_values import NoValuesError
from lakehouse.model.predicate import And, Applied, Call, Comparison, In, IsNull, Not, Or, Predicate, StartsWith

Flags = np.ndarray[Any, Any]

_NEGATED: dict[str, Any] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
#: Java orders text by UTF-16 code units. The order of code points differs from it only from this character on.
_FIRST_REORDERED = "\ue000"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRanges:
    """The ranges of one column, one row per item.

    Attributes:
        low: A lower bound of the values that are not null; null if unknown.
        high: An upper bound; null if unknown.
        nulls: The number of nulls; null if unknown.
        values: The number of values, nulls included; null if unknown.
        java_order: Whether the bounds of text may be in the order of UTF-16 code units.
    """

    low: pa.Array
    high: pa.Array
    nulls: pa.Array
    values: pa.Array
    java_order: bool = False

    @classmethod
    def unknown(cls, kind: pa.DataType, rows: int) -> ColumnRanges:
        """Return ranges of `rows` items about which nothing is known."""
        bound, number = pa.nulls(rows, kind), pa.nulls(rows, pa.int64())
        return cls(low=bound, high=bound, nulls=number, values=number)

    @classmethod
    def of_values(cls, value: pa.Array) -> ColumnRanges:
        """Return the ranges of items whose rows all have the same value; a null value is unknown."""
        known = pc.if_else(pc.is_valid(value), pa.scalar(0, pa.int64()), pa.scalar(None, pa.int64()))
        return cls(low=value, high=value, nulls=known, values=pa.nulls(len(value), pa.int64()))

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
        )


def may_match(where: Predicate, ranges: Mapping[str, ColumnRanges], schema: pa.Schema, rows: int) -> Flags:
    """Return for each of `rows` items whether it may have a row that meets the condition.

    Args:
        where: The condition; its columns and literals were checked.
        ranges: Ranges by the name of the column, or by the text of the call of a function. A column without ranges
            excludes nothing.
        schema: The schema of the rows.
        rows: The number of items.
    """
    if isinstance(where, And | Or):
        found = np.full(rows, isinstance(where, And))
        for part in where.parts:
            matched = may_match(part, ranges, schema, rows)
            found = found & matched if isinstance(where, And) else found | matched
        return found
    if isinstance(where, Applied):
        return may_match(where.part, *_of_call(where.call, ranges, schema), rows)
    if isinstance(where, Not) and isinstance(where.part, Applied):
        return may_match(Not(where.part.part), *_of_call(where.part.call, ranges, schema), rows)
    if isinstance(where, Not) and isinstance(where.part, IsNull):
        known = ranges.get(where.part.column)
        return np.ones(rows, bool) if known is None else ~_only_nulls(known)
    if isinstance(where, Not):
        inverse = _inverse(where.part, schema)
        return np.ones(rows, bool) if inverse is None else may_match(inverse, ranges, schema, rows)
    if where.column not in ranges:
        return np.ones(rows, bool)
    return _leaf(where, ranges[where.column], type_of(where.column, schema))


def matches_of_leaves(where: Predicate, schema: pa.Schema, rows: int, of_leaf: Callable[[Predicate], Flags]) -> Flags:
    """Combine flags of the leaves of a condition, which may be below NOT, as AND and OR say.

    Each leaf compares one column. So if the rows of an item come from several files, flags of its leaves may be united
    over these files, also if a row has values from several of them.
    """
    if isinstance(where, And | Or):
        found = np.full(rows, isinstance(where, And))
        for part in where.parts:
            flags = matches_of_leaves(part, schema, rows, of_leaf)
            found = found & flags if isinstance(where, And) else found | flags
        return found
    if isinstance(where, Not) and isinstance(where.part, And | Or | Not):
        inverse = _inverse(where.part, schema)
        return np.ones(rows, bool) if inverse is None else matches_of_leaves(inverse, schema, rows, of_leaf)
    return of_leaf(where)


def _of_call(
    call: Call, ranges: Mapping[str, ColumnRanges], schema: pa.Schema
) -> tuple[Mapping[str, ColumnRanges], pa.Schema]:
    """Return ranges of the results of a call, and the schema that has them as its only column.

    Without ranges of the results, those of the column tell them if the function keeps the order of values.
    """
    of_result = pa.schema([result_field(call, schema)])
    if call.text in ranges or call.column not in ranges or not function_of(call).keeps_order:
        return ranges, of_result
    known = ranges[call.column]
    try:
        low, high = (function_of(call).evaluate(bound) for bound in (known.low, known.high))
    except NoValuesError:
        return ranges, of_result
    return {call.text: replace(known, low=low, high=high)}, of_result


def _inverse(part: Predicate, schema: pa.Schema) -> Predicate | None:
    """Return a condition without NOT that holds at least where NOT `part` holds; None if there is no useful one."""
    if isinstance(part, Not):
        return part.part
    if isinstance(part, And | Or):
        found = tuple(_inverse(inner, schema) or And(()) for inner in part.parts)
        return Or(found) if isinstance(part, And) else And(found)
    if isinstance(part, IsNull | Applied):
        return Not(part)
    # NaN is neither less than a number nor greater, so NOT (f > 1) holds for it and f <= 1 does not.
    if isinstance(part, Comparison) and not pa.types.is_floating(type_of(part.column, schema)):
        return Comparison(part.column, _NEGATED[part.operator], part.value)
    return None


def _leaf(where: Comparison | In | IsNull | StartsWith, ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    if isinstance(where, IsNull):
        return _true_or_unknown(pc.greater(ranges.nulls, 0))
    if isinstance(where, StartsWith):
        found = _starts(where.prefix, ranges, kind)
    elif isinstance(where, In):
        found = _one_of([literal(value, kind) for value in where.values], ranges, kind)
    else:
        found = _compared(where, literal(where.value, kind), ranges, kind)
    return found & ~_only_nulls(ranges)


def _only_nulls(ranges: ColumnRanges) -> Flags:
    """Return for each item whether all its values are null, so that only IS NULL can hold."""
    all_null = pc.and_(pc.equal(ranges.nulls, ranges.values), pc.greater(ranges.values, 0))
    return _flags(all_null.fill_null(False))


def _compared(where: Comparison, value: Any, ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    rows = len(ranges.low)
    if _is_reordered(value, ranges) or (where.operator == "!=" and pa.types.is_floating(kind)):
        # Bounds do not include NaN, and NaN is unequal to every value.
        return np.ones(rows, bool)
    scalar = pa.scalar(value, kind)
    if where.operator == "!=":
        same = pc.and_(pc.equal(ranges.low, scalar), pc.equal(ranges.high, scalar))
        return ~_flags(same.fill_null(False))
    if where.operator in ("<", "<="):
        return _true_or_unknown((pc.less if where.operator == "<" else pc.less_equal)(ranges.low, scalar))
    if where.operator in (">", ">="):
        return _true_or_unknown((pc.greater if where.operator == ">" else pc.greater_equal)(ranges.high, scalar))
    low, high = pc.less_equal(ranges.low, scalar), pc.greater_equal(ranges.high, scalar)
    return _true_or_unknown(low) & _true_or_unknown(high)


def _one_of(values: Sequence[Any], ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    rows = len(ranges.low)
    if any(_is_reordered(value, ranges) for value in values):
        return np.ones(rows, bool)
    if pa.types.is_floating(kind) and any(value != value for value in values):
        # Bounds do not include NaN.
        return np.ones(rows, bool)
    ordered = pa.array(values, kind)
    ordered = ordered.take(pc.array_sort_indices(ordered))
    if not len(ordered):
        return np.zeros(rows, bool)
    known = pc.is_valid(ranges.low)
    # The smallest value that is not below the lower bound decides.
    first = _values_below(ordered, ranges.low.filter(known))
    next_value = ordered.take(pa.array(np.minimum(first, len(ordered) - 1)))
    in_range = (first < len(ordered)) & _true_or_unknown(pc.less_equal(next_value, ranges.high.filter(known)))
    found = _true_or_unknown(pc.greater_equal(ranges.high, ordered[0]))
    found[np.flatnonzero(_flags(known))] &= in_range
    return found


def _values_below(ordered: pa.Array, items: pa.Array) -> Flags:
    """Return for each item the number of `ordered` values that are less than it."""
    order = pc.array_sort_indices(pa.concat_arrays([items, ordered])).to_numpy()
    is_value = order >= len(items)
    below = np.empty(len(items), np.int64)
    # The sort is stable, so an item precedes the values that equal it.
    below[order[~is_value]] = np.cumsum(is_value)[~is_value]
    return below


def _starts(prefix: str, ranges: ColumnRanges, kind: pa.DataType) -> Flags:
    if _is_reordered(prefix, ranges):
        return np.ones(len(ranges.low), bool)
    value = pa.scalar(literal(prefix, kind), kind)
    reaches = _true_or_unknown(pc.greater_equal(ranges.high, value))
    begins = pc.or_(pc.less_equal(ranges.low, value), pc.starts_with(ranges.low, prefix))
    return reaches & _true_or_unknown(begins)


def _is_reordered(value: Any, ranges: ColumnRanges) -> bool:
    """Whether the order of the bounds may differ from that of the values of the column at this literal."""
    if not ranges.java_order:
        return False
    return isinstance(value, bytes) or (isinstance(value, str) and any(c >= _FIRST_REORDERED for c in value))


def _true_or_unknown(flags: pa.Array) -> Flags:
    return _flags(flags.fill_null(True))


def _flags(flags: pa.Array) -> Flags:
    found: Flags = flags.to_numpy(zero_copy_only=False).astype(bool)
    return found
