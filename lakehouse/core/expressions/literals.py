"""Compare literals in the type of their column, exactly (MDT-14).

A number that the type cannot represent is replaced by the next lower value of the type, with the result that SQL
defines. So for a column of type decimal(5, 2), `d < 1000000` becomes `d <= 999.99`, and `d = 1.005` holds for no value.
A date is the timestamp at its midnight, and times without a zone are in UTC. A floating-point column is compared with
the double next to the literal, as in Spark.

Typed literals are Arrow scalars, which represent every value of the type, such as dates after the year 9999.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from numbers import Integral, Real
from typing import Any, NamedTuple, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.literal_texts import (
    DAY_SECONDS,
    exact_number,
    parse_moment,
    parse_number,
    parse_time,
)
from lakehouse.errors import UserError
from lakehouse.model.predicate import Comparison, In, Not, Operator, Predicate, TimeLiteral

_TICKS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_MILLIS = 86_400_000
#: By operator, the equivalent operator if the literal is replaced by the next lower value of the type.
_BELOW: dict[Operator, Operator] = {"<": "<=", "<=": "<=", ">": ">", ">=": ">"}
_REAL_NAMES = {"nan": math.nan, "inf": math.inf, "infinity": math.inf}
_TRUE, _FALSE = frozenset(("t", "true", "y", "yes", "1")), frozenset(("f", "false", "n", "no", "0"))
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)


class _Place(NamedTuple):
    """The position of a literal among the values of a type.

    Attributes:
        value: The last value that is not greater than the literal; None if all values are greater.
        is_equal: Whether the value equals the literal.
    """

    value: pa.Scalar | None
    is_equal: bool


def typed_comparison(where: Comparison, kind: pa.DataType) -> Predicate:
    """Return an equivalent comparison whose literal has the column's type.

    Raises:
        UserError: The literal cannot be compared with the type.
    """
    if _is_typed(where.value, kind):
        return where
    place = _checked_place(where.value, kind)
    if place.is_equal:
        return Comparison(where.column, where.operator, place.value)
    # An empty list still returns null for a null value, like every comparison.
    never, always = In(where.column, ()), Not(In(where.column, ()))
    if where.operator in ("=", "!="):
        return never if where.operator == "=" else always
    if place.value is None:
        return never if where.operator in ("<", "<=") else always
    return Comparison(where.column, _BELOW[where.operator], place.value)


class ArrowValues(Sequence[pa.Scalar]):
    """The values of an IN list as an array without nulls: kernels read it, no Python object is made for each value."""

    def __init__(self, array: pa.Array) -> None:
        self.array = array

    @overload
    def __getitem__(self, place: int) -> pa.Scalar: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[pa.Scalar]: ...

    def __getitem__(self, place: int | slice) -> pa.Scalar | Sequence[pa.Scalar]:
        """Return one value, or the values of a slice."""
        return ArrowValues(self.array[place]) if isinstance(place, slice) else self.array[place]

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self.array)

    def __iter__(self) -> Iterator[pa.Scalar]:
        """Yield the values as scalars."""
        return iter(self.array)

    def __eq__(self, other: object) -> bool:
        """Return whether the other list has the same values in the same order."""
        return isinstance(other, ArrowValues) and bool(self.array.equals(other.array))

    def __hash__(self) -> int:
        """Return a hash that does not read the values."""
        return hash((len(self.array), str(self.array.type)))

    @cached_property
    def ordered(self) -> pa.Array:
        """The values in ascending order."""
        return self.array.take(pc.array_sort_indices(self.array))


def arrow_values(values: Sequence[pa.Scalar], kind: pa.DataType) -> ArrowValues:
    """Return typed values as an array."""
    return values if isinstance(values, ArrowValues) else ArrowValues(pa.array(values, kind))


def typed_list(where: In, kind: pa.DataType) -> In:
    """Return the IN list without literals that no value of the column's type can equal."""
    if isinstance(where.values, ArrowValues) and where.values.array.type == kind:
        return where
    return In(where.column, tuple(_values(where.values, kind)))


