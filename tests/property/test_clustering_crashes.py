"""Clustering planners, executors and writers crash at any step, run beside each other, or resume after takeover."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from tests.support.killed import (
    BASE,
    RECOVERY,
    VERBS,
    Interrupted,
    Unanswered,
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
TYPES = ("SIMPLE", "LOGS_SIMPLE", "SIMPLE_6", "LOGS_SIMPLE_6")
NO_WAIT = {"hoodie.write.lock.wait_time_ms": "0"}
SORTED = {"hoodie.clustering.plan.strategy.sort.columns": "v,id", "hoodie.layout.optimize.strategy": "hilbert"}
WRITES = (
    "upsert",
    "insert",
    "bulk_insert",
    "delete",
    "insert_overwrite",
    "insert_overwrite_table",
    "delete_partitions",
)


def plan(storage: Storage, pid: int = CRASHED, dead: tuple[int, ...] = (), **options: str) -> object:
    return open_as(storage, pid, dead, **SORTED, **options).services.clustering.schedule(force=True)


def run(storage: Storage, pid: int = CRASHED, dead: tuple[int, ...] = (), **options: str) -> object:
    return open_as(storage, pid, dead, **SORTED, **options).services.clustering.run(force=True)


ACTS: dict[str, Callable[..., object]] = {"plan": plan, "run": run}


@cache
def base(kind: str, planned: bool = False) -> Storage:
    """Return a table of BASE with several file groups per partition, and log files on merge on read.

    With `planned`, a clustering is already scheduled. Tests work on copies.
    """
    storage = MemoryStorage()
    table = create(storage, kind)
    for part in range(2):
        table.bulk_insert(batch({key: 0 for number, key in enumerate(sorted(BASE)) if number % 2 == part}))
    table.upsert(batch(BASE))
    if planned:
        plan(storage)
    return storage


@cache
def trace(kind: str, act: str, planned: bool = False) -> tuple[str, ...]:
    """Return the storage steps of a run that succeeds."""
    storage = FaultyStorage(copy_of(base(kind, planned)))
    ACTS[act](storage)
    return tuple(storage.trace)


def recover(storage: Storage, rows: dict[tuple[str, str], int], dead: tuple[int, ...] = (CRASHED,)) -> None:
    """Write as another process, and check that the rows are right and no file of a crashed process remains."""
    assert rows_of(storage) == rows
    open_as(storage, THIRD, dead).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert leftovers(storage) == []


def pending(storage: Storage) -> list[str]:
    """Return the instants that are not completed."""
    return [instant.requested for instant in open_as(storage, THIRD).timeline.where(pending=True)]


@pytest.mark.parametrize("kind", TYPES)
def test_clustering_plan_is_whole_or_absent_after_a_crash_at_any_step(kind: str) -> None:
    outcomes = set()
    for step, mode in points(trace(kind, "plan")):
        storage = copy_of(base(kind))
        with pytest.raises(SimulatedCrash):
            plan(FaultyStorage(storage, step, mode))
        outcomes.add(len(pending(storage)))
        assert rows_of(storage) == BASE
        assert isinstance(run(storage, SURVIVOR, (CRASHED,)), Committed)
        recover(storage, BASE)
    assert outcomes == {0, 1}


@pytest.mark.parametrize("kind", TYPES)
def test_next_executor_executes_the_plan_after_a_crash_at_any_step(kind: str) -> None:
    outcomes, writes = set(), writes_of(base(kind))
    for step, mode in share_of(points(trace(kind, "run", True)), kind, 6):
        storage = copy_of(base(kind, True))
        with pytest.raises(SimulatedCrash):
            run(FaultyStorage(storage, step, mode))
        done = writes_of(storage) > writes
        outcomes.add(done)
        assert rows_of(storage) == BASE
        assert isinstance(run(storage, SURVIVOR, (CRASHED,)), NothingToDo if done else Committed)
        assert writes_of(storage) == writes + 1
        assert pending(storage) == []
        recover(storage, BASE)
    assert outcomes == {True, False}


def test_third_executor_executes_the_plan_after_two_crashes() -> None:
    for first, (step, mode) in enumerate(share_of(points(trace("SIMPLE", "run", True)), "twice", 10)):
        crashed = copy_of(base("SIMPLE", True))
        with pytest.raises(SimulatedCrash):
            run(FaultyStorage(crashed, step, mode))
        if not pending(crashed):
            break
        whole = FaultyStorage(copy_of(crashed))
        run(whole, SURVIVOR, (CRASHED,))
        for other, fault in share_of(points(whole.trace), first, 28):
            storage = copy_of(crashed)
            with pytest.raises(SimulatedCrash):
                run(FaultyStorage(storage, other, fault), SURVIVOR, (CRASHED,))
            run(storage, THIRD, (CRASHED, SURVIVOR))
            recover(storage, BASE, (CRASHED, SURVIVOR))


@pytest.mark.parametrize("act", ACTS)
def test_clustering_reports_its_outcome_correctly_after_a_lost_reply_at_any_step(act: str) -> None:
    writes = writes_of(base("SIMPLE"))
    for step, name in share_of(enumerate(trace("SIMPLE", act, act == "run"), start=1), act, 8):
        storage = copy_of(base("SIMPLE", act == "run"))
        try:
            ACTS[act](FaultyStorage(storage, step, FaultMode.LOSE_REPLY))
            succeeded = True
        except RetryableError:
            succeeded = False
        if act == "run":
            assert (writes_of(storage) > writes) == succeeded, name
        # The same process continues. It still runs, so its own lease must not block it.
        run(storage)
        assert pending(storage) == [], name
        recover(storage, BASE, ())


@pytest.mark.parametrize("lands", [True, False])
def test_clustering_deletes_nothing_and_keeps_its_claim_when_its_commit_state_is_unknown(lands: bool) -> None:
    storage = copy_of(base("SIMPLE", True))
    unanswered = Unanswered(storage, lands=lands)
    with pytest.raises(CommitStateUnknownError):
        run(unanswered)
    assert unanswered.deleted == []
    if not lands:
        (requested,) = pending(storage)
        with pytest.raises(RetryableError, match="another executor, whose heartbeat is valid"):
            open_as(storage, SURVIVOR).services.clustering.run(instant=requested)
    run(storage, SURVIVOR, (CRASHED,))
    assert pending(storage) == []
    recover(storage, BASE)


def test_second_executor_is_refused_while_the_first_is_active(monkeypatch: pytest.MonkeyPatch) -> None:
    (requested,) = pending(base("SIMPLE", True))
    turns: list[str] = []

    def rival(storage: Storage) -> None:
        try:
            open_as(storage, SURVIVOR, **NO_WAIT).services.clustering.run(instant=requested)
            turns.append("done")
        except RetryableError as error:
            assert requested in str(error) or f'"pid": {CRASHED}' in str(error)
            turns.append("refused")
        except UserError as error:
            assert f"{requested} is completed" in str(error)
            turns.append("too late")

    steps = list(enumerate(trace("SIMPLE", "run", True), start=1))
    for number, name in [*share_of(steps, "second", 8), steps[-1]]:
        storage = copy_of(base("SIMPLE", True))
        try:
            run(Interrupted(storage, number, rival, monkeypatch))
        except (RetryableError, UserError):
            assert turns[-1] == "done", name
        assert writes_of(storage) == writes_of(base("SIMPLE")) + 1, name
        recover(storage, BASE, ())
    assert list(dict.fromkeys(turns)) == ["done", "refused", "too late"]


@pytest.mark.parametrize("kind", TYPES)
def test_stale_executor_does_not_commit_after_another_took_over(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = writes_of(base(kind))

    def rival(storage: Storage) -> None:
        run(storage, SURVIVOR, (CRASHED,))

    for number, name in share_of(enumerate(trace(kind, "run", True), start=1), kind, 10):
        if name.startswith("create") and name.endswith("commit"):
            # Between the last lock check and the commit, only the remaining lease time keeps a rival away.
            continue
        storage = copy_of(base(kind, True))
        try:
            run(Interrupted(storage, number, rival, monkeypatch))
        except LakehouseError as error:
            assert isinstance(error, RetryableError | UserError), name
        assert writes_of(storage) == writes + 1, name
        recover(storage, BASE)


@pytest.mark.parametrize("updates", ["reject", "give_way"])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("verb", WRITES)
def test_clustering_loses_no_row_when_a_write_runs_at_any_of_its_steps(
    kind: str, verb: str, updates: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    def rival(storage: Storage) -> None:
        options = {"hoodie.clustering.updates.strategy": updates}
        try:
            VERBS[verb].run(open_as(storage, SURVIVOR, **NO_WAIT, **options))
            turns.append("wrote")
        except RetryableError as error:
            turns.append("locked" if f'"pid": {CRASHED}' in str(error) else "refused")

    steps = trace(kind, "run", True)
    for number in share_of(range(1, len(steps) + 1), (kind, verb, updates), 34):
        storage = copy_of(base(kind, True))
        outcome = run(Interrupted(storage, number, rival, monkeypatch))
        rows = VERBS[verb].after(BASE) if turns[-1] == "wrote" else BASE
        name = (steps[number - 1], turns[-1])
        assert rows_of(storage) == rows, name
        assert pending(storage) == [], name
        if isinstance(outcome, NothingToDo):
            assert turns[-1] == "wrote" and "was dropped" in outcome.reason, name
            run(storage, SURVIVOR)
        recover(storage, rows, ())
    assert updates == "reject" or "refused" not in turns


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("verb", WRITES)
def test_write_fails_only_before_its_start_when_a_clustering_runs_at_any_of_its_steps(
    kind: str, verb: str, act: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    def rival(storage: Storage) -> None:
        try:
            outcome = ACTS[act](storage, SURVIVOR, **NO_WAIT)
            turns.append("nothing" if isinstance(outcome, NothingToDo) else "done")
        except RetryableError:
            turns.append("later")

    whole = FaultyStorage(copy_of(base(kind)))
    VERBS[verb].run(open_as(whole, CRASHED))
    requested = next(n for n, name in enumerate(whole.trace, start=1) if name.endswith(".requested"))
    for number in share_of(range(1, whole.steps + 1), (kind, verb, act), 30):
        storage = copy_of(base(kind))
        try:
            VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
            rows = VERBS[verb].after(BASE)
        except RetryableError as error:
            # The clustering was planned before the write started. The write can be retried afterwards.
            assert number <= requested and turns[-1] != "nothing", (number, whole.trace[number - 1], str(error))
            rows = BASE
        assert rows_of(storage) == rows, whole.trace[number - 1]
        for _ in range(2):
            run(storage, SURVIVOR)
        assert pending(storage) == []
        recover(storage, rows, ())


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("verb", WRITES)
def test_write_of_a_single_writer_commits_when_a_planned_clustering_runs_at_any_of_its_steps(
    kind: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []

    def rival(storage: Storage) -> None:
        try:
            outcome = run(storage, SURVIVOR, **NO_WAIT)
            dropped = isinstance(outcome, NothingToDo) and "was dropped" in outcome.reason
            turns.append("dropped" if dropped else "done")
        except RetryableError:
            turns.append("later")

    whole = FaultyStorage(copy_of(base(kind, True)))
    VERBS[verb].run(open_as(whole, CRASHED))
    rows = VERBS[verb].after(BASE)
    for number in share_of(range(1, whole.steps + 1), (kind, verb, "planned"), 8):
        storage = copy_of(base(kind, True))
        step = whole.trace[number - 1]
        # A lock that the clustering holds for a moment delays a write; it does not fail it.
        outcome = VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        assert isinstance(outcome, Committed), (step, turns[-1], outcome)
        assert rows_of(storage) == rows, (step, turns[-1])
        for _ in range(2):
            run(storage, SURVIVOR)
        assert pending(storage) == []
        recover(storage, rows, ())
    assert "done" in turns


@pytest.mark.parametrize("kind", TYPES)
def test_plan_dropped_for_a_write_does_not_remain_after_a_crash_of_its_executor(kind: str) -> None:
    def with_conflict() -> Storage:
        storage = copy_of(base(kind, True))
        # A write of all file groups: nothing of the plan remains.
        open_as(storage, THIRD).upsert(batch(BASE))
        return storage

    first, rows = with_conflict(), BASE
    whole = FaultyStorage(copy_of(first))
    (requested,) = pending(first)
    assert isinstance(open_as(whole, CRASHED).services.clustering.run(instant=requested), NothingToDo)
    assert rows_of(whole.inner) == rows and leftovers(whole.inner) == []
    for step, mode in share_of(points(whole.trace), kind, 8):
        storage = copy_of(first)
        with pytest.raises(SimulatedCrash):
            open_as(FaultyStorage(storage, step, mode), CRASHED).services.clustering.run(instant=requested)
        assert rows_of(storage) == rows
        assert isinstance(run(storage, SURVIVOR, (CRASHED,)), Committed), "a new clustering is planned instead"
        assert requested not in pending(storage)
        recover(storage, rows)


@pytest.mark.parametrize("kind", TYPES)
def test_completed_clustering_is_rolled_back_to_its_plan_and_run_again(kind: str) -> None:
    storage = copy_of(base(kind, True))
    (requested,) = pending(storage)
    run(storage)
    table = open_as(storage, SURVIVOR)
    table.rollback(requested)
    # In version 6 the plan is a replacecommit like any other, and is deleted.
    planned = [] if kind.endswith("_6") else [requested]
    assert rows_of(storage) == BASE and pending(storage) == planned
    again = table.services.clustering.run(instant=requested) if planned else run(storage, SURVIVOR)
    assert isinstance(again, Committed)
    recover(storage, BASE, ())
    table.restore(table.commits()[0][0].requested)
    assert pending(storage) == [] and leftovers(storage) == []
