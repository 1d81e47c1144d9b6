"""The table lock: one file, `.hoodie/lock`, made by create-if-absent and removed on release.

It stands where Hudi's FileSystemBasedLockProvider keeps its own, so both exclude each other. It is held for the drawing
of an instant time and for the commit, never while data is written. Threads of one process queue in memory first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError
from lakehouse.spec.options import TransactionPolicy
from lakehouse.storage.protocol import NotFoundError
from lakehouse.txn.env import Env
from lakehouse.txn.ownership import is_alive, note, owner_of

logger = logging.getLogger(__name__)

LOCK_PATH = ".hoodie/lock"
_POLL_SECONDS = 0.05
_in_process: dict[str, threading.Lock] = {}
_registry = threading.Lock()


@contextmanager
def table_lock(env: Env, policy: TransactionPolicy) -> Iterator[TableLock]:
    """Hold the table lock; raise RetryableError naming the holder if it is not free within the wait time."""
    with _registry:
        local = _in_process.setdefault(env.storage.root, threading.Lock())
    if not local.acquire(timeout=policy.lock_wait_ms / 1000):
        raise RetryableError(
            f"{env.storage.root}: another thread of this process holds the table lock; try again later"
        )
    try:
        lock = TableLock(env, policy)
        try:
            lock.acquire()
            yield lock
        finally:
            lock.release()
    finally:
        local.release()


class TableLock:
    """The lock as its holder sees it."""

    def __init__(self, env: Env, policy: TransactionPolicy) -> None:
        self._env, self._policy = env, policy
        self._owner = env.ids.uuid()

    def acquire(self) -> None:
        """Wait for the lock and take it; a lock whose holder died is taken over."""
        deadline = self._env.clock.now_ms() + self._policy.lock_wait_ms
        while not self._create():
            held = self._read()
            if held is not None and not is_alive(self._env, held):
                self._env.storage.delete_many([LOCK_PATH])
                continue
            if self._env.clock.now_ms() > deadline:
                raise RetryableError(
                    f"{self._env.storage.root}: the table lock {LOCK_PATH} is held by {held!r} for more than "
                    f"{self._policy.lock_wait_ms} ms; try again later, or delete it if its holder is gone"
                )
            self._env.clock.sleep(_POLL_SECONDS)

    def check(self) -> None:
        """Raise RetryableError unless the lock is still ours: call right before what it protects."""
        held = self._read()
        if held is None or owner_of(held) != self._owner or not is_alive(self._env, held):
            raise RetryableError(
                f"{self._env.storage.root}: the table lock was lost to {held!r}; nothing was committed"
            )

    def release(self) -> None:
        """Give the lock back if it is still ours. What was done under it stands, so a failure here is only logged."""
        for last_try in (False, True):
            try:
                held = self._read()
                if held is not None and owner_of(held) == self._owner:
                    self._env.storage.delete_many([LOCK_PATH])
                return
            except LakehouseError as error:
                if last_try:
                    root = self._env.storage.root
                    logger.warning("%s: the table lock was not released and expires by itself: %s", root, error)

    def _create(self) -> bool:
        data = note(self._env, self._owner, self._policy.lock_lease_ms)
        try:
            return self._env.storage.create(LOCK_PATH, data, unique=True)
        except (CommitStateUnknownError, RetryableError):
            # The reply was lost; the owner is a fresh id, so reading back tells whose the lock is.
            held = self._read()
            return held is not None and owner_of(held) == self._owner

    def _read(self) -> bytes | None:
        try:
            return self._env.storage.get(LOCK_PATH)
        except NotFoundError:
            return None
