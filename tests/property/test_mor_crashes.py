"""Merge-on-read tables: writers, planners and executors crash, interleave or resume late at any storage step."""

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
    COMPACTED,
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

CRASHED, SURVIVOR, THIRD = 101, 102, 103
T = TypeVar("T")
NO_WAIT = {"hoodie.write.lock.wait_time_ms": "0"}
EXECUTED = ("compaction", "log compaction")


@cache
def base(index: str, plan: str = "") -> Storage:
    """Return a table of BASE with log files, and with a pending plan if `plan` names a service. Tests use copies."""
    return logged_table(MemoryStorage(), index, plan)


@cache
def trace(index: str, verb: str, plan: str = "") -> tuple[str, ...]:
    """Return the storage steps of a successful run."""
    storage = FaultyStorage(copy_of(base(index, plan)))
    run_verb(verb, open_as(storage, CRASHED))
    return tuple(storage.trace)


def die(
    storage: Storage, verb: str, step: int, mode: FaultMode, pid: int = CRASHED, dead: tuple[int, ...] = ()
) -> None:
    with pytest.raises(SimulatedCrash):
        run_verb(verb, open_as(FaultyStorage(storage, step, mode), pid, dead))


def recover(storage: Storage, rows: dict[tuple[str, str], int], dead: tuple[int, ...] = (CRASHED,)) -> None:
    """Write as another process; check the rows and that the crashed processes left no files behind."""
    assert rows_of(storage) == rows
    open_as(storage, THIRD, dead).upsert(batch(RECOVERY))
    assert rows_of(storage) == {**rows, **RECOVERY}
    assert leftovers(storage) == []


def pending(storage: Storage) -> list[str]:
    """Return the instants that are not completed."""
    return [instant.requested for instant in open_as(storage, THIRD).timeline.where(pending=True)]


@pytest.mark.parametrize("index", LOGGED)
@pytest.mark.parametrize("verb", ["upsert", "insert", "delete"])
def test_write_to_logs_is_atomic_after_a_crash_at_any_step(index: str, verb: str) -> None:
    outcomes, writes = set(), writes_of(base(index))
    for step, mode in share_of(points(trace(index, verb)), (index, verb), 6):
        storage = copy_of(base(index))
        die(storage, verb, step, mode)
        rows = VERBS[verb].after(BASE) if writes_of(storage) > writes else BASE
        outcomes.add(rows == BASE)
        recover(storage, rows)
    assert outcomes == {True, False}


@pytest.mark.parametrize("index", LOGGED)
def test_scheduling_leaves_a_complete_plan_or_none_after_a_crash_at_any_step(index: str) -> None:
    outcomes = set()
    for step, mode in share_of(points(trace(index, "plan compaction"), every=True), index, 4):
        storage = copy_of(base(index))
        die(storage, "plan compaction", step, mode)
        outcomes.add(len(pending(storage)))
        assert rows_of(storage) == BASE
        outcome = open_as(storage, SURVIVOR, [CRASHED]).services.compaction.run(force=True)
        assert isinstance(outcome, Committed)
        recover(storage, BASE)
    assert outcomes == {0, 1}


@pytest.mark.parametrize(("index", "service"), COMPACTED)
def test_next_executor_completes_the_plan_after_a_crash_at_any_step(index: str, service: str) -> None:
    outcomes, writes = set(), writes_of(base(index, service))
    for step, mode in share_of(points(trace(index, service, service)), (index, service), 6):
        storage = copy_of(base(index, service))
        die(storage, service, step, mode)
        done = writes_of(storage) > writes
        outcomes.add(done)
        assert rows_of(storage) == BASE
        run_verb(service, open_as(storage, SURVIVOR, [CRASHED]))
        assert writes_of(storage) == writes + 1
        assert pending(storage) == []
        recover(storage, BASE)
    assert outcomes == {True, False}


@pytest.mark.parametrize("service", EXECUTED)
def test_third_executor_completes_the_plan_after_two_crashes(service: str) -> None:
    for first, (step, mode) in enumerate(share_of(points(trace("LOGS_SIMPLE", service, service)), service, 6)):
        crashed = copy_of(base("LOGS_SIMPLE", service))
        die(crashed, service, step, mode)
        if not pending(crashed):
            break
        whole = FaultyStorage(copy_of(crashed))
        run_verb(service, open_as(whole, SURVIVOR, [CRASHED]))
        for other, fault in share_of(points(whole.trace), first, 18):
            storage = copy_of(crashed)
            die(storage, service, other, fault, SURVIVOR, (CRASHED,))
            run_verb(service, open_as(storage, THIRD, [CRASHED, SURVIVOR]))
            recover(storage, BASE, (CRASHED, SURVIVOR))


