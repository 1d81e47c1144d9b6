"""Parse literals exactly: numbers, dates, timestamps and times of day, with every digit.

A string that is not a complete value raises ValueError. Times are exact fractions of seconds, with nanoseconds and
finer digits. Years have four to seven digits and may have a sign, as in Spark; dates are proleptic Gregorian.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

DAY_SECONDS = 86_400
#: Maximum number of characters in a number; decimals have at most 76 digits.
MOST_DIGITS = 100
#: Maximum exponent, which is larger than that of all numeric types. A larger number is compared as if it had this
#: exponent.
_MOST_EXPONENT = 400
_NUMBER = re.compile(r"[+-]?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DATE = r"(?P<year>[+-]?[0-9]{4,7})-(?P<month>[0-9]{1,2})-(?P<day>[0-9]{1,2})"
_CLOCK = (
    r"(?P<hour>[0-9]{1,2})(?::(?P<minute>[0-9]{1,2})(?::(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,100}))?)?)?"
)
_ZONE = r"(?P<zone>Z|UTC|(?P<sign>[+-])(?P<zone_hours>[0-9]{1,2})(?::?(?P<zone_minutes>[0-9]{2}))?)"
_MOMENT = re.compile(rf"{_DATE}(?:[ T]{_CLOCK} ?{_ZONE}?)?")
_TIME = re.compile(_CLOCK)
_MONTH_DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_BLANKS = " \t\r\n"


class Moment(NamedTuple):
    """A date with an optional time of day: seconds since 1970-01-01 in UTC, and which parts were given."""

    seconds: Fraction
    has_time: bool
    has_zone: bool


def parse_number(text: str) -> Fraction:
    """Return the exact value of a number, such as `-12.50` or `1e3`; blanks around it are ignored, as in Spark."""
    stripped = text.strip(_BLANKS)
    if len(stripped) > MOST_DIGITS:
        raise ValueError(f"it has more than {MOST_DIGITS} digits")
    if not _NUMBER.fullmatch(stripped):
        raise ValueError("it is not a number")
    return exact_number(Decimal(stripped))


def exact_number(number: Decimal) -> Fraction:
    """Return a decimal number as a fraction; raise ValueError for NaN and infinity.

    A number with an enormous exponent becomes a smaller one that compares equally with every numeric type.
    """
    if not number.is_finite():
        raise ValueError("it is not a finite number")
    if number and abs(number.adjusted()) > _MOST_EXPONENT:
        power = Fraction(10) ** (_MOST_EXPONENT if number.adjusted() > 0 else -_MOST_EXPONENT)
        return -power if number.is_signed() else power
    return Fraction(number)


def parse_moment(text: str) -> Moment:
    """Return a date or timestamp, such as `2026-01-31` or `2026-01-31T12:00:00.5+02:00`; without a zone it is UTC."""
    match = _MOMENT.fullmatch(text.strip(_BLANKS))
    if match is None:
        raise ValueError("it is not a date or a timestamp of the form yyyy-MM-dd HH:mm:ss[.fraction][zone]")
    days = _days(int(match["year"]), int(match["month"]), int(match["day"]))
    seconds = days * DAY_SECONDS + _clock_seconds(match) - _offset_seconds(match)
    return Moment(seconds, match["hour"] is not None, match["zone"] is not None)


def parse_time(text: str) -> Fraction:
    """Return a time of day, such as `12:30:00.5`, as seconds since midnight."""
    match = _TIME.fullmatch(text.strip(_BLANKS))
    if match is None or match["minute"] is None:
        raise ValueError("it is not a time of the form HH:mm:ss[.fraction]")
    return _clock_seconds(match)


def _clock_seconds(match: re.Match[str]) -> Fraction:
    hour, minute, second = (int(match[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError("it is not a time of day")
    fraction = match["fraction"] or "0"
    return hour * 3600 + minute * 60 + second + Fraction(int(fraction), 10 ** len(fraction))


def _offset_seconds(match: re.Match[str]) -> int:
    hours, minutes = int(match["zone_hours"] or 0), int(match["zone_minutes"] or 0)
    if hours > 18 or minutes > 59:
        raise ValueError("its time zone does not exist")
    return (hours * 3600 + minutes * 60) * (-1 if match["sign"] == "-" else 1)


def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01; raise ValueError for a date that does not exist."""
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if not 1 <= month <= 12 or not 1 <= day <= _MONTH_DAYS[month - 1] + (month == 2 and is_leap):
        raise ValueError("this date does not exist")
    # Years begin in March, so that the leap day is the last day.
    shifted = year - (month <= 2)
    day_of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return shifted * 365 + shifted // 4 - shifted // 100 + shifted // 400 + day_of_year - 719_468
