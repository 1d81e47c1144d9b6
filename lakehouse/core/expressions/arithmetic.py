"""Arithmetic of Spark in its ANSI mode: an overflow and a division by zero are errors that name an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.values import (
    Datum,
    bounded_decimal,
    common_type,
    converted,
    decimal_of,
    is_number,
    plain,
    rounded,
    wide,
)
from lakehouse.core.rows.result_values import moved_days
from lakehouse.errors import UserError

_KERNELS: dict[str, Callable[[Datum, Datum], Datum]] = {
    "+": pc.add_checked,
    "-": pc.subtract_checked,
    "*": pc.multiply_checked,
}
_MICROS = {
    "week": 604_800_000_000, "day": 86_400_000_000, "hour": 3_600_000_000, "minute": 60_000_000, "second": 1_000_000,
    "millisecond": 1_000, "microsecond": 1,
}  # fmt: skip
_MONTHS = {"year": 12, "quarter": 3, "month": 1}
_DAY_UNITS = {"week": 7, "day": 1}
#: A value of an interval: its number of units, and the unit.
INTERVAL_FIELDS = ("count", "unit")


def arithmetic(operator: str, left: Datum, right: Datum) -> Datum:
    """Return `left operator right` for +, -, *, /, % and div."""
    if _is_interval(left) or _is_interval(right):
        return _moved(operator, left, right)
    if operator in ("+", "-") and pa.types.is_date(left.type) and pa.types.is_integer(right.type):
        return moved(left, right if operator == "+" else pc.negate_checked(right))
    left, right = _typed(operator, left, right), _typed(operator, right, left)
    for operand in (left, right):
        if not (is_number(operand.type) or pa.types.is_null(operand.type)):
            raise UserError(f"{operator} needs numbers, and an operand has the type {operand.type}")
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, right.type if pa.types.is_null(left.type) else left.type)
    if operator in ("/", "%", "div"):
        _check_divisor(operator, left, right)
    if _has_decimals(left, right):
        return _decimal(operator, left, right)
    if operator == "/":
        return pc.divide(converted(left, pa.float64()), converted(right, pa.float64()))
    kind = common_type((left.type, right.type), operator)
    if operator == "div":
        if pa.types.is_floating(kind):
            raise UserError(f"div needs whole numbers, and an operand has the type {kind}")
        return _checked(operator, pc.divide_checked, left.cast(pa.int64()), right.cast(pa.int64()))
    left, right = converted(left, kind), converted(right, kind)
    if operator == "%":
        return _remainder(left, right, kind)
    return _checked(operator, _KERNELS[operator], left, right)


def negative(value: Datum) -> Datum:
    """Return the negative of a number."""
    if not is_number(value.type) and not pa.types.is_null(value.type):
        raise UserError(f"- needs a number, and the operand has the type {value.type}")
    return value if pa.types.is_null(value.type) else _checked("-", lambda a, _: pc.negate_checked(a), value, value)


def interval(count: int, unit: str) -> pa.Scalar:
    """Return an interval as a value that `arithmetic` adds to dates and timestamps."""
    if unit not in _MICROS and unit not in _MONTHS:
        raise UserError(f"the unit {unit!r} of an interval is unknown; units: {', '.join((*_MONTHS, *_MICROS))}")
    return pa.scalar(dict(zip(INTERVAL_FIELDS, (count, unit), strict=True)))


def moved(days: Datum, count: Datum) -> Datum:
    """Add days to dates."""
    if isinstance(count, pa.Scalar) and isinstance(days, pa.Array):
        number = count.as_py()
        return pa.scalar(None, pa.date32()) if number is None else moved_days(days, number)
    numbers = pc.add_checked(days.cast(pa.date32()).cast(pa.int32()), converted(count, pa.int32()))
    return numbers.cast(pa.date32())


def added_months(days: Datum, count: Datum) -> Datum:
    """Add months to dates; the day of the month is at most the last one of the resulting month."""
    days = days if isinstance(days, pa.Array) else pa.array([days.as_py()], days.type)
    amount = count.as_py() if isinstance(count, pa.Scalar) else np.asarray(pc.fill_null(count.cast(pa.int64()), 0))
    if amount is None:
        return pa.nulls(len(days), pa.date32())
    is_null = np.asarray(days.is_null())
    if not isinstance(count, pa.Scalar):
        is_null = is_null | np.asarray(count.is_null())
    stored = np.asarray(pc.fill_null(days.cast(pa.date32()), pa.scalar(0, pa.int32()).cast(pa.date32())))
    stored = stored.astype("datetime64[D]")
    months = stored.astype("datetime64[M]")
    day = (stored - months.astype("datetime64[D]")).astype(np.int64)
    moved_to = months + amount
    last = ((moved_to + 1).astype("datetime64[D]") - moved_to.astype("datetime64[D]")).astype(np.int64) - 1
    result = moved_to.astype("datetime64[D]") + np.minimum(day, last)
    return pa.array(result.astype(np.int64).astype(np.int32), mask=is_null).cast(pa.date32())


def _is_interval(value: Datum) -> bool:
    return bool(pa.types.is_struct(value.type)) and tuple(f.name for f in value.type) == INTERVAL_FIELDS


def _moved(operator: str, left: Datum, right: Datum) -> Datum:
    """Add an interval to dates or timestamps, or subtract it."""
    if _is_interval(left) and not _is_interval(right) and operator == "+":
        left, right = right, left
    kind = left.type
    if operator not in ("+", "-") or not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise UserError(f"an interval can be added to a date or a timestamp, not by {operator} with {kind}")
    given = right.as_py()
    count, unit = given["count"] * (1 if operator == "+" else -1), given["unit"]
    if pa.types.is_date(kind) and unit in _DAY_UNITS:
        return moved(left, pa.scalar(count * _DAY_UNITS[unit]))
    if unit in _MONTHS:
        return _moved_months(left, count * _MONTHS[unit])
    times = left.cast(pa.timestamp("us", getattr(kind, "tz", None)))
    return pc.add_checked(times, pa.scalar(count * _MICROS[unit], pa.duration("us")))


def _moved_months(values: Datum, months: int) -> Datum:
    if pa.types.is_date(values.type):
        return added_months(values, pa.scalar(months))
    zone = values.type.tz
    local = values.cast(pa.timestamp("us"))
    days = pc.floor_temporal(local, unit="day").cast(pa.timestamp("us"))
    of_day = pc.subtract(local, days)
    return pc.add(added_months(days.cast(pa.date32()), pa.scalar(months)).cast(pa.timestamp("us")), of_day).cast(
        pa.timestamp("us", zone)
    )


def _typed(operator: str, value: Datum, other: Datum) -> Datum:
    """Return an operand without dictionary; a string is a number in the type of the other operand, as in Spark."""
    kind = plain(value.type)
    value = value if kind == value.type else value.cast(kind)
    if pa.types.is_string(kind) and is_number(other.type):
        raise UserError(f"{operator} needs numbers, and an operand is a string; convert it with CAST")
    return value


def _has_decimals(left: Datum, right: Datum) -> bool:
    is_floating = any(pa.types.is_floating(value.type) for value in (left, right))
    return not is_floating and any(pa.types.is_decimal(value.type) for value in (left, right))


def _check_divisor(operator: str, left: Datum, right: Datum) -> None:
    """Raise UserError for a division by zero in a row whose dividend is not null."""
    is_zero = pc.and_(pc.equal(right, pa.scalar(0, pa.int8()).cast(right.type)), pc.is_valid(left))
    if _any(is_zero):
        raise UserError(f"division by zero: the right operand of {operator} is 0. Use nullif(divisor, 0) to get null")


def _any(flags: Datum) -> bool:
    return bool(flags.as_py()) if isinstance(flags, pa.Scalar) else bool(pc.any(flags).as_py())


def _checked(operator: str, kernel: Callable[[Datum, Datum], Datum], left: Datum, right: Datum) -> Datum:
    try:
        return kernel(left, right)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"{operator} overflows {left.type} for values such as {_extreme(left)} and {_extreme(right)}: {error}. "
            "Convert an operand with CAST to a wider type"
        ) from None


def _extreme(value: Datum) -> Any:
    if isinstance(value, pa.Scalar):
        return value.as_py()
    bounds = pc.min_max(value)
    return max((bounds["min"].as_py(), bounds["max"].as_py()), key=lambda number: abs(number or 0))


def _decimal(operator: str, left: Datum, right: Datum) -> Datum:
    """Compute with 76 digits, and round once to the type of Spark."""
    left, right = (_literal_decimal(value) for value in (left, right))
    one, two = decimal_of(left.type), decimal_of(right.type)
    whole_one, whole_two = one.precision - one.scale, two.precision - two.scale
    if operator in ("+", "-"):
        scale = max(one.scale, two.scale)
        kind = bounded_decimal(max(whole_one, whole_two) + scale + 1, scale)
        return rounded(_KERNELS[operator](_cut(wide(left, scale)), _cut(wide(right, scale))), kind)
    if operator == "*":
        kind = bounded_decimal(one.precision + two.precision + 1, one.scale + two.scale)
        left, right = (value.cast(decimal_of(value.type)) for value in (left, right))
        factors = [value.cast(pa.decimal256(t.precision, t.scale)) for value, t in ((left, one), (right, two))]
        return _checked(operator, lambda a, b: rounded(pc.multiply_checked(a, b), kind), *_narrow(*factors))
    if operator == "/":
        return _quotient(left, right)
    scale = max(one.scale, two.scale)
    quotient = _whole_quotient(left, right)
    if operator == "div":
        return rounded(quotient, pa.decimal128(38, 0)).cast(pa.int64())
    # a - b * trunc(a / b); the product has no more digits than the dividend.
    product = pc.multiply_checked(
        quotient.cast(pa.decimal256(38, 0)), right.cast(two).cast(pa.decimal256(37, two.scale))
    )
    kind = bounded_decimal(min(whole_one, whole_two) + scale, scale)
    return rounded(pc.subtract_checked(_cut(wide(left, scale)), _cut(product.cast(pa.decimal256(76, scale)))), kind)


def _literal_decimal(value: Datum) -> Datum:
    """Return a whole literal as a decimal with its own number of digits, as in Spark."""
    if not isinstance(value, pa.Scalar) or not value.is_valid or not pa.types.is_integer(value.type):
        return value
    return value.cast(pa.decimal128(20, 0)).cast(pa.decimal128(len(str(abs(value.as_py()))), 0))


def _cut(value: Datum) -> Datum:
    """Return a decimal with one digit less, so that Arrow's type of a sum has at most 76 digits."""
    return value.cast(pa.decimal256(75, value.type.scale))


