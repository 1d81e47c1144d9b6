"""Reads in tasks: chunks with binary COPY, and the log with the decoder of `lakehouse.platform.sources.pgoutput`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakehouse.errors import RetryableError
from lakehouse.platform.sources.databases.server import (
    Changes,
    Chunk,
    LogEnd,
    LogPosition,
    SchemaEvent,
    Seen,
    SourceTable,
)
from lakehouse.platform.sources.pgoutput.columns import PgColumn
from lakehouse.platform.sources.pgoutput.decoder import TAKE_BYTES, Decoder
from lakehouse.platform.sources.postgres.copying import CopySession, SharedSession
from lakehouse.platform.sources.postgres.keys import condition, listed, quoted_table
from lakehouse.platform.sources.postgres.stream import SlotStream
from lakehouse.spec.sources.postgres_connection import PostgresAccess

#: The number of keys per query.
_LISTED = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresReads:
    """Reads of one database.

    Attributes:
        access: Host, database and credentials.
        identity: The identity of the server and its database.
        slot: The name of the replication slot.
        publications: The names of the publications.
        columns: The columns of the tables.
        partitioned: The names of the partitioned tables.
        domains: The base type per domain.
        shared: The connection that the chunks of a task share.
    """

    access: PostgresAccess = field(repr=False)
    identity: str
    slot: str
    publications: tuple[str, ...]
    columns: Mapping[str, tuple[PgColumn, ...]] = field(repr=False)
    partitioned: frozenset[str] = frozenset()
    domains: Mapping[int, tuple[int, int]] = field(default_factory=dict, repr=False)
    shared: SharedSession | None = field(default=None, repr=False, compare=False)

    @property
    def omits_unchanged(self) -> bool:
        """Return True: the log omits values that are stored out of line (TOAST) if an update left them unchanged."""
        return True

    @contextmanager
    def connected(self) -> Iterator[PostgresReads]:
        """Return these reads for one task, whose chunks share a connection (see `TableReads.connected`)."""
        with closing(SharedSession(self.access)) as shared:
            yield replace(self, shared=shared)

    def chunk(self, table: SourceTable, key: Sequence[str], chunk: Chunk) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a chunk (see `TableReads.chunk`)."""
        by_name = {column.name: column for column in self.columns[table.name]}
        columns, source = tuple(by_name[column.name] for column in table.columns), self._from(table)
        key_columns = [by_name[name] for name in key]
        wheres = [condition(key, chunk)]
        if chunk.keys:
            wheres = [listed(key_columns, chunk.keys[at : at + _LISTED]) for at in range(0, len(chunk.keys), _LISTED)]
        with CopySession(self.access) if self.shared is None else self.shared.session() as session:
            for where in wheres:
                yield from session.rows(columns, f"{source} where {where}" if where else source)

    def whole(self, table: SourceTable) -> Iterator[Seen | pa.RecordBatch]:
        """Yield the transactions that a snapshot includes, then the table's rows in it (see `TableReads.whole`).

        The lock, which excludes only statements that replace the table, comes before the snapshot: TRUNCATE would
        empty the table for older snapshots, too.
        """
        by_name = {column.name: column for column in self.columns[table.name]}
        columns = tuple(by_name[column.name] for column in table.columns)
        with CopySession(self.access) as session:
            session.run("begin isolation level repeatable read, read only")
            session.run(f"lock table {self._from(table)} in access share mode")
            yield Seen(order=0, transactions=str(session.value("select pg_current_snapshot()::text")))
            yield from session.rows(columns, self._from(table))

    def log(
        self, start: LogPosition, end: LogPosition, tables: Sequence[SourceTable]
    ) -> Iterator[Changes | SchemaEvent | LogEnd]:
        """Yield the changes of tables between two positions (see `TableReads.log`)."""
        decoder = Decoder(
            end=end.order,
            keys={table.name: table.key for table in tables},
            domains=self.domains,
            seen={table.name: table.seen for table in tables if table.seen is not None},
        )
        if start.order < end.order:
            with closing(SlotStream(self.access, self.slot, self.publications)) as stream:
                stream.start(start.order)
                for data, place in stream.messages(end.order):
                    if not decoder.feed(data, place):
                        break
                    if decoder.bytes >= TAKE_BYTES:
                        yield from decoder.take()
        if decoder.is_inside:
            raise RetryableError(f"the server {self.access.address} ended the log within a transaction")
        yield from decoder.take()
        yield LogEnd(position=end)

    def _from(self, table: SourceTable) -> str:
        """Return the FROM item of a table without tables that inherit from it; its partitions are included."""
        return f"{'' if table.name in self.partitioned else 'only '}{quoted_table(table.name)}"
