"""The time in a partition path, as the interval from its first moment to its end.

    region=eu/day=2026-01-31      yyyy-MM-dd        2026-01-31T00:00 .. 2026-02-01T00:00 in the zone
    year=2026/month=01            yyyy/MM           2026-01-01T00:00 .. 2026-02-01T00:00
    at=2026/01/31/07              yyyy/MM/dd/HH     07:00 .. 08:00

The time is the first sequence of path levels that the pattern formats identically. A string that the pattern formats
in another way (2026-1-5 for yyyy-MM-dd) is not accepted, because expired partitions are deleted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from lakehouse.core.rows.joda_patterns import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    SECOND_MS,
    JodaPattern,
    compile_pattern,
    parse,
    render,
)
from lakehouse.core.rows.partition_path import is_timestamp_field, unescape
from lakehouse.core.rows.timestamp_keys import zone_id
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig

#: Patterns for tables where neither a rule nor the key generator defines one.
DEFAULT_FORMATS = ("yyyy-MM-dd", "yyyy/MM/dd")
_KEY = re.compile(r"^[^=/]*=")
_EPOCH = datetime(1970, 1, 1)
_STEPS_MS = {"S": 1, "s": SECOND_MS, "m": MINUTE_MS, "H": HOUR_MS, "h": HOUR_MS, "d": DAY_MS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionTime:
    """The interval of a path in UTC milliseconds, end excluded; `parent` is the path without the time levels."""

    start_ms: int
    end_ms: int
    parent: str


def partition_time(path: str, keys: KeyConfig, *, pattern: str = "", zone: str = "") -> PartitionTime | None:
    """Return the time in a partition path, or None if it has none.

    The defaults of `pattern` and `zone` are those of the table's TIMESTAMP field, otherwise DEFAULT_FORMATS and UTC.
    Raises UserError for a pattern without a year and for an unknown zone.
    """
    levels = path.split("/")
    values = [_KEY.sub("", level) for level in levels]
    if keys.url_encode:
        values = [unescape(value) for value in values]
    timestamps = [index for index in range(len(keys.partition_fields)) if is_timestamp_field(index, keys)]
    stored = keys.timestamp if timestamps else None
    zone = zone or (stored.output_timezone if stored is not None else "")
    patterns = (pattern,) if pattern else (stored.output_format,) if stored is not None else DEFAULT_FORMATS
    for text in patterns:
        compiled = time_pattern(text)
        widths = {1} if keys.url_encode else set()
        for width in sorted(widths | {text.count("/") + 1}, reverse=True):
            # Each field before the timestamp field has one path level.
            starts = (timestamps[0],) if stored is not None and not pattern else range(len(levels) - width + 1)
            for start in starts:
                span = _span(compiled, "/".join(values[start : start + width]), zone_id(zone))
                if span is not None:
                    parent = "/".join((*levels[:start], *levels[start + width :]))
                    return PartitionTime(start_ms=span[0], end_ms=span[1], parent=parent)
    return None


def time_pattern(text: str) -> JodaPattern:
    """Compile a pattern of times; raise UserError if it has no year."""
    pattern = compile_pattern(text)
    if not any(token.letter in "yY" for token in pattern.tokens if token.letter):
        raise UserError(f"date pattern {text!r} has no year, so it names no time; patterns are like yyyy-MM-dd")
    return pattern


@lru_cache(maxsize=65_536)
def _span(pattern: JodaPattern, text: str, zone: str) -> tuple[int, int] | None:
    parsed = parse(pattern, text)
    if parsed is None or (not pattern.shows_zone and render(pattern, parsed.local_ms) != text):
        return None
    try:
        start = _EPOCH + timedelta(milliseconds=parsed.local_ms)
        return _utc_ms(start, parsed.zone or zone), _utc_ms(_end(pattern, start), parsed.zone or zone)
    except (ValueError, OverflowError):
        # The end of the interval is after the year 9999.
        return None


def _end(pattern: JodaPattern, start: datetime) -> datetime:
    letters = {token.letter for token in pattern.tokens if token.letter}
    steps = [_STEPS_MS[letter] for letter in letters if letter in _STEPS_MS]
    if steps:
        return start + timedelta(milliseconds=min(steps))
    if "M" in letters:
        return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
    return start.replace(year=start.year + 1)


def _utc_ms(local: datetime, zone: str) -> int:
    if zone[:1] in ("+", "-"):
        hours, _, minutes = zone[1:].partition(":")
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        utc = local - offset if zone[0] == "+" else local + offset
    elif zone == "UTC":
        utc = local
    else:
        utc = local.replace(tzinfo=ZoneInfo(zone)).astimezone(UTC).replace(tzinfo=None)
    return (utc - _EPOCH) // timedelta(milliseconds=1)
