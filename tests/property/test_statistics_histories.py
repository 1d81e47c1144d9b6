"""Statistics of partitions that are folded from commits are those of a fresh look at the table, whatever befell it.

A history runs verbs, services, undoing, cleans and archiving on a table; statistics are brought up to date now and
then. The bytes, files and rows must be those of a listing and a scan, first and last commits those of a book that the
test keeps.
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
from lakehouse.core.format.partition_statistics import decode_statistics, encode_statistics
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
from lakehouse.model.statistics import TableStatistics
from tests.support.interleave import Actor, orders
from tests.support.killed import copy_of
from tests.support.tables import PATH, SeededIds, Shape, SteadyClock, batch, examples, make_env, make_table, row

Lives = dict[str, tuple[str, str]]
SERVICES = {
    "hoodie.keep.min.commits": "3",
    "hoodie.keep.max.commits": "4",
    "hoodie.clean.commits.retained": "1",
    "hoodie.clustering.plan.strategy.small.file.limit": "1000000",
}


@dataclass
class Book:
    """What the test knows: the lives of partitions after every commit, oldest first."""

    table: Table
    pages: list[tuple[str, Lives]] = field(default_factory=list)
    numbers: int = 0

    @property
    def lives(self) -> Lives:
        return self.pages[-1][1] if self.pages else {}

    def commit(self, outcome: object) -> None:
        """Take down what a commit did."""
        if not isinstance(outcome, Committed):
            return
        requested, metadata = outcome.instant.requested, outcome.metadata
        here = {file_slice.partition for file_slice in load_slices(self.table.refresh())}
        lives = {partition: life for partition, life in self.lives.items() if partition in here}
        for partition in {stat.partition for stat in metadata.stats} & here:
            created, modified = lives.get(partition, (requested, requested))
            lives[partition] = (created, modified if metadata.operation in REWRITES else requested)
        self.pages.append((requested, lives))

    def undo(self, instants: set[str]) -> None:
        """Forget commits that were undone."""
        self.pages = [page for page in self.pages if page[0] not in instants]

    def rows(self, *partitions: str) -> Any:
        """New rows, and a row that is there already."""
        self.numbers += 1
        fresh = [row(f"k{self.numbers}-{p}", p=p, ts=self.numbers) for p in partitions]
        return batch([*fresh, row("same", p=partitions[0], ts=self.numbers, v="x" * self.numbers)])


def _rollback(book: Book) -> None:
    writes = book.table.timeline.writes().by_completion()
    if writes and writes[-1].requested not in book.table.timeline.savepoints():
        # What needs files that were cleaned is refused.
        with suppress(UserError):
            book.table.rollback(writes[-1].requested)
            book.undo({writes[-1].requested})


def _restore(book: Book) -> None:
    writes = book.table.timeline.writes().by_completion()
    if len(writes) > 1:
        with suppress(UserError):
            book.table.restore(writes[-2].requested)
            book.undo({writes[-1].requested})


VERBS: dict[str, Callable[[Book], object]] = {
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
    "look": lambda b: load_statistics(b.table.refresh()),
}
LOGGED: dict[str, Callable[[Book], object]] = {
    "compact": lambda b: b.commit(b.table.services.compaction.run(force=True)),
    "compact logs": lambda b: b.commit(b.table.services.log_compaction.run(force=True)),
}


def act(book: Book, verbs: dict[str, Callable[[Book], object]], verb: str) -> None:
    """Do what a verb says; a clustering that was rolled back is a plan again, in the way of writes until it is run."""
    with suppress(RetryableError):
        verbs[verb](book)


def fresh(table: Table, *, rows: bool = True) -> dict[str, tuple[int, int, int | None]]:
    """Bytes, files and rows (where they can be said) of every partition, from a listing and a scan."""
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


def told(statistics: TableStatistics, like: dict[str, tuple[int, int, int | None]]) -> dict[str, Any]:
    """Statistics in the same words."""
    return {
        s.partition: (s.size_bytes, s.files, s.rows if like.get(s.partition, (0, 0, 0))[2] is not None else None)
        for s in partition_statistics(statistics)
    }


def check(book: Book) -> TableStatistics:
    """Compare what is folded, and what is built anew, with a fresh look and the book."""
    table, looked = book.table.refresh(), fresh(book.table)
    folded = load_statistics(table)
    assert told(folded, looked) == looked
    assert {s.partition: (s.created, s.modified) for s in partition_statistics(folded)} == book.lives
    return folded


def made(kind: str, storage: Storage | None = None) -> Book:
    return Book(make_table(Shape(type=kind, rows_per_file=4, options=SERVICES), env=make_env(storage=storage)))


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_any_history_without_archive_folds_to_a_fresh_look(kind: str) -> None:
    verbs = {**VERBS, **(LOGGED if kind == "MERGE_ON_READ" else {})}
    verbs.pop("archive")

    @given(st.lists(st.sampled_from(sorted(verbs)), min_size=3, max_size=12))
    @examples(12)
    def run(history: list[str]) -> None:
        book = made(kind)
        for verb in history:
            act(book, verbs, verb)
        folded = check(book)
        anew = load_statistics(book.table.refresh(), rebuild=True)
        assert partition_statistics(anew) == partition_statistics(folded)
        assert decode_statistics(encode_statistics(folded, "x")) == folded

    run()


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_looks_between_archiving_never_lose_a_commit(kind: str) -> None:
    verbs = {**VERBS, **(LOGGED if kind == "MERGE_ON_READ" else {})}

    @given(st.lists(st.sampled_from([*sorted(verbs), "look", "archive", "clean"]), min_size=8, max_size=16))
    @examples(10)
    def run(history: list[str]) -> None:
        book = made(kind)
        for verb in [*["upsert a, b", "clean"] * 2, *history]:
            act(book, verbs, verb)
        looked = fresh(book.table)
        folded = partition_statistics(load_statistics(book.table.refresh()))
        assert {s.partition: (s.created, s.modified) for s in folded} == book.lives
        anew = partition_statistics(load_statistics(book.table.refresh(), rebuild=True))
        assert {s.partition: (s.created, s.modified) for s in anew} == book.lives
        storage = book.table.refresh().env.storage
        storage.delete_many(file.path for file in storage.list(".hoodie/timeline/history"))
        untold = partition_statistics(load_statistics(load_table(book.table.refresh().env), rebuild=True))
        for statistics in (folded, anew, untold):
            assert {s.partition: (s.size_bytes, s.files) for s in statistics} == {p: v[:2] for p, v in looked.items()}
            assert all(s.rows == looked[s.partition][2] for s in statistics if looked[s.partition][2] is not None)
            # What is told by files alone may have been modified before, so it expires later.
            assert all(s.modified >= book.lives[s.partition][1] and s.created <= s.modified for s in statistics)

    run()


def test_an_update_reads_the_commits_since_and_lists_no_data() -> None:
    counting = CountingStorage(MemoryStorage())
    book = made("COPY_ON_WRITE", counting)
    for _ in range(6):
        VERBS["upsert a, b"](book)
    load_statistics(book.table.refresh())
    for verb in ("upsert a", "drop a", "bulk c"):
        VERBS[verb](book)
    table = load_table(book.table.refresh().env)
    counting.reset()
    folded = load_statistics(table)
    # The object, three commits, the object anew.
    assert {verb: number for verb, number in counting.counts().items() if number} == {"GET": 4, "PUT": 1}
    counting.reset()
    assert load_statistics(table) == folded
    assert {verb: number for verb, number in counting.counts().items() if number} == {"GET": 1}
    check(book)


def test_commits_that_were_archived_since_are_folded_and_not_listed() -> None:
    counting = CountingStorage(MemoryStorage())
    book = made("COPY_ON_WRITE", counting)
    for verb in ("upsert a, b", "upsert a", "look"):
        VERBS[verb](book)
    before = book.table.timeline.writes().instants
    for verb in (*["upsert a, b", "drop a", "bulk c"] * 3, "clean", "archive"):
        VERBS[verb](book)
    assert not set(before) & set(book.table.timeline), "nothing that was looked at is on the timeline"
    table = load_table(book.table.refresh().env)
    counting.reset()
    load_statistics(table)
    listings = counting.counts()["LIST"]
    assert {s.partition: (s.created, s.modified) for s in partition_statistics(check(book))} == book.lives
    counting.reset()
    load_statistics(table, rebuild=True)
    assert listings < counting.counts()["LIST"]


def test_logs_written_under_a_pending_compaction_are_over_its_base() -> None:
    book = made("MERGE_ON_READ")
    VERBS["bulk c"](book)
    VERBS["upsert a"](book)
    book.table.upsert(batch([row("same", p="a", ts=90)]))
    book.table.services.compaction.schedule(force=True)
    load_statistics(book.table.refresh())
    outcome = book.table.upsert(batch([row("same", p="a", ts=91, v="later")]))
    load_statistics(book.table.refresh())
    assert isinstance(outcome, Committed)
    book.table.services.compaction.run()
    looked = fresh(book.table)
    assert any(log.instant == outcome.instant.requested for s in load_slices(book.table.refresh()) for log in s.logs)
    assert told(load_statistics(book.table.refresh()), looked) == looked


def test_a_compaction_that_is_undone_and_run_again_is_noticed() -> None:
    book = made("MERGE_ON_READ")
    for verb in ("bulk c", "upsert a", "upsert a", "compact", "look", "rollback"):
        VERBS.get(verb, LOGGED.get(verb, print))(book)
    book.table.services.compaction.run()
    looked = fresh(book.table)
    assert told(load_statistics(book.table.refresh()), looked) == looked


def test_two_updaters_in_every_order_leave_what_is_right() -> None:
    source = MemoryStorage()
    book = made("COPY_ON_WRITE", source)
    VERBS["upsert a, b"](book)
    load_statistics(book.table.refresh())
    # One commit: several are read by several threads, whose order nobody chooses.
    VERBS["drop a"](book)
    looked = fresh(book.table)
    last: list[Storage] = []

    def updater(storage: Storage) -> None:
        table = load_table(Env(storage=storage, clock=SteadyClock(), ids=SeededIds(len(last))))
        assert told(load_statistics(table), looked) == looked

    def world() -> tuple[Storage, list[Actor]]:
        last.append(copy_of(source))
        return last[-1], [updater, updater]

    for _ in orders(world, preemptions=2):
        stored = decode_statistics(last[-1].get(STATISTICS))
        assert told(stored, looked) == looked


def test_who_looks_with_an_old_timeline_takes_nothing_for_undone() -> None:
    counting = CountingStorage(MemoryStorage())
    book = made("COPY_ON_WRITE", counting)
    VERBS["upsert a, b"](book)
    old = book.table.refresh()
    VERBS["drop a"](book)
    newer = load_statistics(book.table.refresh())
    counting.reset()
    assert load_statistics(old) == newer
    assert counting.counts()["PUT"] == 0 and counting.counts()["LIST"] == 1


@pytest.mark.parametrize("step", range(1, 9))
@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.LOSE_REPLY])
def test_an_update_that_dies_or_is_not_answered_harms_nobody(step: int, mode: FaultMode) -> None:
    book = made("COPY_ON_WRITE")
    for verb in ("upsert a, b", "look", "upsert a"):
        VERBS[verb](book)
    env = book.table.refresh().env
    with suppress(SimulatedCrash, RetryableError):
        load_statistics(load_table(replace(env, storage=FaultyStorage(env.storage, step, mode))))
    check(book)


@pytest.mark.parametrize("data", [b"", b"PAR1", b"{}"])
def test_an_object_that_cannot_be_read_is_built_anew(data: bytes) -> None:
    book = made("COPY_ON_WRITE")
    for verb in ("upsert a, b", "look"):
        VERBS[verb](book)
    storage = book.table.refresh().env.storage
    storage.put(STATISTICS, data)
    check(book)
    assert partition_statistics(decode_statistics(storage.get(STATISTICS)))
