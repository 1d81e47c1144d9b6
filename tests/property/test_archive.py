"""Archiving never changes what a reader sees: after random histories, crashes at any step and concurrent processes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, RetryableError, UserError
from tests.support.archived import EAGERLY, assert_same, eager, every_write, seen
from tests.support.killed import CHANGING, Interrupted, batch, copy_of, create, open_as, points, share_of
from tests.support.tables import Shape, examples, make_table, row
from tests.support.tables import batch as rows_batch

CRASHED, SURVIVOR = 101, 102
KINDS = ("SIMPLE", "LOGS_BUCKET", "V6", "LOGS_V6")
#: An archive run keeps the commits that no compaction of the metadata table contains.
COMPACTED = {"hoodie.metadata.compact.max.delta.commits": "1"}
#: Per kind of table: the tests take one of this many steps of an archive run.
SHARES = {"SIMPLE": 8, "LOGS_BUCKET": 16, "V6": 16, "LOGS_V6": 16}


def fill_with_history(storage: Storage, index: str) -> Storage:
    """Create a table with ten writes, a rollback, cleans and, for merge on read, compactions."""
    create(storage, index)
    table = open_as(storage, CRASHED, **EAGERLY)
    for number in range(7):
        rows = batch({("a", f"a{number % 4}"): number, ("b", f"b{number % 3}"): number})
        table.upsert(rows, commit_metadata={"number": str(number)} if number < 2 else None)
        if number == 2:
            table.insert_overwrite(batch({("b", "b8"): 1}))
            table.rollback(table.upsert(batch({("a", "a9"): 1})).instant.requested)  # type: ignore[union-attr]
        if number in (3, 5):
            if table.config.is_merge_on_read:
                table.services.compaction.run(force=True)
            table.services.clean.run(force=True)
    return storage


@cache
def past(index: str) -> Storage:
    """Return a cached store with the table of `fill_with_history`. Tests work on copies of it."""
    return fill_with_history(MemoryStorage(), index)


@cache
def expected(index: str) -> Mapping[str, Any]:
    return seen(open_as(copy_of(past(index)), SURVIVOR), ranges=False)


@cache
def trace(index: str) -> tuple[str, ...]:
    storage = FaultyStorage(copy_of(past(index)))
    assert isinstance(open_as(storage, CRASHED, **EAGERLY).services.archive.run(), Archived)
    return tuple(storage.trace)


def check_recovery(storage: Storage, index: str, pid: int = SURVIVOR) -> None:
    """Check that readers see the expected rows, the next archive run completes, and writes still work."""
    table = open_as(storage, pid, [CRASHED], **EAGERLY)
    assert_same(seen(table, ranges=False), expected(index))
    outcome = table.services.archive.run(force=True)
    assert_same(seen(table, ranges=False), expected(index))
    assert len(table.timeline.writes()) == 2, outcome
    assert isinstance(table.services.archive.run(force=True), NothingToDo)
    before = len(every_write(table))
    table.upsert(batch({("a", "a0"): 99}))
    assert len(every_write(table)) == before + 1
    history = table.refresh().store.archived_timeline
    files = {file.name for file in storage.list(history.directory)}
    assert history.files() and {file.name for file in history.files()} <= files


@pytest.mark.parametrize("index", KINDS)
def test_archive_keeps_reads_and_is_completed_by_the_next_run_after_a_crash_at_any_step(index: str) -> None:
    for step, mode in share_of(points(trace(index)), index, SHARES[index]):
        storage = copy_of(past(index))
        with pytest.raises(SimulatedCrash):
            open_as(FaultyStorage(storage, step, mode), CRASHED, **EAGERLY).services.archive.run()
        check_recovery(storage, index)


@pytest.mark.parametrize("index", KINDS)
def test_archive_can_run_again_after_a_lost_reply_at_any_step(index: str) -> None:
    for step, _ in share_of(changing_steps(index), index, SHARES[index]):
        storage = copy_of(past(index))
        with suppress(LakehouseError):
            open_as(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), CRASHED, **EAGERLY).services.archive.run()
        check_recovery(storage, index)


@pytest.mark.parametrize("index", KINDS)
@pytest.mark.parametrize("rival", ["archive", "upsert"])
def test_archive_loses_nothing_when_another_process_takes_over_at_any_step(
    index: str, rival: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(storage: Storage) -> None:
        table = open_as(storage, SURVIVOR, [CRASHED], **EAGERLY)
        if rival == "archive":
            table.services.archive.run(force=True)
        else:
            table.upsert(batch({("a", "a1"): 77}))

    for step, _ in share_of(changing_steps(index), (index, rival), SHARES[index]):
        storage = copy_of(past(index))
        with suppress(RetryableError):
            open_as(Interrupted(storage, step, other, monkeypatch), CRASHED, **EAGERLY).services.archive.run()
        table = open_as(storage, SURVIVOR, [CRASHED], **EAGERLY)
        assert len(every_write(table)) == len(expected(index)["changed"][0]) + (rival == "upsert")
        found, wanted = views_of(table), expected(index)
        assert {name: found[name] for name in found if name in wanted and name != "now"} == {
            name: answer for name, answer in wanted.items() if name.startswith("as of")
        }
        table.services.archive.run(force=True)
        assert isinstance(table.services.archive.run(force=True), NothingToDo)
        assert views_of(table) == found


def test_reader_finds_all_archived_instants_while_archive_files_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = copy_of(past("SIMPLE"))
    open_as(storage, CRASHED, **EAGERLY).services.archive.run()
    known = [instant.requested for instant in open_as(storage, SURVIVOR).archived()]
    begin = open_as(storage, SURVIVOR).archived().by_completion()[0].completion

    def archives(store: Storage) -> None:
        table = open_as(store, CRASHED, **EAGERLY)
        for number in range(6):
            table.upsert(batch({("a", "a0"): 50 + number}))
            table.services.archive.run(force=True)

    probe = FaultyStorage(copy_of(storage))
    open_as(probe, SURVIVOR).changes(begin)
    for step in range(1, probe.steps + 1):
        reader = open_as(Interrupted(copy_of(storage), step, archives, monkeypatch), SURVIVOR)
        found = [instant.requested for instant in reader.changes(begin)]
        assert len(set(found)) == len(found) and set(known[1:]) <= set(found)


@pytest.mark.parametrize("dead", [(), (CRASHED,)])
def test_savepoint_is_refused_when_its_commit_is_archived_at_the_same_time(
    dead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = {"hoodie.write.lock.wait_time_ms": "0"}

    def archives(store: Storage) -> None:
        with suppress(RetryableError):
            open_as(store, SURVIVOR, dead, **EAGERLY, **wait).services.archive.run(force=True)

    base = MemoryStorage()
    create(base, "SIMPLE")
    for number in range(5):
        open_as(base, CRASHED, **COMPACTED).insert(batch({("a", f"a{number}"): number}))
    target, before = open_as(base, CRASHED).timeline.instants[1].requested, views_of(open_as(base, CRASHED))
    probe = FaultyStorage(copy_of(base))
    open_as(probe, CRASHED).savepoint(target)
    outcomes = set()
    for step in range(1, probe.steps + 1):
        storage = copy_of(base)
        with suppress(RetryableError, UserError):
            open_as(Interrupted(storage, step, archives, monkeypatch), CRASHED).savepoint(target)
        table = open_as(storage, SURVIVOR, [CRASHED], **EAGERLY)
        is_kept = table.timeline.find(target) is not None
        outcomes.add(is_kept)
        if not is_kept:
            assert target not in table.timeline.savepoints()
        assert views_of(table) == before
    assert outcomes == {True, False}


def changing_steps(index: str) -> list[tuple[int, str]]:
    """Return the number and name of each step of an archive run that changes storage."""
    return [(n, step) for n, step in enumerate(trace(index), start=1) if step.split()[0] in CHANGING]


def views_of(table: Table) -> Mapping[str, Any]:
    """Return the rows of the table now and as of every write."""
    return {name: rows for name, rows in seen(table, ranges=False).items() if name.startswith(("as of", "now"))}


#: Events that may happen to a table between two archive runs.
EVENTS = ("upsert", "insert", "delete", "insert_overwrite", "delete_partitions", "compaction", "clean", "rollback")


@examples(6)
@given(
    kind=st.sampled_from(["COPY_ON_WRITE", "MERGE_ON_READ"]),
    events=st.lists(st.tuples(st.sampled_from(EVENTS), st.integers(0, 3)), min_size=6, max_size=14),
    archived_at=st.sets(st.integers(3, 13), min_size=1, max_size=4),
    saved_at=st.sampled_from([None, 2, 5]),
    beyond=st.booleans(),
)
def test_archive_keeps_all_reads_after_any_history(
    kind: str, events: list[tuple[str, int]], archived_at: set[int], saved_at: int | None, beyond: bool
) -> None:
    made = make_table(Shape(type=kind, index="BUCKET" if kind == "MERGE_ON_READ" else "SIMPLE"))
    table = eager(made, **{"hoodie.archive.beyond.savepoint": str(beyond).lower()})
    table.upsert(rows_at(0, 0), commit_metadata={"number": "0"})
    for number, (event, choice) in enumerate([*events, ("upsert", 0), ("archive", 0)], start=1):
        with suppress(UserError):
            happen(table, event, choice, number)
        if number == saved_at and len(table.timeline.writes()):
            table.savepoint()
        if number in archived_at or event == "archive":
            before = seen(table, ranges=False)
            table.services.archive.run(force=True)
            assert_same(seen(table, ranges=False), before)
    for savepoint in table.savepoints():
        before = seen(table, ranges=False)
        with suppress(UserError):
            table.delete_savepoint(savepoint.requested)
        assert_same(seen(table, ranges=False), before)


def rows_at(number: int, choice: int) -> pa.Table:
    return rows_batch([row(f"k{i}", p="abc"[i % 3], ts=number, v=f"{number}") for i in range(choice, 6)])


def happen(table: Table, event: str, choice: int, number: int) -> None:
    if event in ("upsert", "insert", "insert_overwrite"):
        metadata = {"number": str(number)} if number % 3 == 0 else None
        getattr(table, event)(rows_at(number, choice), commit_metadata=metadata)
    elif event == "delete":
        table.delete_where(f"id = 'k{choice}'")
    elif event == "delete_partitions":
        table.delete_partitions(["abc"[choice % 3]])
    elif event == "compaction" and table.config.is_merge_on_read:
        table.services.compaction.run(force=True)
    elif event == "clean":
        table.services.clean.run(force=True)
    elif event == "rollback" and len(table.timeline.writes()) > 1:
        table.rollback(table.timeline.writes().by_completion()[-1].requested)
