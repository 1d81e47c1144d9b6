"""Encode leases as lease records (`lakehouse.core.timeline.expiry`) with a fencing token and a release flag."""

from __future__ import annotations

import json

from lakehouse.core.env import Env
from lakehouse.core.timeline.expiry import is_active
from lakehouse.core.timeline.locks.lease import LockLease
from lakehouse.core.timeline.locks.protocol import CLOCK_DRIFT_MS
from lakehouse.model.document import parse_json


class LeaseRecordCodec:
    """JSON of a lease record with "token" and "released". The lease of a process that no longer runs has expired."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def encode(self, lease: LockLease) -> bytes:
        """Return the record for a lease of this process."""
        facts = {
            "owner": lease.owner,
            **self._env.processes.current().record,
            "until": lease.until_ms,
            "token": lease.token,
        }
        return json.dumps({**facts, "released": True} if lease.released else facts).encode()

    def decode(self, data: bytes) -> LockLease | None:
        """Return the lease, or None for other bytes, which count as a held lock."""
        try:
            record = parse_json(data)
            return LockLease(
                owner=str(record["owner"]),
                token=int(record["token"]),
                until_ms=int(record["until"]),
                released=bool(record.get("released", False)),
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def is_over(self, data: bytes, lease: LockLease) -> bool:
        """Return whether the holder no longer runs, or its lease has certainly expired."""
        # An old record is harmless: the register is swapped only if it still has this record.
        return not is_active(self._env, data, now_ms=self._env.clock.now_ms(), grace_ms=CLOCK_DRIFT_MS)

    def next(self, owner: str, until_ms: int, before: LockLease | None) -> LockLease:
        """Return the lease that follows `before`; its token is greater."""
        return LockLease(owner=owner, token=1 if before is None else before.token + 1, until_ms=until_ms)
