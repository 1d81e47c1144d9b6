"""Paths with placeholders for a data interval, and the folders of an interval. Pure.

    landing/{start:%Y-%m-%d}/{start:%H}/      one folder per hour: 23 hours are 23 folders
    landing/{end:%Y-%m-%d}.json               one file per day, named by the day's end
    export_{start:%Y%m%d}_{end:%Y%m%d}.csv    one file per interval, named by both bounds

The finest directive of a path is its step: minute, hour, day, week, month or year, in a time zone. An interval of whole
steps has one folder per step, so the intervals of a schedule read every folder once. The interval may begin inside a
step: a daily schedule at three o'clock reads the folder of the day on which its interval starts. Other intervals have
all folders that they overlap, so two such intervals may share a folder. They are therefore refused if rows must not be
read twice, and for `{end:...}`, because no folder ends when such an interval ends.

Days, weeks, months and years follow the calendar in the time zone, so a day may have 23 or 25 hours. A day of 23 hours
has 23 folders of hours. A day of 25 hours has 24 folders, because the hour that occurs twice has one name. Two hourly
intervals then share this folder, which is refused if rows must not be read twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from zoneinfo import ZoneInfo

from lakehouse.errors import UserError

PLACEHOLDER = re.compile(r"(?<!\$)\{(start|end):([^{}]*)\}")
#: The maximum number of folders; more indicate a wrong interval or path.
MAX_FOLDERS = 5000
_DIRECTIVE = re.compile(r"%[-_0^#]?(.)")


class Step(IntEnum):
    """The period that one folder covers. Shorter periods have greater enum values."""

    YEAR = 0
    MONTH = 1
    WEEK = 2
    DAY = 3
    HOUR = 4
    MINUTE = 5
    SECOND = 6


_DATE = frozenset({Step.YEAR, Step.MONTH, Step.DAY})
_UNITS: dict[str, frozenset[Step]] = {
    **dict.fromkeys("YyG", frozenset({Step.YEAR})),
    **dict.fromkeys("mbBh", frozenset({Step.MONTH})),
    **dict.fromkeys("VW", frozenset({Step.WEEK})),
    **dict.fromkeys("deaAuw", frozenset({Step.DAY})),
    "j": frozenset({Step.MONTH, Step.DAY}),
    **dict.fromkeys("FDx", _DATE),
    **dict.fromkeys("HkIl", frozenset({Step.HOUR})),
    "M": frozenset({Step.MINUTE}),
    "R": frozenset({Step.HOUR, Step.MINUTE}),
    **dict.fromkeys("Sf", frozenset({Step.SECOND})),
    "T": frozenset({Step.HOUR, Step.MINUTE, Step.SECOND}),
    "s": _DATE | {Step.HOUR, Step.MINUTE, Step.SECOND},
    **dict.fromkeys("Cpzn%tZ", frozenset()),
}


def problem_of(path: str) -> str | None:
    """Return why the placeholders of a path do not determine folders, or None if they do."""
    units = {bound: _units(path, bound) for bound in ("start", "end")}
    for bound, pattern in PLACEHOLDER.findall(path):
        for directive in _DIRECTIVE.findall(pattern):
            if directive not in _UNITS:
                return f"{{{bound}:{pattern}}} has the unknown directive %{directive}"
    used = [bound for bound, unit in units.items() if unit is not None]
    for bound in used:
        if not units[bound]:
            return f"{{{bound}:...}} names no minute, hour, day, week, month or year, so it determines no folders"
    if len(used) == 1 and max(units[used[0]] or ()) is Step.SECOND:
        return (
            f"{{{used[0]}:...}} names seconds, and an interval has too many of them for one folder each. "
            "Write constant digits as text, such as {start:%Y%m%dT%H%M}00"
        )
    return None


def folders_of(
    path: str, start: datetime, end: datetime, *, once: bool = False, timezone: str = "UTC"
) -> tuple[str, ...]:
    """Return the paths of an interval, ordered by time, without duplicates.

    A path without placeholders is returned unchanged.

    Args:
        path: The path, with `{start:...}` and `{end:...}` in the letters of strftime.
        start: The first moment of the interval, with a time zone.
        end: The first moment after it.
        once: Whether rows must not be read twice; an interval that is not a whole number of steps is then refused.
        timezone: The time zone of folder names.

    Raises:
        UserError: The path does not determine the folders, or there are too many.
    """
    zone = ZoneInfo(timezone)
    start, end = start.astimezone(zone), end.astimezone(zone)
    problem = problem_of(path)
    if problem is not None:
        raise _refused(path, problem)
    units = {bound: used for bound in ("start", "end") if (used := _units(path, bound)) is not None}
    if not units:
        return (path,)
    step = max(max(used) for used in units.values())
    if len(units) == 2:
        if not all(_is_complete(used) for used in units.values()) and not _is_one(start, end, step):
            raise _refused(
                path,
                f"{{start:...}} and {{end:...}} are mixed, and the interval {_text(start, end)} is not one "
                f"{step.name.lower()}, so its folders are ambiguous. Use only {{start:...}}, or name both "
                "bounds in full, such as {start:%Y%m%d}_{end:%Y%m%d}",
            )
        return (_fill(path, start, end),)
    if not _is_whole(start, end, step):
        _check_partial(path, start, end, step, once=once, by_end="end" in units)
        until = end
    else:
        until = _floor(end, step)
    if once and step >= Step.HOUR:
        _check_repeated_hour(path, start, end)
    # A week that spans two years has a folder in each year, so the names of weeks are computed day by day.
    stride = Step.DAY if step is Step.WEEK and "start" in units else step
    bounds = _steps(_floor(start, step), until, stride)
    paths: dict[str, None] = {}
    for number, (first, last) in enumerate(bounds):
        if number == MAX_FOLDERS:
            raise _refused(
                path,
                f"the interval {_text(start, end)} has more than {MAX_FOLDERS} folders, one per {step.name.lower()}. "
                "Take a shorter interval, or a path with a coarser step",
            )
        paths[_fill(path, first, last)] = None
    return tuple(paths)


# parameters: the interval, and how the path refers to it
def _check_partial(path: str, start: datetime, end: datetime, step: Step, *, once: bool, by_end: bool) -> None:
    name = step.name.lower()
    if by_end:
        raise _refused(
            path,
            f"the interval {_text(start, end)} is not a whole number of {name}s, so {{end:...}} names no folder of it. "
            f"Take an interval of whole {name}s, or use {{start:...}}",
        )
    if once:
        raise _refused(
            path,
            f"the interval {_text(start, end)} is not a whole number of {name}s. Its neighbour reads the same folder "
            f"too, and rows would be inserted twice. Take an interval of whole {name}s, or `operation: upsert`",
        )


def _check_repeated_hour(path: str, start: datetime, end: datetime) -> None:
    """Raise UserError if a bound separates the two equally named hours when the clock is turned back."""
    if "%z" in path:
        return
    for bound in (start, end):
        # If the interval contains both hours or none of them, no bound is inside or at the start of the second hour.
        if bound.fold and bound.replace(fold=0).utcoffset() != bound.utcoffset():
            raise _refused(
                path,
                f"the interval {_text(start, end)} has one of the two hours {bound:%Y-%m-%d %H} of {bound.tzinfo}, "
                "which have one folder. Its neighbour reads the same folder too, and rows would be inserted twice. Add "
                "the offset %z to the path, take a schedule of whole days, or `operation: upsert`",
            )


def _refused(path: str, reason: str) -> UserError:
    return UserError(f"ingest.path {path!r}: {reason}.", path=path)


def _text(start: datetime, end: datetime) -> str:
    return "/".join(f"{bound.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" for bound in (start, end))


def _units(path: str, bound: str) -> frozenset[Step] | None:
    """Return the units in the placeholders of a bound, or None if the path has no such placeholder."""
    patterns = [pattern for name, pattern in PLACEHOLDER.findall(path) if name == bound]
    if not patterns:
        return None
    letters = [letter for pattern in patterns for letter in _DIRECTIVE.findall(pattern)]
    return frozenset(unit for letter in letters for unit in _UNITS.get(letter, ()))


def _is_complete(units: frozenset[Step]) -> bool:
    """Return whether the units identify one moment: all units from the year down to the finest one."""
    required = {unit for unit in Step if unit <= max(units) and unit is not Step.WEEK}
    by_week = (required - {Step.MONTH}) | {Step.WEEK}
    return units >= required or units >= by_week


def _is_whole(start: datetime, end: datetime, step: Step) -> bool:
    """Return whether both bounds have the same offset within their steps; for days, both are at three o'clock."""
    first, last = _floor(start, step), _floor(end, step)
    # Python computes differences between times in one zone by the local clock. A time that the clock skips moves later.
    return _existing(last + (start - first)) == end or _existing(first + (end - last)) == start


