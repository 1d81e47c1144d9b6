"""Parses dates and times in string columns like Spark 3.5 (MDT-4.8).

Spark parses strings by a cast or by a pattern. A string is *doubtful* if its result depends on settings of the session,
or if it is before the year 1 or after 9999. Other strings that are no time give null. All times are in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Numbers = np.ndarray[Any, Any]

_SECOND, _DAY = 1_000_000, 86_400_000_000
#: White space and control characters, which a cast removes at both ends.
_TRIMMED = "".join(map(chr, (*range(33), 127)))
_CAST_DATE = (
    r"\A(?P<sign>[+-]?)(?P<year>[0-9]{4,7})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})(?:[ T](?s:.*))?)?)?\z"
)
_CAST_TIME = (
    r"\A(?P<year>[0-9]{4})(?:-(?P<month>[0-9]{1,2})(?:-(?P<day>[0-9]{1,2})"
    r"(?:[ T](?P<hour>[0-9]{1,2}):(?P<minute>[0-9]{1,2}):(?P<second>[0-9]{1,2})(?:\.(?P<fraction>[0-9]{1,9}))?"
    r"Z?)?)?)?\z"
)
#: A string that begins with T may be a time on the current day.
_NO_TIME = r"\A(?:\z|[A-SU-Za-su-z])"
_NO_NUMBER = r"\A(?:\z|[A-Za-z])"
#: The units of patterns: the name of the field, and its digits.
_FIELDS = {"yyyy": "year", "MM": "month", "dd": "day", "HH": "hour", "mm": "minute", "ss": "second"}
_FIRST_YEAR, _LAST_YEAR = 1, 9999


class Parsed(NamedTuple):
    """Microseconds since 1970 per string, whether the string is a time, and whether its result is doubtful."""

    micros: Numbers
    is_time: Numbers
    is_doubtful: Numbers

    def doubtful_text(self, texts: pa.Array) -> str | None:
        """Return a string whose result is doubtful, if there is one."""
        places = np.flatnonzero(self.is_doubtful)
        return str(texts[int(places[0])]) if len(places) else None


def cast_dates(texts: pa.Array) -> Parsed:
    """Parse strings as the cast to a date does: year, month and day, and any characters after a space or a `T`."""
    fields = _fields(pc.ascii_trim(texts, characters=_TRIMMED), _CAST_DATE)
    is_match, years = fields["matches"], fields["year"]
    micros, is_valid = _micros(fields)
    is_doubtful = is_match & ((years < _FIRST_YEAR) | (years > _LAST_YEAR) | fields["is_negative"])
    return Parsed(micros, is_match & is_valid & ~is_doubtful, is_doubtful)


def cast_times(texts: pa.Array) -> Parsed:
    """Parse strings as the cast to a timestamp does. Strings with a zone other than Z, or only a time, are doubtful."""
    trimmed = pc.ascii_trim(texts, characters=_TRIMMED)
    fields = _fields(trimmed, _CAST_TIME)
    micros, is_valid = _micros(fields)
    is_other = ~fields["matches"] & ~_matches(trimmed, _NO_TIME) & _present(texts)
    is_doubtful = is_other | (fields["matches"] & (fields["year"] < _FIRST_YEAR))
    return Parsed(micros, fields["matches"] & is_valid & ~is_doubtful, is_doubtful)


def parse_times(texts: pa.Array, pattern: Sequence[tuple[str, str]]) -> Parsed:
    """Parse strings by a pattern; strings that deviate from it, and dates that do not exist, are doubtful.

    Spark may parse such a string by the rules of an older release, or raise an error.

    Args:
        texts: The strings.
        pattern: Pairs (unit, empty string) with a unit such as `yyyy`, or (empty string, literal). The first pair is a
            unit, and `yyyy` is one of the units.
    """
    pieces = [f"(?P<{_FIELDS[unit]}>[0-9]{{{len(unit)}}})" if unit else _quoted(literal) for unit, literal in pattern]
    fields = _fields(texts, rf"\A{''.join(pieces)}\z")
    micros, is_valid = _micros(fields)
    is_time = fields["matches"] & is_valid & (fields["year"] >= _FIRST_YEAR)
    return Parsed(micros, is_time, _present(texts) & ~is_time & ~_matches(texts, _NO_NUMBER))


def _quoted(literal: str) -> str:
    return "".join(rf"\x{{{ord(character):x}}}" for character in literal)


def _fields(texts: pa.Array, pattern: str) -> dict[str, Numbers]:
    """Return the number in each group by its name, with defaults for empty groups, and which strings match."""
    groups = pc.extract_regex(texts, pattern)
    matches = _present(groups)
    fields: dict[str, Numbers] = {"matches": matches, "is_negative": np.zeros(len(texts), np.bool_)}
    for index, field in enumerate(groups.type):
        part = pc.struct_field(groups, [index])
        if field.name == "sign":
            fields["is_negative"] = np.asarray(pc.equal(part, "-").fill_null(False))
            continue
        if field.name == "fraction":
            part = pc.utf8_slice_codeunits(pc.utf8_rpad(part, 6, padding="0"), 0, 6)
        default = "1" if field.name in ("year", "month", "day") else "0"
        present = pc.if_else(pc.equal(part, ""), default, part).fill_null(default)
        fields[field.name] = np.asarray(present.cast(pa.int64()))
    return fields


def _micros(fields: Mapping[str, Numbers]) -> tuple[Numbers, Numbers]:
    """Return microseconds since 1970, and which fields are a date and a time of day that exist."""
    count = len(fields["matches"])
    zero, one = np.zeros(count, np.int64), np.ones(count, np.int64)
    year, month, day = fields["year"], fields.get("month", one), fields.get("day", one)
    hour, minute, second = (fields.get(name, zero) for name in ("hour", "minute", "second"))
    is_valid = (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31) & (hour <= 23) & (minute <= 59) & (second <= 59)
    # The date is only computed for supported years; other years are doubtful and would overflow.
    start = np.where(is_valid, (np.clip(year, 0, _LAST_YEAR) - 1970) * 12 + month - 1, 0).astype("datetime64[M]")
    days = start.astype("datetime64[D]") + np.where(is_valid, day - 1, 0)
    is_valid &= days.astype("datetime64[M]") == start
    seconds = hour * 3600 + minute * 60 + second
    micros = days.astype(np.int64) * _DAY + seconds * _SECOND + fields.get("fraction", zero)
    return micros, is_valid


def _matches(texts: pa.Array, pattern: str) -> Numbers:
    return np.asarray(pc.match_substring_regex(texts, pattern).fill_null(False))


def _present(values: pa.Array) -> Numbers:
    return np.asarray(values.is_valid())
