"""The ZooKeeper lock follows Curator's recipe, so Hudi's provider reads the same queue and holder from it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.core.timeline.table_lock import open_lock
from lakehouse.errors import RetryableError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import ZookeeperLockOptions
from tests.support.tables import make_env

QUEUE = "/hudi/orders"
# Node names of InterProcessMutex: protection prefix, random id, sort mark, sequence of the server.
CURATORS = re.compile(r"_c_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}-lock-\d{10}")


@pytest.fixture
def curator(zookeeper_hosts: str) -> Iterator[KazooClient]:
    """A client that acts like Curator, with an empty queue."""
    client = KazooClient(hosts=zookeeper_hosts)
    client.start()
    client.delete(QUEUE, recursive=True)
    yield client
    client.stop()
    client.close()


def ours(hosts: str) -> Lock:
    """Return the lock of the queue."""
    policy = LockPolicy.of(ZookeeperLockOptions(url=hosts, base_path="/hudi", lock_key="orders"))
    return open_lock(make_env(), policy)


def curators_node(curator: KazooClient) -> str:
    """Create a node in the queue as Curator does, and return its path."""
    name = f"{QUEUE}/_c_ffffffff-ffff-4fff-bfff-ffffffffffff-lock-"
    return str(curator.create(name, b"", ephemeral=True, sequence=True, makepath=True))


def lose_replies(patch: pytest.MonkeyPatch) -> None:
    """Create a node of the queue, and lose the reply."""
    create = KazooClient.create_async

    def create_and_lose(self: KazooClient, *args: object, **kwargs: object) -> object:
        answer = create(self, *args, **kwargs)
        if not kwargs.get("sequence"):
            return answer
        answer.get(timeout=10)
        raise ConnectionLoss

    patch.setattr(KazooClient, "create_async", create_and_lose)


def test_node_has_the_format_of_curator(zookeeper_hosts: str, curator: KazooClient) -> None:
    lock = ours(zookeeper_hosts)
    assert lock.try_acquire() > 0  # type: ignore[operator]
    (node,) = curator.get_children(QUEUE)
    assert CURATORS.fullmatch(node)
    assert curator.get(f"{QUEUE}/{node}")[1].ephemeralOwner != 0
    lock.release()
    assert curator.get_children(QUEUE) == []


def test_lock_passes_between_curator_and_this_project_in_queue_order(
    zookeeper_hosts: str, curator: KazooClient
) -> None:
    first = curators_node(curator)
    lock = ours(zookeeper_hosts)
    held = lock.try_acquire()
    assert isinstance(held, Held)
    assert first.rpartition("/")[2] in held.by
    with pytest.raises(RetryableError, match="lost to"):
        lock.check()
    third = curators_node(curator)
    curator.delete(first)
    assert not isinstance(lock.try_acquire(), Held)
    lock.check()
    in_order = sorted(curator.get_children(QUEUE), key=lambda node: node[-10:])
    assert in_order[-1] == third.rpartition("/")[2] and len(in_order) == 2
    lock.release()


def test_lost_reply_leaves_one_node_in_the_queue(
    zookeeper_hosts: str, curator: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = ours(zookeeper_hosts)
    with monkeypatch.context() as lossy:
        lose_replies(lossy)
        with pytest.raises(RetryableError, match="ConnectionLoss"):
            lock.try_acquire()
    assert not isinstance(lock.try_acquire(), Held)
    assert len(curator.get_children(QUEUE)) == 1
    lock.release()
    assert curator.get_children(QUEUE) == []


def test_node_with_a_lost_reply_is_deleted_with_the_session(
    zookeeper_hosts: str, curator: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_replies(monkeypatch)
    lock = ours(zookeeper_hosts)
    with pytest.raises(RetryableError):
        lock.try_acquire()
    assert len(curator.get_children(QUEUE)) == 1
    lock.release()
    assert curator.get_children(QUEUE) == []


def test_ensemble_without_reply_raises_a_retryable_error() -> None:
    policy = LockPolicy.of(
        ZookeeperLockOptions(url="127.0.0.1:1", base_path="/hudi", lock_key="orders", connection_ms=300)
    )
    lock = open_lock(make_env(), policy)
    with pytest.raises(RetryableError, match=re.escape("zookeeper://127.0.0.1:1/hudi/orders")):
        lock.try_acquire()
    lock.release()
