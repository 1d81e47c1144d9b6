"""Reading a binlog to Arrow, beside mysql-replication and beside the packets as PyMySQL reads them, undecoded."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from typing import Any

from lakehouse.platform.sources.binlog.dump import LogRead, _prepared, read_changes
from lakehouse.platform.sources.binlog.positions import BinlogPosition
from tests.bench.measure import Comparison, Sample, Side, compare, interleave, show_lines
from tests.bench.setting import Setting
from tests.support.mariadb import mariadb_server
from tests.support.mysql import ADMIN, ADMIN_PASSWORD, DatabaseServer, mysql_server
from tests.support.postgresql import HOST

#: Rows that change; servers for tests hold them in any case.
MOST_ROWS = 100_000
#: Rows of a statement, and the share of `MOST_ROWS` that single-row transactions change.
WORKLOADS = {"100 rows a transaction": (100, 1.0), "one row a transaction": (1, 0.2)}
#: The decoder needs at most this multiple of the time of the client library that decodes rows.
TARGET = 1 / 0.8
_TABLE = (
    "create table {0} (id bigint primary key, customer int unsigned, city varchar(40), fare decimal(12,2), "
    "requested datetime(6), changed timestamp(6) null, distance double, note varchar(300), status tinyint, day date)"
)


def run(setting: Setting) -> list[Comparison]:
    """Compare the decoder with mysql-replication on MySQL, and with undecoded packets on both servers."""
    comparisons: list[Comparison] = []
    lines = [("log", "reader", "row changes/s of CPU", "MB/s of CPU")]
    servers: dict[str, Callable[[], AbstractContextManager[DatabaseServer]]] = {
        "MariaDB": mariadb_server,
        "MySQL": mysql_server,
    }
    for name, server in servers.items():
        with server() as running:
            for what, (batch, share) in WORKLOADS.items():
                log = _Log(running, batch, int(min(setting.rows, MOST_ROWS) * share))
                sides = [
                    Side(name="decoder", run=log.decode),
                    Side(name="packets of PyMySQL, undecoded", run=log.packets),
                ]
                if running.kind == "mysql":
                    # A MariaDB server that has just started ends the connection of this reader again and again.
                    sides.append(Side(name="mysql-replication", run=log.replicate))
                samples = interleave(sides, setting.rounds)
                lines += [(f"{name}, {what}", side, *log.rates(found)) for side, found in samples.items()]
                what = f"{name}, {what}"
                if running.kind == "mysql":
                    comparisons.append(compare(what, samples, "decoder", "mysql-replication", TARGET))
                comparisons.append(compare(what, samples, "decoder", "packets of PyMySQL, undecoded"))
    show_lines(lines)
    return comparisons


class _Log:
    """A log in which half of the changes insert rows and half update them."""

    def __init__(self, server: DatabaseServer, batch: int, rows: int) -> None:
        self.server, self.changes = server, 2 * rows
        self.database = server.database()
        # A file of its own, so that the server does not step over earlier events.
        server.run("flush binary logs")
        self.start = self._now()
        with closing(server.connect(self.database)) as session, session.cursor() as cursor:
            cursor.execute(_TABLE.format("t"))
            for first in range(0, rows, batch):
                values = ", ".join(_row(number) for number in range(first, first + batch))
                cursor.execute(f"insert into t values {values}")
            for first in range(0, rows, batch):
                cursor.execute(f"update t set fare = fare + 1, status = 2 where id >= {first} and id < {first + batch}")
        self.end = self._now()
        self.size = self.end.offset - self.start.offset

    def rates(self, samples: list[Sample]) -> tuple[str, str]:
        """Return row changes and megabytes per second of CPU."""
        cpu = sorted(sample.cpu_s for sample in samples)[len(samples) // 2]
        return f"{self.changes / cpu:,.0f}", f"{self.size / cpu / 1e6:.1f}"

    def decode(self, _: int) -> None:
        """Read the log to Arrow."""
        read = LogRead(start=self.start, until=self.end, server_id=501, wants=lambda name: name[0] == self.database)
        rows = sum(decoded.rows for decoded in read_changes(self.server.connect, read))
        assert rows == self.changes, f"{rows} of {self.changes} changes"

    def replicate(self, _: int) -> None:
        """Read the log with mysql-replication to dicts of Python."""
        from pymysqlreplication import BinLogStreamReader
        from pymysqlreplication.row_event import DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            account = {"host": HOST, "port": self.server.port, "user": ADMIN, "password": ADMIN_PASSWORD}
            stream = BinLogStreamReader(
                connection_settings=account,
                server_id=502,
                only_events=[DeleteRowsEvent, UpdateRowsEvent, WriteRowsEvent],
                only_schemas=[self.database],
                log_file=self.start.file,
                log_pos=self.start.offset,
                resume_stream=True,
            )
            rows = sum(len(event.rows) for event in stream)
            stream.close()
        assert rows == self.changes, f"{rows} of {self.changes} changes"

    def packets(self, _: int) -> None:
        """Read the packets of the log with PyMySQL, and look at nothing else."""
        connection: Any = self.server.connect()
        start = BinlogPosition(flavor=self.start.flavor, file=self.start.file, offset=self.start.offset)
        _prepared(connection, LogRead(start=start, server_id=503, wants=lambda name: False))
        body = struct.pack("<IHI", start.offset, 1, 503) + start.file.encode()
        connection._write_bytes(struct.pack("<IB", len(body) + 1, 0x12) + body)
        connection._next_seq_id = 1
        last = b""
        while not (packet := connection._read_packet()).is_eof_packet():
            last = packet._data
        connection._force_close()
        # The end of an event in the file is at byte 13 of its header, after the byte that says that no error occurred.
        (end,) = struct.unpack_from("<I", last, 14)
        assert end >= self.end.offset, f"the packets end at {end} instead of {self.end.offset}"

    def _now(self) -> BinlogPosition:
        file, offset, *_ = self.server.query("show master status")[0]
        name = "gtid_executed" if self.server.kind == "mysql" else "gtid_binlog_pos"
        gtid = self.server.query(f"select @@global.{name}")[0][0].replace("\n", "")
        return BinlogPosition(flavor=self.server.kind, gtid=gtid, file=file, offset=offset)


def _row(number: int) -> str:
    note = "null" if number % 3 == 0 else f"'note of the order {number}'"
    times = f"'2026-07-04 12:34:56.{number % 10**6:06d}', '2026-07-04 12:34:56'"
    texts = f"'city {number % 50}', {number % 900}.25, {times}, {number}.5, {note}"
    return f"({number}, {number % 977}, {texts}, 1, '2026-07-04')"
