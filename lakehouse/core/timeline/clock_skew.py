"""Measure the difference between the clock of this host and the clock of the system that keeps the lock.

One host writes the expiry time of a lease, and another host compares it with its own clock. A holder renews its lease
early, so at least `lease - renewal interval` of it is left at any moment. A host whose clock is ahead by more than that
sees active leases as expired. Two hosts may be wrong in opposite directions, so each may be wrong by half of it.

    object store   Last-Modified of the lock after it was written, in whole seconds
    PostgreSQL     clock_timestamp()
    other          not measured: local disks and SQLite use this clock; ZooKeeper and the metastore use only their own

Skew loses no commit, because a writer that lost the lock detects it (`late_commit`). But active writers would take over
each other's locks and roll each other back.
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
    """Compare the clocks, at most once in ten minutes for each lock, if there may be other writers.

    Raises UserError if the clock is wrong by more than leases tolerate; logs a warning from half of that on.
    """
    now_ms, measured = env.clock.now_ms(), env.process_state.measured_clocks
    if not policy.many_writers or 0 <= now_ms - measured.get(lock.name, -_MEASURED_MS) < _MEASURED_MS:
        return
    try:
        skew_ms = lock.skew_ms()
    except RetryableError as error:
        logger.info("%s: the time of the lock provider is not known: %s", lock.name, error)
        return
    allowed_ms = allowed_skew_ms(lock)
    if skew_ms is not None and abs(skew_ms) * 2 > allowed_ms:
        text = (
            f"the clock of this host is {abs(skew_ms) / 1000:.1f} s {'ahead of' if skew_ms > 0 else 'behind'} that of "
            f"{lock.name}; leases allow {allowed_ms / 1000:.1f} s at most, or leases of running writers look expired. "
            "Synchronise the clock (NTP), or increase the lease of the lock"
        )
        if abs(skew_ms) > allowed_ms:
            raise UserError(text, skew_ms=skew_ms, allowed_ms=allowed_ms)
        logger.warning("%s: %s", env.storage.root, text)
    measured[lock.name] = now_ms


def allowed_skew_ms(lock: Lock) -> int:
    """Return by how much the clock of a host may be wrong, in milliseconds."""
    return (lock.lease_ms - lock.renew_ms) // 2
