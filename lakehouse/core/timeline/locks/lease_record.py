"""Leases as notes of who holds the lock (see `lakehouse.core.timeline.expiry`), with token and release."""

from __future__ import annotations

import json

from lakehouse.core.env import Env
from lakehouse.core.timeline.expiry import is_active
from lakehouse.core.timeline.locks.lease import LockLease
from lakehouse.core.timeline.locks.protocol import CLOCK_DRIFT_MS
from lakehouse.model.document import parse_json


class LeaseRecordCodec:
    """JSON of `txn.ownership`, with "token" and "released"; a note of a process that is known to be dead is over."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def encode(self, lease: LockLease) -> bytes:
        """Return the note, signed by this process."""
        facts = {
            "owner": lease.owner,
            **self._env.processes.current().record,
            "until": lease.until_ms,
            "token": lease.token,
        }
        return json.dumps({**facts, "released": True} if lease.released else facts).encode()

    def decode(self, data: bytes) -> LockLease | None:
        """Return the lease, or None for what is no note: it counts as held."""
        try:
            note = parse_json(data)
            return LockLease(
                owner=str(note["owner"]),
                token=int(note["token"]),
                until_ms=int(note["until"]),
                released=bool(note.get("released", False)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def is_over(self, data: bytes, lease: LockLease) -> bool:
        """Return whether the holder is dead, or its time certainly over."""
        return not is_active(self._env, data, grace_ms=CLOCK_DRIFT_MS)

    def next(self, owner: str, until_ms: int, before: LockLease | None) -> LockLease:
        """Return the lease that follows `before`."""
        return LockLease(owner=owner, token=1 if before is None else before.token + 1, until_ms=until_ms)
