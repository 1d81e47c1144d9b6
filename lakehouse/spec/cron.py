"""Computes the next time of a cron expression. The service scheduler uses it to avoid writers that start soon.

Airflow starts the runs. For schedules in other forms the next time is unknown.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

_PRESETS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
}
_BOUNDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_LONGEST_DAYS = 62


def problem_of_fields(expression: str) -> str:
    """Return the problem if a cron expression has too many fields, otherwise an empty string.

    Airflow checks the rest.
    """
    count = len(expression.split())
    if count <= len(_BOUNDS):
        return ""
    return (
        f"{expression!r} has {count} fields, and a cron expression has five: minute, hour, day of the month, month, "
        "day of the week. Airflow would read a sixth field as seconds, and start runs within one minute: remove it, as "
        "in '15 * * * *'"
    )


def next_time_ms(expression: str, now_ms: int, timezone: str = "UTC") -> int | None:
    """Return the first time after `now_ms` at which a cron expression of a time zone fires, in UTC milliseconds.

    Returns None for an unsupported expression, or if it does not fire within two months.
    """
    fields = _fields(expression)
    if fields is None:
        return None
    minutes, hours, days, months, weekdays = fields
    now = datetime.fromtimestamp(now_ms // 60_000 * 60, ZoneInfo(timezone))
    for offset in range(_LONGEST_DAYS):
        day = (now + timedelta(days=offset)).replace(hour=0, minute=0, fold=0)
        if not (day.day in days and day.month in months and day.isoweekday() % 7 in weekdays):
            continue
        for hour in sorted(hours):
            for minute in sorted(minutes):
                moment = day.replace(hour=hour, minute=minute)
                # Python compares two times in one zone by local clock time, so both are converted to UTC.
                if moment.timestamp() > now.timestamp():
                    return round(moment.timestamp() * 1000)
    return None


@lru_cache(maxsize=1024)
def _fields(expression: str) -> tuple[frozenset[int], ...] | None:
    texts = _PRESETS.get(expression.strip(), expression).split()
    if len(texts) != len(_BOUNDS) or (texts[2] != "*" and texts[4] != "*"):
        # Cron combines a day of the month and a day of the week by "or".
        return None
    try:
        fields = [_values(text, *bounds) for text, bounds in zip(texts, _BOUNDS, strict=True)]
    except ValueError:
        return None
    return (*fields[:4], frozenset(day % 7 for day in fields[4]))


def _values(text: str, least: int, greatest: int) -> frozenset[int]:
    numbers: set[int] = set()
    for part in text.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        begin, end = (least, greatest) if span == "*" else (int(first), int(last or first))
        if step and not last and span != "*":
            end = greatest
        if not least <= begin <= end <= greatest:
            raise ValueError(part)
        numbers.update(range(begin, end + 1, int(step or 1)))
    return frozenset(numbers)
