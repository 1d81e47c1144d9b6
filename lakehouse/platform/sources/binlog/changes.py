"""Output of the decoder for whole transactions: batches of row changes, and statements that changed tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.binlog.positions import BinlogPosition

#: Columns of changes in addition to the columns of the table.
CHANGE, POSITION, COMMITTED, UNAVAILABLE = "_change", "_position", "_committed_us", "_unavailable"
INSERT, UPDATE, DELETE = "insert", "update", "delete"
#: Types of the columns in each batch. `_unavailable` is a list of strings and only present if columns are absent.
CONTROL = pa.schema(
    [
        pa.field(CHANGE, pa.dictionary(pa.int8(), pa.string())),
        pa.field(POSITION, pa.int64()),
        pa.field(COMMITTED, pa.timestamp("us", "UTC")),
    ]
)


class TableName(NamedTuple):
    """The name of a table and its database."""

    database: str
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeBatch:
    """Changes of one table with the same columns, in log order.

    An update that changes the key is a delete of the old key and an insert of the new one, in this order.

    Attributes:
        table: The table.
        columns: The columns of the table when it was changed.
        key: The names of the key columns; empty if the table has no key.
        rows: The columns of the table (after the change; for a delete, before it) and the `CONTROL` columns.
        zero_dates: Per column, the number of invalid calendar dates, which become null.
    """

    table: TableName
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    rows: pa.Table
    zero_dates: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaEvent:
    """A statement that changed a table without row events.

    Attributes:
        kind: `create`, `alter`, `drop`, `rename` or `truncate`. `alter` with `changes_rows` may have changed values in
            existing rows. A truncated or dropped partition is `truncate` with `changes_rows` of the same table.
        table: The table; its name is `*` for all tables of a dropped database.
        position: The ordering value, in the order of the changes.
        statement: The SQL statement.
        committed_us: The commit time in microseconds.
        renamed_to: The new name of `rename`.
        changes_rows: Whether rows may differ from the row events, so that the table needs a new snapshot.
        skipped: Tables whose log begins after the statement, so it does not affect them.
    """

    kind: str
    table: TableName
    position: int
    statement: str = field(repr=False)
    committed_us: int = 0
    renamed_to: TableName | None = None
    changes_rows: bool = False
    skipped: frozenset[TableName] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedLog:
    """The changes of whole transactions.

    Attributes:
        changes: Batches and schema events. Batches of one table are in log order; batches of different tables are
            ordered only by `_position`.
        position: The position after the last transaction.
        transactions: The number of transactions, including those that changed no wanted table.
        rows: The number of rows in all batches.
    """

    changes: tuple[ChangeBatch | SchemaEvent, ...]
    position: BinlogPosition
    transactions: int
    rows: int
