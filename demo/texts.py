"""Numbers, times and selections that the reports of the demo share."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from demo.facts import CommitFacts
from demo.runs import DagRun

_UNITS = ("B", "KB", "MB", "GB", "TB")
#: A chart shows the runs of one sitting: those that started this long before the newest one.
_SITTING = timedelta(minutes=45)
_MOST_RUNS = 16


def size_text(size: int) -> str:
    """Return bytes with three digits and a unit: 3.29 MB."""
    value, unit = float(size), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    if unit == 0 or value >= 100:
        return f"{value:.0f} {_UNITS[unit]}"
    return f"{value:.{2 if value < 9.995 else 1}f} {_UNITS[unit]}"


def seconds_text(seconds: float | None) -> str:
    """Return a duration as 12.3 s or 3 min 05 s; empty without one."""
    if seconds is None:
        return ""
    return f"{seconds:.1f} s" if seconds < 60 else f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


def commit_text(commit: CommitFacts) -> str:
    """Return what a commit wrote."""
    if commit.rewritten:
        return f"{commit.rewritten:,} rewritten, {commit.files} files"
    return f"{commit.inserted:,} inserted, {commit.updated:,} updated, {commit.files} files"


def clock_time(moment: datetime) -> str:
    """Return a time of day in the time zone of this machine."""
    return f"{moment.astimezone():%H:%M:%S}"


def day_time(moment: datetime) -> str:
    """Return a day and time in the time zone of this machine, with the zone."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"


def recent(runs: Sequence[DagRun]) -> list[DagRun]:
    """Return the finished runs of the last sitting, in the order of their starts."""
    done = sorted(
        (run for run in runs if run.start is not None and run.end is not None),
        key=lambda run: (run.start, run.dag_id),
    )
    if not done:
        return []
    newest = done[-1].start
    assert newest is not None
    return [run for run in done if run.start is not None and newest - run.start <= _SITTING][-_MOST_RUNS:]
