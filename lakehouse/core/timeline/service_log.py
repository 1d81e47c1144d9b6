"""The last run of a service that leaves no instant on the timeline, such as validation.

    .hoodie/.lakehouse/services/<service>.json      when it ended, whether it failed, and the state that it read

The file is replaced as a whole, so after two concurrent runs the later one is recorded. A file that cannot be parsed
counts as no run, so that a damaged file only causes an early run. Hudi neither reads nor lists this folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from lakehouse.core.env import Env
from lakehouse.core.storage.protocol import NotFoundError

DIRECTORY = ".hoodie/.lakehouse/services"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRun:
    """The end of the last run in UTC milliseconds, and whether it failed.

    `state` contains the values that a service compares to determine whether it is due. It is empty for services that
    only depend on time.
    """

    at_ms: int
    failed: bool = False
    state: Mapping[str, str] = field(default_factory=dict)


def read_last_run(env: Env, service: str) -> LastRun | None:
    """Return the last run of a service; None if there was none."""
    try:
        document = json.loads(env.storage.get(_path(service)))
        state = {str(name): str(value) for name, value in (document.get("state") or {}).items()}
        return LastRun(at_ms=int(document["at_ms"]), failed=bool(document.get("failed")), state=state)
    except (NotFoundError, ValueError, TypeError, KeyError, AttributeError):
        return None


def record_run(env: Env, service: str, *, failed: bool = False, state: Mapping[str, str] | None = None) -> None:
    """Record that a run of a service ended now, and the state that it read."""
    run = LastRun(at_ms=env.clock.now_ms(), failed=failed, state=state or {})
    env.storage.put(_path(service), json.dumps(asdict(run)).encode())


def _path(service: str) -> str:
    return f"{DIRECTORY}/{service}.json"
