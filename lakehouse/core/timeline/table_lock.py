"""The table lock: held while an instant is created or completed, not while data is written.

`table_lock` acquires it. Threads of one process queue in memory first. Between processes, the provider in
`hoodie.write.lock.provider` keeps the lock (`lakehouse.core.timeline.locks`). A timer renews the lease while the lock
is held, so the work may take longer than the lease. A process that was suspended for longer than its lease loses the
lock; `check`, called right before the protected step, detects this.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from importlib import import_module
from typing import cast

from lakehouse.core.env import Env
from lakehouse.core.system.timers import Timer
from lakehouse.core.timeline.lock_compatibility import check_lock_compatibility
from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.errors import LakehouseError, RetryableError, TableBusyError, UserError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import PROVIDER_KEY
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: Minimum and maximum pause between two tries to acquire the lock. Local disks are polled more often: a try on an
#: object store or a server is a request.
_NEAR_POLL_SECONDS = (0.02, 0.06)
_FAR_POLL_SECONDS = (0.05, 0.5)
_POLL_GROWTH = 1.1
#: Maximum number of attempts: a renewal may change the lock between the read of its version and its use. This is rare.
_GUARDED_TRIES = 3
#: Time between two comparisons with the clock of the lock provider.
_MEASURED_MS = 600_000


@contextmanager
def table_lock(env: Env, policy: TransactionPolicy) -> Iterator[TableLock]:
    """Hold the table lock during a `with` block.

    Raises RetryableError with the holder if the lock is not free within the wait time. Raises UserError if the lock of
    this policy does not exclude the other writers of the table (see `lock_compatibility`).
    """
    local = env.process_state.thread_lock(env.storage.root)
    # The wait time covers both queues.
    deadline_ms = env.clock.now_ms() + policy.lock.wait_ms
    if not local.acquire(timeout=policy.lock.wait_ms / 1000):
        raise RetryableError(
            f"{env.storage.root}: another thread of this process holds the table lock; try again later"
        )
    try:
        lock = TableLock(env, policy)
        try:
            check_lock_compatibility(env, policy, lock.name)
            lock.acquire(deadline_ms)
            lock.check_clock()
            yield lock
        finally:
            lock.release()
    finally:
        local.release()


class TableLock:
    """One acquisition of the table lock. `token` is its fencing token, greater than all earlier ones."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env, self._policy = env, policy
        self._lock = open_lock(env, policy.lock)
        self._renewal: Timer | None = None
        self._directory, self._is_last_step = "", False
        self.token = 0

    @property
    def name(self) -> str:
        """Return the name of the lock in messages."""
        return self._lock.name

    @property
    def policy(self) -> TransactionPolicy:
        """Return the options of the transaction that acquired the lock."""
        return self._policy

    def acquire(self, deadline_ms: int | None = None) -> None:
        """Wait for the lock until the deadline (default: one wait time from now) and acquire it.

        An expired lock is taken over. An error of the provider, such as a full disk, is raised immediately.
        """
        deadline = deadline_ms or self._env.clock.now_ms() + self._policy.lock.wait_ms
        is_near = self._policy.lock.registered.in_table_storage and "://" not in self._env.storage.root
        pause, longest = _NEAR_POLL_SECONDS if is_near else _FAR_POLL_SECONDS
        # The pauses are added up, because a clock that is set back must not prolong the wait.
        left_s = (deadline - self._env.clock.now_ms()) / 1000
        while isinstance(answer := self._ask(), Held):
            if self._env.clock.now_ms() > deadline or left_s < 0:
                raise RetryableError(
                    f"{self._env.storage.root}: the table lock {self._lock.name} is held by {answer.by} for more than "
                    f"{self._policy.lock.wait_ms} ms; try again later"
                )
            self._env.clock.sleep(pause)
            left_s -= pause
            pause = min(pause * _POLL_GROWTH, longest)
        self.token = answer
        self._env.process_state.lock_turns.acquired(self._env.storage.root, continues=self._lock.continues())
        if self._lock.renew_ms:
            self._renewal = self._env.timers.every(self._lock.renew_ms / 1000, self._renew, f"lock-{self.token}")

    def _ask(self) -> int | Held:
        try:
            return self._lock.try_acquire()
        except TableBusyError as error:
            return Held(f"an unknown holder, because the provider is busy: {error}")

    def check_clock(self) -> None:
        """Raise UserError if this host's clock is wrong by more than leases tolerate; call while the lock is held."""
        check_clock(self._env, self._policy, self._lock)

    def check(self) -> None:
        """Raise RetryableError if the lock was lost; call right before the step that it protects."""
        self._lock.check()

    def check_lease(self) -> None:
        """Raise RetryableError if the lock may be lost; sends no request if the lease was proven a moment ago.

        Call it before a step that is verified afterwards, by the guard of `create`, `confirm` or `finish`. It stops a
        process that was suspended; the verification covers all other reasons.
        """
        if not self._lock.is_fresh():
            self._lock.check()

    def finish(self) -> None:
        """Release the lock after the last step. Raise RetryableError if it was lost before.

        If the provider cannot prove it, the lock stays until `release`: its last `check` counts.
        """
        if self._release_held() is False:
            self._lock.check()

    def _release_held(self) -> bool | None:
        self._stop_renewal()
        try:
            return self._lock.release_held()
        except LakehouseError as error:
            logger.info("%s: it is not known whether the lock was released: %s", self._lock.name, error)
            return False

    def create(self, path: str, data: bytes) -> bool | None:
        """Create a file of the table in one atomic step with the check that the lock is still held.

        Returns like `Storage.create`; None if the storage cannot compare the lock in the same step, in which case
        nothing was created. Raises RetryableError if the lock was lost; nothing was created then either.
        """
        for number in range(_GUARDED_TRIES):
            guard = self._lock.guard(reread=number > 0)
            if guard is None:
                return None
            made = self._env.storage.create_guarded(self._directory + path, data, *guard)
            if made is not None:
                return made
            # A renewal or a new holder changed the version of the lock. Reading it again shows which one.
        raise RetryableError(f"{self.name}: the table lock changed {_GUARDED_TRIES} times; nothing was committed")

    def below(self, directory: str) -> TableLock:
        """Return this acquisition for files of a directory: `create` takes paths relative to it."""
        lock = copy(self)
        lock._directory = f"{directory}/"
        return lock

    def for_last_step(self) -> TableLock:
        """Return this acquisition for the last step that needs it: `confirm` releases the lock."""
        lock = copy(self)
        lock._is_last_step = True
        return lock

    def confirm(self) -> None:
        """Raise RetryableError if another process may have held the lock since this acquisition.

        An expired lease that was not taken over is renewed, so that the next holder sees all earlier changes.
        """
        if self._is_last_step and self._release_held():
            return
        try:
            self._lock.check()
        except RetryableError:
            self._stop_renewal()
            self._lock.renew()
            self._lock.check()

    @contextmanager
    def reacquire(self) -> Iterator[TableLock]:
        """Acquire the lock again, with a new fencing token, after it was lost or the protected step failed.

        After a failed step this acquisition may still hold the lock. It is released first; otherwise the new
        acquisition would wait for it.
        """
        self.release()
        lock = TableLock(self._env, self._policy)
        try:
            lock.acquire()
            yield lock
        finally:
            lock.release()

    def release(self) -> None:
        """Release the lock if it is still held. The protected steps are done by then, so a failure is only logged."""
        self._stop_renewal()
        for last_try in (False, True):
            try:
                self._lock.release()
                return
            except LakehouseError as error:
                if last_try:
                    logger.warning("%s: the lock was not released and will expire: %s", self._lock.name, error)

    def _stop_renewal(self) -> None:
        if self._renewal is not None:
            self._renewal.stop()

    def _renew(self) -> None:
        try:
            self._lock.renew()
        except LakehouseError as error:
            # The check before the commit decides whether the lock is lost.
            logger.warning("%s: the lock was not renewed: %s", self._lock.name, error)