def _existing(moment: datetime) -> datetime:
    """Return a local time unchanged, or moved behind the gap if the clock skips it."""
    return moment.astimezone(UTC).astimezone(moment.tzinfo)


def _is_one(start: datetime, end: datetime, step: Step) -> bool:
    """Return whether the interval is exactly one step long."""
    if step is Step.SECOND:
        return end - start == timedelta(seconds=1)
    return _is_whole(start, end, step) and _next(_floor(start, step), step) == _floor(end, step)


def _steps(first: datetime, until: datetime, step: Step) -> Iterator[tuple[datetime, datetime]]:
    # Compared in UTC, because Python compares two times of one zone by the local clock.
    end = until.astimezone(UTC)
    while first.astimezone(UTC) < end:
        following = _next(first, step)
        yield first, following
        first = following


def _floor(moment: datetime, step: Step) -> datetime:
    """Return the start of the step that contains a moment; weeks start on Monday, as ISO weeks do."""
    if step is Step.MINUTE:
        return moment.replace(second=0, microsecond=0)
    if step is Step.HOUR:
        return moment.replace(minute=0, second=0, microsecond=0)
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if step is Step.WEEK:
        return day - timedelta(days=day.weekday())
    if step is Step.DAY:
        return day
    return day.replace(day=1) if step is Step.MONTH else day.replace(month=1, day=1)


def _next(moment: datetime, step: Step) -> datetime:
    """Return the start of the step after the one that starts at `moment`."""
    if step is Step.YEAR:
        return moment.replace(year=moment.year + 1)
    if step is Step.MONTH:
        return (moment + timedelta(days=31)).replace(day=1)
    if step in (Step.WEEK, Step.DAY):
        return moment + timedelta(days=7 if step is Step.WEEK else 1)
    length = timedelta(hours=1) if step is Step.HOUR else timedelta(minutes=1)
    return (moment.astimezone(UTC) + length).astimezone(moment.tzinfo)


def _fill(path: str, start: datetime, end: datetime) -> str:
    bounds = {"start": start, "end": end}
    return PLACEHOLDER.sub(lambda match: bounds[match[1]].strftime(match[2]), path)
