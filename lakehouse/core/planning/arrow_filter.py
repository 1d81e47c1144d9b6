"""Translate filter expressions of Arrow to predicates that prune.

The predicate of a filter holds for every row for which the filter is true, and maybe for more rows: the caller applies
the filter itself to the rows that the predicate leaves. Parts without an equivalent predicate are therefore omitted.

A filter is true, false or null for a row, and `invert` exchanges true and false. So each part is translated twice: to a
predicate for the rows for which it is true, and to one for the rows for which it is false.

Arrow and this package differ in three cases, in which the predicate holds for more rows or is omitted:

* `is_in` is false for a null, but `IN` is null.
* All comparisons of Arrow with NaN are false except `!=`. Here NaN is the greatest number.
* `is_in` compares the bits of floats, so it distinguishes 0.0 from -0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.column_path import path_of, type_of
from lakehouse.core.format.arrow_expression import (
    ExpressionCall,
    ExpressionField,
    ExpressionLiteral,
    ExpressionNode,
    UnknownExpressionError,
    decode_expression,
    fields_of,
)
from lakehouse.core.planning.predicate import check_columns
from lakehouse.errors import UserError
from lakehouse.model.predicate import And, Comparison, In, IsNull, Not, Operator, Or, Predicate, StartsWith

#: Holds for every row: the translation of a part without an equivalent predicate.
_ALL = And(())
_NONE = Or(())
_COMPARISONS: dict[str, Operator] = {
    "equal": "=",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}
_NEGATED: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
_SWAPPED: dict[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def filter_columns(expression: pc.Expression) -> tuple[str, ...] | None:
    """Return the top-level columns in a filter; None if they cannot be determined."""
    try:
        return tuple(dict.fromkeys(field.path[0] for field in fields_of(decode_expression(expression))))
    except UnknownExpressionError:
        return None


def pruning_predicate(expression: pc.Expression, schema: pa.Schema) -> Predicate | None:
    """Return a predicate that holds for every row for which a filter is true; None if none is more selective.

    Args:
        expression: The filter.
        schema: The columns of the table, whose types the literals of the predicate take.
    """
    try:
        predicate = _Translation(schema).where(decode_expression(expression), outcome=True)
    except UnknownExpressionError:
        return None
    return None if predicate == _ALL else predicate


class _Translation:
    """Translates the parts of a filter over tables of a schema."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._functions: dict[str, Callable[[ExpressionCall, bool], Predicate]] = {
            "and": self._both,
            "and_kleene": self._both,
            "or": self._either,
            "or_kleene": self._either,
            "invert": self._inverted,
            "if_else": self._conditional,
            "is_null": self._null,
            "is_valid": self._valid,
            "is_in": self._listed,
            "starts_with": self._prefixed,
            **dict.fromkeys(_COMPARISONS, self._compared),
        }

    def where(self, node: ExpressionNode, *, outcome: bool) -> Predicate:
        """Return a predicate that holds for all rows for which the node is true, or false, as `outcome` is."""
        if isinstance(node, ExpressionLiteral):
            value = node.value.as_py() if pa.types.is_boolean(node.value.type) else None
            return _ALL if value is outcome else _NONE
        if isinstance(node, ExpressionField):
            column = self._column(node)
            is_boolean = column is not None and pa.types.is_boolean(type_of(column, self._schema))
            return Comparison(str(column), "=", outcome) if is_boolean else _ALL
        function = self._functions.get(node.function)
        if function is None:
            return _ALL
        predicate = function(node, outcome)
        return predicate if isinstance(predicate, And | Or) else self._checked(predicate)

    def _both(self, node: ExpressionCall, outcome: bool) -> Predicate:
        return (_all_of if outcome else _any_of)(self.where(part, outcome=outcome) for part in node.arguments)

    def _either(self, node: ExpressionCall, outcome: bool) -> Predicate:
        return (_any_of if outcome else _all_of)(self.where(part, outcome=outcome) for part in node.arguments)

    def _inverted(self, node: ExpressionCall, outcome: bool) -> Predicate:
        return self.where(node.arguments[0], outcome=not outcome)

    def _conditional(self, node: ExpressionCall, outcome: bool) -> Predicate:
        condition, chosen, other = node.arguments
        return _any_of(
            _all_of((self.where(condition, outcome=holds), self.where(result, outcome=outcome)))
            for holds, result in ((True, chosen), (False, other))
        )

    def _null(self, node: ExpressionCall, outcome: bool) -> Predicate:
        column = self._column(node.arguments[0])
        if column is None or _option(node, "nan_is_null") is not False:
            return _ALL
        return IsNull(column) if outcome else Not(IsNull(column))

    def _valid(self, node: ExpressionCall, outcome: bool) -> Predicate:
        column = self._column(node.arguments[0])
        if column is None:
            return _ALL
        return Not(IsNull(column)) if outcome else IsNull(column)

    def _compared(self, node: ExpressionCall, outcome: bool) -> Predicate:
        operator, (left, right) = _COMPARISONS[node.function], node.arguments
        if isinstance(left, ExpressionLiteral):
            operator, left, right = _SWAPPED[operator], right, left
        column = self._column(left)
        if column is None or not isinstance(right, ExpressionLiteral):
            return _ALL
        if not right.value.is_valid:
            return _NONE
        kind = type_of(column, self._schema)
        value = _typed(right.value, kind)
        if value is None or (pa.types.is_floating(kind) and not outcome):
            return _ALL
        return Comparison(column, operator if outcome else _NEGATED[operator], value)

    def _listed(self, node: ExpressionCall, outcome: bool) -> Predicate:
        column, listed = self._column(node.arguments[0]), _option(node, "value_set")
        if column is None or not isinstance(listed, pa.Array | pa.ChunkedArray):
            return _ALL
        kind = type_of(column, self._schema)
        values = tuple(_typed(value, kind) for value in listed.drop_null())
        if any(value is None for value in values) or (pa.types.is_floating(kind) and not outcome):
            return _ALL
        if outcome:
            return self._checked(In(column, values), *([IsNull(column)] if listed.null_count else []))
        return self._checked(Not(In(column, values)), IsNull(column))

    def _prefixed(self, node: ExpressionCall, outcome: bool) -> Predicate:
        column, prefix = self._column(node.arguments[0]), _option(node, "pattern")
        if column is None or not isinstance(prefix, str) or _option(node, "ignore_case") is not False:
            return _ALL
        return StartsWith(column, prefix) if outcome else Not(StartsWith(column, prefix))

    def _column(self, node: ExpressionNode) -> str | None:
        """Return the name of a column in a predicate; None if the node is no column or a name means another one."""
        if not isinstance(node, ExpressionField):
            return None
        name = ".".join(node.path)
        try:
            return name if path_of(name, self._schema) == node.path else None
        except UserError:
            return None

    def _checked(self, *parts: Predicate) -> Predicate:
        """Return a predicate for which one of the parts holds; `_ALL` if a column does not accept its literal."""
        try:
            for part in parts:
                check_columns(part, self._schema)
        except UserError:
            return _ALL
        return _any_of(parts)


