"""Lock provider `in_process`: excludes threads of one process, for tables with one writer process.

The lock ends with the process, so it has no expiry time and is never taken over.
"""

from __future__ import annotations

from lakehouse.core.env import Env
from lakehouse.core.system.process_state import InProcessLocks
from lakehouse.core.timeline.locks.protocol import Held, lock_lost
from lakehouse.spec.options.lock_providers import InProcessLockOptions, LockTiming


def open_lock(env: Env, options: InProcessLockOptions, timing: LockTiming) -> InProcessLock:
    """Return the lock of the table in this process."""
    return InProcessLock(env.process_state.in_process_locks, env.storage.root)


class InProcessLock:
    """See `Lock`."""

    lease_ms = 0
    renew_ms = 0

    def __init__(self, locks: InProcessLocks, root: str) -> None:
        self._locks, self._root = locks, root
        self._token: int | None = None

    @property
    def name(self) -> str:
        """Return the table and the kind of the lock."""
        return f"{self._root} (in this process)"

    def try_acquire(self) -> int | Held:
        """Take the lock if no thread holds it."""
        token = self._locks.try_acquire(self._root)
        if token is None:
            return Held("another thread of this process")
        self._token = token
        return token

    def check(self) -> None:
        """Raise RetryableError unless this acquisition still holds the lock."""
        if not self._locks.is_held(self._root, self._token):
            raise lock_lost(self.name, "another thread of this process")

    def continues(self) -> bool:
        """Return False: earlier holders are not recorded."""
        return False

    def is_fresh(self) -> bool:
        """Return False: `check` sends no request."""
        return False

    def release_held(self) -> None:
        """Return None: `check` sends no request."""

    def guard(self, *, reread: bool) -> None:
        """Return None: the lock is not a file of the table."""

    def skew_ms(self) -> None:
        """Return None: one process has one clock."""

    def renew(self) -> None:
        """Do nothing: the lock does not expire."""

    def release(self) -> None:
        """Free the lock if this acquisition holds it."""
        self._locks.release(self._root, self._token)
        self._token = None
