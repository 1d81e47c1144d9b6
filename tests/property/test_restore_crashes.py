"""Rollback, savepoint and restore: crashes and concurrent writers at any storage step, and completion afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.metadata.place import METADATA, listed_partitions
from lakehouse.core.operations.commit.completion import rebuild_dropped
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse.model.instant import Action, State
from tests.support.killed import (
    BASE,
    COMPACTED,
    INDEXES,
    LOGGED,
    RECOVERY,
    SERVICES,
    VERBS,
    Host,
    Interrupted,
    Rows,
    batch,
    copy_of,
    create,
    leftovers,
    logged_table,
    open_as,
    points,
    rows_of,
    share_of,
)

LOST, CRASHED, SURVIVOR, THIRD = 100, 101, 102, 103
NO_WAIT = {"hoodie.write.lock.wait_time_ms": "0"}
#: The writes after the first commit. On tables with logs a compaction runs after the first one of them.
WRITES = ("delete", "upsert", "insert_overwrite")
TABLES = ("SIMPLE", "LOGS_SIMPLE", "LOGS_BUCKET", "SIMPLE_6", "LOGS_SIMPLE_6", "LOGS_BUCKET_6")


@dataclass(frozen=True, slots=True)
class History:
    """A table, its completed instants in order, and the rows after each of them; the newest write is pending."""

    storage: Storage
    instants: tuple[str, ...]
    states: tuple[Rows, ...]


@cache
def history(index: str) -> History:
    """Return a table with several commits and a crashed write; with logs, a compaction plan is pending."""
    storage = MemoryStorage()
    table = create(storage, index, pid=LOST)
    table.bulk_insert(batch(BASE))
    states, rows = [BASE], BASE
    for number, name in enumerate(WRITES):
        VERBS[name].run(table)
        rows = VERBS[name].after(rows)
        states.append(rows)
        if index in LOGGED and number == 0:
            table.services.compaction.run(force=True)
            states.append(rows)
    if index in LOGGED:
        table.services.compaction.schedule(force=True)
    instants = [instant.requested for instant, _ in table.commits()]
    with pytest.raises(SimulatedCrash):
        VERBS["upsert"].run(open_as(FaultyStorage(storage, _last_data_file(storage)), LOST))
    return History(storage, tuple(instants), tuple(states))


def _last_data_file(storage: Storage) -> int:
    """Return the step of an upsert at which its last data file is closed and no commit exists."""
    tried = FaultyStorage(copy_of(storage))
    VERBS["upsert"].run(open_as(tried, LOST))
    return max(n for n, name in enumerate(tried.trace, start=1) if name.startswith("close") and name[-4:] != ".tmp")


def restore(storage: Storage, index: str, pid: int = CRASHED, **options: str) -> object:
    """Restore to the second commit, as a process for which all processes with smaller ids have ended."""
    return open_as(storage, pid, range(LOST, pid), **options).restore(history(index).instants[1])


def timeline_of(storage: Storage) -> list[tuple[str, str]]:
    """Return the actions and states of the instants of the timeline, in order."""
    return [(str(instant.action), instant.state.name) for instant in open_as(storage, THIRD).timeline]


@cache
def trace(index: str) -> tuple[str, ...]:
    """Return the storage steps of a successful restore."""
    storage = FaultyStorage(copy_of(history(index).storage))
    restore(storage, index, SURVIVOR)
    return tuple(storage.trace)


def is_restoring(storage: Storage) -> bool:
    """Whether a restore is pending."""
    return open_as(storage, THIRD).timeline.pending_restore() is not None


def refused(storage: Storage, index: str) -> None:
    """Check that writers and services are refused with a message that says how to finish the pending restore."""
    target = history(index).instants[1]
    table = open_as(storage, THIRD, range(LOST, THIRD))
    verbs: list[Callable[[], object]] = [lambda: table.upsert(batch(RECOVERY)), table.rollback_failed, table.savepoint]
    if index in LOGGED:
        verbs.append(lambda: table.services.compaction.run(force=True))
    lazy = open_as(storage, THIRD, range(LOST, THIRD), **{"hoodie.clean.failed.writes.policy": "LAZY"})
    for verb in (*verbs, lambda: lazy.upsert(batch(RECOVERY))):
        with pytest.raises(RetryableError, match=f"restore run --table .* --to {target}"):
            verb()


def settled(storage: Storage, rows: Rows) -> None:
    """Check that the table has these rows and no leftover files, and that it can be written."""
    assert rows_of(storage) == rows
    # A restore without work does not acquire the table lock, so the lock of a crashed process may remain. A metadata
    # table that was being built remains until the next write, which builds it.
    assert {path for path in leftovers(storage) if not path.startswith(f"{METADATA}/")} <= {".hoodie/lock"}
    open_as(storage, THIRD, range(LOST, THIRD)).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert leftovers(storage) == []


@pytest.mark.parametrize("index", TABLES)
def test_next_restore_completes_the_restore_after_a_crash_at_any_step(index: str) -> None:
    whole = copy_of(history(index).storage)
    restore(whole, index, CRASHED)
    phases = set()
    for step, mode in share_of(points(trace(index)), index, 10):
        storage = copy_of(history(index).storage)
        with pytest.raises(SimulatedCrash):
            restore(FaultyStorage(storage, step, mode), index)
        assert rows_of(storage) in history(index).states, "readers must see the state of some commit"
        phases.add(is_restoring(storage))
        if is_restoring(storage):
            refused(storage, index)
        restore(storage, index, SURVIVOR)
        assert timeline_of(storage) == timeline_of(whole)
        settled(storage, history(index).states[1])
    assert phases == {True, False}


@pytest.mark.parametrize("index", TABLES)
def test_third_process_completes_the_restore_after_two_crashes(index: str) -> None:
    for first, (step, mode) in enumerate(share_of(points(trace(index)), index, 34)):
        crashed = copy_of(history(index).storage)
        with pytest.raises(SimulatedCrash):
            restore(FaultyStorage(crashed, step, mode), index)
        whole = FaultyStorage(copy_of(crashed))
        restore(whole, index, SURVIVOR)
        for other, fault in share_of(points(whole.trace), first, 22):
            storage = copy_of(crashed)
            with pytest.raises(SimulatedCrash):
                restore(FaultyStorage(storage, other, fault), index, SURVIVOR)
            restore(storage, index, THIRD)
            settled(storage, history(index).states[1])


@pytest.mark.parametrize("index", TABLES)
def test_next_restore_completes_the_restore_after_a_lost_reply_at_any_step(index: str) -> None:
    for step, name in share_of(enumerate(trace(index), start=1), index, 18):
        storage = copy_of(history(index).storage)
        try:
            restore(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), index, SURVIVOR)
        except LakehouseError as error:
            assert isinstance(error, RetryableError), name
            restore(storage, index, SURVIVOR)
        settled(storage, history(index).states[1])


@pytest.mark.parametrize("index", TABLES)
def test_concurrent_restores_have_the_effect_of_one(index: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rival_outcomes = set()

    def rival(storage: Storage) -> None:
        try:
            restore(storage, index, SURVIVOR, **NO_WAIT)
            rival_outcomes.add("done")
        except RetryableError as error:
            assert "lock" in str(error)
            rival_outcomes.add("locked out")

    for number, name in share_of(enumerate(trace(index), start=1), index, 18):
        storage = copy_of(history(index).storage)
        try:
            restore(Interrupted(storage, number, rival, monkeypatch), index, THIRD)
        except RetryableError as error:
            assert re.search("meanwhile|in between|is not finished", str(error)), name
        restore(storage, index, SURVIVOR)
        settled(storage, history(index).states[1])
    assert rival_outcomes == {"done", "locked out"}


def test_metadata_table_is_not_built_between_the_rollbacks_of_a_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollback that began before the restore ends during it. Its build would list files that the restore deletes."""
    storage = MemoryStorage()
    env = Env(storage=storage, processes=Host(CRASHED))
    table = Table.create(storage.root, name="t", record_key=["id"], partition_by=["p"], env=env)
    for value in range(3):
        table.upsert(pa.table({"id": ["a"], "p": ["x"], "v": [value]}))
    target, listed = table.commits()[0][0].requested, []

    def rival(store: Storage) -> None:
        assert is_restoring(store)
        other = open_as(store, SURVIVOR, **NO_WAIT)
        rebuild_dropped(other.loaded, other.services.policies.transaction)
        listed.append(listed_partitions(read_properties(store) or {}))

    open_as(Interrupted(storage, "delete x/", rival, monkeypatch), CRASHED).restore(target)
    assert listed == [((), ())]
    assert listed_partitions(read_properties(storage) or {})[0]
    assert open_as(storage, SURVIVOR).scan().to_arrow().column("v").to_pylist() == [0]


