"""From the texts of a table spec to addresses: environment, home directory, data interval, wildcards."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from datetime import UTC, datetime

from lakehouse.errors import UserError, nearest
from lakehouse.spec.table import TableSpec

HOME = "LAKEHOUSE_HOME"

Interval = tuple[datetime, datetime]

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_PLACEHOLDER = re.compile(r"(?<!\$)\{(start|end):([^{}]*)\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=/)")


def location_of(spec: TableSpec, environ: Mapping[str, str]) -> str:
    """Return where the table lies: the location with its variables filled, absolute or with a scheme."""
    return resolve(spec.location, environ, name="location")


def resolve(text: str, environ: Mapping[str, str], *, name: str) -> str:
    """Fill `${VAR}` from the environment and put a relative path below `LAKEHOUSE_HOME`, or the current directory.

    Raises UserError, naming the setting `name`, for a variable that is not set or is empty.
    """

    def value(match: re.Match[str]) -> str:
        variable = match[1]
        if not environ.get(variable):
            raise UserError(
                f"{name}: {text!r} needs the environment variable {variable}, which is not set."
                f"{nearest(variable, environ)} Set it, or write the place itself.",
                variable=variable,
            )
        return environ[variable]

    filled = _VARIABLE.sub(value, text)
    if _SCHEME.match(filled):
        return filled
    placed = os.path.abspath(os.path.join(environ.get(HOME) or ".", filled))
    return placed + "/" if filled.endswith("/") and placed != "/" else placed


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
