"""Defects of rollback, restore, delete and log compaction with concurrent writers that the simulation found."""

from __future__ import annotations

import threading

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.storage.fault_injection import FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.lock_compatibility import SHARED_LOCK
from lakehouse.core.timeline.locks.filesystem import HOLDER
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action
from tests.simulation import invariants
from tests.simulation.actors import NON_BLOCKING, OPTIMISTIC, PARTIAL
from tests.simulation.model import Row
from tests.simulation.tables import CALLS, INDEXES, Shape, prepared
from tests.simulation.tables import batch as rows
from tests.support.killed import (
    BASE,
    Host,
    Interrupted,
    base_table,
    batch,
    copy_of,
    leftovers,
    open_as,
    rows_of,
)

ONE, OTHER = 201, 202


def step_of(trace: list[str], *words: str) -> int:
    """Return the number of the last step that contains all `words`."""
    return max(number for number, step in enumerate(trace, 1) if all(word in step for word in words))


def bucketed(storage: Storage, pid: int, **options: str) -> Table:
    """Open a table of the simulation with the bucket index as the process `pid`."""
    env = Env(storage=storage, processes=Host(pid))
    return Table.open(storage.root, options=CALLS | INDEXES["BUCKET"] | options, env=env)


def test_log_compaction_planned_during_a_pending_write_keeps_its_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base, _ = prepared(Shape("MOR_BUCKET", False))

    def bring(storage: Storage, pid: int, row: Row) -> None:
        bucketed(storage, pid, **NON_BLOCKING, **PARTIAL).upsert(rows({("a", "a0"): row}))

    def turn(store: Storage) -> None:
        bring(store, OTHER, {"x2": 20})
        bucketed(store, OTHER, **OPTIMISTIC).services.log_compaction.schedule(force=True)

    probe = FaultyStorage(copy_of(base))
    bring(probe, ONE, {"x1": 10})
    storage = copy_of(base)
    bring(Interrupted(storage, step_of(probe.trace, "close a/"), turn, monkeypatch), ONE, {"x1": 10})
    before = invariants.read(storage)
    assert before["a", "a0"] == {"v": 3, "w": 3, "x1": 10, "x2": 20}
    table = bucketed(storage, OTHER, **OPTIMISTIC)
    table.services.log_compaction.run()
    table.services.compaction.run(force=True)
    assert invariants.read(storage) == before


def test_delete_also_deletes_a_key_that_is_inserted_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    deleted = batch(dict.fromkeys((("b", "b1"), ("a", "a9")), 9)).select(["id", "p"])
    base = base_table(MemoryStorage(), "SIMPLE")
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).delete(deleted)

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC).upsert(batch({("a", "a9"): 2}))

    storage = copy_of(base)
    at = step_of(probe.trace, "close b/")
    open_as(Interrupted(storage, at, turn, monkeypatch), ONE, **OPTIMISTIC).delete(deleted)
    assert rows_of(storage) == {key: value for key, value in BASE.items() if key != ("b", "b1")}
    assert leftovers(storage) == []


def test_rollback_with_a_lost_lock_removes_no_write() -> None:
    class Slow(FaultyStorage):
        """Writes the rollback plan so slowly that another process takes the lock over."""

        def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
            made = super().create(path, data, unique=unique)
            if path.endswith(".rollback.requested"):
                self.inner.delete_many([f".hoodie/{HOLDER}", ".hoodie/lock"])
                open_as(self.inner, OTHER, **OPTIMISTIC).upsert(batch({("a", "a1"): 3}))
            return made

    storage = base_table(MemoryStorage(), "SIMPLE")
    newest = open_as(storage, ONE).timeline.writes().by_completion()[-1].requested
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessState, "thread_lock", _unshared_lock)
        with pytest.raises(RetryableError, match="lost"):
            open_as(Slow(storage), ONE, **OPTIMISTIC).rollback(newest)
    expected = {**BASE, ("a", "a1"): 3}
    assert rows_of(storage) == expected
    open_as(storage, OTHER, [ONE]).rollback_failed()
    assert rows_of(storage) == expected
    assert not open_as(storage, OTHER).timeline.where(action=Action.ROLLBACK)
    assert leftovers(storage) == []


def _unshared_lock(state: ProcessState, root: str) -> threading.Lock:
    """Return a new lock, because two processes share no thread lock."""
    return threading.Lock()


def test_writer_deletes_a_file_that_it_closes_after_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    first = open_as(base, ONE).timeline.writes().by_completion()[0].requested
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2, ("b", "b1"): 2}))

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC).restore(first, force=True)

    for number, step in enumerate(probe.trace, 1):
        if "close a/" in step or "close b/" in step:
            storage = copy_of(base)
            with pytest.raises(RetryableError, match="rolled back"):
                open_as(Interrupted(storage, number, turn, monkeypatch), ONE, **OPTIMISTIC).upsert(
                    batch({("a", "a1"): 2, ("b", "b1"): 2})
                )
            assert rows_of(storage) == {**BASE, ("a", "a0"): 0}
            assert leftovers(storage) == []


def test_writer_that_began_before_a_rollback_does_not_use_the_removed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    open_as(base, ONE, **OPTIMISTIC).delete_partitions(["a"])
    overwritten = open_as(base, ONE).timeline.writes().by_completion()[-1].requested
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    storage = copy_of(base)

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **OPTIMISTIC).rollback(overwritten)

    loaded = probe.trace.index(f"create {SHARED_LOCK}") + 1
    open_as(Interrupted(storage, loaded, turn, monkeypatch), ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 2}))
    assert rows_of(storage) == {**BASE, ("a", "a1"): 2}
    assert leftovers(storage) == []


