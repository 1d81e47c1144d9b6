"""Partition statistics that are updated from commits equal statistics computed from the table, for any history.

A history runs writes, services, undo operations, cleans and archiving on a table and updates the statistics at some
steps. Bytes, files and rows must equal those of a listing and a scan. The first and last commits of a partition must
equal those of a model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.env import Env
from lakehouse.core.format.partition_statistics import TableStatistics, decode_statistics, encode_statistics
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.operations.read.partition_statistics import STATISTICS, load_statistics
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.commit import REWRITES
from tests.support.interleave import Actor, orders
from tests.support.killed import copy_of
from tests.support.tables import PATH, SeededIds, Shape, SteadyClock, batch, examples, make_env, make_table, row

#: The requested times of the first commit and of the last change of each partition.
CommitTimes = dict[str, tuple[str, str]]
SERVICES = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "1",
    "hoodie.clustering.plan.strategy.small.file.limit": "1000000",
}


@dataclass
class Model:
    """The model: the commit times of partitions after each commit, oldest commit first."""

    table: Table
    history: list[tuple[str, CommitTimes]] = field(default_factory=list)
    numbers: int = 0

    @property
    def commit_times(self) -> CommitTimes:
        return self.history[-1][1] if self.history else {}

    def commit(self, outcome: object) -> None:
        """Record the effect of a commit on the commit times; ignore other outcomes."""
        if not isinstance(outcome, Committed):
            return
        requested, metadata = outcome.instant.requested, outcome.metadata
        here = {file_slice.partition for file_slice in load_slices(self.table.refresh())}
        commit_times = {partition: times for partition, times in self.commit_times.items() if partition in here}
        for partition in {stat.partition for stat in metadata.stats} & here:
            created, modified = commit_times.get(partition, (requested, requested))
            commit_times[partition] = (created, modified if metadata.operation in REWRITES else requested)
        self.history.append((requested, commit_times))

    def undo(self, instants: set[str]) -> None:
        """Remove commits that were undone."""
        self.history = [entry for entry in self.history if entry[0] not in instants]

    def rows(self, *partitions: str) -> Any:
        """Return a new row for each partition, and a row whose key may exist already."""
        self.numbers += 1
        fresh = [row(f"k{self.numbers}-{p}", p=p, ts=self.numbers) for p in partitions]
        return batch([*fresh, row("same", p=partitions[0], ts=self.numbers, v="x" * self.numbers)])


def _rollback(model: Model) -> None:
    writes = model.table.timeline.writes().by_completion()
    if writes and writes[-1].requested not in model.table.timeline.savepoints():
        # A rollback that needs cleaned files is refused.
        with suppress(UserError):
            model.table.rollback(writes[-1].requested)
            model.undo({writes[-1].requested})


def _restore(model: Model) -> None:
    writes = model.table.timeline.writes().by_completion()
    if len(writes) > 1:
        with suppress(UserError):
            model.table.restore(writes[-2].requested)
            model.undo({writes[-1].requested})


VERBS: dict[str, Callable[[Model], object]] = {
    "upsert a": lambda b: b.commit(b.table.upsert(b.rows("a"))),
    "upsert a, b": lambda b: b.commit(b.table.upsert(b.rows("a", "b"))),
    "insert b": lambda b: b.commit(b.table.insert(b.rows("b"))),
    "bulk c": lambda b: b.commit(b.table.bulk_insert(b.rows("c"))),
    "delete same": lambda b: b.commit(b.table.delete(["same"])),
    "overwrite a": lambda b: b.commit(b.table.insert_overwrite(b.rows("a"))),
    "overwrite all": lambda b: b.commit(b.table.insert_overwrite_table(b.rows("c"))),
    "drop a": lambda b: "a" in b.table.partitions() and b.commit(b.table.delete_partitions(["a"])),
    "cluster": lambda b: b.commit(b.table.services.clustering.run(force=True)),
    "clean": lambda b: b.table.services.clean.run(force=True),
    "archive": lambda b: b.table.services.archive.run(force=True),
    "rollback": _rollback,
    "restore": _restore,
    "update statistics": lambda b: load_statistics(b.table.refresh()),
}
LOGGED: dict[str, Callable[[Model], object]] = {
    "compact": lambda b: b.commit(b.table.services.compaction.run(force=True)),
    "compact logs": lambda b: b.commit(b.table.services.log_compaction.run(force=True)),
}


def act(model: Model, verbs: dict[str, Callable[[Model], object]], verb: str) -> None:
    """Run a verb. A rolled back clustering is a pending plan again, which refuses writes until it is executed."""
    with suppress(RetryableError):
        verbs[verb](model)


def computed(table: Table, *, rows: bool = True) -> dict[str, tuple[int, int, int | None]]:
    """Return bytes, files and rows of each partition from a listing and a scan; rows are None if it has log files."""
    slices = load_slices(table.refresh())
    size: Counter[str] = Counter()
    files: Counter[str] = Counter()
    logged = set()
    for s in slices:
        size[s.partition] += (s.base.size_bytes if s.base else 0) + s.total_log_bytes
        files[s.partition] += (s.base is not None) + len(s.logs)
        if s.logs:
            logged.add(s.partition)
    found = Counter(table.scan([PATH]).to_arrow().column(0).to_pylist()) if rows else Counter()
    return {p: (size[p], files[p], found[p] if rows and p not in logged else None) for p in size}


def comparable(statistics: TableStatistics, like: dict[str, tuple[int, int, int | None]]) -> dict[str, Any]:
    """Return statistics in the form of `computed`; rows are None where `like` has None."""
    return {
        s.partition: (s.size_bytes, s.files, s.rows if like.get(s.partition, (0, 0, 0))[2] is not None else None)
        for s in partition_statistics(statistics)
    }


def check(model: Model) -> TableStatistics:
    """Update the statistics; compare them with the computed ones and with the model."""
    table, expected = model.table.refresh(), computed(model.table)
    folded = load_statistics(table)
    assert comparable(folded, expected) == expected
    assert {s.partition: (s.created, s.modified) for s in partition_statistics(folded)} == model.commit_times
    return folded


def made(kind: str, storage: Storage | None = None) -> Model:
    return Model(make_table(Shape(type=kind, rows_per_file=4, options=SERVICES), env=make_env(storage=storage)))


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_updated_statistics_equal_computed_ones_after_any_history_without_archive(kind: str) -> None:
    verbs = {**VERBS, **(LOGGED if kind == "MERGE_ON_READ" else {})}
    verbs.pop("archive")

    @given(st.lists(st.sampled_from(sorted(verbs)), min_size=3, max_size=12))
    @examples(12)
    def run(history: list[str]) -> None:
        model = made(kind)
        for verb in history:
            act(model, verbs, verb)
        folded = check(model)
        rebuilt = load_statistics(model.table.refresh(), rebuild=True)
        assert partition_statistics(rebuilt) == partition_statistics(folded)
        assert decode_statistics(encode_statistics(folded, "x")) == folded

    run()


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_statistics_miss_no_commit_when_updates_and_archiving_alternate(kind: str) -> None:
    verbs = {**VERBS, **(LOGGED if kind == "MERGE_ON_READ" else {})}

    @given(
        st.lists(st.sampled_from([*sorted(verbs), "update statistics", "archive", "clean"]), min_size=8, max_size=16)
    )
    @examples(10)
    def run(history: list[str]) -> None:
        model = made(kind)
        for verb in [*["upsert a, b", "clean"] * 2, *history]:
            act(model, verbs, verb)
        expected = computed(model.table)
        folded = partition_statistics(load_statistics(model.table.refresh()))
        assert {s.partition: (s.created, s.modified) for s in folded} == model.commit_times
        rebuilt = partition_statistics(load_statistics(model.table.refresh(), rebuild=True))
        assert {s.partition: (s.created, s.modified) for s in rebuilt} == model.commit_times
        storage = model.table.refresh().env.storage
        storage.delete_many(file.path for file in storage.list(".hoodie/timeline/history"))
        from_files = partition_statistics(load_statistics(load_table(model.table.refresh().env), rebuild=True))
        for statistics in (folded, rebuilt, from_files):
            assert {s.partition: (s.size_bytes, s.files) for s in statistics} == {p: v[:2] for p, v in expected.items()}
            assert all(s.rows == expected[s.partition][2] for s in statistics if expected[s.partition][2] is not None)
            # Without the archived timeline, a rebuild knows only file times. `modified` may be later, never earlier.
            assert all(s.modified >= model.commit_times[s.partition][1] and s.created <= s.modified for s in statistics)

    run()


def test_update_of_statistics_reads_only_newer_commits_and_lists_no_data() -> None:
    counting = CountingStorage(MemoryStorage())
    model = made("COPY_ON_WRITE", counting)
    for _ in range(6):
        VERBS["upsert a, b"](model)
    load_statistics(model.table.refresh())
    for verb in ("upsert a", "drop a", "bulk c"):
        VERBS[verb](model)
    table = load_table(model.table.refresh().env)
    counting.reset()
    folded = load_statistics(table)
    # Read the statistics file and three commits, then write the statistics file.
    assert {verb: number for verb, number in counting.counts().items() if number} == {"GET": 4, "PUT": 1}
    counting.reset()
    assert load_statistics(table) == folded
    assert {verb: number for verb, number in counting.counts().items() if number} == {"GET": 1}
    check(model)


def test_update_of_statistics_reads_commits_that_were_archived_since() -> None:
    counting = CountingStorage(MemoryStorage())
    model = made("COPY_ON_WRITE", counting)
    for verb in ("upsert a, b", "upsert a", "update statistics"):
        VERBS[verb](model)
    before = model.table.timeline.writes().instants
    for verb in (*["upsert a, b", "drop a", "bulk c"] * 3, "clean", "archive"):
        VERBS[verb](model)
    assert not set(before) & set(model.table.timeline), "archive must have removed the instants of the last update"
    table = load_table(model.table.refresh().env)
    counting.reset()
    load_statistics(table)
    listings = counting.counts()["LIST"]
    assert {s.partition: (s.created, s.modified) for s in partition_statistics(check(model))} == model.commit_times
    counting.reset()
    load_statistics(table, rebuild=True)
    assert listings < counting.counts()["LIST"]


def test_statistics_count_log_files_that_are_written_during_a_pending_compaction() -> None:
    model = made("MERGE_ON_READ")
    VERBS["bulk c"](model)
    VERBS["upsert a"](model)
    model.table.upsert(batch([row("same", p="a", ts=90)]))
    model.table.services.compaction.schedule(force=True)
    load_statistics(model.table.refresh())
    outcome = model.table.upsert(batch([row("same", p="a", ts=91, v="later")]))
    load_statistics(model.table.refresh())
    assert isinstance(outcome, Committed)
    model.table.services.compaction.run()
    expected = computed(model.table)
    assert any(log.instant == outcome.instant.requested for s in load_slices(model.table.refresh()) for log in s.logs)
    assert comparable(load_statistics(model.table.refresh()), expected) == expected


def test_statistics_are_correct_after_a_compaction_is_rolled_back_and_executed_again() -> None:
    model = made("MERGE_ON_READ")
    for verb in ("bulk c", "upsert a", "upsert a", "compact", "update statistics", "rollback"):
        VERBS.get(verb, LOGGED.get(verb, print))(model)
    model.table.services.compaction.run()
    expected = computed(model.table)
    assert comparable(load_statistics(model.table.refresh()), expected) == expected


def test_concurrent_updates_store_correct_statistics_in_every_order() -> None:
    source = MemoryStorage()
    model = made("COPY_ON_WRITE", source)
    VERBS["upsert a, b"](model)
    load_statistics(model.table.refresh())
    # One commit only: several commits are read by threads, whose order the test does not control.
    VERBS["drop a"](model)
    expected = computed(model.table)
    last: list[Storage] = []

    def updater(storage: Storage) -> None:
        table = load_table(Env(storage=storage, clock=SteadyClock(), ids=SeededIds(len(last))))
        assert comparable(load_statistics(table), expected) == expected

    def world() -> tuple[Storage, list[Actor]]:
        last.append(copy_of(source))
        return last[-1], [updater, updater]

    for _ in orders(world, preemptions=2):
        stored = decode_statistics(last[-1].get(STATISTICS))
        assert comparable(stored, expected) == expected


def test_update_with_an_old_timeline_keeps_newer_statistics() -> None:
    counting = CountingStorage(MemoryStorage())
    model = made("COPY_ON_WRITE", counting)
    VERBS["upsert a, b"](model)
    old = model.table.refresh()
    VERBS["drop a"](model)
    newer = load_statistics(model.table.refresh())
    counting.reset()
    assert load_statistics(old) == newer
    assert counting.counts()["PUT"] == 0 and counting.counts()["LIST"] == 1


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.LOSE_REPLY])
def test_next_update_is_correct_after_a_crash_or_a_lost_reply(step: int, mode: FaultMode) -> None:
    model = made("COPY_ON_WRITE")
    for verb in ("upsert a, b", "update statistics", "upsert a"):
        VERBS[verb](model)
    env = model.table.refresh().env
    with suppress(SimulatedCrash, RetryableError):
        load_statistics(load_table(replace(env, storage=FaultyStorage(env.storage, step, mode))))
    check(model)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"{}"])
def test_damaged_statistics_file_is_rebuilt(data: bytes) -> None:
    model = made("COPY_ON_WRITE")
    for verb in ("upsert a, b", "update statistics"):
        VERBS[verb](model)
    storage = model.table.refresh().env.storage
    storage.put(STATISTICS, data)
    check(model)
    assert partition_statistics(decode_statistics(storage.get(STATISTICS)))
