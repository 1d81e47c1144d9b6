"""The filesystem lock together with Hudi's lock, and `table_lock`. tests/contract has the contract of all providers."""

from __future__ import annotations

import json
import threading
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage
from lakehouse.core.system.processes import ProcessId
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import RetryableError, UserError
from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import SeededIds, SteadyClock, make_env

LOCK_PATH, HOLDER_PATH = ".hoodie/lock", ".hoodie/holder.json"
STORAGE_PATH = ".hoodie/.locks/table_lock.json"
POLICY = TransactionPolicy(lock=LockPolicy(wait_ms=1_000, lease_ms=10_000))


def with_filesystem_options(**options: Any) -> TransactionPolicy:
    """Return POLICY with options of the filesystem provider."""
    return replace(POLICY, lock=POLICY.lock.with_options(**options))


@dataclass(frozen=True)
class Neighbours:
    """The processes of a host: this process and other running processes."""

    host: str = "here"
    pid: int = 1
    alive: frozenset[int] = frozenset()
    namespace: str = "pid:[1]"
    started: str = "1"

    def current(self) -> ProcessId:
        """Return this process."""
        return ProcessId(host=self.host, pid=self.pid, boot="boot", namespace=self.namespace, started=self.started)

    def is_running(self, process: ProcessId) -> bool:
        """Return whether a process runs."""
        return process.pid in self.alive


def other(env: Env, **process) -> Env:
    """Return the environment of another process on the same table, with its own ids."""
    return replace(env, processes=Neighbours(**process), ids=SeededIds(99))


def paths(env: Env) -> list[str]:
    """Return all files."""
    return [file.path for file in env.storage.list("")]


def held_by(env: Env, **process) -> None:
    """Acquire the lock as another process and keep it."""
    TableLock(other(env, **process), POLICY).acquire()


def test_lock_file_exists_while_the_lock_is_held() -> None:
    env = make_env()
    with table_lock(env, POLICY) as lock:
        lock.check()
        assert env.storage.get(LOCK_PATH)
    assert paths(env) == [HOLDER_PATH]


def test_second_acquisition_waits_and_fails_with_the_name_of_the_holder() -> None:
    env = make_env()
    held_by(env, host="elsewhere", pid=7)
    before = env.clock.now
    with pytest.raises(RetryableError, match="elsewhere") as raised, table_lock(env, POLICY):
        pass
    assert raised.value.retryable
    assert env.clock.now - before >= POLICY.lock.wait_ms
    assert env.storage.get(LOCK_PATH), "the lock of another is not ours to release"


class SetBackClock(SteadyClock):
    """A clock that is set back by an hour at every fifth sleep."""

    sleeps = 0

    def sleep(self, seconds: float) -> None:
        """Advance the time, or set it back at every fifth call."""
        self.sleeps += 1
        assert self.sleeps < 1_000, "the wait does not end"
        super().sleep(seconds - (3_600 if self.sleeps % 5 == 0 else 0))


@pytest.mark.parametrize("provider", ["filesystem", "storage"])
def test_wait_ends_although_the_clock_is_set_back(provider: str) -> None:
    env, policy = make_env(), replace(POLICY, lock=replace(POLICY.lock, provider=provider))
    TableLock(other(env, host="elsewhere", pid=7), policy).acquire()
    clock = SetBackClock()
    with pytest.raises(RetryableError, match=r"elsewhere|owner"):
        TableLock(replace(env, clock=clock), policy).acquire()
    assert 5 < clock.sleeps < 100


def test_lock_of_an_ended_process_of_this_host_is_taken_over() -> None:
    env = replace(make_env(), processes=Neighbours(pid=1))
    held_by(env, pid=2)
    with table_lock(env, POLICY) as lock:
        lock.check()


def test_lock_of_a_running_process_of_this_host_is_not_taken_over() -> None:
    env = replace(make_env(), processes=Neighbours(pid=1, alive=frozenset({2})))
    held_by(env, pid=2)
    with pytest.raises(RetryableError), table_lock(env, POLICY):
        pass


