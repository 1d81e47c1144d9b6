"""Early conflict detection: a writer that would lose writes no data, and of two conflicting writers one continues."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import cache, partial

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.env import Env
from lakehouse.core.operations.commit.cleanup import WriteMarkers
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.operations.write.early_conflict import AnnouncedWrite, early_conflict
from lakehouse.core.operations.write.prepare import prepare
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import RetryableError
from lakehouse.model.commit import Operation
from lakehouse.model.instant import Action
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import Policies
from tests.support.interleave import orders
from tests.support.killed import (
    BASE,
    CALLS,
    CHANGED,
    EXHAUSTIVE,
    Host,
    Interrupted,
    base_table,
    batch,
    copy_of,
    leftovers,
    logged_table,
    open_as,
    rows_of,
    share_of,
)
from tests.support.tables import SteadyClock

ONE, OTHER = 201, 202
MODE = "hoodie.write.concurrency.mode"
EARLY = {
    MODE: "optimistic_concurrency_control",
    "hoodie.write.concurrency.early.conflict.detection.enable": "true",
}
ONCE = {"hoodie.write.num.retries.on.conflict.failures": "0", "hoodie.write.lock.wait_time_ms": "0"}
THEIRS = {("a", "a1"): 3, ("a", "a4"): 3}
MARKERS = "hoodie.write.markers.type"


@cache
def base(index: str) -> Storage:
    """Return a table of BASE. Tests work on copies."""
    return logged_table(MemoryStorage(), index) if index.startswith("LOGS") else base_table(MemoryStorage(), index)


def opened(storage: Storage, pid: int, clock: SteadyClock, **options: str) -> Table:
    """Open the table as process `pid` with early conflict detection and a clock that sleeps without waiting."""
    env = Env(storage=storage, processes=Host(pid), clock=clock)
    return Table.open(storage.root, options=CALLS | EARLY | options, env=env)


def data_files(trace: list[str]) -> list[str]:
    """Return the data files that the steps of `trace` opened for writing."""
    begun = [step.partition(" ")[2] for step in trace if step.startswith("open_output ")]
    return [path for path in begun if not path.startswith(".hoodie/")]


def committed_files(storage: Storage) -> set[str]:
    """Return the paths of all files that commits name."""
    return {stat.path for _, metadata in open_as(storage, 999).commits() for stat in metadata.stats}


@pytest.mark.parametrize("markers", ["TIMELINE_SERVER_BASED", "DIRECT"])
@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET", "LOGS_BUCKET"])
def test_early_detection_stops_the_losing_writer_before_it_writes_data(
    index: str, markers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = FaultyStorage(copy_of(base(index)))
    opened(probe, ONE, SteadyClock(), **{MARKERS: markers}).upsert(batch(CHANGED))
    ends = set()
    for number in share_of(range(1, len(probe.trace) + 1), (index, markers), 8):
        storage, clock = copy_of(base(index)), SteadyClock()
        theirs: list[str] = []
        turns: list[str] = []

        def turn(
            store: Storage, theirs: list[str] = theirs, turns: list[str] = turns, clock: SteadyClock = clock
        ) -> None:
            watched = FaultyStorage(store)
            try:
                opened(watched, OTHER, clock, **ONCE, **{MARKERS: markers}).upsert(batch(THEIRS))
                turns.append("done")
            except RetryableError as error:
                turns.append("locked out" if "the table lock" in str(error) else "aborted")
            theirs += watched.trace

        ours = Interrupted(storage, number, turn, monkeypatch)
        opened(ours, ONE, clock, **{MARKERS: markers}).upsert(batch(CHANGED))
        begun = data_files(ours.trace) + data_files(theirs)
        where = (probe.trace[number - 1], turns)
        assert set(begun) <= committed_files(storage) and len(set(begun)) == len(begun), where
        assert rows_of(storage) == ({**BASE, **CHANGED, **THEIRS} if turns == ["done"] else {**BASE, **CHANGED}), where
        assert leftovers(storage) == [], where
        ends |= set(turns)
    assert {"done", "aborted"} <= ends


def test_losing_writer_writes_its_data_twice_without_early_detection(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {MODE: EARLY[MODE]}
    probe = FaultyStorage(copy_of(base("SIMPLE")))
    open_as(probe, ONE, **options).upsert(batch(CHANGED))
    first = next(n for n, step in enumerate(probe.trace, 1) if step.endswith(".inflight"))
    storage = copy_of(base("SIMPLE"))

    def turn(store: Storage) -> None:
        open_as(store, OTHER, **options).upsert(batch(THEIRS))

    ours = Interrupted(storage, first, turn, monkeypatch)
    open_as(ours, ONE, **options).upsert(batch(CHANGED))
    assert len(data_files(ours.trace)) == 2 * len(data_files(probe.trace))


GROUP = ("a", "f-0")


def writers(*, later_too: bool = False) -> tuple[MemoryStorage, list[str]]:
    """Return a table with pending writes whose heartbeats are valid, and their requested times."""
    storage = copy_of(base("SIMPLE"))
    loaded = opened(storage, ONE, SteadyClock()).refresh()
    times = []
    for _ in range(3 if later_too else 2):
        now = loaded.reload()
        heartbeat = Heartbeat(loaded.env, policies().transaction)
        times.append(loaded.store.request(now.timeline, Action.COMMIT, b"", announce=heartbeat.start).requested)
        heartbeat.stop()
    return storage, times


@cache
def policies() -> Policies:
    """Return the policies of a writer with early conflict detection."""
    return parse_options(EARLY)


def detect(storage: Storage, requested: str, ends: dict[str, str]) -> None:
    """Create a marker for a file of GROUP, look for a conflict, and record in `ends` whether the writer continues."""
    table = opened(storage, ONE, SteadyClock()).refresh()
    (instant,) = [i for i in table.timeline if i.requested == requested]
    request = WriteRequest(operation=Operation.UPSERT, frame=batch(CHANGED))
    write = prepare(table, LocalEngine(1), policies(), request)
    markers = WriteMarkers(table, requested, policies().write)
    names = [f"a/f-0_0-0-0_{requested}.parquet.marker.MERGE"]
    markers.announce(names)
    ours = AnnouncedWrite(write=write, instant=instant, markers=names, touched=frozenset({GROUP}))
    if early_conflict(ours) is None:
        ends[requested] = "continues"
    else:
        ends[requested] = "aborts"
        markers.withdraw()


def test_early_detection_lets_at_most_one_of_two_writers_continue_in_any_order() -> None:
    seen: dict[tuple[str, str], int] = {}
    worlds: list[dict[str, str]] = []

    def world() -> tuple[Storage, list[partial[None]]]:
        storage, (first, second) = writers()
        ends: dict[str, str] = {}
        worlds.append(ends)
        return storage, [lambda s: detect(s, first, ends), lambda s: detect(s, second, ends)]  # type: ignore[list-item]

    for _ in orders(world, preemptions=4 if EXHAUSTIVE else 2):
        ends = tuple(worlds[-1][requested] for requested in sorted(worlds[-1]))
        seen[ends] = seen.get(ends, 0) + 1  # type: ignore[index]
    assert ("continues", "continues") not in seen
    assert seen["continues", "aborts"] > 0 and seen["aborts", "continues"] > 0
    # Both abort only if the later writer is interrupted between its check and the removal of its markers.
    assert seen.get(("aborts", "aborts"), 0) < sum(seen.values()) / 4


def test_early_detection_waits_until_the_later_writer_aborts(monkeypatch: pytest.MonkeyPatch) -> None:
    storage, (first, second) = writers()
    ends: dict[str, str] = {}
    announced = threading.Barrier(2, timeout=20)
    announce = WriteMarkers.announce

    def together(self: WriteMarkers, *args: object, **kept: object) -> None:
        announce(self, *args, **kept)  # type: ignore[arg-type]
        announced.wait()

    monkeypatch.setattr(WriteMarkers, "announce", together)
    aborted = threading.Event()
    monkeypatch.setattr(SteadyClock, "sleep", lambda self, seconds: aborted.wait(20))

    def later() -> None:
        detect(storage, second, ends)
        aborted.set()

    thread = threading.Thread(target=later)
    thread.start()
    detect(storage, first, ends)
    thread.join()
    assert ends == {first: "continues", second: "aborts"}


def test_early_detection_ignores_expired_removed_and_aborted_writes() -> None:
    def end(change: str) -> str:
        storage, (first, second) = writers()
        ends: dict[str, str] = {}
        detect(storage, first, ends)
        table = opened(storage, ONE, SteadyClock()).refresh()
        if change == "expired":
            storage.delete(f".hoodie/.heartbeat/{first}")
        if change == "removed":
            table.store.remove_pending(next(i for i in table.timeline if i.requested == first))
        if change == "aborted":
            markers = WriteMarkers(table, first, policies().write)
            markers.known = {"": ()}
            markers.give_up()
        detect(storage, second, ends)
        return ends[second]

    assert {change: end(change) for change in ("", "expired", "removed", "aborted")} == {
        "": "aborts",
        "expired": "continues",
        "removed": "continues",
        "aborted": "continues",
    }


def partial_table() -> Iterator[tuple[Storage, Table]]:
    """Yield a store and its merge-on-read table with columns that writers update separately."""
    storage = MemoryStorage()
    table = Table.create(
        storage.root,
        name="wide",
        record_key=["id"],
        table_type="MERGE_ON_READ",
        options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"},
        env=Env(storage=storage, processes=Host(1), clock=SteadyClock()),
    )
    table.upsert(pa.table({"id": ["k"], "x": [0], "y": [0]}))
    yield storage, table


def test_early_detection_allows_writers_of_different_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    ((storage, _),) = partial_table()
    clock = SteadyClock()
    options = {"lakehouse.write.partial.update": "true"}

    def turn(store: Storage) -> None:
        opened(store, OTHER, clock, **options, **ONCE).upsert(pa.table({"id": ["k"], "y": [2]}))

    probe = FaultyStorage(copy_of(storage))
    opened(probe, ONE, clock, **options).upsert(pa.table({"id": ["k"], "x": [1]}))
    first = next(n for n, step in enumerate(probe.trace, 1) if step.startswith("open_output k") or ".log." in step)
    ours = Interrupted(storage, first, turn, monkeypatch)
    opened(ours, ONE, clock, **options).upsert(pa.table({"id": ["k"], "x": [1]}))
    (found,) = open_as(storage, 999).scan(["x", "y"]).to_arrow().to_pylist()
    assert found == {"x": 1, "y": 2}
    assert len(data_files(ours.trace)) == 1
