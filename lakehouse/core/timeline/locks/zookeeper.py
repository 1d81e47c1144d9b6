"""Lock provider `zookeeper`: the lock recipe of Curator's InterProcessMutex, like Hudi's ZookeeperBasedLockProvider.

    <base_path>/<lock_key>/_c_<uuid>-lock-<sequence>      ephemeral; the lowest sequence has the lock

A node is deleted when the session that created it ends, and sequence numbers are never reused. The next node in the
queue then becomes the first, so no take-over step is needed. The fencing token is the id of the transaction that
created the node. The client keeps its session alive; a process that was suspended for longer than the session no longer
has its node.
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

# Curator sorts nodes by the characters after the last mark. The prefix finds the node again after a lost reply.
_MARK = "lock-"
# On a busy machine a session takes seconds to start.
_LEAST_PATIENCE_MS = 6_000
# Exceptions that a request to ZooKeeper may raise.
_FAULTS = (KazooException, KazooTimeoutError, OSError)


def open_lock(env: Env, options: ZookeeperLockOptions, timing: LockTiming) -> ZookeeperLock:
    """Return the lock at the node from the options."""
    return ZookeeperLock(env, options, timing)


class ZookeeperLock:
    """See `Lock`. The session lasts from the first try to the release."""

    lease_ms = 0
    renew_ms = 0

    def __init__(self, env: Env, options: ZookeeperLockOptions, timing: LockTiming) -> None:
        hosts = [host.strip() for host in options.url.split(",")]
        self._hosts = ",".join(host if ":" in host else f"{host}:{options.port}" for host in hosts)
        self._queue = f"/{options.base_path.strip('/')}/{options.lock_key.strip('/')}"
        self._session_s = options.session_ms / 1000
        # No request takes longer than the wait for the lock.
        self._patience_s = min(options.connection_ms, max(timing.wait_ms, _LEAST_PATIENCE_MS)) / 1000
        me = env.processes.current()
        self._owner = env.ids.uuid()
        self._note = json.dumps({"owner": self._owner, **me.record, "table": env.storage.root}).encode()
        self._client: KazooClient | None = None
        self._node: str | None = None

    @property
    def name(self) -> str:
        """Return the hosts and the path of the node."""
        return f"zookeeper://{self._hosts}{self._queue}"

    def try_acquire(self) -> int | Held:
        """Create a node in the queue if there is none, and check whether it is the first."""
        try:
            client = self._connected()
            if self._node is None:
                self._node = self._enqueue(client)
            waiting = self._waiting(client)
            if self._node not in waiting:
                self._node = None
                return Held("an unknown holder: the session has ended, and a new one starts")
            if waiting[0] != self._node:
                return Held(self._shown(client, waiting[0]))
            stat = self._answer(client.exists_async(f"{self._queue}/{self._node}"))
        except _FAULTS as error:
            raise self._failed(error) from error
        if stat is None:
            return Held("an unknown holder: the session has just ended")
        return int(stat.czxid)

    def check(self) -> None:
        """Raise RetryableError unless the node is the first in the queue, read from the leader of the ensemble."""
        if self._client is None or self._node is None:
            raise lock_lost(self.name, "no process: it was not acquired, or was released")
        try:
            waiting = self._waiting_now(self._client)
        except SessionExpiredError as error:
            raise lock_lost(self.name, "the end of the session") from error
        except _FAULTS as error:
            raise self._failed(error) from error
        if not waiting or waiting[0] != self._node:
            raise lock_lost(self.name, waiting[0] if waiting else "the end of the session")

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
        """Return None: sessions expire by the clock of the servers."""

    def renew(self) -> None:
        """Check that the lock is held. The client keeps its session alive by itself."""
        self.check()

    def release(self) -> None:
        """Delete the node from the queue and end the session."""
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
            logger.warning("%s: the node %s will be deleted with its session: %r", self.name, node, error)
        finally:
            # Ending the session also deletes a node whose creation got no reply.
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
        # An earlier request whose reply was lost may have created the node.
        for node in self._waiting(client):
            if node.startswith(prefix):
                return node
        path = client.create_async(f"{self._queue}/{prefix}", self._note, ephemeral=True, sequence=True)
        return str(self._answer(path)).rpartition("/")[2]

    def _waiting(self, client: KazooClient) -> list[str]:
        return sorted(self._answer(client.get_children_async(self._queue)), key=_sequence)

    def _waiting_now(self, client: KazooClient) -> list[str]:
        """Return the queue as the leader stores it. A broken connection does not end the session, so try twice."""
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
        return RetryableError(f"{self.name}: ZooKeeper did not reply correctly: {error!r}")


def _sequence(node: str) -> str:
    return node.rpartition(_MARK)[2]
