"""The interface of a database server, and its value types."""

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
#: Prefix of the column id in a kind.
PLACE = "#"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A source table's column.

    Attributes:
        name: The name.
        kind: A type name and numbers that determine its values, such as `decimal:10:2`. If only numbers grow, values
            stay the same. A last part `#5` is the column id, for logs without events for renamed columns.
        type: The Arrow type of its values in chunks and changes.
        fills_null: Whether existing rows get null when the column is added; otherwise they get a value that is not in
            the log.
    """

    name: str
    kind: str
    type: pa.DataType
    fills_null: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The changes that a table's rows already contain. The log is read without them.

    Attributes:
        order: All changes up to this position, on the scale of the column `POSITION`.
        transactions: The transactions whose changes the rows contain, as the server prints them; empty if there are
            none.
    """

    order: int
    transactions: str = ""

    def to_mapping(self) -> dict[str, object]:
        """Return the value as a JSON value."""
        return {"order": self.order, "transactions": self.transactions}

    @classmethod
    def from_mapping(cls, value: Mapping[str, object]) -> Seen:
        """Parse a mapping; raise KeyError or ValueError if it is invalid."""
        return cls(order=int(str(value["order"])), transactions=str(value["transactions"]))


#: The table has no rows yet to apply changes to: a later read of the whole table will include all changes.
SEES_ALL = Seen(order=(1 << 63) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """A source table.

    Attributes:
        name: The name as `database.table`.
        columns: The columns in order.
        key: The primary key columns; empty if there is none, or if the log lacks one of them.
        identity: The columns that the log contains for a row before its change; None means all columns.
        incarnation: An id that changes when the table is dropped, or replaced by a table of the same name, or when its
            changes were missing in the log for a time; empty if the log contains these events.
        unique: The columns of each unique index without nullable columns, including the primary key.
        has_hidden_rows: Whether row level security may hide rows from reads of the account.
        seen: The changes that a read of the log skips, because rows without a key would be appended twice; None to read
            all.
        start: The position at which the table's log begins. The log may be read from an earlier position for other
            tables; all earlier events of this table are skipped. None to begin where the read begins.
        refusal: Why the table's log cannot be decoded, with the remedy; empty if it can.
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
        """The column types as the server prints them."""
        return {column.name: column.kind for column in self.columns}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPosition:
    """A position in a server's log, between two transactions.

    Attributes:
        server: The id of the server, or server group, that wrote the log.
        order: A number that grows along the log, on the same scale as the column `POSITION`.
        text: The value that the server needs to continue here, in the server's format.
        time_ms: The server's time when the position was noted: transactions committed before that time precede it.
    """

    server: str
    order: int
    text: str
    time_ms: int = 0

    def to_mapping(self) -> dict[str, object]:
        """Return the position as a JSON value."""
        return {"server": self.server, "order": self.order, "text": self.text, "time_ms": self.time_ms}

    @classmethod
    def from_mapping(cls, value: Mapping[str, object]) -> LogPosition:
        """Parse a mapping; raise KeyError, TypeError or ValueError if it is invalid."""
        return cls(
            server=str(value["server"]),
            order=int(str(value["order"])),
            text=str(value["text"]),
            time_ms=int(str(value["time_ms"])),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A range of keys: after `after`, up to and including `upto`.

    Both are one SQL literal per key column, as the server printed them; None means no bound.

    Attributes:
        after: The lower bound.
        upto: The upper bound.
        keys: The keys to read instead of a range, as strings of their stored values; empty to read the range.
    """

    after: tuple[str, ...] | None = None
    upto: tuple[str, ...] | None = None
    keys: tuple[tuple[str, ...], ...] = field(default=(), repr=False)


def chunks_between(after: tuple[str, ...] | None, borders: Sequence[tuple[str, ...]], most: int) -> tuple[Chunk, ...]:
    """Return the ranges between keys that follow `after`; with fewer than `most`, the last one has no upper bound."""
    bounds = [after, *borders]
    chunks = [Chunk(after=low, upto=high) for low, high in pairwise(bounds)]
    return tuple(chunks) if len(chunks) >= most else (*chunks, Chunk(after=bounds[-1]))


#: Equal key ranges are used if at least one in this many numbers is a key.
_SPARSE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyNumbers:
    """Server statistics for a key that is one integer.

    Attributes:
        low: The minimum key that is not read yet.
        high: The maximum key.
        first: The minimum key in the table.
        rows: The estimated number of rows in the table; 0 without an estimate.
    """

    low: int
    high: int
    first: int
    rows: float

    def borders(self, rows: int, most: int) -> list[tuple[str, ...]] | None:
        """Return at most `most` borders between parts of about `rows` rows; None if the keys are sparse."""
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
        position: Its position among the changes, on the scale of `POSITION`.
        statement: The SQL statement.
        changes_rows: Whether rows may differ from their changes in the log.
    """

    kind: str
    table: str
    position: int
    statement: str = field(repr=False)
    changes_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Changes of one source table with the same columns, in log order.

    Attributes:
        table: The name as `database.table`.
        rows: The columns of the table (after the change; before it for deletes) and the `CONTROL` columns. An update
            that changes the key is a delete and an insert; only such inserts have unavailable values.
    """

    table: str
    rows: pa.Table


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """The end of a log read: the position after the last whole transaction."""

    position: LogPosition


class TableReads(Protocol):
    """Reads rows in a task. It is sent to tasks, so it is pickled; it contains credentials and is never printed."""

    @property
    def omits_unchanged(self) -> bool:
        """Whether the log may omit values that an update left unchanged; otherwise missing values are an error."""

    def connected(self) -> AbstractContextManager[TableReads]:
        """Return the same reads for one task; its chunks share a connection if that saves time."""

    def chunk(self, table: SourceTable, key: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield a chunk's rows from one consistent read, with the columns of `table.schema`."""

    def whole(self, table: SourceTable) -> Iterator[Seen | pa.RecordBatch]:
        """Yield the changes that a consistent read of the whole table includes, then its rows as `chunk` does.

        Raises:
            UserError: The server does not support such reads for this table.
            RetryableError: The server does not answer, or the table changes too often to determine the changes that the
                read includes.
        """

    def log(
        self, start: LogPosition, end: LogPosition, tables: Sequence[SourceTable]
    ) -> Iterator[Changes | SchemaEvent | LogEnd]:
        """Yield the row changes and the statements that changed tables between two positions, then the end.

        Skips changes and statements in a table's `seen` or before its `start`.

        Raises:
            UserError: The log no longer contains the start, or contains an event that cannot be applied. The fact
                `tables` contains the names of the affected tables, if known.
            RetryableError: The server does not answer.
        """


class DatabaseServer(Protocol):
    """Metadata of a server for a run; reads no rows."""

    def check(self, tables: Sequence[SourceTable]) -> None:
        """Raise UserError, with value and remedy, if the server's log cannot be read or lacks required data."""

    def prepare(self, tables: Sequence[SourceTable], *, resumes: bool) -> frozenset[str]:
        """Make the log contain changes of tables from now on; return the tables whose changes it lacked.

        Args:
            tables: The tables, with the key for the target; it is empty if rows are appended.
            resumes: Whether a table continues the position of an earlier run.

        Raises UserError with the statements to run if an administrator has to do it.
        """

    def tables(self) -> Sequence[str]:
        """Return the names of all tables that the account may read, as `database.table`."""

    def describe(self, names: Sequence[str]) -> Mapping[str, SourceTable]:
        """Return the columns and keys of tables, without those that do not exist."""

    def await_writers(self, table: str) -> None:
        """Wait for transactions whose changes of a table precede its log; a later read must include them.

        Raises OpenTransactionsError if they do not end for a minute.
        """

    def low_watermark(self, table: str) -> LogPosition:
        """Return a position such that every later read of a table includes all changes before it."""

    def log_end(self) -> LogPosition:
        """Return the end of the log: every change in an earlier read of a table is before it."""

    def resumed(self, position: LogPosition) -> LogPosition:
        """Return where this server's log continues the position from an earlier run.

        Raises UserError if this server has a different log.
        """

    def earliest(self, positions: Sequence[LogPosition]) -> LogPosition:
        """Return a position that only follows transactions before all of the given positions."""

    def limited(self, start: LogPosition, end: LogPosition, most_bytes: int) -> LogPosition:
        """Return a position between `start` and `end` such that about `most_bytes` of the log lie before it."""

    def log_bytes(self, start: LogPosition, end: LogPosition) -> int:
        """Return the size of the log between two positions."""

    def confirm(self, positions: Sequence[LogPosition]) -> None:
        """Allow the server to delete its log before all of these committed positions."""

    def unconfirmed(self) -> tuple[str, int] | None:
        """Return the object that retains the server's log, and its bytes; None if logs are deleted by age."""

    def chunks(
        self, table: SourceTable, key: Sequence[str], after: tuple[str, ...] | None, *, rows: int, most: int
    ) -> Sequence[Chunk]:
        """Return up to `most` consecutive chunks of about `rows` rows after a key; the table's last is unbounded."""

    @property
    def reads(self) -> TableReads:
        """Return the settings with which tasks read."""

    def close(self) -> None:
        """Close the connection."""
