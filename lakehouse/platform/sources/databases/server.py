"""The protocol of a database server, and the values that it gives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

#: Columns of changes in addition to the columns of the table.
CHANGE, POSITION, COMMITTED, UNAVAILABLE = "_change", "_position", "_committed_us", "_unavailable"
CONTROL = (CHANGE, POSITION, COMMITTED, UNAVAILABLE)
INSERT, UPDATE, DELETE = "insert", "update", "delete"
#: The first character of the part of a kind that identifies a column.
PLACE = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A column of a source table.

    Attributes:
        name: The name.
        kind: What decides about its values: a name and numbers, such as `decimal:10:2`. If only numbers grow, values
            stay the same. A last part `#5` identifies the column, if its log does not tell that a column got another
            name.
        type: The Arrow type of its values in chunks and changes.
        fills_null: Whether rows that exist when the column is added have null in it; otherwise they have a value that
            the log does not contain.
    """

    name: str
    kind: str
    type: pa.DataType
    fills_null: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Which changes the rows of a table have already. The log is read without them.

    Attributes:
        order: All changes up to this place, at the scale of the column `POSITION`.
        transactions: The transactions whose changes they have, as the server writes them; empty for none.
    """

    order: int
    transactions: str = ""

    def to_mapping(self) -> dict[str, object]:
        """Return the value as JSON holds it."""
        return {"order": self.order, "transactions": self.transactions}

    @classmethod
    def from_mapping(cls, value: Mapping[str, object]) -> Seen:
        """Return the value of a mapping; raise KeyError or ValueError for another mapping."""
        return cls(order=int(str(value["order"])), transactions=str(value["transactions"]))


#: The table has no rows yet that changes could be added to: a later read of the whole table will see all of them.
SEES_ALL = Seen(order=(1 << 63) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A table of a source.

    Attributes:
        name: The name as `database.table`.
        columns: The columns in their order.
        key: The primary key columns; empty if there is none, or if the log does not have all of them.
        identity: The columns that the log has of a row before its change; None for all of them.
        incarnation: A text that is another one after the table was dropped or replaced by one of the same name, or its
            changes were left out of the log for a time; empty if the log tells.
        unique: The columns of each unique index of columns without null, also those of the primary key.
        has_hidden_rows: Whether row level security may hide rows from reads of the account.
        seen: The changes that the log is read without, because rows without a key would be appended twice; None to
            read all.
        start: The place at which the log of the table begins. The log may be read from an earlier place for other
            tables; what it has of the table before is left out, whatever it is. None to begin where the read begins.
        refusal: Why the log of the table cannot be decoded, with the remedy; empty if it can.
    """

    name: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    identity: tuple[str, ...] | None = None
    incarnation: str = ""
    unique: tuple[tuple[str, ...], ...] = ()
    has_hidden_rows: bool = False
    seen: Seen | None = None
    start: LogPosition | None = None
    refusal: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The columns of chunks."""
        return pa.schema([pa.field(column.name, column.type) for column in self.columns])

    @property
    def kinds(self) -> dict[str, str]:
        """The types of the columns as the server prints them."""
        return {column.name: column.kind for column in self.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """A position in the log of a server, between two transactions.

    Attributes:
        server: The identity of the server or of the group of servers whose log it is.
        order: A number that grows along the log, at the scale of the column `POSITION`.
        text: What the server needs to continue here, as it writes it itself.
        time_ms: The server's time when it was noted: transactions committed before are before it.
    """

    server: str
    order: int
    text: str
    time_ms: int = 0

    def to_mapping(self) -> dict[str, object]:
        """Return the position as JSON holds it."""
        return {"server": self.server, "order": self.order, "text": self.text, "time_ms": self.time_ms}

    @classmethod
    def from_mapping(cls, value: Mapping[str, object]) -> LogPosition:
        """Return the position of a mapping; raise KeyError, TypeError or ValueError for another mapping."""
        return cls(
            server=str(value["server"]),
            order=int(str(value["order"])),
            text=str(value["text"]),
            time_ms=int(str(value["time_ms"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of keys: after `after`, up to and including `upto`.

    Both are one literal of SQL per key column, as the server wrote them; None for no bound.

    Attributes:
        after: The lower bound.
        upto: The upper bound.
        keys: The keys to read instead of a range, as texts of their stored values; empty to read the range.
    """

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    keys: tuple[tuple[str, ...], ...] = field(default=(), repr=False)


def chunks_between(after: tuple[str, ...] | None, borders: Sequence[tuple[str, ...]], most: int) -> tuple[Chunk, ...]:
    """Return the ranges between keys that follow `after`; with fewer than `most`, the last one has no upper bound."""
    bounds = [after, *borders]
    chunks = [Chunk(after=low, upto=high) for low, high in pairwise(bounds)]
    return tuple(chunks) if len(chunks) >= most else (*chunks, Chunk(after=bounds[-1]))


