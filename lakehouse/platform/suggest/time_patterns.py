"""Patterns for dates and times that are not ISO, in the syntax of `dateFormat` and `timestampFormat`."""

from __future__ import annotations

import re
from collections.abc import Collection
from datetime import date
from functools import cache

#: Patterns that a suggestion may set. Two patterns in one row parse the same string as different days.
DATE_PATTERNS = ("dd.MM.yyyy", "yyyy/MM/dd", "dd/MM/yyyy", "MM/dd/yyyy", "dd-MM-yyyy", "MM-dd-yyyy")
_TIMES = ("HH:mm:ss", "HH:mm")
TIMESTAMP_PATTERNS = tuple(f"{day} {time}" for day in DATE_PATTERNS for time in _TIMES)
_LETTERS = {
    "yyyy": r"(?P<year>[0-9]{4})",
    "MM": r"(?P<month>[0-9]{2})",
    "dd": r"(?P<day>[0-9]{2})",
    "HH": r"([01][0-9]|2[0-3])",
    "mm": r"[0-5][0-9]",
    "ss": r"[0-5][0-9]",
}


def matches_pattern(text: str, pattern: str) -> bool:
    """Return whether a string is a day, or a timestamp, with exactly this pattern."""
    match = _expression(pattern).fullmatch(text)
    if match is None:
        return False
    try:
        date(int(match["year"]), int(match["month"]), int(match["day"]))
    except ValueError:
        return False
    return True


def patterns_of(texts: Collection[str], patterns: Collection[str]) -> tuple[str, ...]:
    """Return the patterns that match all strings; several patterns if the strings are ambiguous."""
    return tuple(pattern for pattern in patterns if texts and all(matches_pattern(text, pattern) for text in texts))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    parts = re.split("|".join(f"({letters})" for letters in _LETTERS), pattern)
    return re.compile("".join(_LETTERS.get(part, re.escape(part)) for part in parts if part), re.ASCII)
