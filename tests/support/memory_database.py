"""A database server in memory whose rows change at every moment of a run.

Before each question and between the rows of a chunk, transactions are written at random: inserts, updates, deletes and
changes of keys. A transaction is in the log before other sessions see it, as in MySQL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pyarrow as pa

from lakehouse.platform.sources.databases.server import (
    CHANGE,
    COMMITTED,
    DELETE,
    INSERT,
    POSITION,
    UNAVAILABLE,
    UPDATE,
    Changes,
    Chunk,
    LogEnd,
    LogPosition,
    SchemaEvent,
    Seen,
    SourceColumn,
    SourceTable,
)

NAME = "shop.t"
TRUNCATE = "truncate"
#: An insert that a change of a key makes; it follows the delete of the old key.
MOVED = "moved"


@dataclass
class MemoryDatabase:
    """One table with the key `id` and the column `n`, its log, and a source of random transactions.

    Attributes:
        keys: Keys are numbers below this one.
        random: Decides about transactions.
        each: The number of transactions at each moment.
        rows: The rows that other sessions see.
        texts: The long texts of rows; those of rows that exist before the first transaction are not there.
        log: The changes in order: kind, key, value.
        seen: The number of changes of the log that other sessions see.
        crash_at: The number of the moment at which a run crashes; 0 for none.
        appends: Whether transactions only add rows, and the table has no key.
    """

    keys: int
    random: Random
    each: int = 8
    rows: dict[int, int] = field(default_factory=dict)
    texts: dict[int, str] = field(default_factory=dict)
    log: list[tuple[str, int, int]] = field(default_factory=list)
    seen: int = 0
    truncates: float = 0.0
    moments: int = 0
    crash_at: int = 0
    appends: bool = False

    def moment(self) -> None:
        """Write transactions, and show some of those that are in the log; crash if it is time."""
        self.moments += 1
        if self.moments == self.crash_at:
            raise RuntimeError("crash")
        for _ in range(self.each):
            self._transaction()
        self._show(self.random.randint(self.seen, len(self.log)))

    def show_all(self) -> None:
        """Show all transactions of the log."""
        self._show(len(self.log))

    def _transaction(self) -> None:
        key, other = self.random.randrange(self.keys), self.random.randrange(self.keys)
        # A lock of a row is held until its transaction is seen.
        if {key, other} & {changed for _, changed, _ in self.log[self.seen :]} or self.random.random() < self.truncates:
            self.show_all()
        value = len(self.log)
        if self.random.random() < self.truncates:
            self.log.append((TRUNCATE, -1, 0))
            self.show_all()
        elif key not in self.rows:
            self.log.append((INSERT, key, value))
        elif self.appends:
            return
        elif self.random.random() < 0.5:
            self.log.append((UPDATE, key, value))
        elif self.random.random() < 0.5 or other in self.rows:
            self.log.append((DELETE, key, 0))
        else:
            self.log += [(DELETE, key, 0), (MOVED, other, value)]
            # Both are one transaction.
            self.show_all()

    def _show(self, upto: int) -> None:
        text = FIRST_TEXT
        for kind, key, value in self.log[self.seen : upto]:
            if kind == TRUNCATE:
                self.rows.clear()
                self.texts.clear()
            elif kind == DELETE:
                self.rows.pop(key, None)
                text = self.texts.pop(key, FIRST_TEXT)
            else:
                self.rows[key] = value
                self.texts[key] = new_text(kind, value) or (text if kind == MOVED else self.texts.get(key, FIRST_TEXT))
        self.seen = max(self.seen, upto)


#: The long text of rows that exist before the first transaction.
FIRST_TEXT = "long text"


def new_text(kind: str, value: int) -> str:
    """Return the long text that a change sets; empty if it leaves the text as it was."""
    return f"text {value}" if kind == INSERT or (kind == UPDATE and value % 3 == 0) else ""


@dataclass
class MemoryServer:
    """Implements `DatabaseServer` and `TableReads` over a database in memory.

    Attributes:
        database: The database.
        has_texts: Whether rows have a long text `x`, which changes lack if they leave it as it was.
    """

    database: MemoryDatabase
    has_texts: bool = False

    @property
    def columns(self) -> tuple[SourceColumn, ...]:
        """The columns of the table."""
        kinds = {"id": pa.int64(), "n": pa.int64(), **({"x": pa.string()} if self.has_texts else {})}
        return tuple(SourceColumn(name=name, kind=str(kind), type=kind) for name, kind in kinds.items())

    @property
    def reads(self) -> MemoryServer:
        """What tasks read with."""
        return self

    def check(self, tables: Sequence[SourceTable]) -> None:
        """Accept the server."""

    def prepare(self, tables: Sequence[SourceTable], *, resumes: bool) -> frozenset[str]:
        """Nothing to prepare."""
        return frozenset()

    def tables(self) -> Sequence[str]:
        """Return the table."""
        self.database.moment()
        return (NAME,)

    def describe(self, names: Sequence[str]) -> Mapping[str, SourceTable]:
        """Return the table."""
        self.database.moment()
        return {NAME: SourceTable(name=NAME, columns=self.columns, key=() if self.database.appends else ("id",))}

    def await_writers(self, table: str) -> None:
        """Nothing to wait for: the log has all changes."""

    def low_watermark(self, table: str) -> LogPosition:
        """Return the place up to which transactions are seen."""
        self.database.moment()
        return position(self.database.seen)

    def log_end(self) -> LogPosition:
        """Return the end of the log."""
        self.database.moment()
        return position(len(self.database.log))

    def resumed(self, position: LogPosition) -> LogPosition:
        """Return the position."""
        return position

    def earliest(self, positions: Sequence[LogPosition]) -> LogPosition:
        """Return the smallest position."""
        return min(positions, key=lambda one: one.order)

    def limited(self, start: LogPosition, end: LogPosition, most_bytes: int) -> LogPosition:
        """Return a position; a change has one byte."""
        return position(min(end.order, start.order + most_bytes))

    def log_bytes(self, start: LogPosition, end: LogPosition) -> int:
        """Return the number of changes between two positions."""
        return end.order - start.order

    def confirm(self, positions: Sequence[LogPosition]) -> None:
        """Nothing to confirm."""

    def unconfirmed(self) -> tuple[str, int] | None:
        """Return None: nothing keeps the log."""
        return None

    def chunks(
        self, table: SourceTable, key: Sequence[str], after: tuple[str, ...] | None, *, rows: int, most: int
    ) -> Sequence[Chunk]:
        """Return ranges of equal size."""
        self.database.moment()
        first = -1 if after is None else int(after[0])
        borders = [str(border) for border in range(first + rows, self.database.keys, rows)][:most]
        bounds = [after, *((border,) for border in borders)]
        chunks = [Chunk(after=low, upto=high) for low, high in pairwise(bounds)]
        return (*chunks, *([Chunk(after=bounds[-1])] if len(chunks) < most else []))

    @property
    def omits_unchanged(self) -> bool:
        """Whether changes lack long texts."""
        return self.has_texts

    def connected(self) -> AbstractContextManager[MemoryServer]:
        """Return the server itself."""
        return nullcontext(self)

    def chunk(self, table: SourceTable, key: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk as others see them at one moment."""
        self.database.moment()
        low = -1 if chunk.after is None else int(chunk.after[0])
        high = self.database.keys if chunk.upto is None else int(chunk.upto[0])
        keys = {int(key) for (key,) in chunk.keys}
        texts = self.database.texts
        rows = [
            {"id": one, "n": n, "x": texts.get(one, FIRST_TEXT)}
            for one, n in sorted(self.database.rows.items())
            if low < one <= high and (not keys or one in keys)
        ]
        self.database.moment()
        yield pa.RecordBatch.from_pylist(rows, table.schema)

    def whole(self, table: SourceTable) -> Iterator[Seen | pa.RecordBatch]:
        """Yield the rows as others see them at one moment, after the place up to which they do."""
        self.database.moment()
        seen, rows = self.database.seen, [{"id": one, "n": n} for one, n in self.database.rows.items()]
        yield Seen(order=seen)
        self.database.moment()
        for place in range(0, len(rows), 70):
            yield pa.RecordBatch.from_pylist(rows[place : place + 70], table.schema)

    def log(
        self, start: LogPosition, end: LogPosition, tables: Sequence[SourceTable]
    ) -> Iterator[Changes | SchemaEvent | LogEnd]:
        """Yield the changes between two positions in batches."""
        (table,) = tables
        first = start.order if table.seen is None else max(start.order, table.seen.order)
        changes = list(enumerate(self.database.log[first : end.order], first + 1))
        names = [(column.name, column.type) for column in self.columns]
        schema = pa.schema([*names, (CHANGE, pa.string()), (POSITION, pa.int64())])
        schema = schema.append(pa.field(COMMITTED, pa.timestamp("us", "UTC")))
        if self.has_texts:
            schema = schema.append(pa.field(UNAVAILABLE, pa.list_(pa.string())))
        for first in range(0, len(changes), 50):
            rows = []
            for place, (kind, key, value) in changes[first : first + 50]:
                if kind == TRUNCATE:
                    yield SchemaEvent(kind=TRUNCATE, table=NAME, position=place, statement="truncate table t")
                else:
                    text = new_text(kind, value) or None
                    row = {"id": key, "n": None if kind == DELETE else value, "x": text, POSITION: place}
                    lacking = ["x"] if text is None and kind != DELETE else []
                    rows.append({**row, CHANGE: INSERT if kind == MOVED else kind, UNAVAILABLE: lacking})
            yield Changes(table=NAME, rows=pa.Table.from_pylist([{COMMITTED: None, **row} for row in rows], schema))
        self.database.moment()
        yield LogEnd(position=end)

    def close(self) -> None:
        """Nothing to close."""


def position(order: int) -> LogPosition:
    """Return the position after a number of changes."""
    return LogPosition(server="memory", order=order, text=str(order), time_ms=order)


def in_this_process(task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int) -> list[str]:
    """Run tasks one after another in this process (see `Runner`)."""
    batches = [pa.RecordBatch.from_pydict({"number": [number]}) for number in range(count)]
    return [text for batch in batches for one in task([batch]) for text in one.column(0).to_pylist()]
