"""Reads in tasks: chunks with connectorx, and the log with the decoder of `lakehouse.platform.sources.binlog`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

import connectorx
import pyarrow as pa
import pyarrow.compute as pc
from pymysql.cursors import SSCursor

from lakehouse.core.system.ids import RandomIds
from lakehouse.core.system.stop import JobStop
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.sources.binlog.changes import ChangeBatch, TableName
from lakehouse.platform.sources.binlog.changes import SchemaEvent as TableStatement
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.binlog.dump import LogRead, read_changes
from lakehouse.platform.sources.binlog.positions import BinlogPosition
from lakehouse.platform.sources.databases.server import (
    POSITION,
    Changes,
    Chunk,
    LogEnd,
    LogPosition,
    SchemaEvent,
    Seen,
    SourceTable,
)
from lakehouse.platform.sources.mysql.connection import connect, server_errors
from lakehouse.platform.sources.mysql.keys import condition, quoted_table
from lakehouse.platform.sources.mysql.projection import arranged, projected
from lakehouse.platform.sources.mysql.snapshot import TableSnapshot
from lakehouse.spec.sources.mysql_connection import MysqlAccess

_BATCH_ROWS = 20_000
_SESSION = ("set time_zone = '+00:00'", "set sql_mode = ''", "set names utf8mb4")


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlReads:
    """Reads of one server.

    Attributes:
        access: Host and credentials.
        flavor: `mysql` or `mariadb`.
        server_ids: The first and the last server id for reads of the log.
        identity: The identity of the server.
        columns: The columns of the tables as the server describes them.
    """

    access: MysqlAccess = field(repr=False)
    flavor: str
    server_ids: tuple[int, int]
    identity: str
    columns: Mapping[str, tuple[SourceColumn, ...]] = field(repr=False)

    @property
    def omits_unchanged(self) -> bool:
        """Return False, because row images are complete."""
        return False

    def connected(self) -> AbstractContextManager[MysqlReads]:
        """Return these reads: each connectorx query opens a connection."""
        return nullcontext(self)

    def chunk(self, table: SourceTable, key: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk (see `TableReads.chunk`)."""
        by_name = {column.name: column for column in self.columns[table.name]}
        names = [column.name for column in table.columns]
        selected = ", ".join(f"{projected(by_name[name])} as c{number}" for number, name in enumerate(names))
        where = condition(key, chunk)
        query = f"select {selected} from {quoted_table(table.name)} {f'where {where}' if where else ''}"
        for rows in self._query(query):
            yield arranged(rows, table.schema)

    def whole(self, table: SourceTable) -> Iterator[Seen | pa.RecordBatch]:
        """Yield the log position of a consistent read, then its rows (see `TableReads.whole`)."""
        columns = {column.name: column for column in self.columns[table.name]}
        snapshot = TableSnapshot(
            access=self.access,
            flavor=self.flavor,
            name=table.name,
            columns=tuple(columns[column.name] for column in table.columns),
        )
        with closing(connect(self.access, cursorclass=SSCursor)) as connection, server_errors(self.access):
            yield Seen(order=snapshot.begin(connection, partial(self._is_changed, table)))
            yield from snapshot.rows(connection)

    def _is_changed(self, table: SourceTable, start: BinlogPosition, end: BinlogPosition) -> bool:
        """Return whether the log contains a change of a table between two positions."""
        first, last = (
            LogPosition(server=self.identity, order=place.order, text=place.to_json()) for place in (start, end)
        )
        return any(
            not isinstance(one, LogEnd) for one in self.log(first, last, (replace(table, seen=None, start=None),))
        )

    def log(
        self, start: LogPosition, end: LogPosition, tables: Sequence[SourceTable]
    ) -> Iterator[Changes | SchemaEvent | LogEnd]:
        """Yield the changes of tables between two positions (see `TableReads.log`)."""
        names = {_name(table.name): table for table in tables}
        first, last = self.server_ids
        read = LogRead(
            start=BinlogPosition.from_json(start.text),
            # Two concurrent reads need two ids.
            server_id=first + int(RandomIds().uuid().replace("-", ""), 16) % (last - first + 1),
            wants=names.__contains__,
            until=BinlogPosition.from_json(end.text),
            keys={name: table.key for name, table in names.items() if table.key},
            catalog={name: self.columns[table.name] for name, table in names.items() if table.name in self.columns},
            starts={
                name: BinlogPosition.from_json((start if table.start is None else table.start).text)
                for name, table in names.items()
            },
        )
        position = read.start
        for decoded in read_changes(partial(connect, self.access), read):
            for one in decoded.changes:
                if isinstance(one, ChangeBatch):
                    rows = _unseen(one.rows, names[one.table].seen)
                    if rows.num_rows:
                        yield Changes(table=str(one.table), rows=rows)
                else:
                    for event in _events(one, names):
                        seen = names[_name(event.table)].seen
                        if seen is None or event.position > seen.order:
                            yield event
            position = decoded.position
        yield LogEnd(
            position=LogPosition(
                server=self.identity, order=position.order, text=position.to_json(), time_ms=end.time_ms
            )
        )

    def _query(self, query: str) -> Iterator[pa.RecordBatch]:
        try:
            reader = connectorx.read_sql(
                self.access.url,
                query,
                return_type="arrow_stream",
                batch_size=_BATCH_ROWS,
                pre_execution_query=list(_SESSION),
            )
            yield from reader
        except (GeneratorExit, KeyboardInterrupt, SystemExit, JobStop):
            raise
        except BaseException as error:
            # connectorx panics are not subclasses of `Exception`.
            raise self._failure(error) from None

    def _failure(self, error: BaseException) -> Exception:
        text = str(error).replace(self.access.url, f"mysql://{self.access.address}/")
        if self.access.password:
            text = text.replace(self.access.password, "...")
        if "panick" in type(error).__name__.lower():
            return UserError(f"the client connectorx cannot read a value of a chunk: {text[:500]}")
        return RetryableError(f"reading a chunk from {self.access.address}: {text[:500]}")


def _unseen(rows: pa.Table, seen: Seen | None) -> pa.Table:
    return rows if seen is None else rows.filter(pc.greater(rows.column(POSITION), seen.order))


def _name(name: str) -> TableName:
    database, _, table = name.partition(".")
    return TableName(database, table)


def _events(event: TableStatement, names: Iterable[TableName]) -> Iterator[SchemaEvent]:
    """Yield the effect of a statement on each table in the read."""
    tables = {event.table, event.renamed_to}
    for name in names:
        if name in event.skipped:
            continue
        # A dropped database affects all its tables.
        if name in tables or (event.table.table == "*" and event.table.database == name.database):
            yield SchemaEvent(
                kind=event.kind,
                table=str(name),
                position=event.position,
                statement=event.statement,
                changes_rows=event.changes_rows,
            )
