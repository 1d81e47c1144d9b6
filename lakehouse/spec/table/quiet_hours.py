"""Hours in which the scheduler starts no run of a service: `08:00-18:00`, `mon-fri 08:00-18:00 Europe/Berlin`.

A range has optional weekdays, hours, and an optional time zone (default UTC). If the second hour is smaller than the
first, it is on the next day: `22:00-06:00`. Several ranges are separated by commas.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from lakehouse.errors import SettingError

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY = "|".join(_DAYS)
_RANGE = re.compile(
    rf"(?:(?P<first>{_DAY})(?:-(?P<last>{_DAY}))?\s+)?(?P<begin>\d\d?:\d\d)\s*-\s*(?P<end>\d\d?:\d\d)(?:\s+(?P<zone>\S+))?",
    re.IGNORECASE,
)
_DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietRange:
    """One range of hours on some weekdays (0 is Monday); `end` is on the next day if it is not after `begin`."""

    days: frozenset[int]
    begin: time
    end: time
    zone: str

    def end_ms(self, now_ms: int) -> int | None:
        """Return the end of the range that contains a time, in UTC milliseconds; None outside of the range."""
        local = datetime.fromtimestamp(now_ms / 1000, UTC).astimezone(ZoneInfo(self.zone))
        for day in (local.date(), local.date() - timedelta(days=1)):
            if day.weekday() not in self.days:
                continue
            begin = datetime.combine(day, self.begin, tzinfo=local.tzinfo)
            later = timedelta(days=1) if self.end <= self.begin else timedelta()
            end = datetime.combine(day + later, self.end, tzinfo=local.tzinfo)
            if begin <= local < end:
                return round(end.timestamp() * 1000)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuietHours:
    """Ranges of hours, and the declaration from which they were parsed."""

    text: str
    ranges: tuple[QuietRange, ...]

    def end_ms(self, now_ms: int) -> int | None:
        """Return the end of the quiet hours that contain a time, or None outside of all ranges.

        Adjacent ranges count as one. Ranges that cover the whole week end after a week.
        """
        last, limit = None, now_ms + 7 * _DAY_MS
        moment = now_ms
        while moment < limit:
            ends = [end for end in (one.end_ms(moment) for one in self.ranges) if end is not None]
            if not ends:
                return last
            last = moment = max(ends)
        return last


def parse_quiet_hours(name: str, text: str) -> QuietHours:
    """Parse quiet hours; raise SettingError with `name` if the value is not valid."""
    ranges = tuple(_range(name, part.strip()) for part in text.split(","))
    return QuietHours(text=text, ranges=ranges)


def _range(name: str, text: str) -> QuietRange:
    match = _RANGE.fullmatch(text)
    try:
        if match is None:
            raise ValueError("the form is wrong")
        first, last = match["first"], match["last"] or match["first"]
        days = range(7) if first is None else _weekdays(first.lower(), last.lower())
        begin, end = (datetime.strptime(match[side], "%H:%M").time() for side in ("begin", "end"))
        zone = match["zone"] or "UTC"
        ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as error:
        raise SettingError(
            f"{name}={text!r} are no quiet hours ({error}); write such as 08:00-18:00, 22:00-06:00 Europe/Berlin or "
            "mon-fri 08:00-18:00",
            setting=name,
        ) from None
    return QuietRange(days=frozenset(days), begin=begin, end=end, zone=zone)


def _weekdays(first: str, last: str) -> list[int]:
    begin, end = _DAYS.index(first), _DAYS.index(last)
    return [day % 7 for day in range(begin, end + (1 if end >= begin else 8))]
