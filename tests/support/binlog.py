"""Reads the binlog of the servers of tests with the decoder."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from lakehouse.platform.sources.binlog.changes import CONTROL, UNAVAILABLE, ChangeBatch, DecodedLog, SchemaEvent
from lakehouse.platform.sources.binlog.dump import LogRead, read_changes
from lakehouse.platform.sources.binlog.positions import BinlogPosition
from tests.support.mysql import READER, READER_PASSWORD, DatabaseServer

_server_ids = count(10_000)


class Log:
    """The log of a server from now on, for the tables of a new database."""

    def __init__(self, server: DatabaseServer) -> None:
        self.server = server
        self.database = server.database()
        self.start = self.now()

    @property
    def end(self) -> BinlogPosition:
        """The end of the log."""
        return self.now()

    def now(self) -> BinlogPosition:
        """Return the end of the log."""
        file, offset, *_ = self.server.query("show master status")[0]
        name = "gtid_executed" if self.server.kind == "mysql" else "gtid_binlog_pos"
        gtid = self.server.query(f"select @@global.{name}")[0][0].replace("\n", "")
        return BinlogPosition(flavor=self.server.kind, gtid=gtid, file=file, offset=offset)

    def run(self, *statements: str) -> None:
        """Run statements in one session of the database."""
        self.server.run(*statements, database=self.database)

    def read(self, **settings: Any) -> Iterator[DecodedLog]:
        """Read the log from the start to its end; `settings` replace fields of `LogRead`."""
        given = {
            "start": self.start,
            "server_id": next(_server_ids),
            "wants": lambda name: name.database == self.database,
            "until": self.now(),
        }
        yield from read_changes(self.connect, LogRead(**{**given, **settings}))

    def connect(self) -> Any:
        """Return a connection of the account of an ingestion."""
        return self.server.connect(user=READER, password=READER_PASSWORD)

    def changes(self, **settings: Any) -> list[ChangeBatch | SchemaEvent]:
        """Return all changes from the start to the end of the log."""
        return [change for decoded in self.read(**settings) for change in decoded.changes]

    def batches(self, **settings: Any) -> list[ChangeBatch]:
        """Return the changes of rows from the start to the end of the log."""
        return [change for change in self.changes(**settings) if isinstance(change, ChangeBatch)]


def rows_of(batch: ChangeBatch) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the columns of each change."""
    marks = {*CONTROL.names, UNAVAILABLE}
    rows = batch.rows.to_pylist()
    return [(row["_change"], {name: value for name, value in row.items() if name not in marks}) for row in rows]
