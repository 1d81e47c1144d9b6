"""How far the clock of this host is off, measured against what keeps the lock, where that tells its time.

A lease is written by one clock and judged by another. A holder renews when a part of the lease has passed, so at any
moment at least `lease - renewal` of it is left, and a host whose clock is ahead by more takes a living holder for
expired. Two hosts may be off in opposite directions: each of them may be off by half of that.

    object store   Last-Modified of the lock after it was written, in whole seconds
    PostgreSQL     clock_timestamp()
    elsewhere      local disks and SQLite go by this very clock; ZooKeeper and the metastore judge by their own alone

A commit is not lost by skew: who lost the lock learns so (see `txn.late_commit`). Living writers would take each
other's locks and roll each other back.
"""

from __future__ import annotations

import logging

from lakehouse.core.env import Env
from lakehouse.core.timeline.locks.protocol import Lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

_MEASURED_MS = 600_000


def check_clock(env: Env, policy: TransactionPolicy, lock: Lock) -> None:
    """Compare the clock, once in ten minutes for each lock that is held beside other writers.

    Raises UserError if it is off by more than leases allow; logs a warning from half of that on.
    """
    now_ms, measured = env.clock.now_ms(), env.process_state.measured_clocks
    if not policy.many_writers or 0 <= now_ms - measured.get(lock.name, -_MEASURED_MS) < _MEASURED_MS:
        return
    try:
        skew_ms = lock.skew_ms()
    except RetryableError as error:
        logger.info("%s: the time of what keeps the lock is not known: %s", lock.name, error)
        return
    allowed_ms = allowed_skew_ms(lock)
    if skew_ms is not None and abs(skew_ms) * 2 > allowed_ms:
        text = (
            f"the clock of this host is {abs(skew_ms) / 1000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'} that of "
            f"{lock.name}; leases allow {allowed_ms / 1000:.1f} s at most, or leases of running writers look expired. "
            "Synchronise the clock (NTP), or raise the lease of the lock"
        )
        if abs(skew_ms) > allowed_ms:
            raise UserError(text, skew_ms=skew_ms, allowed_ms=allowed_ms)
        logger.warning("%s: %s", env.storage.root, text)
    measured[lock.name] = now_ms


def allowed_skew_ms(lock: Lock) -> int:
    """Return by how much the clock of one host may be off, in milliseconds."""
    return (lock.lease_ms - lock.renew_ms) // 2
