"""Evaluate expressions on the rows of Arrow tables, column by column.

AND, OR, CASE, IF and COALESCE need a part only for some rows, so that `CASE WHEN n <> 0 THEN 10 / n END` is no division
by zero. A part is evaluated for all rows first, which is one kernel call. Only if that raises an error, it is evaluated
for the rows that need it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.arithmetic import arithmetic, interval, negative
from lakehouse.core.expressions.casts import cast_value, try_cast_value, type_named
from lakehouse.core.expressions.column_path import path_of
from lakehouse.core.expressions.comparisons import compared, is_in, not_distinct
from lakehouse.core.expressions.date_functions import indexed
from lakehouse.core.expressions.functions import FUNCTIONS, function_named
from lakehouse.core.expressions.string_functions import joined, matches_like, matches_pattern
from lakehouse.core.expressions.values import Datum, common_type, converted, filled, plain, scalar_of
from lakehouse.core.rows.index_functions import function_names
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.expression import Column, Expression, Operation, Value

_BITS: dict[str, Callable[[Any, Any], Any]] = {"&": pc.bit_wise_and, "|": pc.bit_wise_or, "^": pc.bit_wise_xor}
_COMPARED = ("=", "!=", "<", "<=", ">", ">=")
_ARITHMETIC = ("+", "-", "*", "/", "%", "div")


def evaluate(expression: Expression, rows: pa.Table) -> pa.Array:
    """Return the value of an expression for each row.

    Raises:
        UserError: A column does not exist, an operand has a type that an operator does not accept, or a value
            overflows or cannot be converted; the message names it.
    """
    return filled(_evaluated(expression, rows), rows.num_rows)


def matches(expression: Expression, rows: pa.Table) -> pa.Array:
    """Return the condition for each row: true, false or null; raise UserError for an expression of another type."""
    return filled(_condition(expression, rows, "a condition"), rows.num_rows)


def type_of_expression(expression: Expression, schema: pa.Schema) -> pa.DataType:
    """Return the type of an expression for a schema; raise UserError for an operand of a wrong type."""
    return evaluate(expression, schema.empty_table()).type


def _evaluated(expression: Expression, rows: pa.Table) -> Datum:
    if isinstance(expression, Value):
        return scalar_of(expression.value)
    if isinstance(expression, Column):
        return _column(expression.name, rows)
    name, arguments = expression.name, expression.arguments
    if name in _LAZY:
        return _LAZY[name](expression, rows)
    if name in _COMPARED:
        return _comparison(name, arguments, rows)
    if name == "interval":
        count = arguments[0]
        assert isinstance(count, Value), "the parser makes intervals of literals"
        return interval(count.value, expression.option)
    values = [_evaluated(argument, rows) for argument in arguments]
    try:
        result = _applied(expression, values)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(f"{name} cannot be evaluated: {error}") from None
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    is_constant = all(isinstance(value, pa.Scalar) for value in values)
    return result[0] if is_constant and isinstance(result, pa.Array) else result


def _applied(expression: Operation, values: Sequence[Datum]) -> Datum:
    """Return the result of an operator or function for evaluated arguments."""
    name = expression.name
    if name in _ARITHMETIC:
        return arithmetic(name, *values)
    if name == "negative":
        return negative(values[0])
    if name == "||":
        return joined(*values)
    if name in ("like", "ilike"):
        return matches_like(*values, escape=expression.option, ignores_case=name == "ilike")
    if name in ("rlike", "regexp_like"):
        return matches_pattern(*values)
    if name in ("cast", "try_cast"):
        return (cast_value if name == "cast" else try_cast_value)(values[0], type_named(expression.option))
    if name in _BITS:
        return _BITS[name](*_integers(name, values))
    if name == "~":
        return pc.bit_wise_not(*_integers(name, values))
    if name not in FUNCTIONS or (name in function_names() and len(values) > FUNCTIONS[name].at_most):
        if name in function_names():
            return indexed(name, values)
        function_named(name, len(values))
    function = function_named(name, len(values))
    if not function.sees_null and any(pa.types.is_null(value.type) for value in values):
        return pa.scalar(None, pa.null())
    return function.evaluate(values)


def _integers(name: str, values: Sequence[Datum]) -> list[Datum]:
    kind = common_type([value.type for value in values], name)
    if not pa.types.is_integer(kind):
        raise UserError(f"{name} needs whole numbers, and an operand has the type {kind}")
    return [converted(value, kind) for value in values]


def _column(path: str, rows: pa.Table) -> pa.Array:
    root, *inner = path_of(path, rows.schema)
    values = rows.column(root)
    for name in inner:
        values = pc.struct_field(values, name)
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    kind = plain(array.type)
    return array if array.type == kind else array.cast(kind)


def _comparison(operator: str, arguments: Sequence[Expression], rows: pa.Table) -> Datum:
    left, right = arguments
    if isinstance(right, Value) and right.value is not None and not isinstance(left, Value):
        return compared(operator, _evaluated(left, rows), right.value)
    if isinstance(left, Value) and left.value is not None and not isinstance(right, Value):
        flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(operator, operator)
        return compared(flipped, _evaluated(right, rows), left.value)
    return compared(operator, _evaluated(left, rows), _evaluated(right, rows))


def _condition(expression: Expression, rows: pa.Table, what: str) -> Datum:
    value = _evaluated(expression, rows)
    if pa.types.is_null(value.type):
        return pa.scalar(None, pa.bool_()) if isinstance(value, pa.Scalar) else value.cast(pa.bool_())
    if not pa.types.is_boolean(value.type):
        raise UserError(f"{what} must be true or false, and it has the type {value.type}")
    return value


def _negated(expression: Operation, rows: pa.Table) -> Datum:
    return pc.invert(_condition(expression.arguments[0], rows, "the operand of NOT"))


def _and_or(expression: Operation, rows: pa.Table) -> Datum:
    """Evaluate a chain of AND or OR; an operand that fails is evaluated for the rows that the others leave open."""
    is_and = expression.name == "and"
    what = f"an operand of {expression.name.upper()}"
    join = pc.and_kleene if is_and else pc.or_kleene
    result: Datum = pa.scalar(is_and)
    for argument in expression.arguments:
        try:
            value = _condition(argument, rows, what)
        except UserError:
            decided = filled(pc.fill_null(pc.invert(result) if is_and else result, False), rows.num_rows)
            value = _for_some(argument, rows, pc.invert(decided), lambda e, r: _condition(e, r, what))
        result = join(result, value)
    return result


def _for_some(
    expression: Expression, rows: pa.Table, mask: pa.Array, compute: Callable[[Expression, pa.Table], Datum]
) -> pa.Array:
    """Evaluate an expression for the rows of a mask; the value of the other rows is null.

    The error of the evaluation is raised again if all rows are in the mask.
    """
    selected = rows.filter(mask)
    values = filled(compute(expression, selected), selected.num_rows)
    flags = np.asarray(mask.to_numpy(zero_copy_only=False), bool)
    places = np.where(flags, np.cumsum(flags) - 1, 0)
    return values.take(pa.array(places, mask=~flags))


def _case(expression: Operation, rows: pa.Table) -> Datum:
    """Evaluate conditions and results in turn; an odd last argument is ELSE."""
    arguments = expression.arguments
    pairs = list(zip(arguments[::2], arguments[1::2], strict=False))
    branches: list[tuple[Datum, Expression]] = []
    pending: Datum = pa.scalar(True)
    for when, then in pairs:
        met = _guarded(when, rows, pending, lambda e, r: _condition(e, r, "a condition of CASE"))
        chosen = pc.and_(pending, pc.fill_null(met, False))
        branches.append((chosen, then))
        pending = pc.and_not(pending, chosen)
    if len(arguments) % 2:
        branches.append((pending, arguments[-1]))
    return _chosen(branches, rows, "CASE")


def _guarded(
    expression: Expression, rows: pa.Table, mask: Datum, compute: Callable[[Expression, pa.Table], Datum]
) -> Datum:
    """Evaluate an expression for all rows, or only for those of the mask if that raises an error."""
    try:
        return compute(expression, rows)
    except LakehouseError:
        return _for_some(expression, rows, filled(mask, rows.num_rows), compute)


def _chosen(branches: Sequence[tuple[Datum, Expression]], rows: pa.Table, what: str) -> Datum:
    """Return for each row the value of the branch whose flag is set; null if none is."""
    values = [_guarded(then, rows, flag, _evaluated) for flag, then in branches]
    kind = common_type([value.type for value in values], what)
    result: Datum = pa.scalar(None, kind)
    for (flag, _), value in zip(branches, values, strict=True):
        result = pc.if_else(flag, converted(value, kind), result)
    return result


def _coalesce(expression: Operation, rows: pa.Table) -> Datum:
    """Return the first argument that is not null."""
    branches: list[tuple[Datum, Expression]] = []
    pending: Datum = pa.scalar(True)
    values: list[Datum] = []
    for argument in expression.arguments:
        values.append(_guarded(argument, rows, pending, _evaluated))
        chosen = pc.and_(pending, pc.is_valid(values[-1]))
        branches.append((chosen, argument))
        pending = pc.and_not(pending, chosen)
    kind = common_type([value.type for value in values], expression.name)
    if pa.types.is_floating(kind) or pa.types.is_nested(kind):
        return _chosen(branches, rows, expression.name)
    return pc.coalesce(*(converted(value, kind) for value in values))


def _nullif(expression: Operation, rows: pa.Table) -> Datum:
    value = _evaluated(expression.arguments[0], rows)
    is_equal = pc.fill_null(_comparison("=", expression.arguments, rows), False)
    return pc.if_else(is_equal, pa.scalar(None, value.type), value)


def _nvl2(expression: Operation, rows: pa.Table) -> Datum:
    is_set, one, two = expression.arguments
    return _case(Operation("case", (Operation("isnotnull", (is_set,)), one, two)), rows)


def _is_null(expression: Operation, rows: pa.Table) -> Datum:
    value = _evaluated(expression.arguments[0], rows)
    return pc.is_null(value) if expression.name == "isnull" else pc.is_valid(value)


def _in_list(expression: Operation, rows: pa.Table) -> Datum:
    subject, *items = expression.arguments
    value = _evaluated(subject, rows)
    literals = [item.value for item in items if isinstance(item, Value)]
    if len(literals) == len(items) and not isinstance(subject, Value):
        return is_in(value, literals)
    tests = [_comparison("=", (subject, item), rows) for item in items]
    return reduce(pc.or_kleene, tests)


def _equal_or_null(expression: Operation, rows: pa.Table) -> Datum:
    left, right = expression.arguments
    if isinstance(left, Value):
        left, right = right, left
    if isinstance(right, Value) and right.value is not None and not isinstance(left, Value):
        return pc.fill_null(_comparison("=", (left, right), rows), False)
    return not_distinct(_evaluated(left, rows), _evaluated(right, rows))


_LAZY: dict[str, Callable[[Operation, pa.Table], Datum]] = {
    "not": _negated,
    "and": _and_or,
    "or": _and_or,
    "case": _case,
    "if": _case,
    "coalesce": _coalesce,
    "nvl": _coalesce,
    "ifnull": _coalesce,
    "nvl2": _nvl2,
    "nullif": _nullif,
    "isnull": _is_null,
    "isnotnull": _is_null,
    "in": _in_list,
    "<=>": _equal_or_null,
}
