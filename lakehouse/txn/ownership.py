"""Signs of life: who holds the lock or writes an instant, until when, and whether it is still there.

A note is JSON {"owner", "host", "pid", "until"}; `until` is UTC milliseconds. A note of a dead process of this host, or
one whose time is over, belongs to nobody. A note that does not parse was left by another implementation and is judged
by nothing but its age where that is known; where it is not, it counts as alive.
"""

from __future__ import annotations

import json

from lakehouse.txn.env import Env


def note(env: Env, owner: str, lease_ms: int) -> bytes:
    """Return a note that claims something for `lease_ms` from this moment on."""
    host, pid = env.processes.me()
    return json.dumps({"owner": owner, "host": host, "pid": pid, "until": env.clock.now_ms() + lease_ms}).encode()


def is_alive(env: Env, data: bytes, *, expires_ms: int | None = None, grace_ms: int = 0) -> bool:
    """Return whether the owner of a note may still be at work; clocks of hosts may differ by `grace_ms`."""
    try:
        claim = json.loads(data)
        until, host, pid = int(claim["until"]), str(claim["host"]), int(claim["pid"])
    except (ValueError, KeyError, TypeError):
        return expires_ms is None or env.clock.now_ms() <= expires_ms
    if env.clock.now_ms() > until + grace_ms:
        return False
    own_host, own_pid = env.processes.me()
    return host != own_host or pid == own_pid or env.processes.is_alive(pid)


def owner_of(data: bytes) -> str | None:
    """Return the owner named in a note, or None if it is not one of ours."""
    try:
        return str(json.loads(data)["owner"])
    except (ValueError, KeyError, TypeError):
        return None
