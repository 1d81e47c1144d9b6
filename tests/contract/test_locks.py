"""The contract of all lock providers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.locks.protocol import Held, Lock
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError
from tests.support.locks import ALL, FILE_KINDS, LEASED, MORTAL, Place, count_up, kinds, options_of
from tests.support.processes import forked
from tests.support.waiting import until

KEY = "hoodie.write.lock.provider"
THREADS, ROUNDS = 4, 5
CHILDREN = 2
#: Where another process sees the lock, and its test server.
SHARED = tuple(kind for kind in ALL if kind != "in_process" and not kind.endswith("memory"))
#: Real time in which a lease without renewals would expire twice.
SHORT_LEASE_MS = 400

each = pytest.mark.parametrize("place", kinds(ALL), indirect=True)
each_mortal = pytest.mark.parametrize("place", kinds(MORTAL), indirect=True)
each_leased = pytest.mark.parametrize("place", kinds(LEASED), indirect=True)
each_file = pytest.mark.parametrize(
    "place", kinds(tuple(k for k in FILE_KINDS if k.endswith(("memory", "local")))), indirect=True
)


def acquired(lock: Lock) -> int:
    """Acquire a free lock and return the token."""
    token = lock.try_acquire()
    assert not isinstance(token, Held), token
    return token


def is_lost(lock: Lock) -> bool:
    """Return whether the check of the lock fails."""
    try:
        lock.check()
    except RetryableError as error:
        assert error.retryable
        return True
    return False


@each
def test_lock_has_one_holder_until_its_release(place: Place) -> None:
    first, second = place.lock(1), place.lock(2)
    assert acquired(first) > 0
    assert isinstance(second.try_acquire(), Held)
    first.check()
    first.release()
    assert until(lambda: not isinstance(second.try_acquire(), Held), 5)
    second.check()
    assert is_lost(first)


@each
def test_fencing_tokens_grow_with_every_acquisition(place: Place) -> None:
    tokens = []
    for pid in (1, 2, 1, 3):
        lock = place.lock(pid)
        tokens.append(acquired(lock))
        lock.release()
    assert sorted(set(tokens)) == tokens


@each
def test_release_without_acquisition_does_not_free_the_lock(place: Place) -> None:
    holder, other = place.lock(1), place.lock(2)
    other.release()
    acquired(holder)
    assert isinstance(other.try_acquire(), Held)
    assert is_lost(other)
    other.release()
    holder.check()
    assert isinstance(place.lock(3).try_acquire(), Held)


@each
def test_second_release_does_not_free_the_lock_of_the_next_holder(place: Place) -> None:
    first, second = place.lock(1), place.lock(2)
    acquired(first)
    first.release()
    acquired(second)
    first.release()
    second.check()


@each
def test_threads_exclude_each_other_and_tokens_give_their_order(place: Place) -> None:
    place = replace(place.real(), policy=replace(place.policy, lock=replace(place.policy.lock, wait_ms=60_000)))
    inside: list[int] = []
    most: list[int] = []
    tokens: list[int] = []

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            lock = place.table_lock(number)
            try:
                lock.acquire()
                tokens.append(lock.token)
                inside.append(number)
                most.append(len(inside))
                lock.check()
                most.append(len(inside))
                inside.remove(number)
            finally:
                lock.release()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(1, THREADS + 1)))
    assert set(most) == {1}
    assert len(tokens) == THREADS * ROUNDS
    assert tokens == sorted(set(tokens))


@pytest.mark.parametrize("place", kinds(SHARED), indirect=True)
def test_processes_exclude_each_other(place: Place, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0")
    is_s3 = place.storage.root.startswith("s3://")
    options = request.getfixturevalue("s3_server").options if is_s3 else {}
    policy = replace(place.policy, lock=replace(place.policy.lock, wait_ms=60_000))
    processes = forked()
    work = (place.storage.root, options, policy, str(counter), ROUNDS)
    children = [processes.Process(target=count_up, args=work) for _ in range(CHILDREN)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0] * CHILDREN
    assert int(counter.read_text()) == CHILDREN * ROUNDS


@each
def test_acquire_fails_after_the_wait_time(place: Place) -> None:
    acquired(place.lock(1))
    before = place.clock.now_ms()
    waiting = place.table_lock(2, wait_ms=300)
    with pytest.raises(RetryableError, match=r"is held by .* for more than 300 ms"):
        waiting.acquire()
    waiting.release()
    assert place.clock.now_ms() - before >= 300


@each
def test_waiting_process_gets_the_lock_after_its_release(place: Place) -> None:
    real = place.real()
    holder, waiting = real.table_lock(1), real.table_lock(2, wait_ms=20_000)
    holder.acquire()
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(waiting.acquire)
        holder.check()
        holder.release()
        got.result(timeout=30)
    waiting.check()
    assert waiting.token > holder.token
    waiting.release()


@each_mortal
def test_expired_lock_is_taken_over_and_the_stale_holder_fails_its_check(place: Place) -> None:
    stale, successor = place.lock(1), place.lock(2)
    token = acquired(stale)
    place.die(stale)
    assert acquired(successor) > token
    assert is_lost(stale)
    with pytest.raises(RetryableError):
        stale.renew()
    stale.release()
    successor.check()
    assert isinstance(place.lock(3).try_acquire(), Held)


@each_leased
def test_holder_of_an_expired_lease_fails_its_check_without_a_successor(place: Place) -> None:
    lock = place.lock(1)
    acquired(lock)
    place.clock.sleep(place.lease_s)
    assert is_lost(lock)


@each_leased
def test_lease_within_the_tolerated_clock_drift_is_respected(place: Place) -> None:
    acquired(place.lock(1))
    place.clock.sleep(place.lease_s + 0.3)
    assert isinstance(place.lock(2).try_acquire(), Held)
    place.clock.sleep(0.7)
    acquired(place.lock(2))


@each_mortal
def test_of_many_concurrent_takeovers_one_succeeds(place: Place) -> None:
    stale = place.lock(1)
    acquired(stale)
    place.die(stale)
    successors = [place.lock(pid) for pid in range(2, 2 + THREADS)]
    barrier = threading.Barrier(THREADS)

    def take_over(successor: Lock) -> bool:
        barrier.wait()
        return not isinstance(successor.try_acquire(), Held)

    with ThreadPoolExecutor(THREADS) as pool:
        won = list(pool.map(take_over, successors))
    assert won.count(True) == 1
    assert [not is_lost(successor) for successor in successors] == won


@each_mortal
def test_renewed_lock_is_kept(place: Place) -> None:
    lock = place.lock(1)
    acquired(lock)
    for _ in range(3):
        place.live(lock)
        other = place.lock(2)
        assert isinstance(other.try_acquire(), Held)
        other.release()
        lock.check()
    lock.release()
    acquired(place.lock(3))


@pytest.mark.parametrize("place", kinds(("filesystem-local", "filesystem-s3", "sqlalchemy-sqlite")), indirect=True)
def test_lease_shorter_than_the_work_is_renewed_in_the_background(place: Place) -> None:
    real = replace(place.real(), policy=replace(place.policy, lock=replace(place.policy.lock, lease_ms=SHORT_LEASE_MS)))
    holder, other = real.table_lock(1), real.lock(2)
    holder.acquire()
    real.clock.sleep(3 * SHORT_LEASE_MS / 1000 + 0.5)
    holder.check()
    assert isinstance(other.try_acquire(), Held)
    holder.release()
    acquired(other)
    other.release()


@pytest.mark.parametrize(
    "place", kinds(tuple(k for k in LEASED if k.startswith(("filesystem", "sqlalchemy")))), indirect=True
)
def test_lock_of_an_ended_process_of_this_host_is_taken_over_at_once(place: Place) -> None:
    token = acquired(place.lock(1))
    assert isinstance(place.lock(2).try_acquire(), Held)
    assert acquired(place.lock(2, dead=(1,))) > token


@each_file
def test_lost_reply_at_any_step_leaves_a_working_lock(place: Place) -> None:
    steps = FaultyStorage(place.storage)
    visit(place, steps)
    for number in range(1, steps.steps + 1):
        try:
            visit(place, FaultyStorage(place.storage, number, FaultMode.LOSE_REPLY))
        except RetryableError as error:
            assert "reply of step" in str(error), steps.trace[number - 1]
        # No process has to wait until a lease expires.
        visit(place, FaultyStorage(place.storage))


@each_file
@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER])
def test_crash_at_any_step_leaves_a_lock_that_can_be_taken_over(place: Place, mode: FaultMode) -> None:
    # The first visit reads the recorded lock of the table. Later visits have it cached.
    visit(place, FaultyStorage(place.storage))
    steps = FaultyStorage(place.storage)
    visit(place, steps)
    tokens = [0]
    for number in range(1, steps.steps + 1):
        with pytest.raises(SimulatedCrash):
            visit(place, FaultyStorage(place.storage, number, mode))
        next_one = place.lock(2)
        if isinstance(next_one.try_acquire(), Held):
            place.clock.sleep(place.lease_s + 1)
            acquired(next_one)
        next_one.check()
        next_one.release()
        last = place.lock(3)
        tokens.append(acquired(last))
        last.release()
    assert tokens == sorted(set(tokens))


def visit(place: Place, storage: FaultyStorage) -> None:
    """Acquire the lock, check it, renew it and release it."""
    with table_lock(place.env(1, storage=storage), place.policy) as lock:
        lock.check()
        lock._lock.renew()
        lock.check()


@each
def test_tables_are_written_under_the_lock(place: Place) -> None:
    options = options_of(place.policy.lock)
    env = Env(storage=place.storage)
    table = Table.create(
        place.storage.root,
        name="t",
        record_key=["id"],
        ordering="ts",
        options=options | {KEY: place.policy.lock.provider},
        env=env,
    )
    table.upsert(pa.table({"id": ["a", "b"], "ts": [1, 1]}))
    table.upsert(pa.table({"id": ["b", "c"], "ts": [2, 2]}))
    rows = table.scan(["id", "ts"]).to_arrow().to_pydict()
    assert dict(zip(rows["id"], rows["ts"], strict=True)) == {"a": 1, "b": 2, "c": 2}
    kept = {file.name for file in env.storage.list(".hoodie")} & {"holder.json", "table_lock.json"}
    assert kept == {"filesystem": {"holder.json"}, "storage": {"table_lock.json"}}.get(
        place.policy.lock.provider, set()
    )
    acquired(place.lock(1))
