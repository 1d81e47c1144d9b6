"""What the simulation has found, told again step by step."""

from __future__ import annotations

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Files, Storage
from lakehouse.core.timeline.claims import check_claim, claim
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import RetryableError
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.archived import EAGERLY
from tests.support.killed import (
    BASE,
    Host,
    Interrupted,
    base_table,
    batch,
    copy_of,
    create,
    leftovers,
    open_as,
    rows_of,
)

ONE, OTHER = 201, 202
#: Archives that leave little, compacted or not.
ARCHIVING = EAGERLY | {"hoodie.compact.inline.max.delta.commits": "2"}
OPTIMISTIC = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}


def test_who_lost_the_lock_while_it_claimed_a_plan_does_not_believe_in_the_claim_of_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = MemoryStorage()
    theirs: list[int] = []

    def turn(store: Storage) -> None:
        theirs.append(claim(Env(storage=store, processes=Host(OTHER)), "001"))

    late = Env(storage=Interrupted(storage, 2, turn, monkeypatch), processes=Host(ONE))
    ours = claim(late, "001")
    assert theirs == [1]
    assert ours == 2
    with pytest.raises(RetryableError, match="taken over"):
        check_claim(Env(storage=storage), "001", 1)


def test_a_heartbeat_is_taken_back_once_because_its_time_may_be_given_again() -> None:
    env = Env(storage=MemoryStorage())
    ended, begun = Heartbeat(env, TransactionPolicy()), Heartbeat(env, TransactionPolicy())
    ended.start("001")
    ended.discard()
    begun.start("001")
    ended.discard()
    assert [file.name for file in env.storage.list(".hoodie/.heartbeat")] == ["001"]
    begun.discard()
    assert env.storage.list(".hoodie/.heartbeat") == []


def test_of_a_write_that_does_nothing_the_instant_goes_last() -> None:
    storage = FaultyStorage(base_table(MemoryStorage(), "SIMPLE"))
    open_as(storage, ONE).delete(batch({("a", "none"): 1}).select(["id", "p"]))
    deleted = [step for step in storage.trace if step.startswith("delete ")]
    pending = [number for number, step in enumerate(deleted) if "/timeline/" in step]
    assert pending == [len(deleted) - 2, len(deleted) - 1]
    assert any("/.heartbeat/" in step for step in deleted)
    assert leftovers(storage.inner) == []


def test_rows_staged_by_a_try_that_was_taken_for_dead_are_an_answer_to_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    first_data = next(n for n, step in enumerate(probe.trace, 1) if step.startswith("open_output a/"))

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC).upsert(batch({("a", "a1"): 3}))

    class Forgetful(Interrupted):
        """Loses what is staged as soon as the first try has lost, as a sweep by somebody else would do."""

        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            if path.endswith(".commit.requested") and self.at < 0:
                self.inner.delete_many([file.path for file in self.inner.list(".hoodie/.staging")])
            return super().create(path, data, unique=unique)

    storage = copy_of(base)
    with pytest.raises(RetryableError, match="the rows it had staged are gone; run the operation again"):
        open_as(Forgetful(storage, first_data, turn, monkeypatch), ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    assert rows_of(storage) == {**BASE, ("a", "a1"): 3}
    assert leftovers(storage) == []


@pytest.mark.parametrize(
    "path", [".hoodie/timeline/{}", ".hoodie/.locks/{}", ".hoodie/{}"], ids=["timeline", "locks", "hoodie"]
)
def test_what_was_killed_in_the_middle_of_a_file_of_the_timeline_or_of_a_lock_is_swept_up(path: str) -> None:
    storage = base_table(MemoryStorage(), "SIMPLE")
    left = path.format(temporary_name("20250615150640138_20250615150640226.rollback", "9163c1f1"))
    storage.put(left, b'{"own')
    open_as(storage, ONE).rollback_failed()
    assert left not in {file.path for file in storage.list("")}
    assert rows_of(storage) == BASE


def test_a_writer_that_wakes_up_after_its_rollback_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).bulk_insert(batch({("a", "a9"): 2}))
    inflight = next(n for n, step in enumerate(probe.trace, 1) if step.endswith(".inflight"))

    def turn(store: Storage) -> None:
        assert open_as(store, OTHER, [ONE]).rollback_failed().rolled_back

    class Late(Interrupted):
        """Whoever rolls back deletes the markers last: those of files that came in between, too."""

        def list(self, prefix: str) -> Files:
            if prefix.startswith(".hoodie/.temp/") and self.at < 0:
                self.inner.delete_many([file.path for file in self.inner.list(".hoodie/.temp")])
            return super().list(prefix)

    storage = copy_of(base)
    with pytest.raises(RetryableError, match="rolled back"):
        open_as(Late(storage, inflight, turn, monkeypatch), ONE, **OPTIMISTIC).bulk_insert(batch({("a", "a9"): 2}))
    assert rows_of(storage) == BASE
    assert leftovers(storage) == []


@pytest.mark.parametrize("index", ["SIMPLE", "LOGS_BUCKET"])
def test_an_incremental_reader_behind_an_archive_neither_loses_nor_doubles_rows(index: str) -> None:
    storage = MemoryStorage()
    create(storage, index)
    table = open_as(storage, ONE, **ARCHIVING)
    table.insert(batch({("a", "a0"): 0}))
    checkpoint = table.timeline.writes().by_completion()[-1].completion
    for number in range(1, 6):
        table.upsert(batch({("a", f"a{number}"): number, ("b", "b0"): number}))
    expected = sorted(["b0", *(f"a{number}" for number in range(1, 6))])

    def read(store: Storage) -> list[str]:
        found: list[str] = open_as(store, OTHER, [ONE]).incremental(checkpoint).to_arrow().column("id").to_pylist()
        return sorted(found)

    assert read(storage) == expected
    probe = FaultyStorage(copy_of(storage))
    open_as(probe, ONE, **ARCHIVING).services.archive.run()
    assert len(open_as(probe.inner, OTHER).archived()) == 4
    assert read(probe.inner) == expected
    for step, called in enumerate(probe.trace, start=1):
        if "/timeline/" in called and not called.startswith(("get", "list", "open_input")):
            dying = copy_of(storage)
            with pytest.raises(SimulatedCrash):
                open_as(FaultyStorage(dying, step), ONE, **ARCHIVING).services.archive.run()
            assert read(dying) == expected


def test_a_reader_that_polls_while_others_write_and_archive_sees_each_commit_once() -> None:
    storage = MemoryStorage()
    create(storage, "SIMPLE")
    writer, reader = open_as(storage, ONE, **ARCHIVING), open_as(storage, OTHER)
    writer.insert(batch({("a", "a0"): 0}))
    checkpoint = writer.timeline.writes().by_completion()[-1].completion
    polled: list[str] = []
    for number in range(1, 20):
        writer.insert(batch({("a", f"n{number:02}"): number}))
        if number % 3 == 0:
            writer.services.archive.run(force=True)
        if number % 7 == 0 or number == 19:
            polled += reader.incremental(checkpoint).to_arrow().column("id").to_pylist()
            checkpoint = reader.changes(checkpoint)[-1].completion
    assert sorted(polled) == [f"n{number:02}" for number in range(1, 20)]
    assert len(reader.archived()) > 10
