"""Merge on read: writers, planners and executors die at any step, meet at any step, and wake up too late."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TypeVar

import pytest

from lakehouse.core.env import process_state
from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from lakehouse.model.instant import Action, State
from tests.support.killed import (
    BASE,
    LOGGED,
    RECOVERY,
    SERVICES,
    VERBS,
    Interrupted,
    Unanswered,
    batch,
    copy_of,
    leftovers,
    logged_table,
    open_as,
    points,
    rows_of,
    run_verb,
    share_of,
    writes_of,
)

DEAD, SURVIVOR, THIRD = 101, 102, 103
T = TypeVar("T")
NO_WAIT = {"hoodie.write.lock.wait_time_ms": "0"}
EXECUTED = ("compaction", "log compaction")


@cache
def base(index: str, plan: str = "") -> Storage:
    """A table of BASE with logs, with a pending plan if one is named; tests work on copies."""
    return logged_table(MemoryStorage(), index, plan)


@cache
def trace(index: str, verb: str, plan: str = "") -> tuple[str, ...]:
    """The steps of a run that succeeds."""
    storage = FaultyStorage(copy_of(base(index, plan)))
    run_verb(verb, open_as(storage, DEAD))
    return tuple(storage.trace)


def die(storage: Storage, verb: str, step: int, mode: FaultMode, pid: int = DEAD, dead: tuple[int, ...] = ()) -> None:
    with pytest.raises(SimulatedCrash):
        run_verb(verb, open_as(FaultyStorage(storage, step, mode), pid, dead))


def recover(storage: Storage, rows: dict[tuple[str, str], int], dead: tuple[int, ...] = (DEAD,)) -> None:
    """Write as another process, and check that the table is right and nothing is left of the dead."""
    assert rows_of(storage) == rows
    open_as(storage, THIRD, dead).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert leftovers(storage) == []


def pending(storage: Storage) -> list[str]:
    """Return the instants that are not completed."""
    return [instant.requested for instant in open_as(storage, THIRD).timeline.where(pending=True)]


@pytest.mark.parametrize("index", LOGGED)
@pytest.mark.parametrize("verb", ["upsert", "insert", "delete"])
def test_after_a_crash_at_any_step_a_write_to_logs_is_whole_or_absent(index: str, verb: str) -> None:
    outcomes, writes = set(), writes_of(base(index))
    for step, mode in share_of(points(trace(index, verb)), (index, verb), 6):
        storage = copy_of(base(index))
        die(storage, verb, step, mode)
        rows = VERBS[verb].after(BASE) if writes_of(storage) > writes else BASE
        outcomes.add(rows == BASE)
        recover(storage, rows)
    assert outcomes == {True, False}


@pytest.mark.parametrize("index", LOGGED)
def test_after_a_crash_at_any_step_of_planning_there_is_a_whole_plan_or_none(index: str) -> None:
    outcomes = set()
    for step, mode in share_of(points(trace(index, "plan compaction"), every=True), index, 4):
        storage = copy_of(base(index))
        die(storage, "plan compaction", step, mode)
        outcomes.add(len(pending(storage)))
        assert rows_of(storage) == BASE
        outcome = open_as(storage, SURVIVOR, [DEAD]).services.compaction.run(force=True)
        assert isinstance(outcome, Committed)
        recover(storage, BASE)
    assert outcomes == {0, 1}


@pytest.mark.parametrize("index", LOGGED)
@pytest.mark.parametrize("service", EXECUTED)
def test_after_a_crash_at_any_step_the_next_executor_carries_the_plan_out(index: str, service: str) -> None:
    outcomes, writes = set(), writes_of(base(index, service))
    for step, mode in share_of(points(trace(index, service, service)), (index, service), 6):
        storage = copy_of(base(index, service))
        die(storage, service, step, mode)
        done = writes_of(storage) > writes
        outcomes.add(done)
        assert rows_of(storage) == BASE
        run_verb(service, open_as(storage, SURVIVOR, [DEAD]))
        assert writes_of(storage) == writes + 1
        assert pending(storage) == []
        recover(storage, BASE)
    assert outcomes == {True, False}


@pytest.mark.parametrize("service", EXECUTED)
def test_a_second_crash_leaves_the_plan_to_the_third_executor(service: str) -> None:
    for first, (step, mode) in enumerate(share_of(points(trace("LOGS_SIMPLE", service, service)), service, 6)):
        crashed = copy_of(base("LOGS_SIMPLE", service))
        die(crashed, service, step, mode)
        if not pending(crashed):
            break
        whole = FaultyStorage(copy_of(crashed))
        run_verb(service, open_as(whole, SURVIVOR, [DEAD]))
        for other, fault in share_of(points(whole.trace), first, 18):
            storage = copy_of(crashed)
            die(storage, service, other, fault, SURVIVOR, (DEAD,))
            run_verb(service, open_as(storage, THIRD, [DEAD, SURVIVOR]))
            recover(storage, BASE, (DEAD, SURVIVOR))


@pytest.mark.parametrize("verb", ["upsert", *SERVICES])
def test_a_lost_reply_at_any_step_makes_no_commit_look_failed_and_no_failure_committed(verb: str) -> None:
    plan = verb if verb in EXECUTED else ""
    writes = writes_of(base("LOGS_BUCKET", plan))
    for step, name in share_of(enumerate(trace("LOGS_BUCKET", verb, plan), start=1), verb, 6):
        storage = copy_of(base("LOGS_BUCKET", plan))
        try:
            run_verb(verb, open_as(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), DEAD))
            succeeded = True
        except RetryableError:
            succeeded = False
        if verb != "plan compaction":
            assert (writes_of(storage) > writes) == succeeded, name
        rows = VERBS[verb].after(BASE) if verb in VERBS and succeeded else BASE
        # The same process goes on: it is alive, so nobody may have to wait for its lease to end.
        if verb in SERVICES:
            open_as(storage, DEAD).services.compaction.run(force=True)
            open_as(storage, DEAD).services.log_compaction.run()
        assert rows_of(storage) == rows, name
        open_as(storage, DEAD).upsert(batch(RECOVERY))
        assert rows_of(storage) == {**rows, **RECOVERY}, name
        assert leftovers(storage) == [], name


@pytest.mark.parametrize("lands", [True, False])
def test_a_compaction_of_unknown_fate_deletes_nothing_and_keeps_others_off(lands: bool) -> None:
    storage = copy_of(base("LOGS_SIMPLE", "compaction"))
    unanswered = Unanswered(storage, lands=lands)
    with pytest.raises(CommitStateUnknownError):
        run_verb("compaction", open_as(unanswered, DEAD))
    assert unanswered.deleted == []
    if not lands:
        # It may land yet, so while the executor lives and its lease lasts, nobody may delete its files.
        (requested,) = pending(storage)
        with pytest.raises(RetryableError, match="another executor, whose heartbeat is valid"):
            open_as(storage, SURVIVOR).services.compaction.run(instant=requested)
    run_verb("compaction", open_as(storage, SURVIVOR, [DEAD]))
    assert pending(storage) == []
    recover(storage, BASE)


@pytest.mark.parametrize("service", EXECUTED)
def test_a_second_executor_is_refused_while_the_first_lives(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (requested,) = pending(base("LOGS_SIMPLE", service))
    turns: list[str] = []

    def rival(storage: Storage) -> None:
        services = open_as(storage, SURVIVOR, **NO_WAIT).services
        run = services.compaction.run if service == "compaction" else services.log_compaction.run
        try:
            run(instant=requested)
            turns.append("done")
        except RetryableError as error:
            assert requested in str(error) or f'"pid": {DEAD}' in str(error)
            turns.append("refused")
        except UserError as error:
            assert f"{requested} is completed" in str(error)
            turns.append("too late")

    for number, name in share_of(enumerate(trace("LOGS_SIMPLE", service, service), start=1), service, 6):
        storage = copy_of(base("LOGS_SIMPLE", service))
        try:
            run_verb(service, open_as(Interrupted(storage, number, rival, monkeypatch), DEAD))
        except (RetryableError, UserError):
            assert turns[-1] == "done", name
        assert writes_of(storage) == writes_of(base("LOGS_SIMPLE", service)) + 1, name
        recover(storage, BASE, ())
    assert list(dict.fromkeys(turns)) == ["done", "refused", "too late"]


@pytest.mark.parametrize("service", EXECUTED)
def test_an_executor_taken_for_dead_that_wakes_up_late_does_not_commit(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = writes_of(base("LOGS_SIMPLE", service))

    def rival(storage: Storage) -> None:
        run_verb(service, open_as(storage, SURVIVOR, [DEAD]))

    for number, name in share_of(enumerate(trace("LOGS_SIMPLE", service, service), start=1), service, 6):
        if name.startswith("create") and name.endswith("commit"):
            # Between the last look at the lock and the commit nothing can hold a rival off but the length of the lease.
            continue
        storage = copy_of(base("LOGS_SIMPLE", service))
        try:
            run_verb(service, open_as(Interrupted(storage, number, rival, monkeypatch), DEAD))
        except LakehouseError as error:
            assert isinstance(error, RetryableError | UserError), name
        assert writes_of(storage) in (writes + 1, writes + 2), name
        recover(storage, BASE)


class Suspended:
    """A run in a thread of its own that stops before one of its steps, until it is told to go on."""

    def __init__(self, inner: Storage, at: int, run: Callable[[Storage], object]) -> None:
        self.reached, self.resumed = threading.Event(), threading.Event()
        self.error: BaseException | None = None
        self.store = _Gate(inner, at, self)
        self.thread = threading.Thread(target=self._run, args=(run,))
        self.thread.start()
        assert self.reached.wait(30)

    def _run(self, run: Callable[[Storage], object]) -> None:
        try:
            run(self.store)
        except LakehouseError as error:
            self.error = error
        finally:
            self.reached.set()

    def resume(self) -> None:
        """Let it run to its end."""
        self.resumed.set()
        self.thread.join(30)
        assert not self.thread.is_alive()


class _Gate(FaultyStorage):
    def __init__(self, inner: Storage, at: int, owner: Suspended) -> None:
        super().__init__(inner)
        self.at, self.owner = at, owner

    def step(self, name: str, call: Callable[[], T]) -> T:
        with self._lock:
            self.at -= 1
            is_due = self.at == 0
        if is_due:
            self.owner.reached.set()
            assert self.owner.resumed.wait(30)
        return super().step(name, call)


@pytest.mark.parametrize("service", EXECUTED)
def test_an_executor_that_wakes_up_while_its_successor_is_at_work_takes_nothing_from_it(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = trace("LOGS_SIMPLE", service, service)
    claimed = next(n for n, name in enumerate(steps, start=1) if "claim-" in name)
    commit = next(n for n, name in enumerate(steps, start=1) if name.startswith("create") and name.endswith("commit"))
    # With all of its files written and nothing but the claim between it and the commit.
    ready = max(n for n, name in enumerate(steps[:commit], start=1) if name == "replace_if .hoodie/lock")
    for sleeps in {*share_of(range(claimed + 1, commit), service, 4), ready}:
        for wakes in share_of(range(2, commit + 8), sleeps, 4 if sleeps == ready else 14):
            storage = copy_of(base("LOGS_SIMPLE", service))
            first = Suspended(storage, sleeps, lambda store: run_verb(service, open_as(store, DEAD, **NO_WAIT)))
            # The successor is another process and does not see the locks that the first one holds in memory.
            monkeypatch.setattr(process_state(), "_thread_locks", {})
            succeeded = True
            try:
                late = Interrupted(storage, wakes, lambda _, first=first: first.resume(), monkeypatch)  # type: ignore[misc]
                run_verb(service, open_as(late, SURVIVOR, [DEAD], **NO_WAIT))
            except LakehouseError:
                succeeded = False
            first.resume()
            where = (steps[sleeps - 1], wakes)
            assert rows_of(storage) == BASE, where
            if pending(storage):
                assert not succeeded, where
                run_verb(service, open_as(storage, THIRD, [DEAD, SURVIVOR]))
            recover(storage, BASE, (DEAD, SURVIVOR))


@pytest.mark.parametrize("index", LOGGED)
@pytest.mark.parametrize("service", EXECUTED)
def test_a_writer_may_commit_at_any_step_of_a_running_plan(
    index: str, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[bool] = []

    def rival(storage: Storage) -> None:
        try:
            VERBS["upsert"].run(open_as(storage, SURVIVOR, **NO_WAIT))
            turns.append(True)
        except RetryableError as error:
            assert f'"pid": {DEAD}' in str(error), "only the lock may be in the way of a writer"
            turns.append(False)

    steps = trace(index, service, service)
    for number in share_of(range(1, len(steps) + 1), (index, service), 6):
        storage = copy_of(base(index, service))
        run_verb(service, open_as(Interrupted(storage, number, rival, monkeypatch), DEAD))
        assert pending(storage) == []
        rows = VERBS["upsert"].after(BASE) if turns[-1] else BASE
        assert rows_of(storage) == rows, steps[number - 1]
        open_as(storage, SURVIVOR).services.compaction.run(force=True)
        recover(storage, rows, ())
    assert set(turns) == {True, False}


def check_plans(storage: Storage) -> None:
    """Assert that the plans nobody carried out hold no log of a commit that is not completed before them."""
    table = open_as(storage, THIRD).refresh()
    completed = {instant.requested: instant.completion for instant in table.timeline.writes()}
    for plan in table.timeline.where(action={Action.COMPACTION, Action.LOGCOMPACTION}, pending=True):
        data = table.store.read(plan, State.REQUESTED)
        assert data
        for operation in decode_compaction_plan(data).operations:
            logs = [parse_log_file(name, operation.partition, 0) for name in operation.log_files]
            assert all(log is not None and completed[log.instant] < plan.requested for log in logs)


@pytest.mark.parametrize("index", LOGGED)
@pytest.mark.parametrize("verb", ["upsert", "insert", "delete", "insert_overwrite", "delete_partitions"])
def test_a_plan_may_be_made_and_carried_out_at_any_step_of_a_writer(
    index: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = "compaction"

    def rival(storage: Storage) -> None:
        with suppress(RetryableError):
            run_verb(service, open_as(storage, SURVIVOR, **NO_WAIT))
        check_plans(storage)

    steps = trace(index, verb)
    for number in share_of(range(1, len(steps) + 1), (index, verb), 8):
        service = ("plan compaction", "compaction", "log compaction")[number // 4 % 3]
        storage = copy_of(base(index))
        VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), DEAD))
        rows, name = VERBS[verb].after(BASE), (service, steps[number - 1])
        assert rows_of(storage) == rows, name
        with suppress(RetryableError):
            open_as(storage, SURVIVOR).services.compaction.run(force=True)
        assert pending(storage) == []
        recover(storage, rows, ())


@pytest.mark.parametrize("index", LOGGED)
def test_two_writers_and_a_planner_meet_at_any_step_and_nothing_is_lost(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {"hoodie.clean.failed.writes.policy": "LAZY"}
    other = {("b", "b1"): 3, ("b", "b2"): 3}
    mine = {("a", "a1"): 2, ("a", "a2"): 2}
    turns: list[bool] = []

    def rival(storage: Storage) -> None:
        try:
            open_as(storage, SURVIVOR, **NO_WAIT, **several).upsert(batch(other))
            turns.append(True)
        except RetryableError:
            turns.append(False)
        with suppress(RetryableError):
            open_as(storage, THIRD, **NO_WAIT).services.compaction.schedule(force=True)
        check_plans(storage)

    steps = FaultyStorage(copy_of(base(index)))
    open_as(steps, DEAD, **several).upsert(batch(mine))
    for number in share_of(range(1, steps.steps + 1), index, 6):
        storage = copy_of(base(index))
        open_as(Interrupted(storage, number, rival, monkeypatch), DEAD, **several).upsert(batch(mine))
        rows = BASE | mine | (other if turns[-1] else {})
        assert rows_of(storage) == rows, steps.trace[number - 1]
        open_as(storage, SURVIVOR).services.compaction.run(force=True)
        recover(storage, rows, ())
    assert turns.count(True) > len(turns) // 2
