"""Readers of changes of version-6 tables, which store no completion times, miss no commit that completes late.

A writer stops before each of its steps in turn. There another one commits to another partition. A reader reads the
changes since its last read before every step of the first writer that follows, and once after its end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.read.bounded_query import with_bound
from lakehouse.core.operations.read.commit_range import last_settled
from lakehouse.core.operations.read.queries import Incremental
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from tests.support.killed import Interrupted, base_table, batch, copy_of, logged_table, open_as, share_of

T = TypeVar("T")
OPTIMISTIC = {
    "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    "hoodie.write.num.retries.on.conflict.failures": "0",
    "hoodie.clustering.plan.strategy.sort.columns": "v",
}
IMPATIENT = {"hoodie.write.lock.wait_time_ms": "1"}
SLOW, FAST = ("a", "a1"), ("b", "b2")
WRITER, RIVAL, READER = 1, 2, 3


class Reader:
    """Reads the changes of a table in turns, and keeps the newest value of each key."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.rows: dict[tuple[str, str], int] = {}
        self.begin = self.table.changes(None)[-1].completion
        self.turns = 0

    @property
    def table(self) -> Table:
        return open_as(self.storage, READER, (), **OPTIMISTIC)

    def read(self) -> None:
        raise NotImplementedError

    def add(self, rows: list[dict[str, object]]) -> None:
        self.turns += 1
        self.rows |= {(str(row["p"]), str(row["id"])): int(str(row["v"])) for row in rows}


class ByCommits(Reader):
    """Reads up to the newest commit of `changes`."""

    def read(self) -> None:
        table = self.table
        commits = table.changes(self.begin)
        if commits:
            self.add(table.incremental(self.begin, commits[-1].completion).to_arrow().to_pylist())
            self.begin = commits[-1].completion


class ByRows(Reader):
    """Reads without an end, and continues after the newest commit time of the rows, as readers of Hudi do."""

    def read(self) -> None:
        rows = self.table.incremental(self.begin).to_arrow().to_pylist()
        if rows:
            self.add(rows)
            self.begin = max(str(row["_hoodie_commit_time"]) for row in rows)


class ByOffsets(Reader):
    """Plans the range before it reads, as the stream of Spark does."""

    def read(self) -> None:
        end = last_settled(self.table.refresh()) or self.begin
        if end > self.begin:
            self.add(self.table.incremental(self.begin, end).to_arrow().to_pylist())
            self.begin = end


class ByBound(Reader):
    """Gives a range its end when it is loaded, as a DataFrame does."""

    def read(self) -> None:
        query = with_bound(self.table.refresh(), Incremental(self.begin)).bounded
        assert isinstance(query, Incremental)
        assert query.end is not None
        if query.end > self.begin:
            self.add(self.table.incremental(query.begin, query.end).to_arrow().to_pylist())
            self.begin = query.end


class Watched(Interrupted):
    """Storage of a writer that another one interrupts at a step; a reader reads before each step that follows."""

    reader: Reader | None = None

    def step(self, name: str, call: Callable[[], T]) -> T:
        result = super().step(name, call)
        if self.reader is not None and isinstance(self.at, int) and self.at <= 0:
            reader, self.reader = self.reader, None
            reader.read()
            self.reader = reader
        return result


def fast(storage: Storage) -> None:
    """Commit, unless the other writer holds the table lock."""
    with suppress(RetryableError):
        assert isinstance(open_as(storage, RIVAL, (), **OPTIMISTIC, **IMPATIENT).upsert(batch({FAST: 7})), Committed)


def slow(storage: Storage) -> None:
    assert isinstance(open_as(storage, WRITER, (), **OPTIMISTIC).upsert(batch({SLOW: 8})), Committed)


def table_of(kind: str) -> Storage:
    storage = MemoryStorage()
    return logged_table(storage, "LOGS_V6") if kind == "MERGE_ON_READ" else base_table(storage, "V6")


@pytest.mark.parametrize("reader", [ByCommits, ByRows, ByOffsets, ByBound])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_reader_of_changes_misses_no_commit_that_completes_late(
    kind: str, reader: type[Reader], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = table_of(kind)
    probe = Interrupted(copy_of(base), 0, fast, monkeypatch)
    slow(probe)
    late = 0
    for number in share_of(range(1, len(probe.trace) + 1), (kind, reader), 3):
        storage = copy_of(base)
        watched = Watched(storage, number, fast, monkeypatch)
        watched.reader = following = reader(storage)
        start = following.begin
        slow(watched)
        is_late = requested_of(storage, FAST) > requested_of(storage, SLOW)
        following.read()
        assert following.rows[SLOW] == 8, number
        assert following.rows.get(FAST) == (7 if requested_of(storage, FAST) > start else None), number
        late += is_late
    assert late, "the rival never passed the writer, so the test shows nothing"


def requested_of(storage: Storage, key: tuple[str, str]) -> str:
    """Return the requested time of the commit that wrote a key."""
    rows = open_as(storage, READER).scan(["_hoodie_commit_time", "id", "p"]).to_arrow().to_pylist()
    return next(str(row["_hoodie_commit_time"]) for row in rows if (row["p"], row["id"]) == key)
