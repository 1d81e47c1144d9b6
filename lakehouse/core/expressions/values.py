"""Types of values in expressions: literals, the common type of several values, and exact decimals.

The rules are Spark's. A decimal result has the precision and the scale of Spark's rules; it is computed with 76 digits
and rounded half up once.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.literals import literal
from lakehouse.errors import UserError
from lakehouse.model.predicate import TimeLiteral

#: A column of values, or one value for all rows.
Datum: TypeAlias = Any

MOST_DIGITS, _LEAST_SCALE, _WIDE_DIGITS = 38, 6, 76
TIMESTAMP = pa.timestamp("us", "UTC")
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}


def scalar_of(value: Any) -> pa.Scalar:
    """Return a literal as a scalar with the type that Spark gives it. A number with a fraction is an exact decimal."""
    if value is None:
        return pa.scalar(None, pa.null())
    if isinstance(value, bool | str | bytes):
        return pa.scalar(value)
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return pa.scalar(value, pa.int32() if -(2**31) <= value < 2**31 else pa.int64())
        value = Decimal(value)
    if isinstance(value, Decimal):
        return _decimal_scalar(value)
    if isinstance(value, TimeLiteral):
        kind = {"DATE": pa.date32(), "TIMESTAMP": TIMESTAMP, "TIME": pa.time64("us")}[value.type]
        return pa.array([literal(value, kind)], kind)[0]
    return pa.scalar(value)


def _decimal_scalar(value: Decimal) -> pa.Scalar:
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int), "a literal is a finite number"
    if len(digits) > MOST_DIGITS:
        raise UserError(
            f"the number {value} has {len(digits)} digits, and a decimal has at most {MOST_DIGITS}. Write fewer "
            "digits, or a double such as 1.5e40"
        )
    if exponent > 0:
        digits, exponent = (*digits, *([0] * min(exponent, MOST_DIGITS + 1))), 0
    scale = -exponent
    precision = max(len(digits), scale, 1)
    if precision > MOST_DIGITS:
        return pa.scalar(float(value), pa.float64())
    return pa.scalar(Decimal((sign, digits, exponent)), pa.decimal128(precision, scale))


def decimal_of(kind: pa.DataType) -> pa.DataType:
    """Return the decimal type that holds all values of an integer or decimal type."""
    if pa.types.is_decimal(kind):
        return kind
    return pa.decimal128(_INTEGER_DIGITS[kind.bit_width], 0)


def bounded_decimal(precision: int, scale: int) -> pa.DataType:
    """Return a decimal type; above 38 digits the scale is reduced to no less than 6, as in Spark."""
    if precision <= MOST_DIGITS:
        return pa.decimal128(max(precision, 1), scale)
    whole = precision - scale
    return pa.decimal128(MOST_DIGITS, max(MOST_DIGITS - whole, min(scale, _LEAST_SCALE)))


def common_type(kinds: Sequence[pa.DataType], what: str) -> pa.DataType:
    """Return the type to which values of several types are converted.

    Raises UserError, which starts with `what`, for types without a common type.
    """
    result = pa.null()
    for kind in kinds:
        result = _common(result, plain(kind), what)
    return result


def plain(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries and large offsets."""
    if pa.types.is_dictionary(kind):
        return plain(kind.value_type)
    if pa.types.is_large_string(kind) or kind == pa.string_view():
        return pa.string()
    return pa.binary() if pa.types.is_large_binary(kind) else kind


def _common(left: pa.DataType, right: pa.DataType, what: str) -> pa.DataType:
    if left == right or pa.types.is_null(right):
        return left
    if pa.types.is_null(left):
        return right
    if is_number(left) and is_number(right):
        return _common_number(left, right)
    if _is_moment(left) and _is_moment(right):
        return TIMESTAMP if pa.types.is_date(left) or pa.types.is_date(right) else _finer(left, right)
    raise UserError(f"{what} has values of the types {left} and {right}; convert one with CAST")


def _finer(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    unit = "ns" if "ns" in (left.unit, right.unit) else "us"
    return pa.timestamp(unit, left.tz or right.tz)


def _common_number(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    if pa.types.is_floating(left) or pa.types.is_floating(right):
        floats = [kind for kind in (left, right) if pa.types.is_floating(kind)]
        other = right if floats[0] == left else left
        is_narrow = all(kind.bit_width < 64 for kind in floats) and not pa.types.is_decimal(other)
        return pa.float32() if is_narrow else pa.float64()
    if pa.types.is_integer(left) and pa.types.is_integer(right):
        return left if left.bit_width >= right.bit_width else right
    left, right = decimal_of(left), decimal_of(right)
    scale = max(left.scale, right.scale)
    whole = max(left.precision - left.scale, right.precision - right.scale)
    return bounded_decimal(whole + scale, scale)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type is an integer, a decimal or a float."""
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_floating(kind))


def converted(value: Datum, kind: pa.DataType) -> Datum:
    """Convert a value to a common type, which holds it; raise UserError for a value that the type does not hold."""
    if value.type == kind:
        return value
    try:
        return value.cast(kind)
    except pa.ArrowInvalid as error:
        raise UserError(f"a value of type {value.type} does not fit {kind}: {error}") from None


def wide(value: Datum, scale: int) -> Datum:
    """Return a number as a decimal with 76 digits and a scale."""
    exact = value.cast(decimal_of(value.type))
    return exact.cast(pa.decimal256(_WIDE_DIGITS, scale))


def rounded(value: Datum, kind: pa.DataType) -> Datum:
    """Round a decimal half up to a type; raise UserError for a value with too many digits."""
    if value.type.scale > kind.scale:
        value = pc.round(value, ndigits=kind.scale, round_mode="half_towards_infinity")
    try:
        return value.cast(kind)
    except pa.ArrowInvalid as error:
        raise UserError(f"a result does not fit {kind}: {error}") from None


def filled(value: Datum, rows: int) -> pa.Array:
    """Return an array of `rows` values."""
    if isinstance(value, pa.Scalar):
        return pa.nulls(rows, value.type) if not value.is_valid else pa.repeat(value, rows)
    return value.combine_chunks() if isinstance(value, pa.ChunkedArray) else value
