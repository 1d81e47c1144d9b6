"""The lock of Curator's InterProcessMutex, as Hudi's ZookeeperBasedLockProvider takes it: one queue of nodes.

    <base_path>/<lock_key>/_c_<uuid>-lock-<sequence>      ephemeral; the lowest sequence has the lock

A node dies with the session of who made it, and the sequence is never given twice, so nothing is stolen here: the next
in the queue simply becomes the lowest. The token is the transaction in which the node was made. Sessions are kept alive
by the client itself; what was suspended for longer than the session finds its node gone.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NoNodeError,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError

from lakehouse.core.env import Env
from lakehouse.core.timeline.locks.protocol import Held, lock_lost
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.spec.options.lock_providers import LockTiming, ZookeeperLockOptions

logger = logging.getLogger(__name__)

# Curator sorts by what follows the last of these; the rest of the name is its protection against lost replies.
_MARK = "lock-"
# A session on a busy machine takes seconds to begin.
_LEAST_PATIENCE_MS = 6_000
# What a request to ZooKeeper may end by.
_FAULTS = (KazooException, KazooTimeoutError, OSError)


def open_lock(env: Env, options: ZookeeperLockOptions, timing: LockTiming) -> ZookeeperLock:
    """Return the lock of the node that the options name."""
    return ZookeeperLock(env, options, timing)


class ZookeeperLock:
    """See `Lock`. The session lasts from the first question to the release."""

    lease_ms = 0
    renew_ms = 0

    def __init__(self, env: Env, options: ZookeeperLockOptions, timing: LockTiming) -> None:
        hosts = [host.strip() for host in options.url.split(",")]
        self._hosts = ",".join(host if ":" in host else f"{host}:{options.port}" for host in hosts)
        self._queue = f"/{options.base_path.strip('/')}/{options.lock_key.strip('/')}"
        self._session_s = options.session_ms / 1000
        # No request outlasts the wait for the lock.
        self._patience_s = min(options.connection_ms, max(timing.wait_ms, _LEAST_PATIENCE_MS)) / 1000
        me = env.processes.current()
        self._owner = env.ids.uuid()
        self._note = json.dumps({"owner": self._owner, **me.record, "table": env.storage.root}).encode()
        self._client: KazooClient | None = None
        self._node: str | None = None

    @property
    def name(self) -> str:
        """Return the node and where it is."""
        return f"zookeeper://{self._hosts}{self._queue}"

    def try_acquire(self) -> int | Held:
        """Stand in the queue, and look whether we are the first."""
        try:
            client = self._connected()
            if self._node is None:
                self._node = self._enqueue(client)
            waiting = self._waiting(client)
            if self._node not in waiting:
                self._node = None
                return Held("nobody for sure: our session has ended, and another one begins")
            if waiting[0] != self._node:
                return Held(self._shown(client, waiting[0]))
            stat = self._answer(client.exists_async(f"{self._queue}/{self._node}"))
        except _FAULTS as error:
            raise self._failed(error) from error
        if stat is None:
            return Held("nobody for sure: our session has just ended")
        return int(stat.czxid)

    def check(self) -> None:
        """Raise RetryableError unless our node is there, as the leader knows it."""
        if self._client is None or self._node is None:
            raise lock_lost(self.name, "nobody: it was never ours, or given back")
        try:
            waiting = self._waiting_now(self._client)
        except SessionExpiredError as error:
            raise lock_lost(self.name, "the end of our session") from error
        except _FAULTS as error:
            raise self._failed(error) from error
        if not waiting or waiting[0] != self._node:
            raise lock_lost(self.name, waiting[0] if waiting else "the end of our session")

    def guard(self, *, reread: bool) -> None:
        """Return None: the lock is no file of the table."""

    def skew_ms(self) -> None:
        """Return None: sessions end by the clock of the servers."""

    def renew(self) -> None:
        """Look whether the lock is ours: the client keeps its session alive by itself."""
        self.check()

    def release(self) -> None:
        """Leave the queue, wherever we are in it, and end the session."""
        client, self._client = self._client, None
        node, self._node = self._node, None
        if client is None:
            return
        try:
            if node is not None:
                self._answer(client.delete_async(f"{self._queue}/{node}"))
        except NoNodeError:
            return
        except _FAULTS as error:
            logger.warning("%s: the node %s goes with its session: %r", self.name, node, error)
        finally:
            # The end of the session takes along a node that we do not know of, too.
            client.stop()
            client.close()

    def _connected(self) -> KazooClient:
        if self._client is None:
            client = KazooClient(hosts=self._hosts, timeout=self._session_s)
            try:
                client.start(timeout=self._patience_s)
            except BaseException:
                client.stop()
                client.close()
                raise
            self._client = client
        return self._client

    def _enqueue(self, client: KazooClient) -> str:
        prefix = f"_c_{self._owner}-{_MARK}"
        self._answer(client.ensure_path_async(self._queue))
        # A request whose reply was lost may have made our node already.
        for node in self._waiting(client):
            if node.startswith(prefix):
                return node
        path = client.create_async(f"{self._queue}/{prefix}", self._note, ephemeral=True, sequence=True)
        return str(self._answer(path)).rpartition("/")[2]

    def _waiting(self, client: KazooClient) -> list[str]:
        return sorted(self._answer(client.get_children_async(self._queue)), key=_sequence)

    def _waiting_now(self, client: KazooClient) -> list[str]:
        """Return the queue as the leader knows it; a connection that broke is no end of a session, so ask again."""
        try:
            self._answer(client.sync_async(self._queue))
            return self._waiting(client)
        except ConnectionLoss:
            self._answer(client.sync_async(self._queue))
            return self._waiting(client)

    def _shown(self, client: KazooClient, node: str) -> str:
        try:
            return f"{node} {self._answer(client.get_async(f'{self._queue}/{node}'))[0]!r}"
        except NoNodeError:
            return node

    def _answer(self, pending: Any) -> Any:
        return pending.get(timeout=self._patience_s)

    def _failed(self, error: Exception) -> LakehouseError:
        if isinstance(error, (NoAuthError, AuthFailedError, PermissionError)):
            return UserError(
                f"{self.name}: ZooKeeper refuses this client: {error!r}. Grant it the rights to create, read and "
                "delete nodes below hoodie.write.lock.zookeeper.base_path.",
                option="hoodie.write.lock.zookeeper.base_path",
            )
        return RetryableError(f"{self.name}: ZooKeeper did not answer as it should: {error!r}")


def _sequence(node: str) -> str:
    return node.rpartition(_MARK)[2]