def _option(node: ExpressionCall, name: str) -> Any:
    """Return an option of a call: an array for a list, else a Python value; None if it is absent."""
    if node.options is None or node.options.type.get_field_index(name) < 0:
        return None
    option = node.options[name]
    return option.values if isinstance(option, pa.ListScalar) else option.as_py()


def _typed(value: pa.Scalar, kind: pa.DataType) -> pa.Scalar | None:
    """Return a literal in the type of its column; None if Arrow might compare the two in another way.

    Arrow casts one of the two to the type of the other. The casts below are exact in both directions.
    """
    stored = value.type
    if stored != kind and not any(is_from(stored) and is_to(kind) for is_from, is_to in _EXACT_CASTS):
        return None
    if pa.types.is_timestamp(kind) and (stored.tz is None) != (kind.tz is None):
        return None
    try:
        typed = value if stored == kind else value.cast(kind)
    except pa.ArrowException:
        return None
    return None if pa.types.is_floating(kind) and math.isnan(typed.as_py()) else typed


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


#: Checks of the types of a literal and of a column between which safe casts keep the value or fail.
_EXACT_CASTS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType], bool]], ...] = (
    (pa.types.is_integer, pa.types.is_integer),
    (pa.types.is_integer, pa.types.is_decimal),
    (pa.types.is_integer, pa.types.is_float64),
    (pa.types.is_decimal, pa.types.is_decimal),
    (pa.types.is_timestamp, pa.types.is_timestamp),
    (_is_text, _is_text),
)


def _all_of(parts: Iterable[Predicate]) -> Predicate:
    flat: dict[Predicate, None] = {}
    for part in parts:
        if part == _NONE:
            return _NONE
        flat |= dict.fromkeys(part.parts if isinstance(part, And) else (part,))
    return next(iter(flat)) if len(flat) == 1 else And(tuple(flat))


def _any_of(parts: Iterable[Predicate]) -> Predicate:
    flat: dict[Predicate, None] = {}
    for part in parts:
        if part == _ALL:
            return _ALL
        flat |= dict.fromkeys(part.parts if isinstance(part, Or) else (part,))
    return next(iter(flat)) if len(flat) == 1 else Or(tuple(flat))
