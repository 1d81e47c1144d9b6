"""The table lock: held for the drawing of an instant time and for the commit, never while data is written.

`table_lock` is the one door. Threads of one process queue in memory first; the lock among processes is kept by the
provider that `hoodie.write.lock.provider` names (see `lakehouse.core.timeline.locks`). While the lock is held, a
thread prolongs the lease, so a lease may be shorter than the work; a holder that was suspended for longer than its
lease learns so from `check`, right before the act that the lock protects.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import cast

from lakehouse.core.env import Env
from lakehouse.core.system.timers import Timer
from lakehouse.core.timeline.clock_skew import check_clock
from lakehouse.core.timeline.lock_compatibility import check_lock_compatibility
from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.errors import LakehouseError, RetryableError, TableBusyError, UserError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import PROVIDER_KEY
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: First and longest pause between two looks at a lock: on disks, where a look costs next to nothing, and at stores and
#: servers, where it is a request.
_NEAR_POLL_SECONDS = (0.02, 0.06)
_FAR_POLL_SECONDS = (0.05, 0.5)
_POLL_GROWTH = 1.1
#: A renewal may come between two looks at the lock, and is rare.
_GUARDED_TRIES = 3


@contextmanager
def table_lock(env: Env, policy: TransactionPolicy) -> Iterator[TableLock]:
    """Hold the table lock; raise RetryableError naming the holder if it is not free within the wait time.

    Raises UserError where this lock cannot exclude the other writers of the table (see `lock_compatibility`).
    """
    local = env.process_state.thread_lock(env.storage.root)
    # One wait time for both queues.
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
    """The lock as its holder sees it, for one acquisition. `token` is above those of all holders before."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env, self._policy = env, policy
        self._lock = open_lock(env, policy.lock)
        self._renewal: Timer | None = None
        self.token = 0

    @property
    def name(self) -> str:
        """Return what messages call the lock."""
        return self._lock.name

    def acquire(self, deadline_ms: int | None = None) -> None:
        """Wait for the lock until the deadline (default: one wait time) and take it.

        A lock whose holder died is taken over. A fault of what keeps the lock, such as a full disk, is raised at once.
        """
        deadline = deadline_ms or self._env.clock.now_ms() + self._policy.lock.wait_ms
        is_near = self._policy.lock.registered.in_table_storage and "://" not in self._env.storage.root
        pause, longest = _NEAR_POLL_SECONDS if is_near else _FAR_POLL_SECONDS
        # A clock that is set back must not prolong the wait, so what was slept counts, too.
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
        if self._lock.renew_ms:
            self._renewal = self._env.timers.every(self._lock.renew_ms / 1000, self._renew, f"lock-{self.token}")

    def _ask(self) -> int | Held:
        try:
            return self._lock.try_acquire()
        except TableBusyError as error:
            return Held(f"nobody for sure, since what keeps it is busy: {error}")

    def check_clock(self) -> None:
        """Raise UserError if the clock of this host is off by more than leases allow; call while the lock is held."""
        check_clock(self._env, self._policy, self._lock)

    def check(self) -> None:
        """Raise RetryableError unless the lock is still ours: call right before what it protects."""
        self._lock.check()

    def create(self, path: str, data: bytes) -> bool | None:
        """Create a file of the table in one act with the proof that the lock is ours; return as `Storage.create` does.

        None: nothing was done, because the lock is not kept where the store can compare it. Raises RetryableError if
        the lock was lost; then nothing was created.
        """
        for number in range(_GUARDED_TRIES):
            guard = self._lock.guard(reread=number > 0)
            if guard is None:
                return None
            made = self._env.storage.create_guarded(path, data, *guard)
            if made is not None:
                return made
            # Another version of the lock: a renewal of ours, or a new holder, which reading it again tells.
        raise RetryableError(f"{self.name}: the table lock changed {_GUARDED_TRIES} times; nothing was committed")

    def confirm(self) -> None:
        """Raise RetryableError if another process may have had the lock since it was taken.

        A lease that is over and was not taken over is renewed: who takes the lock later sees what was done before.
        """
        try:
            self._lock.check()
        except RetryableError:
            self._stop_renewal()
            self._lock.renew()
            self._lock.check()

    @contextmanager
    def reacquire(self) -> Iterator[TableLock]:
        """Take the lock again after it was lost, with another fencing token."""
        lock = TableLock(self._env, self._policy)
        try:
            lock.acquire()
            yield lock
        finally:
            lock.release()

    def release(self) -> None:
        """Give the lock back if it is still ours. What was done under it stands, so a failure here is only logged."""
        self._stop_renewal()
        for last_try in (False, True):
            try:
                self._lock.release()
                return
            except LakehouseError as error:
                if last_try:
                    logger.warning("%s: the lock was not released and expires by itself: %s", self._lock.name, error)

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
    """Return the lock of the provider that the policy names; raise UserError if its package is not installed."""
    extra = policy.registered.extra
    try:
        # A provider's client takes longer to import than a commit takes, so only the chosen one is imported.
        module = import_module(f"lakehouse.core.timeline.locks.{policy.provider}")
    except ModuleNotFoundError as error:
        if not extra or str(error.name).startswith("lakehouse"):
            raise
        raise UserError(
            f"option {PROVIDER_KEY}={policy.provider} needs the package {error.name!r}: pip install "
            f"'lakehouse[{extra}]'",
            option=PROVIDER_KEY,
        ) from error
    return cast(Lock, module.open_lock(env, policy.options, policy.timing))
