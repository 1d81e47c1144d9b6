"""The work and the benefit of a run of a service as a sentence, made from the numbers of its prediction; pure.

This is the only place that turns these numbers into words: decisions, pages and the CLI show its text, and nothing
parses it.

    compaction, clustering    rewrites 2.1 MB in about 10 s; queries of these rows would open 3 files instead of 12
    clean                     deletes 120 old files in about 11 s
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.model.display import count_text, size_text

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


def work_text(service: str, predicted: Mapping[str, Any]) -> str:
    """Return what a run would do, and its benefit; an empty text without a prediction.

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
    return _WORK.get(service, _other)(files, size, benefit, about(float(predicted.get("seconds") or 0)))


def about(seconds: float) -> str:
    """Return a predicted or elapsed time, rounded as people say it: ` in about 10 s`; empty for an unknown time."""
    return f" in about {elapsed_text(seconds)}" if seconds > 0 else ""


def elapsed_text(seconds: float) -> str:
    """Return a duration in its largest unit, rounded: `45 s`, `9 min`, `3 h`, `2 days`."""
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


def _index(files: int, size: int, benefit: int, time: str) -> str:
    del benefit
    return f"reads {size_text(size)} in {count_text(files, 'file')}{time}; queries and writes can then use the index"


def _clean(files: int, size: int, benefit: int, time: str) -> str:
    del size, benefit
    return f"deletes {count_text(files, 'old file')}{time}"


def _archive(files: int, size: int, benefit: int, time: str) -> str:
    del size, benefit
    return f"archives {count_text(files, 'file')} of the timeline{time}; every read and write then lists fewer files"


def _ttl(files: int, size: int, benefit: int, time: str) -> str:
    del size
    return f"deletes {count_text(files, 'expired partition')} with {count_text(benefit, 'file')}{time}"


def _listing(what: str) -> Callable[[int, int, int, str], str]:
    return lambda files, size, benefit, time: f"{what}{time}"


def _other(files: int, size: int, benefit: int, time: str) -> str:
    del benefit
    return f"works on {count_text(files, 'file')}{f' of {size_text(size)}' if size else ''}{time}"


_WORK: Mapping[str, Callable[[int, int, int, str], str]] = {
    "compaction": _rewrite,
    "logcompaction": _rewrite,
    "clustering": _rewrite,
    "index": _index,
    "clean": _clean,
    "archive": _archive,
    "ttl": _ttl,
    "orphans": _listing("lists the files of the table, and deletes those that no commit has written"),
    "validation": _listing("compares the files of the table with its metadata"),
    "sync": _listing("writes the partitions and columns to the metastore"),
}
