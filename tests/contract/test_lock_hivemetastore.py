"""The Hive Metastore lock: contents of its queue, lost replies, unreachable servers."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
from pymetastore.hive_metastore import ThriftHiveMetastore
from pymetastore.hive_metastore.ttypes import LockState, LockType, ShowLocksRequest
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport, TTransportException

from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.core.timeline.table_lock import open_lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.lock_providers import HiveMetastoreLockOptions
from tests.support.hive import TIMEOUT_S
from tests.support.tables import make_env
from tests.support.waiting import until

_numbers = itertools.count(1)


def ours(uris: str, table: str) -> Lock:
    """Return the lock of a table."""
    policy = LockPolicy.of(HiveMetastoreLockOptions(uris=uris, database="sales", table=table), lease_ms=3_000)
    return open_lock(make_env(), policy)


def queue(uri: str, table: str) -> list[Any]:
    """Return the locks of a table that the metastore lists."""
    host, _, port = uri.removeprefix("thrift://").partition(":")
    transport = TBufferedTransport(TSocket(host, int(port)))
    transport.open()
    try:
        client = ThriftHiveMetastore.Client(TBinaryProtocol(transport))
        return list(client.show_locks(ShowLocksRequest(dbname="sales", tablename=table)).locks)
    finally:
        transport.close()


@pytest.fixture
def table() -> str:
    """A table without locks."""
    return f"invoices_{next(_numbers)}"


def lose_replies(patch: pytest.MonkeyPatch, verb: str) -> None:
    """Let the metastore execute a request, and lose the reply."""
    receive = getattr(ThriftHiveMetastore.Client, f"recv_{verb}")

    def lose(self: ThriftHiveMetastore.Client) -> None:
        receive(self)
        raise TTransportException(message="the reply was lost")

    patch.setattr(ThriftHiveMetastore.Client, f"recv_{verb}", lose)


def test_metastore_lists_an_exclusive_lock_of_the_table(hive_uri: str, table: str) -> None:
    lock = ours(hive_uri, table)
    token = lock.try_acquire()
    (shown,) = queue(hive_uri, table)
    assert (shown.lockid, shown.state, shown.type) == (token, LockState.ACQUIRED, LockType.EXCLUSIVE)
    assert (shown.dbname, shown.tablename, shown.partname) == ("sales", table, None)
    lock.release()
    assert queue(hive_uri, table) == []


def test_request_with_a_lost_reply_is_found_again(hive_uri: str, table: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = ours(hive_uri, table)
    with monkeypatch.context() as lossy:
        lose_replies(lossy, "lock")
        with pytest.raises(RetryableError, match="the reply was lost"):
            lock.try_acquire()
    (shown,) = queue(hive_uri, table)
    assert lock.try_acquire() == shown.lockid
    lock.check()
    with monkeypatch.context() as lossy:
        lose_replies(lossy, "unlock")
        with pytest.raises(RetryableError, match="the reply was lost"):
            lock.release()
    lock.release()
    assert queue(hive_uri, table) == []


def test_request_with_a_lost_reply_is_removed_on_release(
    hive_uri: str, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = ours(hive_uri, table)
    with monkeypatch.context() as lossy:
        lose_replies(lossy, "lock")
        with pytest.raises(RetryableError):
            lock.try_acquire()
    lock.release()
    assert queue(hive_uri, table) == []


def test_request_that_stops_waiting_leaves_the_queue(hive_uri: str, table: str) -> None:
    holder, other = ours(hive_uri, table), ours(hive_uri, table)
    token = holder.try_acquire()
    assert isinstance(other.try_acquire(), Held)
    assert [shown.state for shown in queue(hive_uri, table)] == [LockState.ACQUIRED, LockState.WAITING]
    with pytest.raises(RetryableError, match="lost to an earlier request"):
        other.check()
    other.release()
    assert [shown.lockid for shown in queue(hive_uri, table)] == [token]
    holder.release()


def test_request_dropped_while_waiting_is_sent_again(hive_uri: str, table: str) -> None:
    holder, other = ours(hive_uri, table), ours(hive_uri, table)
    holder.try_acquire()
    assert isinstance(other.try_acquire(), Held)

    def only_the_holder_is_left() -> bool:
        holder.renew()
        time.sleep(TIMEOUT_S / 8)
        return len(queue(hive_uri, table)) == 1

    assert until(only_the_holder_is_left, 30)
    assert isinstance(other.try_acquire(), Held)
    holder.release()
    assert until(lambda: not isinstance(other.try_acquire(), Held))
    other.check()
    other.release()


def test_next_metastore_is_used_if_the_first_is_down(hive_uri: str, table: str) -> None:
    lock = ours(f"thrift://127.0.0.1:1, {hive_uri}", table)
    assert not isinstance(lock.try_acquire(), Held)
    lock.release()


def test_metastore_without_reply_raises_a_retryable_error() -> None:
    lock = ours("thrift://127.0.0.1:1", "orders")
    with pytest.raises(RetryableError, match=r"thrift://127\.0\.0\.1:1 sales\.orders"):
        lock.try_acquire()


@pytest.mark.parametrize("uri", ["http://host:1", "thrift://", "thrift://one:1,ftp://two"])
def test_invalid_address_of_a_metastore_is_refused(uri: str) -> None:
    with pytest.raises(UserError, match=r"hivemetastore\.uris"):
        ours(uri, "orders")