def test_expired_lock_is_taken_over_on_any_host() -> None:
    env = make_env()
    held_by(env, host="elsewhere")
    env.clock.sleep(POLICY.lock.lease_ms / 1000)
    with table_lock(env, POLICY) as lock:
        lock.check()


def test_leftover_lock_of_hudi_is_respected() -> None:
    env = make_env()
    env.storage.put(LOCK_PATH, b'{"lockCreateTime": 1, "lockThreadName": "main"}')
    with pytest.raises(RetryableError, match="lockThreadName"), table_lock(env, POLICY):
        pass


def test_holder_with_an_expired_lease_fails_its_check_before_the_commit() -> None:
    env = make_env()
    with pytest.raises(RetryableError, match="lock was lost"), table_lock(env, POLICY) as lock:
        env.clock.sleep(POLICY.lock.lease_ms / 1000)
        lock.check()
    env.storage.put(LOCK_PATH, b"")
    with pytest.raises(RetryableError, match="held by"), table_lock(env, POLICY):
        pass


def test_stale_holder_does_not_release_the_lock_of_its_successor() -> None:
    env = make_env()
    with table_lock(env, POLICY):
        env.clock.sleep(POLICY.lock.lease_ms / 1000)
        held_by(env, host="elsewhere")
    assert b"elsewhere" in env.storage.get(LOCK_PATH)


def test_exception_inside_the_block_releases_the_lock() -> None:
    env = make_env()
    with pytest.raises(KeyError), table_lock(env, POLICY):
        raise KeyError("inside")
    assert paths(env) == [HOLDER_PATH]


def test_lost_reply_of_the_acquisition_is_read_back() -> None:
    env = make_env()
    faulty = FaultyStorage(env.storage, fail_at=1, mode=FaultMode.LOSE_REPLY)
    with table_lock(replace(env, storage=faulty), POLICY) as lock:
        lock.check()
    assert paths(env) == [HOLDER_PATH]


def test_threads_of_one_process_exclude_each_other() -> None:
    env = make_env()
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with table_lock(env, replace(POLICY, lock=replace(POLICY.lock, wait_ms=60_000))):
            inside.append(number)
            most.append(len(inside))
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 8


def test_thread_that_waits_too_long_for_another_thread_fails() -> None:
    env = make_env()
    policy = replace(POLICY, lock=replace(POLICY.lock, wait_ms=50))
    with (
        table_lock(env, policy),
        pytest.raises(RetryableError, match="another thread of this process"),
        table_lock(env, policy),
    ):
        pass


@pytest.mark.parametrize("content", [b"", b'{"lockCreateTime": 1, "lockThreadName": "main"}'])
def test_leftover_lock_of_hudi_is_taken_over_after_the_expire_option(content: bytes, tmp_path: Path) -> None:
    env = make_env(str(tmp_path / "t"))
    env.storage.put(LOCK_PATH, content)
    (file,) = env.storage.list_dir(".hoodie")[0]
    env.clock.now = file.modified_ms + 60_000
    with (
        pytest.raises(RetryableError, match="is held by"),
        table_lock(env, with_filesystem_options(expire_minutes=2)),
    ):
        pass
    env.clock.now = file.modified_ms + 10**12
    with pytest.raises(RetryableError, match="is held by"), table_lock(env, POLICY):
        pass
    with table_lock(env, with_filesystem_options(expire_minutes=2)) as lock:
        lock.check()
        assert env.storage.get(LOCK_PATH) != content
    assert paths(env) == [HOLDER_PATH]


def test_check_fails_if_hudi_deleted_the_lock_file() -> None:
    env = make_env()
    with table_lock(env, POLICY) as lock:
        env.storage.delete(LOCK_PATH)
        with pytest.raises(RetryableError, match="lock was lost"):
            lock.check()
        env.storage.put(LOCK_PATH, b"hudi's")
        with pytest.raises(RetryableError, match="lock was lost"):
            lock.check()
    assert env.storage.get(LOCK_PATH) == b"hudi's", "the lock of another is not ours to release"