@pytest.mark.parametrize("index", TABLES)
def test_writer_during_a_restore_is_refused_or_undone_or_commits_after_it(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, rival_outcomes = history(index).states[1], []

    def rival(storage: Storage) -> None:
        try:
            open_as(storage, THIRD, [LOST, CRASHED], **NO_WAIT).upsert(batch(RECOVERY))
            rival_outcomes.append("written")
        except RetryableError:
            rival_outcomes.append("refused")

    for number, name in share_of(enumerate(trace(index), start=1), index, 14):
        storage = copy_of(history(index).storage)
        restore(Interrupted(storage, number, rival, monkeypatch), index, SURVIVOR)
        assert rows_of(storage) in ([before, before | RECOVERY] if rival_outcomes[-1] == "written" else [before]), name
        settled(storage, rows_of(storage))
    assert {"written", "refused"} == set(rival_outcomes)


@pytest.mark.parametrize("index", TABLES)
@pytest.mark.parametrize("policy", ["EAGER", "LAZY"])
def test_active_write_is_atomic_when_a_restore_runs_at_any_of_its_steps(
    index: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {"hoodie.clean.failed.writes.policy": policy}
    before, target = history(index).states[1], history(index).instants[1]
    clean = copy_of(history(index).storage)
    open_as(clean, CRASHED, [LOST]).rollback_failed()
    steps = FaultyStorage(copy_of(clean))
    open_as(steps, CRASHED, **several).upsert(batch(RECOVERY))
    outcomes = set()

    def rival(storage: Storage) -> None:
        table = open_as(storage, SURVIVOR, **NO_WAIT)
        try:
            table.restore(target)
        except RetryableError:
            try:
                table.restore(target, force=True)
            except RetryableError as error:
                assert "lock" in str(error)

    for number, name in share_of(enumerate(steps.trace, start=1), index + policy, 10):
        storage = copy_of(clean)
        try:
            open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED, **several).upsert(batch(RECOVERY))
            outcomes.add("written")
        except RetryableError:
            outcomes.add("refused")
            assert rows_of(storage) == before, name
        found = rows_of(storage)
        undone = Action.RESTORE in {instant.action for instant in open_as(storage, THIRD).timeline}
        assert found in (before, before | RECOVERY) or not undone, name
        if index in LOGGED and not undone:
            open_as(storage, SURVIVOR, [LOST]).services.compaction.run()
        settled(storage, found)
    assert outcomes == {"written", "refused"}


@cache
def newest(index: str) -> Storage:
    """Return a table without pending instants; with logs, its newest commit is the planned compaction."""
    storage = copy_of(history(index).storage)
    table = open_as(storage, CRASHED, [LOST])
    table.rollback_failed()
    if index in LOGGED:
        table.services.compaction.run()
    return storage


@pytest.mark.parametrize("index", [*INDEXES, *LOGGED])
def test_next_process_completes_the_rollback_after_a_crash_at_any_step(index: str) -> None:
    table = open_as(newest(index), THIRD)
    (*_, last) = (instant.requested for instant, _ in table.commits())
    after = rows_of(newest(index))
    before = history(index).states[-2] if last in history(index).instants else after
    whole = FaultyStorage(copy_of(newest(index)))
    open_as(whole, SURVIVOR).rollback(last)
    for step, mode in share_of(points(whole.trace), index, 4):
        for by_writer in (False, True):
            storage = copy_of(newest(index))
            with pytest.raises(SimulatedCrash):
                open_as(FaultyStorage(storage, step, mode), CRASHED).rollback(last)
            assert rows_of(storage) in (before, after)
            rows = before
            if by_writer:
                # The next writer completes the rollback if it is on the timeline; otherwise no rollback happens.
                rows = rows_of(storage)
                open_as(storage, SURVIVOR, range(LOST, SURVIVOR)).upsert(batch(RECOVERY))
                rows = rows | RECOVERY
            else:
                open_as(storage, SURVIVOR, range(LOST, SURVIVOR)).rollback(last)
                assert timeline_of(storage) == timeline_of(whole.inner)
            if index in LOGGED:
                assert rows_of(storage) == rows
                open_as(storage, SURVIVOR, range(LOST, SURVIVOR)).services.compaction.run(force=True)
            settled(storage, rows)


@pytest.mark.parametrize(("index", "service"), COMPACTED)
def test_executor_commits_no_deleted_file_when_its_plan_is_rolled_back_at_any_step(
    index: str, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = logged_table(MemoryStorage(), index, service)
    (plan,) = [instant.requested for instant in open_as(planned, THIRD).timeline.where(pending=True)]
    steps, outcomes = FaultyStorage(copy_of(planned)), set()
    SERVICES[service](open_as(steps, CRASHED))

    def rival(storage: Storage) -> None:
        with suppress(RetryableError):
            open_as(storage, SURVIVOR, **NO_WAIT).rollback(plan, force=True)

    for number, name in share_of(enumerate(steps.trace, start=1), index + service, 6):
        storage = copy_of(planned)
        try:
            SERVICES[service](open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
            outcomes.add("done")
        except RetryableError:
            outcomes.add("refused")
        assert rows_of(storage) == BASE, name
        SERVICES[service](open_as(storage, SURVIVOR, [CRASHED]))
        while open_as(storage, THIRD).timeline.where(pending=True):
            SERVICES[service](open_as(storage, SURVIVOR, [CRASHED]))
        settled(storage, BASE)
    assert outcomes == {"done", "refused"}


def _savepoint(table: Table, index: str) -> object:
    return table.savepoint(history(index).instants[1], user="u", comment="c")


def _unsavepoint(table: Table, index: str) -> object:
    return table.delete_savepoint(history(index).instants[1])


@pytest.mark.parametrize("index", ["SIMPLE", "LOGS_SIMPLE", "LOGS_SIMPLE_6"])
def test_next_attempt_creates_or_deletes_the_savepoint_after_a_crash_at_any_step(index: str) -> None:
    # The write of the history may have crashed under the lock.
    dead = range(LOST, CRASHED)
    kept = copy_of(history(index).storage)
    _savepoint(open_as(kept, CRASHED, dead), index)
    for verb, start in ((_savepoint, history(index).storage), (_unsavepoint, kept)):
        whole = FaultyStorage(copy_of(start))
        verb(open_as(whole, CRASHED, dead), index)
        for step, mode in points(whole.trace):
            storage = copy_of(start)
            with pytest.raises(SimulatedCrash):
                verb(open_as(FaultyStorage(storage, step, mode), CRASHED, dead), index)
            table = open_as(storage, SURVIVOR, range(LOST, SURVIVOR))
            if verb is _savepoint or table.timeline.where(action=Action.SAVEPOINT):
                verb(table, index)
            expected = [(history(index).instants[1], State.COMPLETED)] if verb is _savepoint else []
            found = table.timeline.where(action=Action.SAVEPOINT)
            assert [(instant.requested, instant.state) for instant in found] == expected
            assert rows_of(storage) == history(index).states[-1]
