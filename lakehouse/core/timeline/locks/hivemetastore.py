"""Lock provider `hivemetastore`: an exclusive lock of a Hive Metastore, like Hudi's HiveMetastoreBasedLockProvider.

The metastore queues lock requests by their ids. Ids only grow, so the id is the fencing token. The metastore drops a
request without heartbeat after its `hive.txn.timeout` (300 s), if its reaper runs (`hive.compactor.initiator.on`).
Without the reaper, expired locks are never taken over. The table need not exist in the metastore.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pymetastore.hive_metastore.ttypes import (
    CheckLockRequest,
    DataOperationType,
    HeartbeatRequest,
    LockComponent,
    LockLevel,
    LockRequest,
    LockState,
    LockType,
    NoSuchLockException,
    ShowLocksRequest,
    TxnAbortedException,
    UnlockRequest,
)

from lakehouse.core.env import Env
from lakehouse.core.timeline.locks.metastore_client import MetastoreClient
from lakehouse.core.timeline.locks.protocol import Held, lock_lost
from lakehouse.spec.options.lock_providers import HiveMetastoreLockOptions, LockTiming

_KEY = "hoodie.write.lock.hivemetastore.uris"
_PATIENCE_S = 60
_LEAST_PATIENCE_S = 10
_RENEWALS_PER_LEASE = 3
# Errors that mean that the metastore does not have the request, or has dropped it.
_GONE = (NoSuchLockException, TxnAbortedException)


def open_lock(env: Env, options: HiveMetastoreLockOptions, timing: LockTiming) -> HiveMetastoreLock:
    """Return the lock of the metastore table from the options."""
    return HiveMetastoreLock(env, options, timing)


class HiveMetastoreLock:
    """See `Lock`. The connection is open from the first try to the release."""

    def __init__(self, env: Env, options: HiveMetastoreLockOptions, timing: LockTiming) -> None:
        self._database, self._table = options.database, options.table
        self._name = f"{options.uris} {self._database}.{self._table}"
        self.lease_ms = timing.lease_ms
        self.renew_ms = timing.lease_ms // _RENEWALS_PER_LEASE
        me = env.processes.current()
        self._host, self._pid = me.host, me.pid
        self._owner = env.ids.uuid()
        self._number: int | None = None
        self._asked = False
        self._mutex = threading.Lock()
        # No request takes longer than the wait for the lock.
        patience_s = min(_PATIENCE_S, max(timing.wait_ms / 1000, _LEAST_PATIENCE_S))
        self._client = MetastoreClient(options.uris, option=_KEY, timeout_s=patience_s, name=self._name)

    @property
    def name(self) -> str:
        """Return the addresses of the metastore and the name of the table."""
        return self._name

    def try_acquire(self) -> int | Held:
        """Enqueue a request, or check whether the request has acquired the lock."""
        with self._mutex:
            if self._number is None and self._asked:
                # The reply to an earlier request was lost; the request may be in the queue.
                self._number = self._find()
            try:
                if self._number is None:
                    self._asked = True
                    answer = self._client.call(lambda client: client.lock(self._request()), *_GONE)
                    self._number = int(answer.lockid)
                else:
                    number = self._number
                    answer = self._client.call(
                        lambda client: client.check_lock(CheckLockRequest(lockid=number)), *_GONE
                    )
            except _GONE:
                self._number, self._asked = None, False
                return Held("an unknown holder: the metastore dropped the request")
            if answer.state == LockState.ACQUIRED:
                return self._number
            if answer.state != LockState.WAITING:
                self._number, self._asked = None, False
            return Held(f"an earlier request than {answer.lockid}")

    def check(self) -> None:
        """Raise RetryableError unless the metastore confirms that the lock is held."""
        self._confirm(
            lambda client, number: client.check_lock(CheckLockRequest(lockid=number)).state == LockState.ACQUIRED
        )

    def continues(self) -> bool:
        """Return False: earlier holders are not recorded."""
        return False

    def is_fresh(self) -> bool:
        """Return False: the server decides when the lock expires."""
        return False

    def release_held(self) -> None:
        """Return None: the server does not compare the holder."""

    def guard(self, *, reread: bool) -> None:
        """Return None: the lock is not a file of the table."""

    def skew_ms(self) -> None:
        """Return None: locks expire by the clock of the metastore."""

    def renew(self) -> None:
        """Send a heartbeat; raise RetryableError if the metastore has dropped the lock."""

        def beat(client: Any, number: int) -> bool:
            client.heartbeat(HeartbeatRequest(lockid=number))
            return True

        self._confirm(beat)

    def release(self) -> None:
        """Remove the request from the queue and close the connection."""
        with self._mutex:
            try:
                if not self._asked:
                    return
                number = self._find() if self._number is None else self._number
                if number is not None:
                    with suppress(*_GONE):
                        self._client.call(lambda client: client.unlock(UnlockRequest(lockid=number)), *_GONE)
                self._number, self._asked = None, False
            finally:
                self._client.close()

    def _confirm(self, ask: Callable[[Any, int], bool]) -> None:
        with self._mutex:
            number = self._number
            if number is None:
                raise lock_lost(self._name, "no process: it was not acquired, or was released")
            try:
                is_ours = self._client.call(lambda client: ask(client, number), *_GONE)
            except _GONE as error:
                raise lock_lost(self._name, f"the reaper of the metastore, or a later request: {error}") from error
            if not is_ours:
                raise lock_lost(self._name, "an earlier request")

    def _request(self) -> LockRequest:
        component = LockComponent(
            type=LockType.EXCLUSIVE,
            level=LockLevel.TABLE,
            dbname=self._database,
            tablename=self._table,
            operationType=DataOperationType.NO_TXN,
            isTransactional=False,
        )
        user = f"lakehouse-{self._pid}"
        return LockRequest(component=[component], user=user, hostname=self._host, agentInfo=self._owner)

    def _find(self) -> int | None:
        """Return the id of this request in the queue; `agentInfo` contains its unique owner id."""
        query = ShowLocksRequest(dbname=self._database, tablename=self._table)
        shown = self._client.call(lambda client: client.show_locks(query))
        return next((int(lock.lockid) for lock in shown.locks or () if lock.agentInfo == self._owner), None)
