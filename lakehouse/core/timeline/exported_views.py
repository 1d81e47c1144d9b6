"""The oldest table version that readers of Iceberg and Delta views may open, for clean.

    .hoodie/.lakehouse/exports/<format>.json      requested time from which on the view may lack writes

An export writes the time before the first version of a view, and again after each later version. So the time is never
newer than the view, and a clean keeps the files of the view until the next export. It is no state of the export, which
is in the view itself. Clean reads it for declared formats only: a view that is no longer exported keeps no files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError

DIRECTORY = ".hoodie/.lakehouse/exports"


def exported_before(env: Env, formats: Iterable[str]) -> str | None:
    """Return the earliest time of the views in these formats; None if none of them was exported yet."""
    times = [time for name in formats if (time := read_exported(env, name)) is not None]
    return min(times, default=None)


def read_exported(env: Env, name: str) -> str | None:
    """Return the requested time from which on a view may lack writes; None without a view."""
    try:
        return str(json.loads(env.storage.get(_path(name)))["complete_before"])
    except (NotFoundError, ValueError, TypeError, KeyError):
        return None


def record_exported(env: Env, name: str, complete_before: str) -> None:
    """Record that a view contains all writes that were requested before a time."""
    env.storage.put(_path(name), json.dumps({"complete_before": complete_before}).encode())


def _path(name: str) -> str:
    return f"{DIRECTORY}/{name}.json"