def open_lock(env: Env, policy: LockPolicy) -> Lock:
    """Return the lock of the chosen provider; raise UserError if the package of its client is not installed."""
    extra = policy.registered.extra
    try:
        # A provider's client takes longer to import than a commit takes, so only the chosen one is imported.
        module = import_module(f"lakehouse.core.timeline.locks.{policy.provider}")
    except ModuleNotFoundError as error:
        if not extra or str(error.name).startswith("lakehouse"):
            raise
        raise UserError(
            f"option {PROVIDER_KEY}={policy.provider} needs the package {error.name!r}: pip install "
            f"'lakehouse-tables[{extra}]'",
            option=PROVIDER_KEY,
        ) from error
    return cast(Lock, module.open_lock(env, policy.options, policy.timing))


def check_clock(env: Env, policy: TransactionPolicy, lock: Lock) -> None:
    """Compare the clocks, at most once in ten minutes for each lock, if there may be other writers.

    One host writes the expiry time of a lease, and another host compares it with its own clock. A holder renews its
    lease early, so at least `lease - renewal interval` of it is left at any moment. A host whose clock is ahead by more
    than that treats active leases as expired. Two hosts may be wrong in opposite directions, so each may be wrong by
    half of it. A wrong clock loses no commit, because a writer that lost the lock detects it (`late_commit`). But
    active writers would take over each other's locks and roll each other back.

        object store   Last-Modified of the lock after it was written, in whole seconds
        PostgreSQL     clock_timestamp()
        other          not measured: local disks and SQLite use this clock, ZooKeeper and the metastore only their own

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
    """Return the maximum clock error of a host, in milliseconds."""
    return (lock.lease_ms - lock.renew_ms) // 2
