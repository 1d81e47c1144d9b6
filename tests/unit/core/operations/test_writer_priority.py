"""Writer priority: a writer that repeatedly lost a conflict gets priority for its next attempt."""

from __future__ import annotations

from lakehouse.core.operations.write.attempt import PATH, WriterPriority
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import make_env

OPTIMISTIC = TransactionPolicy(concurrency="OPTIMISTIC_CONCURRENCY_CONTROL")


def test_priority_makes_other_writers_wait_until_its_release_or_expiry() -> None:
    storage = MemoryStorage()
    env = make_env(storage=storage)
    loser, other = WriterPriority(env, OPTIMISTIC), WriterPriority(env, OPTIMISTIC)
    loser.request(1, 500)
    assert not storage.list(".hoodie")
    loser.request(2, 500)
    assert [file.path for file in storage.list(".hoodie")] == [PATH]
    began = env.clock.now_ms()
    loser.wait(2, 500)
    assert env.clock.now_ms() - began < 100, "a writer with priority does not wait"
    other.request(2, 500)
    other.wait(0, 0)
    assert 1900 < env.clock.now_ms() - began < 4000, "twice the duration of the last attempt plus one second"
    other.request(2, 500)
    loser.release()
    assert storage.list(".hoodie"), "the other writer has the priority now"
    other.release()
    assert not storage.list(".hoodie")


def test_priority_of_a_long_attempt_expires_after_half_a_minute() -> None:
    env = make_env(storage=MemoryStorage())
    WriterPriority(env, OPTIMISTIC).request(3, 3_600_000)
    began = env.clock.now_ms()
    WriterPriority(env, OPTIMISTIC).wait(0, 0)
    assert 29_000 < env.clock.now_ms() - began < 32_000


def test_priority_is_not_used_by_writers_that_cannot_lose() -> None:
    storage = MemoryStorage()
    env = make_env(storage=storage)
    WriterPriority(env, OPTIMISTIC).request(5, 500)
    began = env.clock.now_ms()
    for mode in ("SINGLE_WRITER", "NON_BLOCKING_CONCURRENCY_CONTROL"):
        priority = WriterPriority(env, TransactionPolicy(concurrency=mode))
        priority.wait(0, 0)
        priority.request(5, 500)
        priority.release()
    assert env.clock.now_ms() - began < 100


def test_waiting_writer_that_lost_as_often_gets_the_next_priority() -> None:
    storage = MemoryStorage()
    env = make_env(storage=storage)
    first, second, fresh = (
        WriterPriority(env, OPTIMISTIC),
        WriterPriority(env, OPTIMISTIC),
        WriterPriority(env, OPTIMISTIC),
    )
    first.request(2, 500)
    first.release()
    second.wait(2, 500)
    assert [file.path for file in storage.list(".hoodie")] == [PATH], (
        "the waiting writer gets the priority before its attempt"
    )
    began = env.clock.now_ms()
    fresh.wait(1, 500)
    assert 1900 < env.clock.now_ms() - began < 4000, "a writer that lost once waits"
    second.release()
    assert not storage.list(".hoodie")


def test_priority_file_with_other_content_is_ignored() -> None:
    for data in (b"", b"null", b'{"until": "x"}', b"\xff"):
        storage = MemoryStorage()
        env = make_env(storage=storage)
        storage.put(PATH, data)
        began = env.clock.now_ms()
        WriterPriority(env, OPTIMISTIC).wait(0, 0)
        assert env.clock.now_ms() - began < 100
        loser = WriterPriority(env, OPTIMISTIC)
        loser.request(2, 500)
        loser.release()
        assert not storage.list(".hoodie")
