"""The lock of a file system beside Hudi's own, and the door to all locks; what holds for all is in tests/contract."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace

import pytest

from lakehouse.errors import RetryableError
from lakehouse.spec.options import TransactionPolicy
from lakehouse.storage.faults import FaultMode, FaultyStorage
from lakehouse.txn.env import Env
from lakehouse.txn.lock import TableLock, table_lock
from tests.support.tables import SeededIds, make_env

LOCK_PATH, HOLDER_PATH = ".hoodie/lock", ".hoodie/holder.json"
POLICY = TransactionPolicy(lock_wait_ms=1_000, lock_lease_ms=10_000)


@dataclass(frozen=True)
class Neighbours:
    """Processes of a host: this one, and who else is alive."""

    host: str = "here"
    pid: int = 1
    alive: frozenset[int] = frozenset()

    def me(self) -> tuple[str, int]:
        """Return who we are."""
        return self.host, self.pid

    def is_alive(self, pid: int) -> bool:
        """Return whether a process lives."""
        return pid in self.alive


def other(env: Env, **who) -> Env:
    """The same table, seen by another process with ids of its own."""
    return replace(env, processes=Neighbours(**who), ids=SeededIds(99))


def paths(env: Env) -> list[str]:
    """Return all files."""
    return [file.path for file in env.storage.list("")]


def held_by(env: Env, **who) -> None:
    """Leave a lock behind, as a process that died or still works."""
    TableLock(other(env, **who), POLICY).acquire()


def test_the_lock_is_a_file_while_it_is_held() -> None:
    env = make_env()
    with table_lock(env, POLICY) as lock:
        lock.check()
        assert env.storage.get(LOCK_PATH)
    assert paths(env) == [HOLDER_PATH]


def test_a_second_holder_waits_and_then_names_the_first() -> None:
    env = make_env()
    held_by(env, host="elsewhere", pid=7)
    before = env.clock.now
    with pytest.raises(RetryableError, match="elsewhere") as raised, table_lock(env, POLICY):
        pass
    assert raised.value.retryable
    assert env.clock.now - before >= POLICY.lock_wait_ms
    assert env.storage.get(LOCK_PATH), "the lock of another is not ours to release"


def test_a_lock_of_a_dead_process_of_this_host_is_taken_over() -> None:
    env = replace(make_env(), processes=Neighbours(pid=1))
    held_by(env, pid=2)
    with table_lock(env, POLICY) as lock:
        lock.check()


def test_a_lock_of_a_living_process_of_this_host_is_not() -> None:
    env = replace(make_env(), processes=Neighbours(pid=1, alive=frozenset({2})))
    held_by(env, pid=2)
    with pytest.raises(RetryableError), table_lock(env, POLICY):
        pass


def test_a_lock_whose_lease_is_over_is_taken_over_wherever_its_holder_is() -> None:
    env = make_env()
    held_by(env, host="elsewhere")
    env.clock.sleep(POLICY.lock_lease_ms / 1000)
    with table_lock(env, POLICY) as lock:
        lock.check()


def test_a_lock_that_hudi_left_is_respected() -> None:
    env = make_env()
    env.storage.put(LOCK_PATH, b'{"lockCreateTime": 1, "lockThreadName": "main"}')
    with pytest.raises(RetryableError, match="lockThreadName"), table_lock(env, POLICY):
        pass


def test_a_holder_that_was_too_slow_notices_before_it_commits() -> None:
    env = make_env()
    with pytest.raises(RetryableError, match="lock was lost"), table_lock(env, POLICY) as lock:
        env.clock.sleep(POLICY.lock_lease_ms / 1000)
        lock.check()
    env.storage.put(LOCK_PATH, b"")
    with pytest.raises(RetryableError, match="held by"), table_lock(env, POLICY):
        pass


def test_a_lock_that_was_taken_over_is_not_released_by_its_old_holder() -> None:
    env = make_env()
    with table_lock(env, POLICY):
        env.clock.sleep(POLICY.lock_lease_ms / 1000)
        held_by(env, host="elsewhere")
    assert b"elsewhere" in env.storage.get(LOCK_PATH)


def test_an_exception_inside_releases_the_lock() -> None:
    env = make_env()
    with pytest.raises(KeyError), table_lock(env, POLICY):
        raise KeyError("inside")
    assert paths(env) == [HOLDER_PATH]


def test_a_lost_reply_on_taking_the_lock_is_read_back() -> None:
    env = make_env()
    faulty = FaultyStorage(env.storage, fail_at=1, mode=FaultMode.LOSE_REPLY)
    with table_lock(replace(env, storage=faulty), POLICY) as lock:
        lock.check()
    assert paths(env) == [HOLDER_PATH]


def test_threads_of_one_process_take_turns() -> None:
    env = make_env()
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with table_lock(env, replace(POLICY, lock_wait_ms=60_000)):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8
