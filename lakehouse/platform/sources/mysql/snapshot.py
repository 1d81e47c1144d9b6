"""A consistent read of a whole table at a known log position, for tables without a primary key.

MariaDB reports the position of a consistent snapshot. MySQL does not: a transaction is in the log before it is visible
to others. So the committed transactions are noted before the snapshot begins, and the end of the log after it. If the
log between both contains no change of the table, the snapshot contains exactly the changes before. Otherwise the read
starts again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.sources.binlog.columns import SourceColumn, arrow_type
from lakehouse.platform.sources.binlog.positions import MARIADB, MYSQL, BinlogPosition
from lakehouse.platform.sources.mysql.keys import quoted_table
from lakehouse.platform.sources.mysql.projection import arranged, read_by_client
from lakehouse.spec.sources.mysql_connection import MysqlAccess

_BATCH_ROWS = 20_000
#: Maximum number of snapshot attempts before the run fails.
_TRIES = 20
#: Storage engines with consistent snapshots: a transaction reads rows as they were when it began.
_ENGINES = ("innodb", "rocksdb")
#: Returns whether the log contains a change of the table between two positions.
IsChanged = Callable[[BinlogPosition, BinlogPosition], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSnapshot:
    """Reads a table in one transaction.

    Attributes:
        access: Host and credentials.
        flavor: `mysql` or `mariadb`.
        name: The table as `database.table`.
        columns: The columns to read.
    """

    access: MysqlAccess = field(repr=False)
    flavor: str
    name: str
    columns: tuple[SourceColumn, ...]

    def begin(self, connection: Any, is_changed: IsChanged) -> int:
        """Begin a connection's transaction; return the ordering value of its log position."""
        self._check_engine(connection)
        with connection.cursor() as cursor:
            cursor.execute("set session transaction isolation level repeatable read")
            for _ in range(_TRIES):
                gtid = _row(cursor, "select @@global.gtid_executed")[0] if self.flavor == MYSQL else ""
                before = BinlogPosition(flavor=MYSQL, gtid=str(gtid).replace("\n", ""))
                cursor.execute("start transaction with consistent snapshot, read only")
                place = self._place(cursor)
                if self.flavor == MARIADB or not is_changed(before, place):
                    return place.order
                cursor.execute("rollback")
        raise RetryableError(
            f"table {self.name} has no key, and it was changed each of {_TRIES} times that a snapshot of it began, so "
            "that changes could be missing or twice. Run at a time with fewer writes, add a primary key, or write "
            "'snapshot: never' in ingest to append only the inserts from now on",
            table=self.name,
        )

    def rows(self, connection: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows that are visible to the transaction."""
        schema = pa.schema([pa.field(column.name, arrow_type(column)) for column in self.columns])
        selected = ", ".join(read_by_client(column) for column in self.columns)
        with connection.cursor() as cursor:
            cursor.execute(f"select {selected} from {quoted_table(self.name)}")
            while rows := cursor.fetchmany(_BATCH_ROWS):
                values = [_array(given, kind.type) for given, kind in zip(zip(*rows, strict=True), schema, strict=True)]
                yield arranged(pa.RecordBatch.from_arrays(values, names=schema.names), schema)

    def _place(self, cursor: Any) -> BinlogPosition:
        """Return the position of the transaction's snapshot (MariaDB), or the end of the log (MySQL)."""
        if self.flavor == MARIADB:
            cursor.execute("show status like 'binlog_snapshot_%'")
            status = {str(name).lower(): value for name, value in cursor.fetchall()}
            file, offset = status["binlog_snapshot_file"], status["binlog_snapshot_position"]
            return BinlogPosition(flavor=MARIADB, file=str(file), offset=int(offset))
        major, minor, *_ = str(_row(cursor, "select version()")[0]).split(".")
        is_modern = (int(major), int(minor)) >= (8, 4)
        file, offset, _, _, gtid, *_ = _row(cursor, "show binary log status" if is_modern else "show master status")
        return BinlogPosition(flavor=MYSQL, gtid=str(gtid).replace("\n", ""), file=str(file), offset=int(offset))

    def _check_engine(self, connection: Any) -> None:
        database, _, table = self.name.partition(".")
        with connection.cursor() as cursor:
            cursor.execute(
                "select engine from information_schema.tables where table_schema = %s and table_name = %s",
                (database, table),
            )
            rows = cursor.fetchall()
        engine = str(rows[0][0]) if rows else "none"
        if engine.lower() not in _ENGINES:
            raise UserError(
                f"table {self.name} has no key, and its engine {engine} has no transactions, so a snapshot of it has "
                f"no place in the log. Run ALTER TABLE {self.name} ENGINE=InnoDB, or write 'snapshot: never' in ingest",
                table=self.name,
            )


def _array(values: tuple[object, ...], kind: pa.DataType) -> pa.Array:
    """Return client values as an array that `arranged` casts."""
    if pa.types.is_boolean(kind):
        return pa.array(values, pa.int64())
    return pa.array(values, pa.float64() if pa.types.is_floating(kind) else kind)


def _row(cursor: Any, statement: str) -> tuple[Any, ...]:
    cursor.execute(statement)
    row: tuple[Any, ...] = cursor.fetchall()[0]
    return row