def literal(value: Any, kind: pa.DataType) -> Any:
    """Convert a stored value to a Python value of an Arrow type; floats are rounded to the type.

    Raises:
        UserError: No value of the type equals it.
    """
    place = _checked_place(value, kind)
    if pa.types.is_floating(kind):
        return pa.scalar(_real(value), kind).as_py()
    if place.value is None or not place.is_equal:
        raise _refused(value, kind, "the type cannot represent it exactly")
    try:
        return place.value.as_py()
    except (ValueError, OverflowError) as error:
        raise _refused(value, kind, error) from None


def literal_text(value: Any) -> str:
    """Return a literal as a message shows it."""
    return repr(value) if isinstance(value, str | bytes) else str(value)


def _values(values: Iterable[Any], kind: pa.DataType) -> Iterable[pa.Scalar]:
    for value in values:
        if _is_typed(value, kind):
            yield value
            continue
        place = _checked_place(value, kind)
        if place.is_equal:
            yield place.value


def _is_typed(value: Any, kind: pa.DataType) -> bool:
    return isinstance(value, pa.Scalar) and value.type == kind


def _checked_place(value: Any, kind: pa.DataType) -> _Place:
    try:
        return _place(value, kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException) as error:
        raise _refused(value, kind, error) from None


def _refused(value: Any, kind: pa.DataType, reason: object) -> UserError:
    return UserError(f"{literal_text(value)} is not a value of type {kind}: {reason}")


def _place(value: Any, kind: pa.DataType) -> _Place:
    if pa.types.is_floating(kind):
        return _floating_place(_real(value), kind)
    if pa.types.is_integer(kind):
        return _discrete_place(_number(value, is_whole=True), kind, _integer_limits(kind))
    if pa.types.is_decimal(kind):
        most = 10**kind.precision - 1
        return _discrete_place(_number(value) * Fraction(10) ** kind.scale, kind, (-most, most))
    if pa.types.is_date(kind):
        return _discrete_place(_days(value), kind, (-(2**31), 2**31 - 1))
    if pa.types.is_timestamp(kind):
        return _discrete_place(_seconds(value) * _TICKS[kind.unit], kind, (-(2**63), 2**63 - 1))
    if pa.types.is_time(kind):
        return _discrete_place(_time_seconds(value) * _TICKS[kind.unit], kind, (0, 2 ** (kind.bit_width - 1) - 1))
    return _Place(pa.scalar(_other(value, kind), kind), True)


def _discrete_place(position: Fraction, kind: pa.DataType, limits: tuple[int, int]) -> _Place:
    """Return the position of a literal among values that are multiples of a unit, such as cents or microseconds."""
    low, high = limits
    floor = math.floor(position)
    if floor < low:
        return _Place(None, False)
    return _Place(_scalar(min(floor, high), kind), floor == position and floor <= high)


def _scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    if pa.types.is_decimal(kind):
        # A tuple, because arithmetic on decimals rounds to 28 digits.
        digits = tuple(map(int, str(abs(number))))
        return pa.scalar(Decimal((int(number < 0), digits, -kind.scale)), kind)
    return pa.scalar(number * _DAY_MILLIS if pa.types.is_date64(kind) else number, kind)


def _floating_place(number: float, kind: pa.DataType) -> _Place:
    # The sum has no negative zero, which equals zero.
    number = number + 0.0
    if math.isnan(number) or pa.types.is_float64(kind):
        return _Place(pa.scalar(number, kind), True)
    with np.errstate(over="ignore"):
        nearest = np.dtype(kind.to_pandas_dtype()).type(number)
    if float(nearest) > number:
        nearest = np.nextafter(nearest, -nearest.dtype.type(math.inf))
    return _Place(pa.scalar(nearest, kind), float(nearest) == number)