def _narrow(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Return factors whose product has at most 76 digits in Arrow's rules."""
    excess = left.type.precision + right.type.precision + 1 - 76
    if excess <= 0:
        return left, right
    return left, right.cast(pa.decimal256(right.type.precision - excess, right.type.scale))


def _quotient(left: Datum, right: Datum) -> Datum:
    one, two = decimal_of(left.type), decimal_of(right.type)
    scale = max(6, one.scale + two.precision + 1)
    kind = bounded_decimal(one.precision - one.scale + two.scale + scale, scale)
    return rounded(_divided(left, right, kind.scale + 1), kind)


def _whole_quotient(left: Datum, right: Datum) -> Datum:
    quotient = _divided(left, right, 1)
    return pc.trunc(quotient).cast(pa.decimal256(38, 0))


def _divided(left: Datum, right: Datum, digits: int) -> Datum:
    """Return a quotient with at least `digits` digits after the point, cut off after the last one."""
    one, two = (decimal_of(value.type) for value in (left, right))
    scale = digits + two.scale
    precision = max(one.precision - one.scale + scale, 1)
    if precision + two.precision + 1 > 76:
        raise UserError(
            f"/ of {one} by {two} needs more than 76 digits; convert the operands with CAST to types with fewer digits"
        )
    # Arrow scales a dividend up by the scales of both types, so the kernel gets whole numbers.
    dividend = _relabelled(left.cast(one).cast(pa.decimal256(precision, scale)), pa.decimal256(precision, 0))
    divisor = right.cast(two).cast(pa.decimal256(two.precision, two.scale))
    quotient = pc.trunc(pc.divide(dividend, _relabelled(divisor, pa.decimal256(two.precision, 0))))
    return _relabelled(quotient.cast(pa.decimal256(precision + two.precision + 1, 0)), pa.decimal256(75, digits))


def _relabelled(value: Datum, kind: pa.DataType) -> Datum:
    """Return a decimal with the same digits and the point in another place."""
    array = pa.array([value.as_py()], value.type) if isinstance(value, pa.Scalar) else value
    moved_point = pa.Array.from_buffers(kind, len(array), array.buffers(), array.null_count, offset=array.offset)
    return moved_point[0] if isinstance(value, pa.Scalar) else moved_point


def _remainder(left: Datum, right: Datum, kind: pa.DataType) -> Datum:
    """Return the remainder with the sign of the dividend."""
    if pa.types.is_floating(kind):
        one, two = (np.asarray(v.as_py() if isinstance(v, pa.Scalar) else v, np.float64) for v in (left, right))
        scalars = isinstance(left, pa.Scalar) and isinstance(right, pa.Scalar)
        result = np.fmod(one, two)
        values = pa.array(np.atleast_1d(result), kind)
        valid = pc.and_(pc.is_valid(left), pc.is_valid(right))
        return values[0] if scalars else pc.if_else(valid, values, pa.scalar(None, kind))
    if kind == pa.int64() or kind == pa.int32():
        # -2147483648 % -1 is 0, but its quotient overflows.
        wide_kind = pa.int64()
        is_minus_one = pc.equal(right, pa.scalar(-1, kind))
        divisor = pc.if_else(is_minus_one, pa.scalar(1, kind), right).cast(wide_kind)
        whole = pc.divide(left.cast(wide_kind), divisor)
        return pc.subtract(left.cast(wide_kind), pc.multiply(whole, divisor)).cast(kind)
    return pc.subtract(left, pc.multiply(pc.divide(left, right), right))
