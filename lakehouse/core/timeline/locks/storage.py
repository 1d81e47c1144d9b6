"""The lock of Hudi's StorageBasedLockProvider, in its bytes: `.hoodie/.locks/table_lock.json`, by conditional puts.

    {"expired":false,"validUntil":<UTC milliseconds>,"owner":"<uuid>"}

Absent, expired, or over for longer than clocks may differ: whoever puts a new version on the condition that it is still
the one that was read has the lock. To unlock is to put `expired: true`. The file has no room for a token, so
`validUntil` is one: each acquisition ends later than the one before, and renewals move the end on.
"""

from __future__ import annotations

import json

from lakehouse.core.env import Env
from lakehouse.core.timeline.locks.lease import FileRegister, LeaseLock, LockLease
from lakehouse.core.timeline.locks.protocol import CLOCK_DRIFT_MS
from lakehouse.model.document import parse_json
from lakehouse.spec.options.lock_providers import LockTiming, StorageLockOptions

LOCK_PATH = ".hoodie/.locks/table_lock.json"


def open_lock(env: Env, options: StorageLockOptions, timing: LockTiming) -> LeaseLock:
    """Return the lock of the table."""
    return LeaseLock(
        env,
        FileRegister(env.storage, LOCK_PATH),
        StorageLockCodec(env),
        name=f"{env.storage.root}/{LOCK_PATH}",
        lease_ms=options.validity_s * 1000,
        renew_ms=options.renew_s * 1000,
    )


class StorageLockCodec:
    """Hudi's StorageLockData: three fields, in this order, without spaces."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def encode(self, lease: LockLease) -> bytes:
        """Return Hudi's bytes."""
        facts = {"expired": lease.released, "validUntil": lease.until_ms, "owner": lease.owner}
        return json.dumps(facts, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> LockLease | None:
        """Return the lease, or None for bytes that Hudi would refuse, too: they count as held."""
        try:
            found = parse_json(data)
            until_ms = int(found["validUntil"])
            return LockLease(
                owner=str(found["owner"]), token=until_ms, until_ms=until_ms, released=bool(found["expired"])
            )
        except (ValueError, KeyError, TypeError):
            return None

    def is_over(self, data: bytes, lease: LockLease) -> bool:
        """Return whether the end has passed, on whatever host it was written."""
        return self._env.clock.now_ms() > lease.until_ms + CLOCK_DRIFT_MS

    def next(self, owner: str, until_ms: int, before: LockLease | None) -> LockLease:
        """Return the lease that follows `before`; it ends later."""
        end = until_ms if before is None else max(until_ms, before.until_ms + 1)
        return LockLease(owner=owner, token=end, until_ms=end)