def test_renewal_rewrites_the_lock_file_for_hudi() -> None:
    env = make_env()
    with table_lock(env, POLICY) as lock:
        before, (old,) = env.storage.get(LOCK_PATH), [f for f in env.storage.list("") if f.path == LOCK_PATH]
        lock._lock.renew()
        (new,) = [f for f in env.storage.list("") if f.path == LOCK_PATH]
        assert new.modified_ms > old.modified_ms
        assert env.storage.get(LOCK_PATH) != before
        lock.check()
    assert paths(env) == [HOLDER_PATH]


@pytest.mark.parametrize("where", ["locks", "{root}/locks", "file://{root}/locks", "{root}/../aside"])
def test_lock_is_in_the_directory_of_the_option(where: str, tmp_path: Path) -> None:
    root = tmp_path / "t"
    env = make_env(str(root))
    directory = where.format(root=root)
    policy = with_filesystem_options(directory=directory)
    place = root / "locks" if "aside" not in where else tmp_path / "aside"
    with table_lock(env, policy) as lock:
        assert sorted(path.name for path in place.iterdir()) == ["holder.json", "lock"]
        lock.check()
    assert [path.name for path in place.iterdir()] == ["holder.json"]
    assert not (root / ".hoodie").exists()


def test_relative_lock_directory_outside_the_table_is_refused() -> None:
    with (
        pytest.raises(UserError, match="storage path"),
        table_lock(make_env(), with_filesystem_options(directory="../x")),
    ):
        pass


def test_storage_lock_has_the_bytes_of_hudi() -> None:
    env = make_env()
    policy = replace(POLICY, lock=replace(POLICY.lock, provider="storage"))
    with table_lock(env, policy) as lock:
        held = env.storage.get(STORAGE_PATH)
        facts = json.loads(held)
        assert list(facts) == ["expired", "validUntil", "owner"]
        assert held == b'{"expired":false,"validUntil":%d,"owner":"%s"}' % (lock.token, facts["owner"].encode())
        assert uuid.UUID(facts["owner"])
        assert 0 <= env.clock.now + 300_000 - lock.token < 100
        lock._lock.renew()
        renewed = json.loads(env.storage.get(STORAGE_PATH))
        assert renewed["validUntil"] > lock.token
        lock.check()
    assert json.loads(env.storage.get(STORAGE_PATH)) == {**renewed, "expired": True}
    assert paths(env) == [STORAGE_PATH]


@pytest.mark.parametrize(
    ("content", "free"),
    [
        (b'{"expired":true,"validUntil":99999999999999,"owner":"h"}', True),
        (b'{"expired":false,"validUntil":1,"owner":"h"}', True),
        (b'{"owner":"h","validUntil":1,"expired":true,"added":"later"}', True),
        (b'{"expired":false,"validUntil":99999999999999,"owner":"h"}', False),
        (b"", False),
        (b'{"expired":true}', False),
    ],
)
def test_storage_lock_of_hudi_is_free_exactly_if_hudi_says_so(content: bytes, free: bool) -> None:
    env = make_env()
    env.storage.put(STORAGE_PATH, content)
    policy = replace(POLICY, lock=replace(POLICY.lock, provider="storage"))
    if free:
        with table_lock(env, policy) as lock:
            lock.check()
        return
    with pytest.raises(RetryableError, match="is held by"), table_lock(env, policy):
        pass
    assert env.storage.get(STORAGE_PATH) == content


def test_reacquire_does_not_wait_for_the_same_acquisition_which_still_holds_the_lock() -> None:
    env = make_env()
    with table_lock(env, replace(POLICY, lock=replace(POLICY.lock, wait_ms=0))) as lock:
        with lock.reacquire() as held:
            held.check()
            assert held.token > lock.token
        with pytest.raises(RetryableError, match="was lost"):
            lock.check()
    with table_lock(env, POLICY) as later:
        later.check()
