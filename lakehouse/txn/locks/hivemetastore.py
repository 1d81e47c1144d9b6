"""The lock of a table in the Hive Metastore, exclusive, as Hudi's HiveMetastoreBasedLockProvider takes it.

The metastore keeps a queue of requests by their numbers, which only grow: the number is the token. A request whose
holder gives no sign of life is dropped by the metastore after its own `hive.txn.timeout` (300 s), where its reaper runs
(`hive.compactor.initiator.on`); where it does not, nobody takes over from the dead. The table need not exist there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pymetastore.hive_metastore import ThriftHiveMetastore
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
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.lock_options import LockPolicy
from lakehouse.txn.env import Env
from lakehouse.txn.locks.protocol import Held, lost

T = TypeVar("T")
_KEY = "hoodie.write.lock.hivemetastore.uris"
_PORT = 9083
_PATIENCE_MS = 60_000
_RENEWALS_PER_LEASE = 3
# The metastore has no such request, or not any more.
_GONE = (NoSuchLockException, TxnAbortedException)


def open_lock(env: Env, policy: LockPolicy) -> HiveMetastoreLock:
    """Return the lock of the table that the policy names."""
    return HiveMetastoreLock(env, policy)


class HiveMetastoreLock:
    """See `Lock`. The connection lasts from the first question to the release."""

    def __init__(self, env: Env, policy: LockPolicy) -> None:
        self._servers = [_server(uri.strip()) for uri in policy.hive_uris.split(",")]
        self._database, self._table = policy.hive_database, policy.hive_table
        self._name = f"{policy.hive_uris} {self._database}.{self._table}"
        self.renew_ms = policy.lock_lease_ms // _RENEWALS_PER_LEASE
        self._host, self._pid = env.processes.me()
        self._owner = env.ids.uuid()
        self._number: int | None = None
        self._asked = False
        self._mutex = threading.Lock()
        self._transport: Any = None
        self._client: Any = None

    @property
    def name(self) -> str:
        """Return the table and the metastore that knows it."""
        return self._name

    def try_acquire(self) -> int | Held:
        """Stand in the queue, and ask whether it is our turn."""
        with self._mutex, self._translated():
            if self._number is None and self._asked:
                # The reply of a request was lost; the request may stand in the queue.
                self._number = self._find()
            try:
                if self._number is None:
                    self._asked = True
                    answer = self._call(lambda client: client.lock(self._request()))
                    self._number = int(answer.lockid)
                else:
                    number = self._number
                    answer = self._call(lambda client: client.check_lock(CheckLockRequest(lockid=number)))
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
                with self._translated():
                    number = self._find() if self._number is None else self._number
                    if number is not None:
                        with suppress(*_GONE):
                            self._call(lambda client: client.unlock(UnlockRequest(lockid=number)))
                self._number, self._asked = None, False
            finally:
                self._close()

    def _confirm(self, ask: Callable[[Any, int], bool]) -> None:
        with self._mutex, self._translated():
            number = self._number
            if number is None:
                raise lost(self._name, "nobody: it was never ours, or given back")
            try:
                is_ours = self._call(lambda client: ask(client, number))
            except _GONE as error:
                raise lost(self._name, f"the metastore's reaper, or somebody since: {error}") from error
            if not is_ours:
                raise lost(self._name, "somebody whose request was before ours")

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
        shown = self._call(lambda client: client.show_locks(asked))
        return next((int(lock.lockid) for lock in shown.locks or () if lock.agentInfo == self._owner), None)

    def _call(self, ask: Callable[[Any], T]) -> T:
        """Ask on the open connection; one that broke is closed, and the next call opens another."""
        if self._client is None:
            self._open()
        try:
            return ask(self._client)
        except _GONE:
            raise
        except BaseException:
            self._close()
            raise

    def _open(self) -> None:
        for host, port in self._servers[:-1]:
            with suppress(TException, OSError):
                return self._connect(host, port)
        self._connect(*self._servers[-1])

    def _connect(self, host: str, port: int) -> None:
        socket = TSocket(host, port)
        socket.setTimeout(_PATIENCE_MS)
        transport = TBufferedTransport(socket)
        transport.open()
        self._transport = transport
        self._client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        self._transport = self._client = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (TException, OSError) as error:
            raise RetryableError(f"{self._name}: the metastore did not answer as it should: {error!r}") from error


def _server(uri: str) -> tuple[str, int]:
    parts = urlsplit(uri if "://" in uri else f"thrift://{uri}")
    if parts.scheme != "thrift" or not parts.hostname:
        raise UserError(f"option {_KEY}: {uri!r} is not thrift://host:port", option=_KEY)
    return parts.hostname, parts.port or _PORT
