"""Conditions agree with an independent exact model, for random types, values, literals and operators.

The model compares Python fractions and texts. It shares no code with the planner: literals are made from numbers of
units, so their exact value is known without parsing.
"""

from __future__ import annotations

import math
import operator
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from lakehouse.core.planning.predicate import matching, parse_predicate
from lakehouse.core.planning.ranges import ColumnRanges, may_match
from tests.support.tables import examples

#: A point of the order of a type: whether it is NaN, which is the greatest value, and its exact value.
Point = tuple[bool, Fraction | float]
#: Years of literals have at most seven digits.
LAST_SECOND = Fraction(315_000_000_000_000)
WIDE = Context(prec=400)
TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
COMPARED = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
integers = st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64()])
decimals = st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))
floats = st.sampled_from([pa.float32(), pa.float64()])
times = st.sampled_from(
    [pa.date32(), *(pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC"))]
)
clocks = st.sampled_from([pa.time32("ms"), pa.time64("us")])


def limits(kind: pa.DataType) -> tuple[int, int]:
    """Return the least and the greatest number of units of a type with whole units."""
    if pa.types.is_decimal(kind):
        return 1 - 10**kind.precision, 10**kind.precision - 1
    if pa.types.is_time(kind):
        return 0, 86_400 * TICKS[kind.unit] - 1
    return -(2 ** (kind.bit_width - 1)), 2 ** (kind.bit_width - 1) - 1


def units(kind: pa.DataType) -> int:
    """Return the units of a type per unit of its literals: seconds for times, days for dates, and 1."""
    if pa.types.is_decimal(kind):
        return 10**kind.scale
    return TICKS[kind.unit] if pa.types.is_timestamp(kind) or pa.types.is_time(kind) else 1


def near(kind: pa.DataType) -> st.SearchStrategy[int]:
    """Return numbers of units: common ones, and those at the ends of the type and of the years 1 to 9999."""
    low, high = limits(kind)
    seconds = units(kind) if pa.types.is_timestamp(kind) else Fraction(1, 86_400)
    borders = [low, high, 0, 1, -1, 2**53, 2**53 + 1, 123456789012345678]
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        borders += [math.floor(s * seconds) for s in (-62_135_596_800, 253_402_300_799, 253_402_300_800)]
    close = st.sampled_from(borders).flatmap(lambda border: st.integers(border - 2, border + 2))
    return (close | st.integers(low, high)).filter(lambda number: low <= number <= high)


@st.composite
def discrete_cases(draw: st.DrawFn) -> tuple[pa.Array, list[Point | None], list[tuple[str, Point]]]:
    """Return a column, the exact values of its rows, and literals with their exact values."""
    kind = draw(integers | decimals | times | clocks)
    numbers = draw(st.lists(st.none() | near(kind), min_size=1, max_size=6))
    scale = units(kind)
    literals = []
    for _ in range(draw(st.integers(1, 4))):
        # A literal is next to a value of the column, or anywhere in the type, with a part of a unit.
        base = draw(st.sampled_from([n for n in numbers if n is not None] or [0]) | near(kind))
        part = Fraction(draw(st.sampled_from([0, 0, 1, -1, 5, 499])), draw(st.sampled_from([10, 1000, 10**12])))
        exact = Fraction(base + part, scale)
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            exact *= draw(st.sampled_from([1, 1, 1, 10, 10**30]))
        elif pa.types.is_date(kind):
            # The literal is a timestamp; the exact value counts days.
            exact = Fraction(math.floor(exact * 86_400 * 10**9), 86_400 * 10**9)
        elif pa.types.is_timestamp(kind):
            exact = min(max(exact, -LAST_SECOND), LAST_SECOND)
        elif pa.types.is_time(kind):
            exact = min(max(exact, Fraction(0)), Fraction(86_399))
        literals.append((text_of(exact, kind, draw), (False, exact)))
    if pa.types.is_decimal(kind):
        column = pa.array([None if n is None else decimal(n, kind.scale) for n in numbers], kind)
    else:
        column = pa.array(numbers, kind)
    return column, [None if n is None else (False, Fraction(n, scale)) for n in numbers], literals


def text_of(exact: Fraction, kind: pa.DataType, draw: st.DrawFn) -> str:
    """Return a literal with an exact value in one of its forms."""
    if pa.types.is_time(kind):
        return draw(st.sampled_from(["", "TIME "])) + f"'{clock(exact)}'"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        seconds = exact * 86_400 if pa.types.is_date(kind) else exact
        days, rest = divmod(seconds, 86_400)
        day = str(np.datetime64(int(days), "D"))
        if rest == 0 and draw(st.booleans()):
            return draw(st.sampled_from(["", "DATE "])) + f"'{day}'"
        separator = draw(st.sampled_from([" ", "T"]))
        word = "TIMESTAMP " if pa.types.is_date(kind) else draw(st.sampled_from(["", "timestamp "]))
        return f"{word}'{day}{separator}{clock(rest)}{draw(st.sampled_from(['', 'Z', '+00:00']))}'"
    digits, power = exact.numerator, 0
    while (digits * 10**power) % exact.denominator:
        power += 1
    whole = digits * 10**power // exact.denominator
    plain = format(decimal(whole, power), "f")
    if power == 0 and pa.types.is_integer(kind):
        return draw(st.sampled_from([plain, f"'{plain}'", f"{plain}.0", f"{plain}e0"]))
    return draw(st.sampled_from([plain, f"{whole}e{-power}", *([f"'{plain}'"] if pa.types.is_decimal(kind) else [])]))


def decimal(unscaled: int, scale: int) -> Decimal:
    """Return an unscaled number as a decimal number, without rounding."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def clock(seconds: Fraction) -> str:
    """Return a time of day with all digits, which are at most 21."""
    whole, part = divmod(seconds, 1)
    minutes, second = divmod(int(whole), 60)
    fraction = f"{math.floor(part * 10**21):021}".rstrip("0")
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}" + (f".{fraction}" if fraction else "")


def model(points: list[Point | None], compared: str, literals: list[Point]) -> list[bool | None]:
    """Return the result of a condition for each row: SQL's three values."""
    if compared == "IN":
        return [None if point is None else point in literals for point in points]
    return [None if point is None else COMPARED[compared](point, literals[0]) for point in points]


def check(column: pa.Array, points: list[Point | None], literals: list[tuple[str, Point]], compared: str) -> None:
    """Compare the rows that meet a condition and its negation with the model, and prune each row by its own range."""
    exact = [point for _, point in literals]
    right = f"({', '.join(text for text, _ in literals)})" if compared == "IN" else literals[0][0]
    expected = model(points, compared, exact)
    rows = pa.table({"c": column, "row": pa.array(range(len(column)))})
    is_null = column.is_null().cast(pa.int64())
    one = pa.array([1] * len(column), pa.int64())
    # Bounds are unknown for NaN, as in statistics.
    bounds = pa.array([None if p is not None and p[0] else v for p, v in zip(points, column, strict=True)], column.type)
    ranges = ColumnRanges(low=bounds, high=bounds, nulls=is_null, values=one)
    for where, wanted in ((f"c {compared} {right}", True), (f"NOT c {compared} {right}", False)):
        predicate = parse_predicate(where)
        matched = matching(rows, predicate, rows.schema).column("row").to_pylist()
        assert matched == [row for row, result in enumerate(expected) if result is wanted], where
        assert may_match(predicate, {"c": ranges}, rows.schema, len(column))[matched].all(), where


@example(
    # The negative of a literal with more digits than Python's context.
    case=(
        pa.array([decimal(-(10**28) - 1, 1)], pa.decimal128(38, 1)),
        [(False, Fraction(-(10**28) - 1, 10))],
        [("-1000000000000000000000000000.1", (False, Fraction(-(10**28) - 1, 10)))],
    ),
    compared="=",
)
@given(case=discrete_cases(), compared=st.sampled_from([*COMPARED, "IN"]))
@examples(600)
def test_condition_on_numbers_and_times_agrees_with_exact_fractions(
    case: tuple[pa.Array, list[Point | None], list[tuple[str, Point]]], compared: str
) -> None:
    check(*case, compared)


def point_of(number: float) -> Point:
    """Return the place of a double in the order of Spark."""
    return (True, 0.0) if math.isnan(number) else (False, number)


@st.composite
def float_cases(draw: st.DrawFn) -> tuple[pa.Array, list[Point | None], list[tuple[str, Point]]]:
    """Return a column of floats, and literals that are rounded to the next double."""
    kind = draw(floats)
    width = kind.bit_width
    numbers = draw(
        st.lists(st.none() | st.floats(width=width) | st.sampled_from([0.0, -0.0, math.nan, 0.5]), min_size=1)
    )
    literals: list[tuple[str, Point]] = []
    for _ in range(draw(st.integers(1, 3))):
        number = draw(st.sampled_from([n for n in numbers if n is not None] or [0.0]) | st.floats())
        if math.isnan(number):
            literals.append((draw(st.sampled_from(["'NaN'", "'nan'"])), point_of(number)))
        elif math.isinf(number):
            literals.append(("'Infinity'" if number > 0 else "'-inf'", point_of(number)))
        else:
            digits = Decimal(number).quantize(Decimal(10) ** -draw(st.integers(1, 30)), context=WIDE)
            text = format(digits, "f")
            if len(text) > 90:
                text = repr(number)
            literals.append((text, point_of(float(text))))
    return pa.array(numbers, kind), [None if n is None else point_of(n) for n in numbers], literals


@given(case=float_cases(), compared=st.sampled_from([*COMPARED, "IN"]))
@example(
    case=(pa.array([0.1], pa.float32()), [point_of(float(np.float32(0.1)))], [("0.1", point_of(0.1))]), compared="="
)
@examples(300)
def test_condition_on_floats_agrees_with_doubles_in_the_order_of_spark(
    case: tuple[pa.Array, list[Point | None], list[tuple[str, Point]]], compared: str
) -> None:
    check(*case, compared)
