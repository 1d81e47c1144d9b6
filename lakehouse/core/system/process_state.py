"""The memory that operations of one process share: locks between threads, and results of earlier checks.

A production process has one `ProcessState`. A simulation creates one for each simulated process.
"""

from __future__ import annotations

import itertools
import threading


class InProcessLocks:
    """Locks by name that threads of one process hold, each with a fencing token."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._tokens = itertools.count(1)
        self._holders: dict[str, int] = {}

    def try_acquire(self, name: str) -> int | None:
        """Take the lock and return its fencing token, or None if it is held."""
        with self._mutex:
            if name in self._holders:
                return None
            self._holders[name] = token = next(self._tokens)
            return token

    def is_held(self, name: str, token: int | None) -> bool:
        """Return whether the lock is held with this token."""
        with self._mutex:
            return token is not None and self._holders.get(name) == token

    def release(self, name: str, token: int | None) -> None:
        """Free the lock if it is held with this token."""
        with self._mutex:
            if token is not None and self._holders.get(name) == token:
                del self._holders[name]


class LockTurns:
    """Counts, for each table, the acquisitions of its lock by this process, and detects those of other processes."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._acquired: dict[str, int] = {}
        self._interrupted: dict[str, int] = {}
        self._cleaned: dict[tuple[str, object], int] = {}

    def acquired(self, root: str, *, continues: bool) -> None:
        """Record an acquisition; `continues` is whether no other process held the lock since the previous one."""
        with self._mutex:
            number = self._acquired[root] = self._acquired.get(root, 0) + 1
            if not continues:
                self._interrupted[root] = number

    def count(self, root: str) -> int:
        """Return the number of acquisitions so far."""
        return self._acquired.get(root, 0)

    def uninterrupted(self, root: str, since: int) -> bool:
        """Return whether no other process held the lock at any time after acquisition number `since`."""
        return self._interrupted.get(root, 0) <= since

    def keep_cleaned(self, root: str, process: object) -> None:
        """Record that no write of this process has left files that a cleanup would delete."""
        with self._mutex:
            self._cleaned[root, process] = self._acquired.get(root, 0)

    def is_cleaned(self, root: str, process: object) -> bool:
        """Return whether `keep_cleaned` was called and no operation of this process acquired the lock since."""
        return self._cleaned.get((root, process), -1) == self._acquired.get(root, 0)


class ProcessState:
    """The memory that the operations of one process share.

    Attributes:
        in_process_locks: The locks of the lock provider `in_process`.
        compared_locks: By table and lock, the time when the lock was last compared with the recorded one, in UTC
            milliseconds.
        conditional_storages: Roots of storages that were verified to support conditional writes.
        measured_clocks: By lock, the time when this host's clock was last compared with the lock's clock, in UTC
            milliseconds.
        abandoned_owners: Lock owners of this process that could not record their release.
        released_locks: By lock, the version that the last release of this process wrote (`locks.lease`).
        lock_turns: The acquisitions of table locks by this process.
    """

    def __init__(self) -> None:
        self.in_process_locks = InProcessLocks()
        self.compared_locks: dict[str, int] = {}
        self.conditional_storages: set[str] = set()
        self.measured_clocks: dict[str, int] = {}
        self.abandoned_owners: set[str] = set()
        self.released_locks: dict[str, object] = {}
        self.lock_turns = LockTurns()
        self._mutex = threading.Lock()
        self._thread_locks: dict[str, threading.Lock] = {}

    def thread_lock(self, root: str) -> threading.Lock:
        """Return the lock on which threads of this process wait for the table at `root`."""
        with self._mutex:
            return self._thread_locks.setdefault(root, threading.Lock())
