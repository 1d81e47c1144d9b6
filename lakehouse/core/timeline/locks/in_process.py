"""The lock of one process: threads exclude each other, and nobody outside sees it. For a table with one writer process.

The process dies with its locks, so nothing expires and nothing is taken over.
"""

from __future__ import annotations

import itertools
import threading

from lakehouse.core.timeline.env import Env
from lakehouse.core.timeline.locks.protocol import Held, lost
from lakehouse.spec.options.lock_providers import InProcessLockOptions, LockTiming

_mutex = threading.Lock()
_tokens = itertools.count(1)
_holders: dict[str, int] = {}


def open_lock(env: Env, options: InProcessLockOptions, timing: LockTiming) -> InProcessLock:
    """Return the lock of the table in this process."""
    return InProcessLock(env.storage.root)


class InProcessLock:
    """See `Lock`."""

    lease_ms = 0
    renew_ms = 0

    def __init__(self, root: str) -> None:
        self._root = root
        self._token: int | None = None

    @property
    def name(self) -> str:
        """Return the table whose lock it is."""
        return f"{self._root} (in this process)"

    def try_acquire(self) -> int | Held:
        """Take the lock if no thread has it."""
        with _mutex:
            if self._root in _holders:
                return Held("another thread of this process")
            self._token = _holders[self._root] = next(_tokens)
            return self._token

    def check(self) -> None:
        """Raise RetryableError unless the lock is ours."""
        with _mutex:
            if self._token is None or _holders.get(self._root) != self._token:
                raise lost(self.name, "another thread of this process")

    def guard(self, *, reread: bool) -> None:
        """Return None: the lock is no file of the table."""

    def skew_ms(self) -> None:
        """Return None: one process has one clock."""

    def renew(self) -> None:
        """Do nothing: the lock lasts as long as the process."""

    def release(self) -> None:
        """Free the lock if it is ours."""
        with _mutex:
            if self._token is not None and _holders.get(self._root) == self._token:
                del _holders[self._root]
            self._token = None
