"""Lease records: the owner of a lock or heartbeat, its expiry time, and whether the owner is still active.

A lease record is JSON: {"owner", "host", "pid", "boot", "namespace", "started", "until"}. `until` is the expiry time in
UTC milliseconds; the fields between identify the process (`lakehouse.core.system.processes`).

    expiry time passed                                   expired
    process of this PID namespace, no longer running     expired
    process of another host or container                 active until the expiry time
    record that does not parse (another implementation)  active until `expires_ms`; without it, always
"""

from __future__ import annotations

import json

from lakehouse.core.env import Env
from lakehouse.core.system.processes import ProcessId
from lakehouse.model.document import parse_json


def lease_record(env: Env, owner: str, lease_ms: int) -> bytes:
    """Return a lease record of this process that expires in `lease_ms` milliseconds."""
    return json.dumps(
        {"owner": owner, **env.processes.current().record, "until": env.clock.now_ms() + lease_ms}
    ).encode()


def is_active(env: Env, data: bytes, *, now_ms: int, expires_ms: int | None = None, grace_ms: int = 0) -> bool:
    """Return whether the owner of a lease record may still be active.

    Args:
        env: The environment that reads the record.
        data: The record.
        now_ms: The time of `env.clock` before the record was read, in UTC milliseconds. A process that was suspended
            after it read the record would otherwise compare an old record with the present time.
        expires_ms: Expiry time of a record that does not parse, in UTC milliseconds; None means that it never expires.
        grace_ms: Tolerated difference between the clocks of hosts, in milliseconds.
    """
    try:
        record = parse_json(data)
        until, process = int(record["until"]), ProcessId.from_record(record)
    except (ValueError, KeyError, TypeError, AttributeError):
        return expires_ms is None or now_ms <= expires_ms
    if now_ms > until + grace_ms:
        return False
    current = env.processes.current()
    return not current.is_comparable(process) or process == current or env.processes.is_running(process)


def owner_of(data: bytes) -> str | None:
    """Return the owner in a lease record, or None if the record does not parse."""
    try:
        return str(parse_json(data)["owner"])
    except (ValueError, KeyError, TypeError):
        return None