@pytest.mark.parametrize("verb", ["upsert", *SERVICES])
def test_reported_outcome_matches_the_timeline_after_a_lost_reply_at_any_step(verb: str) -> None:
    plan = verb if verb in EXECUTED else ""
    writes = writes_of(base("LOGS_BUCKET", plan))
    for step, name in share_of(enumerate(trace("LOGS_BUCKET", verb, plan), start=1), verb, 6):
        storage = copy_of(base("LOGS_BUCKET", plan))
        try:
            run_verb(verb, open_as(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), CRASHED))
            succeeded = True
        except RetryableError:
            succeeded = False
        if verb != "plan compaction":
            assert (writes_of(storage) > writes) == succeeded, name
        rows = VERBS[verb].after(BASE) if verb in VERBS and succeeded else BASE
        # The same process continues. It still runs, so its lease does not expire and must not block it.
        if verb in SERVICES:
            open_as(storage, CRASHED).services.compaction.run(force=True)
            open_as(storage, CRASHED).services.log_compaction.run()
        assert rows_of(storage) == rows, name
        open_as(storage, CRASHED).upsert(batch(RECOVERY))
        assert rows_of(storage) == {**rows, **RECOVERY}, name
        assert leftovers(storage) == [], name


@pytest.mark.parametrize("lands", [True, False])
def test_compaction_with_unknown_commit_state_deletes_nothing_and_blocks_other_executors(lands: bool) -> None:
    storage = copy_of(base("LOGS_SIMPLE", "compaction"))
    unanswered = Unanswered(storage, lands=lands)
    with pytest.raises(CommitStateUnknownError):
        run_verb("compaction", open_as(unanswered, CRASHED))
    assert unanswered.deleted == []
    if not lands:
        # The commit may still arrive, so no process may delete the files while the lease of the executor is valid.
        (requested,) = pending(storage)
        with pytest.raises(RetryableError, match="another executor, whose heartbeat is valid"):
            open_as(storage, SURVIVOR).services.compaction.run(instant=requested)
    run_verb("compaction", open_as(storage, SURVIVOR, [CRASHED]))
    assert pending(storage) == []
    recover(storage, BASE)


