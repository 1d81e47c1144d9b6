"""Writers crash at any storage step: the table stays whole, and the next write removes all leftover files."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.load.table import load_config
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import CommitStateUnknownError, RetryableError
from tests.support.killed import (
    BASE,
    EXHAUSTIVE,
    INDEXES,
    RECOVERY,
    VERBS,
    Interrupted,
    Rows,
    Unanswered,
    base_table,
    batch,
    copy_of,
    create,
    leftovers,
    open_as,
    points,
    rows_of,
    share_of,
    writes_of,
)

CRASHED, SURVIVOR, THIRD = 101, 102, 103


@cache
def base(index: str) -> Storage:
    """Return the table before the write. Tests work on copies."""
    return base_table(MemoryStorage(), index)


@cache
def trace(index: str, verb: str) -> tuple[str, ...]:
    """Return the storage steps of a write that succeeds."""
    storage = FaultyStorage(copy_of(base(index)))
    VERBS[verb].run(open_as(storage, CRASHED))
    return tuple(storage.trace)


def die(
    storage: Storage, verb: str, step: int, mode: FaultMode, pid: int = CRASHED, dead: tuple[int, ...] = ()
) -> None:
    faulty = FaultyStorage(storage, step, mode)
    with pytest.raises(SimulatedCrash):
        VERBS[verb].run(open_as(faulty, pid, dead))


def expected(storage: Storage, verb: str, before: Rows, writes: int) -> Rows:
    """Return the expected rows: with all changes of the write if its instant completed, otherwise with none."""
    return VERBS[verb].after(before) if writes_of(storage) > writes else before


def recover(storage: Storage, rows: Rows, dead: tuple[int, ...] = (CRASHED,), pid: int = SURVIVOR) -> None:
    """Write as the next process, and check that the rows are right and no file of a crashed process remains."""
    assert rows_of(storage) == rows
    open_as(storage, pid, dead).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert leftovers(storage) == []


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("verb", VERBS)
def test_write_is_whole_or_absent_and_the_next_write_cleans_up_after_a_crash(index: str, verb: str) -> None:
    outcomes = set()
    found = points(trace(index, verb), every=EXHAUSTIVE or (index, verb) == ("SIMPLE", "upsert"))
    for step, mode in share_of(found, (index, verb), 3):
        storage = copy_of(base(index))
        die(storage, verb, step, mode)
        rows = expected(storage, verb, BASE, 2)
        outcomes.add(rows == BASE)
        recover(storage, rows)
    assert outcomes == {True, False}, "the crashes must cover steps before and after the commit"


def test_table_creation_is_whole_or_absent_after_a_crash_at_any_step() -> None:
    whole = FaultyStorage(MemoryStorage())
    create(whole, "SIMPLE")
    for step in share_of(range(1, whole.steps + 1), "creation", 2):
        for mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER):
            storage = MemoryStorage()
            with pytest.raises(SimulatedCrash):
                create(FaultyStorage(storage, step, mode), "SIMPLE", CRASHED)
            create(storage, "SIMPLE", SURVIVOR, [CRASHED]).upsert(batch(RECOVERY))
            assert rows_of(storage) == RECOVERY
            assert leftovers(storage) == []


def test_properties_are_the_old_or_the_new_ones_after_a_crash_of_their_update() -> None:
    seen = set()
    for step in range(1, 6):
        for mode in (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER):
            storage = copy_of(base("SIMPLE"))
            faulty = Env(storage=FaultyStorage(storage, step, mode))
            try:
                update_properties(faulty, {"hoodie.index.type": "GLOBAL_SIMPLE"})
            except SimulatedCrash:
                seen.add(load_config(storage).raw.get("hoodie.index.type"))
            update_properties(Env(storage=storage), {"hoodie.index.type": "SIMPLE"})
            assert load_config(storage).raw["hoodie.index.type"] == "SIMPLE"
            assert rows_of(storage) == BASE
    assert seen == {None, "GLOBAL_SIMPLE"}


def test_third_writer_cleans_up_after_two_crashes() -> None:
    for verb, first in (("upsert", 0.5), ("upsert", 0.8), ("upsert", 0.9), ("insert_overwrite", 0.6)):
        steps = list(points(trace("SIMPLE", verb)))
        step, mode = steps[int(len(steps) * first)]
        crashed = copy_of(base("SIMPLE"))
        die(crashed, verb, step, mode)
        rows, writes = expected(crashed, verb, BASE, 2), writes_of(crashed)
        whole = FaultyStorage(copy_of(crashed))
        open_as(whole, SURVIVOR, [CRASHED]).delete(["b0"])
        for again, (step, mode) in enumerate(points(tuple(whole.trace))):
            if again % 2 and not EXHAUSTIVE:
                continue
            storage = copy_of(crashed)
            with pytest.raises(SimulatedCrash):
                open_as(FaultyStorage(storage, step, mode), SURVIVOR, [CRASHED]).delete(["b0"])
            done = writes_of(storage) > writes
            left = {key: value for key, value in rows.items() if key != ("b", "b0")} if done else rows
            recover(storage, left, (CRASHED, SURVIVOR), THIRD)


@pytest.mark.parametrize("verb", ["upsert", "insert_overwrite"])
def test_write_reports_its_outcome_correctly_after_a_lost_reply_at_any_step(verb: str) -> None:
    for step in share_of(range(1, len(trace("SIMPLE", verb)) + 1), verb, 3):
        storage = copy_of(base("SIMPLE"))
        try:
            VERBS[verb].run(open_as(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), CRASHED))
            succeeded = True
        except RetryableError:
            succeeded = False
        rows = expected(storage, verb, BASE, 2)
        assert (rows != BASE) == succeeded, trace("SIMPLE", verb)[step - 1]
        # The same process continues. It still runs, so its own lease must not block it.
        recover(storage, rows, dead=(), pid=CRASHED)


@pytest.mark.parametrize("lands", [True, False])
def test_commit_of_unknown_state_deletes_nothing_and_the_timeline_decides(lands: bool) -> None:
    storage = copy_of(base("SIMPLE"))
    unanswered = Unanswered(storage, lands=lands)
    with pytest.raises(CommitStateUnknownError):
        VERBS["upsert"].run(open_as(unanswered, CRASHED))
    assert unanswered.deleted == []
    if not lands:
        # The commit may still arrive, so another writer must not roll it back while the heartbeat is valid.
        with pytest.raises(RetryableError, match=r"the write \d+ is active"):
            open_as(storage, SURVIVOR).upsert(batch(RECOVERY))
    rows = VERBS["upsert"].after(BASE) if lands else BASE
    recover(storage, rows)


@pytest.mark.parametrize("verb", ["upsert", "bulk_insert", "insert_overwrite_table", "delete_partitions"])
def test_stale_writer_commits_all_or_nothing_after_its_rollback(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rival(storage: Storage) -> None:
        open_as(storage, SURVIVOR, [CRASHED]).upsert(batch(RECOVERY))

    for number, name in enumerate(trace("SIMPLE", verb), start=1):
        if name.startswith("create") and name.endswith("commit"):
            # Between the last lock check and the commit, only the remaining lease time keeps a rival away.
            continue
        storage = copy_of(base("SIMPLE"))
        try:
            VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
            succeeded = True
        except RetryableError:
            succeeded = False
        orders = [VERBS[verb].after({**BASE, **RECOVERY}), {**VERBS[verb].after(BASE), **RECOVERY}]
        assert rows_of(storage) in (orders if succeeded else [{**BASE, **RECOVERY}]), name
        open_as(storage, THIRD, [CRASHED, SURVIVOR]).upsert(batch({("e", "e1"): 3}))
        assert leftovers(storage) == [], name


@pytest.mark.parametrize("verb", ["upsert", "insert_overwrite"])
def test_concurrent_write_at_any_step_of_an_active_write_succeeds_or_is_refused_without_loss(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []

    def rival(storage: Storage) -> None:
        table = open_as(storage, SURVIVOR, **{"hoodie.write.lock.wait_time_ms": "0"})
        try:
            table.upsert(batch(RECOVERY))
            turns.append(True)
        except RetryableError as error:
            named = re.search(r"\d{17}", str(error)) or f'"pid": {CRASHED}' in str(error)
            assert named, f"the error does not name the blocking write or process: {error}"
            turns.append(False)

    for number, name in enumerate(trace("SIMPLE", verb), start=1):
        storage = copy_of(base("SIMPLE"))
        VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        rows, first = VERBS[verb].after(BASE), VERBS[verb].after({**BASE, **RECOVERY})
        assert rows_of(storage) in ([first, {**rows, **RECOVERY}] if turns[-1] else [rows]), name
        assert leftovers(storage) == [], name
    assert len(turns) == number
    assert turns[0] and turns[-1], "a write before the start or after the commit of the other must succeed"
    assert not all(turns)


def test_column_added_by_a_concurrent_write_is_kept_while_a_write_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    wider = batch(RECOVERY).append_column("w", pa.array(["new"] * len(RECOVERY)))
    turns = 0

    def rival(storage: Storage) -> None:
        nonlocal turns
        with suppress(RetryableError):
            open_as(storage, SURVIVOR, **{"hoodie.write.lock.wait_time_ms": "0"}).upsert(wider)
            turns += 1

    narrow = batch({("a", "a1"): 2})
    options = {"hoodie.write.set.null.for.missing.columns": "true"}
    for number, name in enumerate(trace("SIMPLE", "upsert"), start=1):
        storage = copy_of(base("SIMPLE"))
        before = turns
        open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED, **options).upsert(narrow)
        rows = open_as(storage, SURVIVOR).scan().to_arrow()
        if turns == before:
            break
        assert rows.column_names[-1] == "w", name
        assert sorted(rows.column("w").to_pylist(), key=str) == [None] * 9 + ["new"] * 3, name
    assert turns > 3, "the other write must succeed at several steps before the instant is created"