def test_writer_that_loses_the_lock_before_its_instant_creates_no_instant() -> None:
    class Slow(FaultyStorage):
        """Writes the first heartbeat so slowly that another process takes the lock over and commits."""

        is_over = False

        def put(self, path: str, data: bytes) -> None:
            super().put(path, data)
            if "/.heartbeat/" in path and not self.is_over:
                self.is_over = True
                self.inner.delete_many([f".hoodie/{HOLDER}", ".hoodie/lock"])
                open_as(self.inner, OTHER, **OPTIMISTIC).delete_partitions(["a"])

    storage = base_table(MemoryStorage(), "SIMPLE")
    slow = Slow(storage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ProcessState, "thread_lock", _unshared_lock)
        with pytest.raises(RetryableError, match="lost"):
            open_as(slow, ONE, **OPTIMISTIC).upsert(batch({("a", "a1"): 3}))
    assert not any(step.endswith("commit.requested") for step in slow.trace)
    assert rows_of(storage) == {key: value for key, value in BASE.items() if key[0] != "a"}


def test_executor_does_not_start_a_plan_that_a_pending_restore_removes(monkeypatch: pytest.MonkeyPatch) -> None:
    base, _ = prepared(Shape("MOR_SIMPLE", False, "compaction"))
    first = Table.open(base.root, env=Env(storage=base)).timeline.writes().by_completion()[0].requested
    probe = FaultyStorage(copy_of(base))
    open_as(probe, OTHER, **OPTIMISTIC).restore(first)
    half = step_of(probe.trace, "delete", ".compaction.requested")
    trial = FaultyStorage(copy_of(base))
    open_as(trial, ONE, **OPTIMISTIC).services.compaction.run()
    begins = next(number for number, step in enumerate(trial.trace, 1) if "/.heartbeat" in step)

    def turn(store: Storage) -> None:
        with pytest.raises(SimulatedCrash):
            open_as(FaultyStorage(store, half), OTHER, **OPTIMISTIC).restore(first)

    storage = copy_of(base)
    with pytest.raises(RetryableError, match=r"restore .* is not finished"):
        open_as(Interrupted(storage, begins, turn, monkeypatch), ONE, **OPTIMISTIC).services.compaction.run()
    assert not [file.path for file in storage.list(".hoodie/timeline") if file.name.endswith("compaction.inflight")]
    open_as(storage, OTHER, [ONE]).restore(first)
    assert not open_as(storage, OTHER).timeline.where(pending=True)
    assert isinstance(open_as(storage, OTHER).services.compaction.run(), NothingToDo)
    assert leftovers(storage) == []


def test_executor_deletes_the_inflight_file_of_a_removed_plan() -> None:
    storage = copy_of(prepared(Shape("MOR_SIMPLE", False, "compaction"))[0])
    [plan] = open_as(storage, ONE).timeline.where(action=Action.COMPACTION)
    storage.put(f".hoodie/timeline/{plan.requested}.compaction.inflight", b"")
    storage.delete(f".hoodie/timeline/{plan.requested}.compaction.requested")
    before = invariants.read(copy_of(prepared(Shape("MOR_SIMPLE", False, "compaction"))[0]))
    outcome = open_as(storage, ONE, **OPTIMISTIC).services.compaction.run()
    assert isinstance(outcome, NothingToDo)
    assert not open_as(storage, ONE).timeline.where(pending=True)
    assert invariants.read(storage) == before
    assert leftovers(storage) == []


def test_savepoint_of_a_compaction_keeps_the_writes_that_completed_before_it() -> None:
    storage = copy_of(prepared(Shape("MOR_BUCKET", False, "compaction"))[0])
    table = bucketed(storage, ONE)
    table.upsert(rows({("a", "a0"): {"v": 7, "w": 7}}))
    older = table.timeline.writes().by_completion()[-1].requested
    table.upsert(rows({("b", "b0"): {"v": 8, "w": 8}}))
    newer = table.timeline.writes().by_completion()[-1].requested
    table.services.compaction.run()
    compacted = table.timeline.writes().by_completion()[-1].requested
    assert compacted < older
    table.savepoint(compacted)
    with pytest.raises(UserError, match=f"a savepoint of {compacted} keeps {newer}.*savepoint delete"):
        table.restore(older)
    table.delete_savepoint(compacted)
    table.restore(older)
    assert invariants.read(storage)["b", "b0"] == {"v": 1, "w": 1}


def test_pending_rollback_is_not_cleaned_up_while_it_is_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    base = base_table(MemoryStorage(), "SIMPLE")
    newest = open_as(base, ONE).timeline.writes().by_completion()[-1].requested
    probe = FaultyStorage(copy_of(base))
    open_as(probe, ONE, **OPTIMISTIC).rollback(newest)
    planned = step_of(probe.trace, "create", ".rollback.requested") + 1

    def turn(store: Storage) -> None:
        with pytest.raises(RetryableError, match="is held by"):
            open_as(store, OTHER, **OPTIMISTIC, **{"hoodie.write.lock.wait_time_ms": "1"}).rollback_failed()

    storage = copy_of(base)
    open_as(Interrupted(storage, planned, turn, monkeypatch), ONE, **OPTIMISTIC).rollback(newest)
    [undoing] = open_as(storage, OTHER).timeline.where(action=Action.ROLLBACK)
    assert undoing.is_completed
    assert storage.get(f".hoodie/timeline/{undoing.requested}.rollback.requested")
    assert leftovers(storage) == []
