"""A run of ttl may die at every line that touches storage: the table is as before or as after, the next run ends it."""

from __future__ import annotations

import itertools
from contextlib import suppress
from functools import cache

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, RetryableError
from tests.support.killed import (
    BASE,
    LOGGED,
    Host,
    Interrupted,
    base_table,
    batch,
    copy_of,
    leftovers,
    logged_table,
    open_as,
    points,
    rows_of,
)
from tests.support.tables import SeededIds, Shape, SteadyClock, data_rows, make_table, row
from tests.support.tables import batch as events

DEAD, SURVIVOR = 101, 102
TTL = {"lakehouse.ttl.max.partitions": "1"}
#: By the first commit to them both partitions are as old; the later path is the newer one.
LEFT = {key: value for key, value in BASE.items() if key[0] != "a"}
MANY = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
DAY_MS = 86_400_000
OURS = ".hoodie/.lakehouse/"


@cache
def base(index: str) -> Storage:
    """A table of two partitions, of which one is to expire."""
    return (logged_table if index in LOGGED else base_table)(MemoryStorage(), index)


@cache
def trace(index: str) -> tuple[str, ...]:
    """The steps of a run that succeeds."""
    storage = FaultyStorage(copy_of(base(index)))
    open_as(storage, DEAD, **TTL).services.ttl.run()
    return tuple(storage.trace)


def finish(storage: Storage) -> None:
    """Run as the next process, and check that the end is the same and nothing is left of the dead."""
    assert rows_of(storage) in (BASE, LEFT)
    table = open_as(storage, SURVIVOR, (DEAD,), **TTL)
    table.services.ttl.run()
    assert rows_of(storage) == LEFT
    # A run without anything to do leaves the lock of the dead to whoever needs it next.
    table.upsert(batch({("b", "b1"): 1}))
    assert rows_of(storage) == LEFT
    assert [path for path in leftovers(storage) if not path.startswith(OURS)] == []
    folded = {s.partition: s.files for s in partition_statistics(load_statistics(table.refresh()))}
    slices = load_slices(table.refresh())
    assert folded == {p: sum((s.base is not None) + len(s.logs) for s in slices if s.partition == p) for p in folded}
    assert folded.keys() == {s.partition for s in slices}
    writes = len(table.timeline.writes())
    table.services.ttl.run()
    assert len(table.timeline.writes()) == writes


@pytest.mark.parametrize("index", ["SIMPLE", "LOGS_SIMPLE"])
def test_after_a_crash_at_any_step_the_next_run_ends_what_this_one_began(index: str) -> None:
    outcomes = set()
    for step, mode in points(trace(index)):
        storage = copy_of(base(index))
        with pytest.raises(SimulatedCrash):
            open_as(FaultyStorage(storage, step, mode), DEAD, **TTL).services.ttl.run()
        outcomes.add(len(rows_of(storage)))
        finish(storage)
    assert outcomes == {len(BASE), len(LEFT)}, "some crashes come before the commit and some after it"


def test_after_a_lost_reply_at_any_step_the_next_run_ends_what_this_one_began() -> None:
    for step in range(1, len(trace("SIMPLE")) + 1):
        storage = copy_of(base("SIMPLE"))
        with suppress(RetryableError, CommitStateUnknownError):
            open_as(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), DEAD, **TTL).services.ttl.run()
        finish(storage)


@pytest.mark.parametrize(
    ("kind", "mode"), [("COPY_ON_WRITE", MANY), ("MERGE_ON_READ", MANY), ("COPY_ON_WRITE", {}), ("MERGE_ON_READ", {})]
)
def test_rows_that_are_committed_at_any_step_of_a_run_are_never_lost(
    kind: str, mode: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    source, clock = MemoryStorage(), SteadyClock()
    shape = Shape(type=kind, options=mode)
    table = make_table(shape, env=Env(storage=source, clock=clock, ids=SeededIds()))
    table.upsert(events([row("a1", p="a"), row("b1", p="b")]))
    clock.now += 3 * DAY_MS
    began = clock.now
    seen = set()
    for step in itertools.count(1):
        storage, committed = copy_of(source), []
        clock.now = began

        def rival(inner: Storage, committed: list[bool] = committed) -> None:
            world = Env(storage=inner, clock=clock, ids=SeededIds(7), processes=Host(SURVIVOR))
            with suppress(RetryableError):
                Table.open(inner.root, env=world, options=mode).upsert(events([row("a2", p="a", ts=2)]))
                committed.append(True)

        interrupted = Interrupted(storage, step, rival, monkeypatch)
        world = Env(storage=interrupted, clock=clock, ids=SeededIds(8), processes=Host(DEAD))
        ours = Table.open(storage.root, env=world, options=mode | {"lakehouse.ttl.modification.age": "2d"})
        with suppress(RetryableError):
            ours.services.ttl.run()
        if interrupted.at > 0:
            break
        found = {r["id"] for r in data_rows(Table.open(storage.root, env=Env(storage=storage)))}
        assert ("a2" in found) is bool(committed), f"step {step}: {interrupted.trace[step - 1]}"
        seen.add((frozenset(found), bool(committed)))
    # Before the run, after its plan and after its commit: the first keep what was there, the last does not.
    assert {(frozenset({"a1", "a2"}), True), (frozenset({"a2"}), True)} <= seen
