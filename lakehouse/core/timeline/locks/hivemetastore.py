"""The lock of a table in the Hive Metastore, exclusive, as Hudi's HiveMetastoreBasedLockProvider takes it.

The metastore keeps a queue of requests by their numbers, which only grow: the number is the token. A request whose
holder gives no sign of life is dropped by the metastore after its own `hive.txn.timeout` (300 s), where its reaper runs
(`hive.compactor.initiator.on`); where it does not, nobody takes over from the dead. The table need not exist there.
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
# The metastore has no such request, or not any more.
_GONE = (NoSuchLockException, TxnAbortedException)


def open_lock(env: Env, options: HiveMetastoreLockOptions, timing: LockTiming) -> HiveMetastoreLock:
    """Return the lock of the table that the options name."""
    return HiveMetastoreLock(env, options, timing)


class HiveMetastoreLock:
    """See `Lock`. The connection lasts from the first question to the release."""

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
        # No request outlasts the wait for the lock.
        patience_s = min(_PATIENCE_S, max(timing.wait_ms / 1000, _LEAST_PATIENCE_S))
        self._client = MetastoreClient(options.uris, option=_KEY, timeout_s=patience_s, name=self._name)

    @property
    def name(self) -> str:
        """Return the table and the metastore that knows it."""
        return self._name

    def try_acquire(self) -> int | Held:
        """Stand in the queue, and ask whether it is our turn."""
        with self._mutex:
            if self._number is None and self._asked:
                # The reply of a request was lost; the request may stand in the queue.
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
                return Held("nobody for sure: our request was dropped")
            if answer.state == LockState.ACQUIRED:
                return self._number
            if answer.state != LockState.WAITING:
                self._number, self._asked = None, False
            return Held(f"somebody whose request was before ours ({answer.lockid})")

    def check(self) -> None:
        """Raise RetryableError unless the metastore says that the lock is ours."""
        self._confirm(
            lambda client, number: client.check_lock(CheckLockRequest(lockid=number)).state == LockState.ACQUIRED
        )

    def guard(self, *, reread: bool) -> None:
        """Return None: the lock is no file of the table."""

    def skew_ms(self) -> None:
        """Return None: locks end by the clock of the metastore."""

    def renew(self) -> None:
        """Give a sign of life; raise RetryableError if the metastore has dropped the lock."""

        def beat(client: Any, number: int) -> bool:
            client.heartbeat(HeartbeatRequest(lockid=number))
            return True

        self._confirm(beat)

    def release(self) -> None:
        """Take our request out of the queue, wherever it is, and close the connection."""
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
                raise lock_lost(self._name, "nobody: it was never ours, or given back")
            try:
                is_ours = self._client.call(lambda client: ask(client, number), *_GONE)
            except _GONE as error:
                raise lock_lost(self._name, f"the metastore's reaper, or somebody since: {error}") from error
            if not is_ours:
                raise lock_lost(self._name, "somebody whose request was before ours")

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
        """Return the number of our request in the queue, by the id that only we know."""
        asked = ShowLocksRequest(dbname=self._database, tablename=self._table)
        shown = self._client.call(lambda client: client.show_locks(asked))
        return next((int(lock.lockid) for lock in shown.locks or () if lock.agentInfo == self._owner), None)
