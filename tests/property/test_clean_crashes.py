"""Clean runs that crash at any step, run beside writers and other cleans, or resume after their lease expired."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.timeline.clean import decode_clean_metadata
from lakehouse.core.metadata.place import DEFINITIONS_PATH
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage, is_temporary
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from lakehouse.model.instant import Action, Instant, State
from tests.support.killed import (
    BASE,
    RECOVERY,
    VERBS,
    Interrupted,
    Rows,
    batch,
    copy_of,
    create,
    open_as,
    points,
    rows_of,
    share_of,
)

CRASHED, SURVIVOR, THIRD = 101, 102, 103
NO_WAIT = {"hoodie.write.lock.wait_time_ms": "0"}
CLEANING = {"hoodie.clean.commits.retained": "2"}
KINDS = ("SIMPLE", "LOGS_SIMPLE", "LOGS_BUCKET", "SIMPLE_6", "LOGS_SIMPLE_6")


@cache
def unplanned(kind: str) -> Storage:
    storage = MemoryStorage()
    table = create(storage, kind)
    table.bulk_insert(batch({key: 0 for key in BASE} | {("x", "x1"): 1}))
    table.upsert(batch({("a", "a0"): 1, ("b", "b0"): 1}))
    if not kind.startswith("SIMPLE"):
        table.services.compaction.run(force=True)
    table.delete_partitions(["x"])
    table.insert_overwrite(batch({key: 1 for key in BASE if key[0] == "b"}))
    table.upsert(batch({key: 1 for key in BASE if key[0] == "a"}))
    if not kind.startswith("SIMPLE"):
        table.services.compaction.run(force=True)
    table.upsert(batch({("a", "a0"): 1}))
    table.upsert(batch({("a", "a1"): 1}))
    return storage


@cache
def with_plan(kind: str) -> Storage:
    storage = copy_of(unplanned(kind))
    assert isinstance(open_as(storage, 1, **CLEANING).services.clean.schedule(), Instant)
    return storage


def base(kind: str, planned: bool = False) -> Storage:
    """Return a table of BASE with old versions, replaced file groups and a deleted partition to clean.

    With `planned`, a clean is already scheduled on its timeline.
    """
    return with_plan(kind) if planned else unplanned(kind)


def clean(table: Table) -> object:
    return table.services.clean.run(force=True)


def cleaner(storage: Storage, pid: int, *dead: int, **options: str) -> Table:
    return open_as(storage, pid, dead, **CLEANING, **options)


@cache
def trace(kind: str, planned: bool = False) -> tuple[str, ...]:
    """Return the storage steps of a successful clean run."""
    storage = FaultyStorage(copy_of(base(kind, planned)))
    clean(cleaner(storage, CRASHED))
    return tuple(storage.trace)


@cache
def expected(kind: str) -> frozenset[str]:
    """Return the data files that remain after a clean run."""
    storage = copy_of(base(kind))
    clean(cleaner(storage, CRASHED))
    return frozenset(data_files(storage))


def data_files(storage: Storage) -> set[str]:
    names = {file.path: file.name for file in storage.list("") if not file.path.startswith(".hoodie/")}
    return {p for p, name in names.items() if parse_base_file(name, "", 0) or parse_log_file(name, "", 0)}


def cleans(storage: Storage) -> list[Instant]:
    return list(open_as(storage, THIRD).timeline.where(action=Action.CLEAN))


def check(storage: Storage, kind: str, rows: Rows = BASE) -> None:
    """Assert that the rows are right, each plan was executed once, and only the expected data files remain."""
    assert rows_of(storage) == rows
    done = cleans(storage)
    assert all(instant.is_completed for instant in done) and done
    store = open_as(storage, THIRD).refresh().store
    removed = [path for i in done for path in decode_clean_metadata(store.read(i, State.COMPLETED) or b"").deleted]
    assert len(removed) == len(set(removed)), "two plans removed the same file"
    assert data_files(storage).isdisjoint(removed)
    if rows == BASE:
        assert data_files(storage) == expected(kind)
        assert [f.path for f in storage.list("x")] == []


def recover(storage: Storage, dead: tuple[int, ...], rows: Rows = BASE) -> None:
    open_as(storage, THIRD, dead).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    left = [f.path for f in storage.list(".hoodie") if f.path.startswith((".hoodie/.", ".hoodie/lock"))]
    left += [f.path for f in storage.list("") if is_temporary(f.path)]
    assert set(left) <= {DEFINITIONS_PATH}


@pytest.mark.parametrize("planned", [False, True], ids=["plan-and-run", "run"])
@pytest.mark.parametrize("kind", KINDS)
def test_next_clean_completes_the_work_after_a_crash_at_any_step(kind: str, planned: bool) -> None:
    states = set()
    for step, mode in share_of(points(trace(kind, planned)), (kind, planned), 4):
        storage = copy_of(base(kind, planned))
        with pytest.raises(SimulatedCrash):
            clean(cleaner(FaultyStorage(storage, step, mode), CRASHED))
        assert rows_of(storage) == BASE
        states.update(instant.state for instant in cleans(storage))
        clean(cleaner(storage, SURVIVOR, CRASHED))
        check(storage, kind)
        recover(storage, (CRASHED,))
    assert states == set(State)


def test_third_cleaner_executes_the_plan_after_two_crashes() -> None:
    kind = "LOGS_SIMPLE"
    for first, (step, mode) in enumerate(share_of(points(trace(kind, True)), kind, 6)):
        crashed = copy_of(base(kind, True))
        with pytest.raises(SimulatedCrash):
            clean(cleaner(FaultyStorage(crashed, step, mode), CRASHED))
        whole = FaultyStorage(copy_of(crashed))
        clean(cleaner(whole, SURVIVOR, CRASHED))
        for other, fault in share_of(points(whole.trace), first, 10):
            storage = copy_of(crashed)
            with pytest.raises(SimulatedCrash):
                clean(cleaner(FaultyStorage(storage, other, fault), SURVIVOR, CRASHED))
            clean(cleaner(storage, THIRD, CRASHED, SURVIVOR))
            check(storage, kind)
            recover(storage, (CRASHED, SURVIVOR))


@pytest.mark.parametrize("kind", KINDS)
def test_clean_can_be_repeated_after_a_lost_reply_at_any_step(kind: str) -> None:
    for step, name in share_of(enumerate(trace(kind), start=1), kind, 4):
        storage = copy_of(base(kind))
        try:
            clean(cleaner(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), CRASHED))
        except (RetryableError, CommitStateUnknownError):
            assert rows_of(storage) == BASE, name
        # The same process continues. It still runs, so its own lease must not block it.
        clean(cleaner(storage, CRASHED))
        check(storage, kind)


@pytest.mark.parametrize("planned", [False, True], ids=["plan-and-run", "run"])
@pytest.mark.parametrize("kind", KINDS[:2])
def test_two_concurrent_cleaners_execute_each_plan_once(
    kind: str, planned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    def rival(storage: Storage) -> None:
        try:
            clean(cleaner(storage, SURVIVOR, **NO_WAIT))
            turns.append("completed")
        except RetryableError as error:
            assert "another executor, whose heartbeat is valid" in str(error) or f'"pid": {CRASHED}' in str(error)
            turns.append("refused")

    for number, name in share_of(enumerate(trace(kind, planned), start=1), kind, 4):
        storage = copy_of(base(kind, planned))
        try:
            clean(cleaner(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except (RetryableError, UserError):
            assert turns[-1] == "completed", name
        clean(cleaner(storage, THIRD))
        check(storage, kind)
        recover(storage, ())
    assert "completed" in turns


@pytest.mark.parametrize("kind", KINDS[:2])
def test_stale_cleaner_loses_nothing_after_another_took_over(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def rival(storage: Storage) -> None:
        clean(cleaner(storage, SURVIVOR, CRASHED))

    for number, name in share_of(enumerate(trace(kind, True), start=1), kind, 4):
        if name.startswith("create") and name.endswith(".clean"):
            # Between the last lock check and the commit, only the remaining lease time keeps a rival away.
            continue
        storage = copy_of(base(kind, True))
        try:
            clean(cleaner(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except LakehouseError as error:
            assert isinstance(error, RetryableError | UserError), name
        check(storage, kind)
        recover(storage, (CRASHED,))


def others() -> dict[str, tuple[Callable[[Table], object], Callable[[Rows], Rows]]]:
    """Return the operations that may run beside a clean, each with its effect on the rows."""
    found: dict[str, tuple[Callable[[Table], object], Callable[[Rows], Rows]]] = {
        name: (VERBS[name].run, VERBS[name].after) for name in ("upsert", "insert_overwrite", "delete_partitions")
    }
    return found | {
        "compaction": (lambda table: table.services.compaction.run(force=True), lambda rows: rows),
        "savepoint": (lambda table: table.savepoint(), lambda rows: rows),
        "rollback": (lambda table: table.rollback(table.commits()[-1][0].requested), lambda rows: rows),
    }


@pytest.mark.parametrize("other", others())
def test_clean_loses_nothing_when_a_write_or_service_runs_at_any_of_its_steps(
    other: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, (act, after) = "LOGS_SIMPLE", others()[other]
    turns: list[bool] = []

    def rival(storage: Storage) -> None:
        try:
            act(open_as(storage, SURVIVOR, **NO_WAIT))
            turns.append(True)
        except (RetryableError, UserError) as error:
            assert "clean" in str(error) or "is pending" in str(error) or f'"pid": {CRASHED}' in str(error), error
            turns.append(False)

    for number, name in share_of(enumerate(trace(kind), start=1), other, 6):
        storage = copy_of(base(kind))
        try:
            clean(cleaner(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except RetryableError:
            assert turns[-1], name
        rows = after(BASE) if turns[-1] else BASE
        assert rows_of(storage) == rows, name
        for instant in open_as(storage, THIRD).timeline.savepoints():
            assert dict_of(open_as(storage, THIRD), instant) == BASE, name
        clean(cleaner(storage, SURVIVOR))
        assert rows_of(storage) == rows, name
        recover(storage, (CRASHED,), rows)
    assert any(turns)


def dict_of(table: Table, as_of: str) -> Rows:
    """Return the rows of the table as of an instant."""
    found = table.scan(["p", "id", "v"], as_of=as_of).to_arrow().to_pydict()
    return dict(zip(zip(found["p"], found["id"], strict=True), found["v"], strict=True))


def test_write_loses_nothing_when_a_clean_runs_at_any_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[bool] = []
    for verb in ("upsert", "insert_overwrite", "delete"):

        def rival(storage: Storage) -> None:
            try:
                clean(cleaner(storage, SURVIVOR, **NO_WAIT))
                turns.append(True)
            except RetryableError:
                turns.append(False)

        steps = FaultyStorage(copy_of(base("LOGS_BUCKET")))
        VERBS[verb].run(open_as(steps, CRASHED))
        for number in share_of(range(1, steps.steps + 1), verb, 10):
            storage = copy_of(base("LOGS_BUCKET"))
            VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
            rows, name = VERBS[verb].after(BASE), steps.trace[number - 1]
            assert rows_of(storage) == rows, name
            clean(cleaner(storage, SURVIVOR))
            recover(storage, (), rows)
    # At the other steps the writer holds the lock.
    assert turns.count(True) > len(turns) // 4


@cache
def with_empty_partition() -> Storage:
    """Return a table whose three newest writes filled partition x, deleted it, and wrote elsewhere."""
    storage = MemoryStorage()
    table = create(storage, "SIMPLE")
    table.bulk_insert(batch(BASE))
    table.bulk_insert(batch({("x", "x1"): 1}))
    table.delete_partitions(["x"])
    table.upsert(batch({("a", "a0"): BASE["a", "a0"]}))
    return storage


def fill(table: Table) -> object:
    return table.insert(batch({("x", "x2"): 2}))


def clean_all(table: Table) -> object:
    return table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)


@pytest.mark.parametrize("first", [fill, clean_all])
def test_partition_keeps_its_metadata_file_when_a_write_and_a_clean_run_at_once(
    first: Callable[[Table], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write relies on a commit of the partition before the clean, which may delete the metadata file."""
    second = clean_all if first is fill else fill
    steps = FaultyStorage(copy_of(with_empty_partition()))
    first(open_as(steps, CRASHED))
    outcomes = set()
    for number in range(1, steps.steps + 1):
        storage = copy_of(with_empty_partition())
        failed: list[str] = []

        def rival(store: Storage, failed: list[str] = failed) -> None:
            try:
                second(open_as(store, SURVIVOR, **NO_WAIT))
            except RetryableError:
                failed.append("second")

        try:
            first(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except RetryableError:
            failed.append("first")
        filled = ("first" if first is fill else "second") not in failed
        assert rows_of(storage) == BASE | ({("x", "x2"): 2} if filled else {}), steps.trace[number - 1]
        outcomes.add(tuple(failed))
    assert () in outcomes


def test_clean_loses_nothing_when_a_restore_runs_at_any_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    kind, turns = "LOGS_SIMPLE", list[bool]()
    target = open_as(base(kind), 1).commits()[-3][0].requested
    past = dict_of(open_as(base(kind), 1), target)

    def rival(storage: Storage) -> None:
        try:
            open_as(storage, SURVIVOR, **NO_WAIT).restore(target)
            turns.append(True)
        except (RetryableError, UserError) as error:
            assert "clean" in str(error) or f'"pid": {CRASHED}' in str(error), error
            turns.append(False)

    for number, name in enumerate(trace(kind), start=1):
        storage = copy_of(base(kind))
        try:
            clean(cleaner(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except (RetryableError, UserError):
            assert turns[-1], name
        assert rows_of(storage) == (past if turns[-1] else BASE), name
    assert set(turns) == {True, False}
