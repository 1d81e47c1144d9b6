"""Functions of numbers in expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.arithmetic import arithmetic
from lakehouse.core.expressions.values import Datum, bounded_decimal, common_type, converted, is_number
from lakehouse.errors import UserError


def double(value: Datum) -> Datum:
    """Return a number as a double; raise UserError for another type."""
    if not is_number(value.type) and not pa.types.is_null(value.type):
        raise UserError(f"a number is needed, and the argument has the type {value.type}")
    return value.cast(pa.float64())


def absolute(value: Datum) -> Datum:
    """Return the absolute value of a number in its type."""
    try:
        return value if pa.types.is_null(value.type) else pc.abs_checked(_number(value))
    except pa.ArrowInvalid as error:
        raise UserError(f"abs overflows {value.type}: {error}") from None


def whole(value: Datum, compute: Callable[[Datum], Datum]) -> Datum:
    """Round up or down to a whole number: a bigint, or a decimal without a fraction, as in Spark."""
    value = _number(value)
    kind = value.type
    if pa.types.is_integer(kind):
        return value.cast(pa.int64())
    if pa.types.is_decimal(kind):
        return compute(value.cast(pa.decimal256(76, kind.scale))).cast(
            bounded_decimal(kind.precision - kind.scale + 1, 0)
        )
    return _safe(compute(value.cast(pa.float64())), pa.int64())


def rounded_to(arguments: Sequence[Datum], mode: str) -> Datum:
    """Round a number to some digits after the point."""
    value = _number(arguments[0])
    digits = 0 if len(arguments) == 1 else whole_literal("round", arguments[1])
    kind = value.type
    if pa.types.is_floating(kind) or (pa.types.is_integer(kind) and digits < 0):
        return pc.round(value, ndigits=digits, round_mode=mode)
    if pa.types.is_integer(kind) or digits >= kind.scale:
        return value
    result = pc.round(value.cast(pa.decimal256(76, kind.scale)), ndigits=digits, round_mode=mode)
    return result.cast(bounded_decimal(kind.precision - kind.scale + 1 + max(digits, 0), max(digits, 0)))


def positive(name: str, compute: Callable[[Datum], Datum], value: Datum) -> Datum:
    """Return a logarithm, which is null for numbers that are not positive, as in Spark."""
    number = double(value)
    result: Any = compute(number)
    return pc.if_else(pc.greater(number, 0.0), result, pa.scalar(None, pa.float64()))


def positive_mod(left: Datum, right: Datum) -> Datum:
    """Return the remainder with the sign of the divisor."""
    remainder = arithmetic("%", left, right)
    zero = pa.scalar(0, pa.int32()).cast(remainder.type)
    return pc.if_else(pc.less(remainder, zero), arithmetic("%", arithmetic("+", remainder, right), right), remainder)


def extreme(arguments: Sequence[Datum], *, greatest: bool) -> Datum:
    """Return the maximum or minimum of the arguments that are not null; NaN is greater than all numbers."""
    name = "greatest" if greatest else "least"
    kind = common_type([value.type for value in arguments], name)
    values = [converted(value, kind) for value in arguments]
    if not pa.types.is_floating(kind):
        compute = pc.max_element_wise if greatest else pc.min_element_wise
        return compute(*values, skip_nulls=True)
    return reduce(lambda left, right: _extreme_float(left, right, greatest=greatest), values)


def _extreme_float(left: Datum, right: Datum, *, greatest: bool) -> Datum:
    compute = pc.max_element_wise if greatest else pc.min_element_wise
    result = compute(left, right, skip_nulls=True)
    if not greatest:
        return result
    is_nan = pc.or_kleene(pc.is_nan(left), pc.is_nan(right))
    return pc.if_else(pc.fill_null(is_nan, False), pa.scalar(float("nan"), left.type), result)


def whole_literal(name: str, value: Datum) -> int:
    """Return an argument that must be a whole number, the same for all rows."""
    if isinstance(value, pa.Scalar) and value.is_valid and pa.types.is_integer(value.type):
        return int(value.as_py())
    raise UserError(f"this argument of {name} must be a whole number in the text of the expression")


def _number(value: Datum) -> Datum:
    if not is_number(value.type):
        raise UserError(f"a number is needed, and the argument has the type {value.type}")
    return value


def _safe(value: Datum, kind: pa.DataType) -> Datum:
    try:
        return value.cast(kind)
    except pa.ArrowInvalid as error:
        raise UserError(f"the result does not fit {kind}: {error}") from None