def _integer_limits(kind: pa.DataType) -> tuple[int, int]:
    if pa.types.is_unsigned_integer(kind):
        return 0, 2**kind.bit_width - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def _number(value: Any, *, is_whole: bool = False) -> Fraction:
    """Return the exact value of a number or numeric string; `is_whole` refuses strings with a fraction, as in Spark."""
    if isinstance(value, bool | np.bool_):
        raise ValueError("it is a boolean")
    if isinstance(value, str):
        number = parse_number(value)
        if is_whole and set(value) & set(".eE"):
            raise ValueError("the column is an integer; write a number with a fraction without quotes")
        return number
    if isinstance(value, Integral):
        return Fraction(int(value))
    if isinstance(value, Decimal):
        return exact_number(value)
    if isinstance(value, Real):
        # Use the digits with which the number is written, not its exact binary value.
        return exact_number(Decimal(repr(float(value))))
    raise ValueError("it is not a number")


def _real(value: Any) -> float:
    """Return the double next to a number or numeric string."""
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, str):
        name = value.strip().lower().removeprefix("+")
        if name.removeprefix("-") in _REAL_NAMES:
            return -_REAL_NAMES[name[1:]] if name.startswith("-") else _REAL_NAMES[name]
    try:
        return float(_number(value))
    except OverflowError:
        raise ValueError("it is beyond the largest double, 1.7976931348623157e308") from None


def _days(value: Any) -> Fraction:
    """Return the days since 1970 for a date, or for a timestamp with its fraction of a day."""
    if isinstance(value, str):
        moment = parse_moment(value)
        if moment.has_zone or moment.seconds % DAY_SECONDS:
            raise ValueError(f"the column is a date; write TIMESTAMP {value!r} to compare with a time of day")
    return _seconds(value) / DAY_SECONDS


def _seconds(value: Any) -> Fraction:
    """Return the seconds since 1970 for a timestamp, or for midnight on a date."""
    if isinstance(value, TimeLiteral) and value.type != "TIME":
        return parse_moment(value.text).seconds
    if isinstance(value, str):
        return parse_moment(value).seconds
    if isinstance(value, dt.datetime):
        offset = value.utcoffset() or dt.timedelta()
        return Fraction((value.replace(tzinfo=None) - _EPOCH - offset) // _MICROSECOND, 1_000_000)
    if isinstance(value, dt.date):
        return Fraction((value.toordinal() - _EPOCH.toordinal()) * DAY_SECONDS)
    raise ValueError("it is not a date or a timestamp; write it as text, such as '2026-01-31'")


def _time_seconds(value: Any) -> Fraction:
    if isinstance(value, TimeLiteral) and value.type == "TIME":
        return parse_time(value.text)
    if isinstance(value, str):
        return parse_time(value)
    if isinstance(value, dt.time) and value.tzinfo is None:
        micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 1_000_000 + value.microsecond
        return Fraction(micros, 1_000_000)
    raise ValueError("it is not a time of day; write it as text, such as '12:30:00'")


def _other(value: Any, kind: pa.DataType) -> Any:
    """Return a literal for a type that is neither a number nor a time; raise ValueError if it does not fit."""
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        if not isinstance(value, str):
            raise ValueError(f"the column is a string; write the literal in quotes, such as {_as_text(value)!r}")
        return value
    if pa.types.is_boolean(kind):
        return _boolean(value)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        if not isinstance(value, str | bytes):
            raise ValueError("the column is binary; write the literal in quotes")
        return value.encode() if isinstance(value, str) else value
    raise ValueError("values of this type cannot be compared; name a field of it, such as `column.field`")


def _as_text(value: Any) -> str:
    """Return the string that a string column may contain for a literal of another type."""
    if isinstance(value, TimeLiteral):
        return value.text
    return str(value).lower() if isinstance(value, bool | np.bool_) else str(value)


def _boolean(value: Any) -> bool:
    if isinstance(value, bool | np.bool_):
        return bool(value)
    name = value.strip().lower() if isinstance(value, str) else None
    if name not in _TRUE | _FALSE:
        raise ValueError("it is not true or false")
    return name in _TRUE
