r"""Infer the type of a string column by the rules in `lakehouse.spark.inferred_types`, without Spark.

A test compares both on the same strings. A type is inferred if every string is the usual notation of a value:

    12 | 3000000000 | 20 to 38 digits | 0.5    int | bigint | decimal | double
    2026-01-31 | 2026-01-31 10:00              date | timestamp
    true                                       boolean
    007, +5, 12D, 12:30, 2026-1                string
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakehouse.platform.suggest.time_patterns import matches_pattern

INT, LONG, DECIMAL, DOUBLE, DATE, TIMESTAMP, BOOLEAN, STRING = (1 << bit for bit in range(8))
NUMBER = INT | LONG | DECIMAL | DOUBLE
TEMPORAL = DATE | TIMESTAMP
_NAMES: Mapping[int, str] = {
    INT: "int",
    LONG: "bigint",
    DECIMAL: "decimal",
    DOUBLE: "double",
    DATE: "date",
    TIMESTAMP: "timestamp",
    BOOLEAN: "boolean",
    STRING: "string",
}
_MOST_DIGITS = 38
_DOUBLE_DIGITS = 15
_WHOLE = re.compile(r"\s*(0|-?[1-9][0-9]*)\s*", re.ASCII)
_FRACTION = re.compile(r"\s*-?((0|[1-9][0-9]*)([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?\s*", re.ASCII)
_DAY = re.compile(r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})\s*", re.ASCII)
_TIME = re.compile(
    r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:[.][0-9]{1,6}0*)?(?: ?(?P<zone>[A-Za-z0-9:/_+-]+)?)?)?)?\s*",
    re.ASCII,
)
_OFFSET = re.compile(r"Z|(?:UTC|GMT|UT)?(?:[+-]([0-9]{1,2})(?::?([0-9]{2})(?::?([0-9]{2}))?)?)?", re.ASCII)
_REGION = re.compile(r"[A-Za-z]+(/[A-Za-z_+-]+)+", re.ASCII)
_SPECIAL = frozenset(("NaN", "Infinity", "Inf", "INF", "+Infinity", "+INF", "-Infinity", "-Inf", "-INF"))
#: Grouping and decimal separators, as in Java, for the locales that a suggestion may set.
LOCALES: Mapping[str, tuple[str, str]] = {"de-DE": (".", ","), "en-US": (",", ".")}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRules:
    """The reader options that determine types.

    Attributes:
        null_text: The string for null. An unquoted empty value (None here) is always null; a quoted one (an empty
            string here) only if `null_text` is not set.
        locale: A locale in `LOCALES`; empty for numbers in SQL notation.
        date_format: The date pattern; empty for ISO dates.
        timestamp_format: The timestamp pattern; empty for ISO times.
    """

    null_text: str = ""
    locale: str = ""
    date_format: str = ""
    timestamp_format: str = ""

    def is_null(self, text: str | None) -> bool:
        """Return whether a string means null."""
        return text is None or text == self.null_text


def text_kinds(text: str, rules: TextRules) -> int:
    """Return the bits of all types for which a string is a value in the usual notation."""
    numbers = _number_kinds(_in_sql(text, rules.locale))
    if numbers:
        return numbers
    if text in _SPECIAL:
        return DOUBLE | STRING
    times = TIMESTAMP if _is_time(text, rules.timestamp_format) else 0
    if _is_date(text, rules.date_format):
        return DATE | times | STRING
    if times:
        return times | STRING
    return BOOLEAN | STRING if text.lower() in ("true", "false") else STRING


def common_kinds(texts: Iterable[str], rules: TextRules) -> int:
    """Return the bits of the types that fit all strings; all bits if there are no strings."""
    bits = (1 << 8) - 1
    for text in texts:
        bits &= text_kinds(text, rules)
        if bits == STRING:
            break
    return bits


def text_type(texts: Iterable[str], rules: TextRules) -> str:
    """Return the Spark SQL type for non-null strings; `string` if there are none."""
    distinct = tuple(texts)
    bits = common_kinds(distinct, rules) if distinct else STRING
    chosen = next(bit for bit in _NAMES if bits & bit)
    if chosen != DECIMAL:
        return _NAMES[chosen]
    digits = max(len((_in_sql(text, rules.locale) or "").strip()) for text in distinct)
    return f"decimal({min(digits, _MOST_DIGITS)},0)"


def number_in_sql(text: str, locale: str) -> str | None:
    """Convert a number from a locale to SQL notation; None if the string is not a number in the locale."""
    localized = _in_sql(text, locale)
    return localized if localized is not None and _number_kinds(localized) else None


def _in_sql(text: str, locale: str) -> str | None:
    if not locale:
        return text
    grouping, point = LOCALES[locale]
    digits, dot = re.escape(grouping), re.escape(point)
    pattern = rf"\s*[+-]?([0-9]+|[0-9]{{1,3}}({digits}[0-9]{{3}})+)({dot}[0-9]*)?\s*"
    if not re.fullmatch(pattern, text, re.ASCII):
        return None
    return text.replace(grouping, "").replace(point, ".")


def _number_kinds(number: str | None) -> int:
    """Return the type bits for a number; 0 if the string is not a number."""
    if number is None:
        return 0
    if _WHOLE.fullmatch(number):
        digits = number.strip()
        if len(digits) > _MOST_DIGITS + 1:
            return STRING
        value = int(digits)
        if -(1 << 31) <= value < 1 << 31:
            return NUMBER | STRING
        exact = DOUBLE if len(number) <= _DOUBLE_DIGITS or int(float(value)) == value else 0
        if -(1 << 63) <= value < 1 << 63:
            return LONG | DECIMAL | STRING | exact
        return DECIMAL | STRING | exact if abs(value) < 10**_MOST_DIGITS else STRING
    if _FRACTION.fullmatch(number) and _is_exact(number):
        return DOUBLE | STRING
    return 0


def _is_exact(number: str) -> bool:
    value = float(number)
    is_zero = value == 0 and re.match(r"[^eE]*[1-9]", number) is not None
    return abs(value) != float("inf") and not is_zero


def _is_date(text: str, pattern: str) -> bool:
    if pattern:
        return matches_pattern(text, pattern)
    match = _DAY.fullmatch(text)
    return match is not None and _is_day(match)


def _is_time(text: str, pattern: str) -> bool:
    if pattern:
        return matches_pattern(text, pattern)
    match = _TIME.fullmatch(text)
    if match is None or not _is_day(match):
        return False
    hour, minute, second = (int(match[number] or 0) for number in (4, 5, 6))
    return hour < 24 and minute < 60 and second < 60 and _is_zone(match["zone"] or "")


def _is_day(match: re.Match[str]) -> bool:
    try:
        date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError:
        return False
    return True


def _is_zone(text: str) -> bool:
    offset = _OFFSET.fullmatch(text)
    if offset is not None:
        hours, minutes, seconds = (int(offset[number] or 0) for number in (1, 2, 3))
        return minutes < 60 and seconds < 60 and hours * 3600 + minutes * 60 + seconds <= 18 * 3600
    if not _REGION.fullmatch(text):
        return False
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True
