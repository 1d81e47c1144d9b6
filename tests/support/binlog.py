"""Reads the binlog of the servers of tests with the decoder."""

from __future__ import annotations

import gzip
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

from lakehouse.platform.sources.binlog.changes import (
    CONTROL,
    UNAVAILABLE,
    ChangeBatch,
    DecodedLog,
    SchemaEvent,
    TableName,
)
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.binlog.decoder import Decoder, DecoderSettings
from lakehouse.platform.sources.binlog.positions import BinlogPosition
from tests.support.mysql import READER, READER_PASSWORD, DatabaseServer

RECORDINGS = Path(__file__).resolve().parents[1] / "golden" / "binlog"
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
        from lakehouse.platform.sources.binlog.dump import LogRead, read_changes

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


@dataclass(frozen=True, slots=True)
class Recording:
    """Events of a server, and what the server printed when they were recorded.

    Attributes:
        start: The place of the first event.
        collations: The character set of each id of a collation.
        columns: The columns of the table `t` in the catalog.
        events: The events, each one from its header to its checksum.
        rows: The rows of the table after the events, as the server printed them.
    """

    start: BinlogPosition
    collations: dict[int, str]
    columns: tuple[SourceColumn, ...]
    events: list[bytes]
    rows: list[dict[str, Any]]

    def decoder(self) -> Decoder:
        """Return a decoder of the events."""
        database = "recorded"
        settings = DecoderSettings(
            flavor=self.start.flavor,
            wants=lambda name: name.database == database,
            collations=self.collations,
            catalog={TableName(database, "t"): self.columns},
        )
        return Decoder(settings, self.start)

    def save(self, path: Path) -> None:
        """Write the recording to a file; bytes are in base64."""
        value = {
            "start": self.start.to_json(),
            "collations": {str(number): name for number, name in self.collations.items()},
            "columns": [asdict(column) for column in self.columns],
            "events": [b64encode(event).decode() for event in self.events],
            "rows": [{name: _saved(one) for name, one in row.items()} for row in self.rows],
        }
        path.write_bytes(gzip.compress(json.dumps(value).encode(), mtime=0))

    @classmethod
    def load(cls, flavor: str) -> Recording:
        """Return the recording of `mysql` or `mariadb`."""
        value = json.loads(gzip.decompress((RECORDINGS / f"{flavor}.json.gz").read_bytes()))
        return cls(
            start=BinlogPosition.from_json(value["start"]),
            collations={int(number): name for number, name in value["collations"].items()},
            columns=tuple(SourceColumn(**{**column, "values": tuple(column["values"])}) for column in value["columns"]),
            events=[b64decode(event) for event in value["events"]],
            rows=[{name: _loaded(one) for name, one in row.items()} for row in value["rows"]],
        )


def _saved(value: Any) -> Any:
    return {"base64": b64encode(value).decode()} if isinstance(value, bytes) else value


def _loaded(value: Any) -> Any:
    return b64decode(value["base64"]) if isinstance(value, dict) else value


def rows_of(batch: ChangeBatch) -> list[tuple[str, dict[str, Any]]]:
    """Return the kind and the columns of each change."""
    marks = {*CONTROL.names, UNAVAILABLE}
    rows = batch.rows.to_pylist()
    return [(row["_change"], {name: value for name, value in row.items() if name not in marks}) for row in rows]
