"""Describe the work and the benefit of a service run in one sentence, from the predicted numbers. Pure.

This is the only place that turns these numbers into words: decisions, pages and the CLI show its result, and nothing
parses it. The sentence of a service is the template `work` of its `ServiceSpec`, with these fields:

    {files:old file}    number of files with a noun, in singular or plural
    {benefit:file}      number of objects that readers no longer open
    {size}              bytes, such as `2.1 MB`
    {time}              ` in about 10 s`, or empty

Examples:

    compaction, clustering    rewrites 2.1 MB in about 10 s; queries of these rows would open 3 files instead of 12
    clean                     deletes 120 old files in about 11 s
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.model.display import count_text, size_text
from lakehouse.spec.table.services import SERVICE_SPECS

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


class _Count(int):
    """A number that is formatted with a noun: `f"{_Count(2):file}"` is `2 files`."""

    def __format__(self, noun: str) -> str:
        """Return the number with the noun in singular or plural."""
        return count_text(int(self), noun)


def work_text(service: str, predicted: Mapping[str, Any]) -> str:
    """Describe the work of a run and its benefit; the result is empty if there is no prediction.

    Args:
        service: Name of the service.
        predicted: Numbers by name, any of them may be missing: `files` and `bytes` that the run reads, writes or
            removes, `benefit`, which is the number of objects that readers and planners no longer open or list, and
            `seconds`.
    """
    files = int(predicted.get("files") or 0)
    if not files:
        return ""
    size, benefit = int(predicted.get("bytes") or 0), round(float(predicted.get("benefit") or 0))
    time = about(float(predicted.get("seconds") or 0))
    # A catalog may contain decisions about a service that only exists in a different release.
    spec = next((spec for spec in SERVICE_SPECS if spec.name == service), None)
    if spec is not None and spec.work:
        return spec.work.format(files=_Count(files), size=size_text(size), benefit=_Count(benefit), time=time)
    if spec is not None and spec.holds_file_groups:
        return _rewrite(files, size, benefit, time)
    return f"works on {count_text(files, 'file')}{f' of {size_text(size)}' if size else ''}{time}"


def about(seconds: float) -> str:
    """Format a predicted or elapsed time, rounded: ` in about 10 s`; empty for an unknown time."""
    return f" in about {elapsed_text(seconds)}" if seconds > 0 else ""


def elapsed_text(seconds: float) -> str:
    """Return a duration in one unit, rounded: `45 s`, `9 min`, `3 h`, `2 days`."""
    for limit, unit, name in ((90, 1, "s"), (90 * _MINUTE, _MINUTE, "min"), (2 * _DAY, _HOUR, "h")):
        if seconds < limit:
            return f"{max(1, round(seconds / unit))} {name}"
    return f"{round(seconds / _DAY)} days"


def _rewrite(files: int, size: int, benefit: int, time: str) -> str:
    # A file group without a base file gets one, so at least one file is left.
    left = max(1, files - benefit)
    work = f"rewrites {size_text(size)}{time}" if size else f"rewrites {count_text(files, 'file')}{time}"
    if benefit <= 0:
        return f"{work}; queries would open as many files as before"
    return f"{work}; queries of these rows would open {count_text(left, 'file')} instead of {files:,}"
