"""Signs of life: who holds the lock or writes an instant, until when, and whether it is still there.

A note is JSON {"owner", "host", "pid", "boot", "namespace", "started", "until"}; `until` is UTC milliseconds, and what
is between names the process (see `txn.processes`). A note of a dead process of this PID namespace, or one whose time is
over, has no owner. A process that cannot be looked for from here, as one in another container or one that wrote no
start time, is judged by the time alone. A note that does not parse was left by another implementation and is judged
by nothing but its age where that is known; where it is not, it counts as alive.
"""

from __future__ import annotations

import json

from lakehouse.core.env import Env
from lakehouse.core.system.processes import ProcessId
from lakehouse.model.document import parse_json


def lease_record(env: Env, owner: str, lease_ms: int) -> bytes:
    """Return a note that claims something for `lease_ms` from this moment on."""
    return json.dumps(
        {"owner": owner, **env.processes.current().record, "until": env.clock.now_ms() + lease_ms}
    ).encode()


def is_active(env: Env, data: bytes, *, expires_ms: int | None = None, grace_ms: int = 0) -> bool:
    """Return whether the owner of a note may still be at work; clocks of hosts may differ by `grace_ms`."""
    try:
        claim = parse_json(data)
        until, process = int(claim["until"]), ProcessId.from_record(claim)
    except (ValueError, KeyError, TypeError, AttributeError):
        return expires_ms is None or env.clock.now_ms() <= expires_ms
    if env.clock.now_ms() > until + grace_ms:
        return False
    me = env.processes.current()
    return not me.is_comparable(process) or process == me or env.processes.is_running(process)


def owner_of(data: bytes) -> str | None:
    """Return the owner named in a note, or None if it is not one of ours."""
    try:
        return str(parse_json(data)["owner"])
    except (ValueError, KeyError, TypeError):
        return None
