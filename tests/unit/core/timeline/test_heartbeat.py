"""Heartbeats: active and expired writes by files, clock and processes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lakehouse.core.env import Env
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes, remove_heartbeat
from lakehouse.errors import RetryableError
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row
from tests.unit.core.timeline.test_table_lock import Neighbours

POLICY = TransactionPolicy(heartbeat_interval_ms=60_000, heartbeat_misses=2)
INSTANT = "20260101000000000"


def beating(env: Env, instant: str = INSTANT) -> Heartbeat:
    """Return a heartbeat that was started and whose timer is stopped."""
    heartbeat = Heartbeat(env, POLICY)
    heartbeat.start(instant)
    heartbeat.stop()
    return heartbeat


def test_write_is_active_from_its_first_heartbeat_until_cleanup() -> None:
    env = make_env()
    assert active_writes(env, POLICY) == frozenset()
    beating(env)
    assert active_writes(env, POLICY) == {INSTANT}
    remove_heartbeat(env, INSTANT)
    assert active_writes(env, POLICY) == frozenset()


def test_heartbeat_moves_with_a_write_that_gets_another_instant_time() -> None:
    env = make_env()
    heartbeat = beating(env)
    heartbeat.start("20260101000000001")
    heartbeat.stop()
    assert active_writes(env, POLICY) == {"20260101000000001"}


def test_heartbeat_expires_after_the_tolerable_misses() -> None:
    env = make_env()
    beating(env)
    env.clock.sleep(179)
    assert active_writes(env, POLICY) == {INSTANT}
    env.clock.sleep(2)
    assert active_writes(env, POLICY) == frozenset()


def test_heartbeat_is_not_compared_with_a_time_long_after_it_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    env = make_env()
    beating(env)
    read = env.storage.get

    def read_and_stall(path: str) -> bytes:
        found = read(path)
        env.clock.sleep(600)
        return found

    monkeypatch.setattr(env.storage, "get", read_and_stall)
    assert active_writes(env, POLICY) == {INSTANT}


def test_heartbeat_of_an_ended_process_of_this_host_expires_at_once() -> None:
    env = make_env()
    beating(replace(env, processes=Neighbours(pid=2)))
    assert active_writes(replace(env, processes=Neighbours(pid=1)), POLICY) == frozenset()
    assert active_writes(replace(env, processes=Neighbours(pid=1, alive=frozenset({2}))), POLICY) == {INSTANT}
    assert active_writes(replace(env, processes=Neighbours(host="elsewhere", pid=1)), POLICY) == {INSTANT}


def test_discard_deletes_the_heartbeat() -> None:
    env = make_env()
    beating(env).discard()
    assert env.storage.list("") == []


@pytest.fixture
def abandoned() -> tuple[Table, Env]:
    """A table with a pending write of another host that no longer renews its heartbeat."""
    env = make_env()
    table = make_table(Shape(), env=env)
    table.upsert(batch([row("k1")]))
    requested = "20990101000000000"
    env.storage.create(f".hoodie/timeline/{requested}.commit.requested", b"")
    beating(replace(env, processes=Neighbours(host="elsewhere")), requested)
    return table, env


def test_write_beside_an_active_write_is_refused_with_its_instant(abandoned: tuple[Table, Env]) -> None:
    table, _ = abandoned
    with pytest.raises(RetryableError, match="20990101000000000"):
        table.upsert(batch([row("k2")]))
    assert data_rows(table, ["id"]) == [{"id": "k1"}]


def test_write_rolls_back_an_expired_write(abandoned: tuple[Table, Env]) -> None:
    table, env = abandoned
    env.clock.sleep(3_600)
    table.upsert(batch([row("k2")]))
    assert data_rows(table, ["id"]) == [{"id": "k1"}, {"id": "k2"}]
    assert [str(instant.action) for instant in table.timeline] == ["commit", "rollback", "commit"]


def test_expired_writes_stay_with_the_lazy_policy(abandoned: tuple[Table, Env]) -> None:
    table, env = abandoned
    env.clock.sleep(3_600)
    lazy = Table.open(table.location, options={"hoodie.clean.failed.writes.policy": "LAZY"}, env=env)
    lazy.upsert(batch([row("k2")]))
    assert data_rows(lazy, ["id"]) == [{"id": "k1"}, {"id": "k2"}]
    assert [instant.requested for instant in lazy.timeline.where(pending=True)] == ["20990101000000000"]
