"""Functions of expression indexes that parse, cut, or replace strings, and that count days (MDT-4.8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.rows.java_patterns import GROUP, LINE_ENDS, JavaPattern, java_pattern
from lakehouse.core.rows.time_texts import Numbers, Parsed, cast_dates, cast_times, parse_times
from lakehouse.errors import UserError

#: Units and literals of a date pattern, see `parse_times`.
Pattern: TypeAlias = Sequence[tuple[str, str]]
#: A `pa.Array` or `pa.ChunkedArray`.
Values: TypeAlias = Any

_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_SECOND, _DAY = 1_000_000, 86_400_000_000
_SHOWN = 40


class NoValuesError(Exception):
    """The function has no defined result for a value; an index has no entry for the file."""


def moved_days(values: Values, days: int) -> pa.Array:
    """Add a number of days to dates. Days are 32-bit numbers, which overflow as in Java."""
    numbers, is_valid = _day_numbers(values)
    return _dates((numbers + days).astype(np.int32), is_valid)


def to_days(values: Values, pattern: Pattern | None) -> pa.Array:
    """Convert dates, timestamps or strings to dates. Strings are parsed by a pattern, or by a cast if there is none."""
    if not _is_text(values):
        return _dates(*_day_numbers(values))
    parsed = _parsed(values, cast_dates, pattern)
    return _dates((parsed.micros // _DAY).astype(np.int32), parsed.is_time)


def to_times(values: Values, pattern: Pattern | None) -> pa.Array:
    """Convert dates, timestamps or strings to timestamps.

    Strings are parsed by a pattern, or by a cast if there is none.
    """
    micros, is_valid = _micros(values, cast_times, pattern)
    return _nulled(micros, is_valid).view(pa.timestamp("us", "UTC"))


def to_seconds(values: Values, pattern: Pattern) -> pa.Array:
    """Convert dates, timestamps or strings to seconds since 1970. Strings are parsed by a pattern.

    As in Spark, a fraction before 1970 is cut off towards 1970.
    """
    micros, is_valid = _micros(values, cast_times, pattern)
    return _nulled(np.sign(micros) * (np.abs(micros) // _SECOND), is_valid)


def substring(values: Values, position: int, length: int) -> Values:
    """Return characters from a position on, counted from 1, or from the end if it is negative.

    As in Spark, the position 0 is the first character, and characters before the first one count as cut off.
    """
    if length <= 0:
        return pc.if_else(values.is_valid(), "", pa.scalar(None, values.type)).cast(values.type)
    start = position - 1 if position > 0 else position
    stop = start + length
    if position < 0 and stop >= 0:
        return pc.utf8_slice_codeunits(values, start=start)
    return pc.utf8_slice_codeunits(values, start=start, stop=min(stop, 2**31 - 1))


def check_extracted(pattern: str, group: int) -> None:
    """Raise UserError for a pattern that is not supported, and for a group that it does not have."""
    java_pattern(pattern, group)


def extracted(values: Values, pattern: str, group: int) -> pa.Array:
    """Return a group of the first match of a regular expression as a string; it is empty if there is no match."""
    expression = java_pattern(pattern, group)
    texts = _one(values)
    _require_lines(texts, expression)
    match = pc.struct_field(pc.extract_regex(texts, expression.re2), GROUP)
    return pc.if_else(texts.is_valid(), pc.fill_null(match, ""), pa.scalar(None, texts.type))


def check_replaced(pattern: str, replacement: str) -> None:
    """Raise UserError for a pattern or a replacement that is not supported."""
    if java_pattern(pattern).may_be_empty:
        raise UserError(f"the pattern {pattern!r} of regexp_replace may match an empty text", pattern=pattern)
    if "\\" in replacement or "$" in replacement:
        raise UserError(
            f"the replacement {replacement!r} of regexp_replace is not supported: it has a `$` or a backslash",
            replacement=replacement,
        )


def replaced(values: Values, pattern: str, replacement: str) -> pa.Array:
    """Return strings in which each match of a regular expression is replaced."""
    expression = java_pattern(pattern)
    texts = _one(values)
    _require_lines(texts, expression)
    return pc.replace_substring_regex(texts, expression.re2, replacement)


def _require_lines(texts: pa.Array, pattern: JavaPattern) -> None:
    if pattern.needs_lines and pc.any(pc.match_substring_regex(texts, LINE_ENDS)).as_py():
        raise NoValuesError("a string contains a line break, which engines treat differently")


def _micros(values: Values, cast: Callable[[pa.Array], Parsed], pattern: Pattern | None) -> tuple[Numbers, Numbers]:
    if _is_text(values):
        parsed = _parsed(values, cast, pattern)
        return parsed.micros, parsed.is_time
    if pa.types.is_date(values.type):
        days, is_valid = _day_numbers(values)
        return days * _DAY, is_valid
    return _numbers(values, pa.int64(), _MICROS.get(values.type.unit, 0))


def _day_numbers(values: Values) -> tuple[Numbers, Numbers]:
    """Return the days since 1970 of dates, or of timestamps in UTC, as 64-bit numbers, and which are not null."""
    if pa.types.is_date(values.type):
        return _numbers(values.cast(pa.date32()), pa.int32(), 1)
    micros, is_valid = _numbers(values, pa.int64(), _MICROS.get(values.type.unit, 0))
    return micros // _DAY, is_valid


def _numbers(values: Values, kind: pa.DataType, factor: int) -> tuple[Numbers, Numbers]:
    array = _one(values)
    numbers = np.asarray(array.view(kind).fill_null(0)).astype(np.int64)
    # Nanoseconds are cut to the microsecond before, as in Spark.
    return (numbers * factor if factor else numbers // 1_000), np.asarray(array.is_valid())


def _parsed(values: Values, cast: Callable[[pa.Array], Parsed], pattern: Pattern | None) -> Parsed:
    """Return the times in strings; raise NoValuesError for a string that Spark parses by other rules."""
    texts = _one(values)
    parsed = cast(texts) if pattern is None else parse_times(texts, pattern)
    doubtful = parsed.doubtful_text(texts)
    if doubtful is not None:
        raise NoValuesError(f"the time of the text {doubtful[:_SHOWN]!r} depends on the engine")
    return parsed


def _is_text(values: Values) -> bool:
    return bool(pa.types.is_string(values.type) or pa.types.is_large_string(values.type))


def _dates(days: Numbers, is_valid: Numbers) -> pa.Array:
    return pa.array(days.astype(np.int32), pa.int32(), mask=~is_valid).view(pa.date32())


def _nulled(numbers: Numbers, is_valid: Numbers) -> pa.Array:
    return pa.array(numbers, pa.int64(), mask=~is_valid)


def _one(values: Values) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
