"""The last run of a service that leaves no instant on the timeline, such as validation.

    .hoodie/.lakehouse/services/<service>.json      when it ended, and whether it failed

The file is replaced as a whole; of two concurrent runs the last one counts. A file that cannot be parsed counts as no
run, so that a damaged file only causes an early run. Hudi neither reads nor lists this folder.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError

DIRECTORY = ".hoodie/.lakehouse/services"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The end of the last run in UTC milliseconds, and whether it failed."""

    at_ms: int
    failed: bool = False


def read_last_run(env: Env, service: str) -> LastRun | None:
    """Return the last run of a service; None if there was none."""
    try:
        found = json.loads(env.storage.get(_path(service)))
        return LastRun(at_ms=int(found["at_ms"]), failed=bool(found.get("failed")))
    except (NotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def record_run(env: Env, service: str, *, failed: bool = False) -> None:
    """Record that a run of a service ended now."""
    run = LastRun(at_ms=env.clock.now_ms(), failed=failed)
    env.storage.put(_path(service), json.dumps(asdict(run)).encode())


def _path(service: str) -> str:
    return f"{DIRECTORY}/{service}.json"
