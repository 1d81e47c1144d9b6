"""From the texts of an ingest section to addresses: data interval, wildcards."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from lakehouse.errors import UserError

Interval = tuple[datetime, datetime]

_PLACEHOLDER = re.compile(r"(?<!\$)\{(start|end):([^{}]*)\}")


def fill_interval(path: str, interval: Interval | None) -> str:
    """Fill `{start:%Y-%m}` and `{end:...}` with the bounds of the interval in UTC.

    Raises UserError if the path has placeholders and there is no interval.
    """
    if interval is None:
        match = _PLACEHOLDER.search(path)
        if match is not None:
            raise UserError(
                f"ingest.path {path!r} is read by data interval, and this run has none. "
                "Give --interval-start and --interval-end, or a path without placeholders.",
                path=path,
            )
        return path
    bounds = {"start": interval[0].astimezone(UTC), "end": interval[1].astimezone(UTC)}
    return _PLACEHOLDER.sub(lambda match: bounds[match[1]].strftime(match[2]), path)


def interval_text(interval: Interval) -> str:
    """Return the interval as commits carry it: `2026-01-01T00:00:00Z/2026-01-02T00:00:00Z`."""
    return "/".join(bound.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z" for bound in interval)


def has_wildcard(segment: str) -> bool:
    """Tell whether a path segment is a pattern: `*`, `?`, `[...]`, or `**` for any number of directories."""
    return any(character in segment for character in "*?[")


def split_path(path: str) -> tuple[str, tuple[str, ...]]:
    """Return the address before the first wildcard, and the segments from there on; no segments: no wildcard.

    `s3://landing/2026-*/a.json` -> `("s3://landing", ("2026-*", "a.json"))`.
    """
    scheme, separator, rest = path.partition("://") if "://" in path else ("", "", path)
    segments = rest.rstrip("/").split("/")
    first = next((i for i, segment in enumerate(segments) if has_wildcard(segment)), len(segments))
    if separator and first == 0:
        raise UserError(f"ingest.path {path!r}: the bucket cannot be a pattern; name one bucket", path=path)
    root = "/".join(segments[:first])
    return (f"{scheme}{separator}{root}" if separator else root or "/"), tuple(segments[first:])
