"""Defects that the simulation found, each as a fixed sequence of steps."""

from __future__ import annotations

import pytest

from lakehouse.core.env import Env
from lakehouse.core.files.stage import near_files
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
#: Options of archives that keep few instants.
ARCHIVING = EAGERLY | {"hoodie.compact.inline.max.delta.commits": "2"}
OPTIMISTIC = {"hoodie.write.concurrency.mode": "optimistic_concurrency_control"}


def test_claim_after_a_lost_lock_gets_a_new_fencing_token(
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


def test_heartbeat_is_discarded_only_once_because_another_write_can_use_its_time() -> None:
    env = Env(storage=MemoryStorage())
    ended, begun = Heartbeat(env, TransactionPolicy()), Heartbeat(env, TransactionPolicy())
    ended.start("001")
    ended.discard()
    begun.start("001")
    ended.discard()
    assert [file.name for file in env.storage.list(".hoodie/.heartbeat")] == ["001"]
    begun.discard()
    assert env.storage.list(".hoodie/.heartbeat") == []


def test_write_without_changes_deletes_its_instant_last() -> None:
    storage = FaultyStorage(base_table(MemoryStorage(), "SIMPLE"))
    open_as(storage, ONE).delete(batch({("a", "none"): 1}).select(["id", "p"]))
    deleted = [step for step in storage.trace if step.startswith("delete ")]
    pending = [number for number, step in enumerate(deleted) if "/timeline/" in step]
    assert pending == [len(deleted) - 2, len(deleted) - 1]
    assert any("/.heartbeat/" in step for step in deleted)
    assert leftovers(storage.inner) == []


def test_retry_whose_staged_rows_were_deleted_raises_a_retryable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Staged rows that do not fit into memory are in storage.
    monkeypatch.setattr(near_files, "_MOST_BYTES", 0)
    base = base_table(MemoryStorage(), "SIMPLE")
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    first_data = next(n for n, step in enumerate(probe.trace, 1) if step.startswith("open_output a/"))

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC).upsert(batch({("a", "a1"): 3}))

    class Forgetful(Interrupted):
        """Deletes the staged rows after the conflict of the first attempt, as a cleanup by another process does."""

        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            if path.endswith(".commit.requested") and self.at < 0:
                self.inner.delete_many([file.path for file in self.inner.list(".hoodie/.staging")])
            return super().create(path, data, unique=unique)

    storage = copy_of(base)
    with pytest.raises(RetryableError, match="another process deleted its staged rows; run the operation again"):
        open_as(Forgetful(storage, first_data, turn, monkeypatch), ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    assert rows_of(storage) == {**BASE, ("a", "a1"): 3}
    assert leftovers(storage) == []


@pytest.mark.parametrize(
    "path", [".hoodie/timeline/{}", ".hoodie/.locks/{}", ".hoodie/{}"], ids=["timeline", "locks", "hoodie"]
)
def test_temporary_file_of_a_killed_process_is_deleted_by_the_next_cleanup(path: str) -> None:
    storage = base_table(MemoryStorage(), "SIMPLE")
    leftover = path.format(temporary_name("20250615150640138_20250615150640226.rollback", "9163c1f1"))
    storage.put(leftover, b'{"own')
    open_as(storage, ONE).rollback_failed()
    assert leftover not in {file.path for file in storage.list("")}
    assert rows_of(storage) == BASE


def test_writer_that_resumes_after_its_rollback_leaves_no_files(monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).bulk_insert(batch({("a", "a9"): 2}))
    inflight = next(n for n, step in enumerate(probe.trace, 1) if step.endswith(".inflight"))

    def turn(store: Storage) -> None:
        assert open_as(store, OTHER, [ONE]).rollback_failed().rolled_back

    class Late(Interrupted):
        """Deletes all markers, because a rollback deletes markers last, also those of files that were added later."""

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
def test_incremental_read_of_archived_commits_returns_each_row_once(index: str) -> None:
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


def test_polling_reader_sees_each_commit_once_during_writes_and_archives() -> None:
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