@pytest.mark.parametrize("service", EXECUTED)
def test_second_executor_is_refused_while_the_first_one_runs(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (requested,) = pending(base("LOGS_SIMPLE", service))
    rival_outcomes: list[str] = []

    def rival(storage: Storage) -> None:
        services = open_as(storage, SURVIVOR, **NO_WAIT).services
        run = services.compaction.run if service == "compaction" else services.log_compaction.run
        try:
            run(instant=requested)
            rival_outcomes.append("done")
        except RetryableError as error:
            assert requested in str(error) or f'"pid": {CRASHED}' in str(error)
            rival_outcomes.append("refused")
        except UserError as error:
            assert f"{requested} is completed" in str(error)
            rival_outcomes.append("too late")

    for number, name in share_of(enumerate(trace("LOGS_SIMPLE", service, service), start=1), service, 6):
        storage = copy_of(base("LOGS_SIMPLE", service))
        try:
            run_verb(service, open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except (RetryableError, UserError):
            assert rival_outcomes[-1] == "done", name
        assert writes_of(storage) == writes_of(base("LOGS_SIMPLE", service)) + 1, name
        recover(storage, BASE, ())
    assert list(dict.fromkeys(rival_outcomes)) == ["done", "refused", "too late"]


@pytest.mark.parametrize("service", EXECUTED)
def test_stale_executor_that_resumes_late_does_not_commit(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = writes_of(base("LOGS_SIMPLE", service))

    def rival(storage: Storage) -> None:
        run_verb(service, open_as(storage, SURVIVOR, [CRASHED]))

    for number, name in share_of(enumerate(trace("LOGS_SIMPLE", service, service), start=1), service, 6):
        if name.startswith("create") and name.endswith("commit"):
            # Between the last check of the lock and the commit only the lease time protects against a rival.
            continue
        storage = copy_of(base("LOGS_SIMPLE", service))
        try:
            run_verb(service, open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        except LakehouseError as error:
            assert isinstance(error, RetryableError | UserError), name
        assert writes_of(storage) in (writes + 1, writes + 2), name
        recover(storage, BASE)


class Suspended:
    """A run in its own thread that stops before one of its storage steps until `resume` is called."""

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
        """Continue the run and wait for its end."""
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
def test_stale_executor_that_resumes_during_the_next_execution_does_not_damage_it(
    service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = trace("LOGS_SIMPLE", service, service)
    claimed = next(n for n, name in enumerate(steps, start=1) if "claim-" in name)
    commit = next(n for n, name in enumerate(steps, start=1) if name.startswith("create") and name.endswith("commit"))
    # At this step all files are written; only the check of the claim precedes the commit.
    ready = max(n for n, name in enumerate(steps[:commit], start=1) if name == "replace_if .hoodie/lock")
    for sleeps in {*share_of(range(claimed + 1, commit), service, 12), ready}:
        for wakes in share_of(range(2, commit + 8), sleeps, 8 if sleeps == ready else 28):
            storage = copy_of(base("LOGS_SIMPLE", service))
            first = Suspended(storage, sleeps, lambda store: run_verb(service, open_as(store, CRASHED, **NO_WAIT)))
            # The second executor is another process and does not see the locks that the first one holds in memory.
            monkeypatch.setattr(process_state(), "_thread_locks", {})
            succeeded = True
            try:
                late = Interrupted(storage, wakes, lambda _, first=first: first.resume(), monkeypatch)  # type: ignore[misc]
                run_verb(service, open_as(late, SURVIVOR, [CRASHED], **NO_WAIT))
            except LakehouseError:
                succeeded = False
            first.resume()
            where = (steps[sleeps - 1], wakes)
            assert rows_of(storage) == BASE, where
            if pending(storage):
                assert not succeeded, where
                run_verb(service, open_as(storage, THIRD, [CRASHED, SURVIVOR]))
            recover(storage, BASE, (CRASHED, SURVIVOR))


@pytest.mark.parametrize(("index", "service"), COMPACTED)
def test_writer_commits_at_any_step_of_a_running_plan(
    index: str, service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rival_outcomes: list[bool] = []

    def rival(storage: Storage) -> None:
        try:
            VERBS["upsert"].run(open_as(storage, SURVIVOR, **NO_WAIT))
            rival_outcomes.append(True)
        except RetryableError as error:
            assert f'"pid": {CRASHED}' in str(error), "only the table lock may block a writer"
            rival_outcomes.append(False)

    steps = trace(index, service, service)
    for number in share_of(range(1, len(steps) + 1), (index, service), 6):
        storage = copy_of(base(index, service))
        run_verb(service, open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        assert pending(storage) == []
        rows = VERBS["upsert"].after(BASE) if rival_outcomes[-1] else BASE
        assert rows_of(storage) == rows, steps[number - 1]
        open_as(storage, SURVIVOR).services.compaction.run(force=True)
        recover(storage, rows, ())
    assert set(rival_outcomes) == {True, False}


def check_plans(storage: Storage) -> None:
    """Check that pending plans contain only log files of commits that completed before the plan was requested."""
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
def test_plan_is_scheduled_and_executed_at_any_step_of_a_writer(
    index: str, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = "compaction"

    def rival(storage: Storage) -> None:
        with suppress(RetryableError):
            run_verb(service, open_as(storage, SURVIVOR, **NO_WAIT))
        check_plans(storage)

    steps = trace(index, verb)
    for number in share_of(range(1, len(steps) + 1), (index, verb), 8):
        services = ("plan compaction", "compaction", "log compaction")[: 2 if index.endswith("_6") else 3]
        service = services[number // 4 % len(services)]
        storage = copy_of(base(index))
        VERBS[verb].run(open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED))
        rows, name = VERBS[verb].after(BASE), (service, steps[number - 1])
        assert rows_of(storage) == rows, name
        with suppress(RetryableError):
            open_as(storage, SURVIVOR).services.compaction.run(force=True)
        assert pending(storage) == []
        recover(storage, rows, ())


@pytest.mark.parametrize("index", LOGGED)
def test_two_writers_and_a_planner_lose_no_rows_when_they_interleave_at_any_step(
    index: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    several = {"hoodie.clean.failed.writes.policy": "LAZY"}
    other = {("b", "b1"): 3, ("b", "b2"): 3}
    mine = {("a", "a1"): 2, ("a", "a2"): 2}
    rival_outcomes: list[bool] = []

    def rival(storage: Storage) -> None:
        try:
            open_as(storage, SURVIVOR, **NO_WAIT, **several).upsert(batch(other))
            rival_outcomes.append(True)
        except RetryableError:
            rival_outcomes.append(False)
        with suppress(RetryableError):
            open_as(storage, THIRD, **NO_WAIT).services.compaction.schedule(force=True)
        check_plans(storage)

    steps = FaultyStorage(copy_of(base(index)))
    open_as(steps, CRASHED, **several).upsert(batch(mine))
    for number in share_of(range(1, steps.steps + 1), index, 6):
        storage = copy_of(base(index))
        open_as(Interrupted(storage, number, rival, monkeypatch), CRASHED, **several).upsert(batch(mine))
        rows = BASE | mine | (other if rival_outcomes[-1] else {})
        assert rows_of(storage) == rows, steps.trace[number - 1]
        open_as(storage, SURVIVOR).services.compaction.run(force=True)
        recover(storage, rows, ())
    # At the other steps the first writer holds the lock.
    assert rival_outcomes.count(True) > len(rival_outcomes) // 4