#: Equal parts of the numbers are used for a key if at least one of so many numbers is a key.
_SPARSE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumbers:
    """Facts of a server about a key that is one integer.

    Attributes:
        low: The smallest number that is not read yet.
        high: The largest number.
        first: The smallest number of the table.
        rows: The estimated number of rows of the table; 0 if the server has no estimate.
    """

    low: int
    high: int
    first: int
    rows: float

    def borders(self, rows: int, most: int) -> list[tuple[str, ...]] | None:
        """Return at most `most` borders of equal parts of about `rows` rows; None if the numbers are sparse."""
        stride = max(1.0, (self.high - self.first + 1) / max(1.0, self.rows))
        if stride > _SPARSE:
            return None
        step = max(1, int(rows * stride))
        count = min(most, max(0, -(-(self.high - self.low + 1) // step) - 1))
        return [(str(self.low + step * (number + 1) - 1),) for number in range(count)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEvent:
    """A statement that changed a table.

    Attributes:
        kind: `create`, `alter`, `rename`, `truncate` or `drop`.
        table: The name as `database.table`.
        position: Its place among the changes, at the scale of `POSITION`.
        statement: The SQL text.
        changes_rows: Whether rows may have other values than their changes in the log say.
    """

    kind: str
    table: str
    position: int
    statement: str = field(repr=False)
    changes_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of one source table that have the same columns, in the order of the log.

    Attributes:
        table: The name as `database.table`.
        rows: The columns of the table (after the change; before it for deletes), and those of `CONTROL`. An update
            that changes the key is a delete and an insert; only such inserts have unavailable values.
    """

    table: str
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The end of a read of the log: the position after the last whole transaction."""

    position: LogPosition


class TableReads(Protocol):
    """Reads rows in a task. It is sent to tasks, so it is pickled; it has the sign-in, and is never printed."""

    @property
    def omits_unchanged(self) -> bool:
        """Whether the log may lack values that an update left as they were; if not, a lack of values is an error."""

    def connected(self) -> AbstractContextManager[TableReads]:
        """Return the same reads for one task, whose chunks share a connection if that saves time."""

    def chunk(self, table: SourceTable, key: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk with the columns of `table.schema`, as one consistent read saw them."""

    def whole(self, table: SourceTable) -> Iterator[Seen | pa.RecordBatch]:
        """Yield which changes a consistent read of the whole table sees, then its rows as `chunk` does.

        Raises:
            UserError: The server has no such reads of this table.
            RetryableError: The server does not answer, or the table is changed too often to tell what the read sees.
        """

    def log(
        self, start: LogPosition, end: LogPosition, tables: Sequence[SourceTable]
    ) -> Iterator[Changes | SchemaEvent | LogEnd]:
        """Yield the changes of tables, and what changed the tables, between two positions; at last the end.

        Changes and statements that `seen` of a table has, or that are before its `start`, are left out.

        Raises:
            UserError: The log does not have the start any more, or contains an event that cannot be applied. The fact
                `tables` has the names of the tables that the event concerns, if these are known.
            RetryableError: The server does not answer.
        """


class DatabaseServer(Protocol):
    """Answers questions of a run about a server; reads no rows."""

    def check(self, tables: Sequence[SourceTable]) -> None:
        """Raise UserError, with value and remedy, if the log of the server cannot be read or lacks what is needed."""

    def prepare(self, tables: Sequence[SourceTable], *, resumes: bool) -> frozenset[str]:
        """Make the log have the changes of tables from now on; return the tables whose changes it did not have.

        Args:
            tables: The tables, with the key by which they are written; it is empty if rows are appended.
            resumes: Whether a table continues the position of an earlier run.

        Raises UserError if a person has to do it, with the statements to run.
        """

    def tables(self) -> Sequence[str]:
        """Return the names of all tables that the user may read, as `database.table`."""

    def describe(self, names: Sequence[str]) -> Mapping[str, SourceTable]:
        """Return the columns and keys of tables, without those that do not exist."""

    def await_writers(self, table: str) -> None:
        """Wait for transactions that changed a table before the log had its changes; a later read has to see them.

        Raises OpenTransactionsError if they do not end for a minute.
        """

    def low_watermark(self, table: str) -> LogPosition:
        """Return a position so that every later read of a table sees all changes before it."""

    def log_end(self) -> LogPosition:
        """Return the end of the log: every change that an earlier read of a table saw is before it."""

    def resumed(self, position: LogPosition) -> LogPosition:
        """Return where the log of this server continues a position of an earlier run.

        Raises UserError if the log of this server is another one.
        """

    def earliest(self, positions: Sequence[LogPosition]) -> LogPosition:
        """Return a position before which all transactions are before each of the given positions."""

    def limited(self, start: LogPosition, end: LogPosition, most_bytes: int) -> LogPosition:
        """Return a position between `start` and `end` so that about `most_bytes` of the log lie before it."""

    def log_bytes(self, start: LogPosition, end: LogPosition) -> int:
        """Return the size of the log between two positions."""

    def confirm(self, positions: Sequence[LogPosition]) -> None:
        """Let the server forget its log before all of these positions, which commits have."""

    def unconfirmed(self) -> tuple[str, int] | None:
        """Return what keeps the log of the server, and how many bytes; None if the server deletes it by age."""

    def chunks(
        self, table: SourceTable, key: Sequence[str], after: tuple[str, ...] | None, *, rows: int, most: int
    ) -> Sequence[Chunk]:
        """Return at most `most` chunks of about `rows` rows that follow one another after a key; the last one of the
        table has no upper bound."""

    @property
    def reads(self) -> TableReads:
        """Settings with which tasks read."""

    def close(self) -> None:
        """Close the connection."""
