"""TTL runs that crash at any storage step: the table has the state before or after, and the next run completes it."""

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

CRASHED, SURVIVOR = 101, 102
TTL = {"lakehouse.ttl.max.partitions": "1"}
#: Both partitions have the same first commit. Then the partition whose path sorts later counts as newer and is kept.
REMAINING = {key: value for key, value in BASE.items() if key[0] != "a"}
MANY = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
DAY_MS = 86_400_000
OURS = ".hoodie/.lakehouse/"


@cache
def base(index: str) -> Storage:
    """Return a table of two partitions, one of which expires."""
    return (logged_table if index in LOGGED else base_table)(MemoryStorage(), index)


@cache
def trace(index: str) -> tuple[str, ...]:
    """Return the storage steps of a successful run."""
    storage = FaultyStorage(copy_of(base(index)))
    open_as(storage, CRASHED, **TTL).services.ttl.run()
    return tuple(storage.trace)


def finish(storage: Storage) -> None:
    """Run TTL as the next process; check the rows, the statistics and that the crashed run left no files behind."""
    assert rows_of(storage) in (BASE, REMAINING)
    table = open_as(storage, SURVIVOR, (CRASHED,), **TTL)
    table.services.ttl.run()
    assert rows_of(storage) == REMAINING
    # A run without work does not acquire the table lock, so the next write removes the lock of the crashed process.
    table.upsert(batch({("b", "b1"): 1}))
    assert rows_of(storage) == REMAINING
    assert [path for path in leftovers(storage) if not path.startswith(OURS)] == []
    folded = {s.partition: s.files for s in partition_statistics(load_statistics(table.refresh()))}
    slices = load_slices(table.refresh())
    assert folded == {p: sum((s.base is not None) + len(s.logs) for s in slices if s.partition == p) for p in folded}
    assert folded.keys() == {s.partition for s in slices}
    writes = len(table.timeline.writes())
    table.services.ttl.run()
    assert len(table.timeline.writes()) == writes


@pytest.mark.parametrize("index", ["SIMPLE", "LOGS_SIMPLE", "SIMPLE_6", "LOGS_SIMPLE_6"])
def test_next_ttl_run_completes_the_run_after_a_crash_at_any_step(index: str) -> None:
    outcomes = set()
    for step, mode in points(trace(index)):
        storage = copy_of(base(index))
        with pytest.raises(SimulatedCrash):
            open_as(FaultyStorage(storage, step, mode), CRASHED, **TTL).services.ttl.run()
        outcomes.add(len(rows_of(storage)))
        finish(storage)
    assert outcomes == {len(BASE), len(REMAINING)}, "crashes must cover steps before and after the commit"


def test_next_ttl_run_completes_the_run_after_a_lost_reply_at_any_step() -> None:
    for step in range(1, len(trace("SIMPLE")) + 1):
        storage = copy_of(base("SIMPLE"))
        with suppress(RetryableError, CommitStateUnknownError):
            open_as(FaultyStorage(storage, step, FaultMode.LOSE_REPLY), CRASHED, **TTL).services.ttl.run()
        finish(storage)


@pytest.mark.parametrize(
    ("kind", "mode"), [("COPY_ON_WRITE", MANY), ("MERGE_ON_READ", MANY), ("COPY_ON_WRITE", {}), ("MERGE_ON_READ", {})]
)
def test_ttl_run_loses_no_rows_of_a_write_at_any_of_its_steps(
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
        world = Env(storage=interrupted, clock=clock, ids=SeededIds(8), processes=Host(CRASHED))
        ours = Table.open(storage.root, env=world, options=mode | {"lakehouse.ttl.modification.age": "2d"})
        with suppress(RetryableError):
            ours.services.ttl.run()
        if interrupted.at > 0:
            break
        found = {r["id"] for r in data_rows(Table.open(storage.root, env=Env(storage=storage)))}
        assert ("a2" in found) is bool(committed), f"step {step}: {interrupted.trace[step - 1]}"
        seen.add((frozenset(found), bool(committed)))
    # A write before the TTL commit keeps its partition with the old rows; after a later write it has only new rows.
    assert {(frozenset({"a1", "a2"}), True), (frozenset({"a2"}), True)} <= seen
