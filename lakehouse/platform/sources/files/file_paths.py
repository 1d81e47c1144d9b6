"""Fill the data interval into the path of the files source, and split paths at wildcards."""

from __future__ import annotations

from datetime import datetime

from lakehouse.errors import UserError
from lakehouse.spec.sources.interval_path import PLACEHOLDER, folders_of

Interval = tuple[datetime, datetime]


def interval_paths(
    path: str, interval: Interval | None, *, once: bool = False, timezone: str = "UTC"
) -> tuple[str, ...]:
    """Return the paths that a run reads: one per step of the interval, with `{start:%Y-%m}` and `{end:...}` replaced.

    Args:
        path: The path in the spec, with or without placeholders.
        interval: The data interval of the run, or None if it has none.
        once: Whether each row must be read only once (see `lakehouse.spec.sources.interval_path`).
        timezone: The time zone of the replaced times.

    Raises:
        UserError: The path has placeholders and there is no interval, or the folders of the interval are ambiguous.
    """
    if interval is not None:
        return folders_of(path, *interval, once=once, timezone=timezone)
    if PLACEHOLDER.search(path) is not None:
        raise UserError(
            f"ingest.path {path!r} is read by data interval, and this run has none. "
            "Give --interval-start and --interval-end, or a path without placeholders.",
            path=path,
        )
    return (path,)


def has_wildcard(segment: str) -> bool:
    """Return whether a path segment is a pattern: `*`, `?`, `[...]`, or `**` for any number of directories."""
    return any(character in segment for character in "*?[")


def split_path(path: str) -> tuple[str, tuple[str, ...]]:
    """Split a path at its first wildcard into the address before it and the segments from there on, if any.

    `s3://landing/2026-*/a.json` -> `("s3://landing", ("2026-*", "a.json"))`.
    """
    scheme, separator, rest = path.partition("://") if "://" in path else ("", "", path)
    segments = rest.rstrip("/").split("/")
    first = next((i for i, segment in enumerate(segments) if has_wildcard(segment)), len(segments))
    if separator and first == 0:
        raise UserError(
            f"ingest.path {path!r}: the bucket cannot be a pattern; write the name of one bucket", path=path
        )
    root = "/".join(segments[:first])
    return (f"{scheme}{separator}{root}" if separator else root or "/"), tuple(segments[first:])
