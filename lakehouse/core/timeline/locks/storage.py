"""Lock provider `storage`: the bytes of Hudi's StorageBasedLockProvider in `.hoodie/.locks/table_lock.json`.

    {"expired":false,"validUntil":<UTC milliseconds>,"owner":"<uuid>"}

The lock is free if the file is absent, has `expired: true`, or `validUntil` has passed by more than clocks may differ.
The process whose conditional put replaces the version that it read holds the lock. A release writes `expired: true`.
The file has no field for a fencing token, so `validUntil` serves as one: each acquisition and renewal increases it.
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
    """Encodes Hudi's StorageLockData: three fields in this order, without spaces."""

    def __init__(self, env: Env) -> None:
        self._env = env

    def encode(self, lease: LockLease) -> bytes:
        """Return the bytes that Hudi writes for a lease."""
        facts = {"expired": lease.released, "validUntil": lease.until_ms, "owner": lease.owner}
        return json.dumps(facts, separators=(",", ":")).encode()

    def decode(self, data: bytes) -> LockLease | None:
        """Return the lease, or None for bytes that Hudi refuses as well; they count as a held lock."""
        try:
            document = parse_json(data)
            until_ms = int(document["validUntil"])
            return LockLease(
                owner=str(document["owner"]), token=until_ms, until_ms=until_ms, released=bool(document["expired"])
            )
        except (ValueError, KeyError, TypeError):
            return None

    def is_over(self, data: bytes, lease: LockLease) -> bool:
        """Return whether the lease has expired, with a tolerance for the clock of another host."""
        return self._env.clock.now_ms() > lease.until_ms + CLOCK_DRIFT_MS

    def next(self, owner: str, until_ms: int, before: LockLease | None) -> LockLease:
        """Return the lease that follows `before`; it expires later."""
        end = until_ms if before is None else max(until_ms, before.until_ms + 1)
        return LockLease(owner=owner, token=end, until_ms=end)
