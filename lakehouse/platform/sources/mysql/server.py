"""A MySQL or MariaDB server as a `DatabaseServer`: its tables, log positions, and key chunks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import LakehouseError, OpenTransactionsError, RetryableError, UserError
from lakehouse.platform.sources.binlog.positions import MARIADB, MYSQL, BinlogPosition
from lakehouse.platform.sources.databases.server import Chunk, KeyNumbers, LogPosition, SourceTable, chunks_between
from lakehouse.platform.sources.mysql.connection import Questions
from lakehouse.platform.sources.mysql.history import LogHistory, binlog_files, binlog_status
from lakehouse.platform.sources.mysql.keys import INTEGERS, condition, literal, quoted, quoted_table
from lakehouse.platform.sources.mysql.preflight import check_server
from lakehouse.platform.sources.mysql.reads import MysqlReads
from lakehouse.platform.sources.mysql.tables import ServerTable, described, table_names
from lakehouse.spec.sources.mysql_connection import MysqlAccess
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec

#: The metadata column with a change's ordering value.
METADATA_POSITION = "position"


class MysqlServer:
    """A server, queried over one connection."""

    def __init__(self, access: MysqlAccess, settings: MysqlSourceSpec) -> None:
        self._server, self._settings = Questions(access), settings
        version = str(self._server.value("select version()"))
        self._flavor = MARIADB if "mariadb" in version.lower() else MYSQL
        self._identity = self._identify()
        self._prepared = PreparedTransactions(self._server, self._flavor)
        self._described: dict[str, ServerTable] = {}
        self._history = LogHistory(self._server, self._flavor, settings.server_ids)

    def check(self, tables: Sequence[SourceTable]) -> None:
        """Raise UserError if the log cannot be read (see `preflight`), or a table cannot be applied."""
        check_server(self._server, self._flavor, self._settings.connection, tables)

    def prepare(self, tables: Sequence[SourceTable], *, resumes: bool) -> frozenset[str]:
        """Nothing to prepare: the log contains all tables."""
        return frozenset()

    def tables(self) -> Sequence[str]:
        """Return the names of all tables that the account may read."""
        return table_names(self._server)

    def describe(self, names: Sequence[str]) -> Mapping[str, SourceTable]:
        """Return the columns and keys of tables, without those that do not exist."""
        self._described = described(self._server, names)
        return {name: one.table for name, one in self._described.items()}

    def await_writers(self, table: str) -> None:
        """Nothing to wait for: the log contains all changes."""

    def low_watermark(self, table: str) -> LogPosition:
        """Return a position such that every later read of a table includes all changes before it.

        MySQL: the set of committed transactions. MariaDB: the position of a consistent snapshot. The end of the log is
        no such position: a transaction is in the log before it is visible to others.

        Raises OpenTransactionsError for prepared XA transactions: the log has their rows before they are committed.
        """
        self._prepared.wait(table)
        time_ms = self._time_ms()
        if self._flavor == MYSQL:
            gtid = str(self._server.value("select @@global.gtid_executed") or "").replace("\n", "")
            return self._position(BinlogPosition(flavor=MYSQL, gtid=gtid), time_ms)
        self._server.rows("start transaction with consistent snapshot")
        status = {
            row["variable_name"].lower(): row["value"]
            for row in self._server.rows("show status like 'binlog_snapshot_%%'")
        }
        self._server.rows("commit")
        file, offset = str(status["binlog_snapshot_file"]), int(status["binlog_snapshot_position"])
        place = replace(self._mariadb(file, offset), created_s=self._history.created_s(file))
        return self._position(place, time_ms)

    def log_end(self) -> LogPosition:
        """Return the end of the log: every change in an earlier read of a table is before it."""
        time_ms = self._time_ms()
        row = binlog_status(self._server, self._flavor)
        file, offset = str(row["file"]), int(row["position"])
        if self._flavor == MARIADB:
            return self._position(self._mariadb(file, offset), time_ms)
        gtid = str(row["executed_gtid_set"]).replace("\n", "")
        return self._position(BinlogPosition(flavor=MYSQL, gtid=gtid, file=file, offset=offset), time_ms)

    def resumed(self, position: LogPosition) -> LogPosition:
        """Return where this server's log continues a position, even a position from another server after a failover.

        MySQL GTIDs contain the UUID of the server that executed the transaction, so they are the same on all servers of
        a group. MariaDB GTIDs are numbers that unrelated servers use, too.

        Raises:
            SnapshotNeededError: The log starts again behind the position, so that changes are lost.
            UserError: The position is from another server, and its GTIDs do not determine where to continue.
            RetryableError: This server lacks transactions that the table contains.
        """
        binlog = _binlog(position)
        if position.server == self._identity:
            self._history.require(binlog)
            return position
        where = (
            f"the connection {self._settings.connection!r} leads to the server {self._identity}, and the table was "
            f"read from {position.server}"
        )
        if binlog.flavor != MYSQL or self._flavor != MYSQL or not binlog.gtid:
            raise UserError(
                f"{where}, whose log has other places. Correct the connection, or read all tables again from this "
                "server with --full-refresh"
            )
        if METADATA_POSITION in self._settings.database.metadata:
            raise UserError(
                f"{where}. The column of the position in the log does not go on after a failover. Leave "
                f"{METADATA_POSITION!r} out of ingest.metadata, or read all tables again with --full-refresh"
            )
        if not self._server.value("select gtid_subset(%s, @@global.gtid_executed)", (binlog.gtid,)):
            lacking = self._server.value("select gtid_subtract(%s, @@global.gtid_executed)", (binlog.gtid,))
            raise RetryableError(
                f"{where}. This server does not have the transactions {lacking} yet, which the table has. Wait for its "
                "replication; if they were lost in a failover, read all tables again with --full-refresh"
            )
        # Offsets in files belong to the other server.
        return self._position(
            BinlogPosition(flavor=MYSQL, gtid=binlog.gtid, committed_us=binlog.committed_us), position.time_ms
        )

    def earliest(self, positions: Sequence[LogPosition]) -> LogPosition:
        """Return a position that only follows transactions before all of the given positions.

        File positions are totally ordered. MySQL GTID sets are not: another set may lack one transaction and contain a
        later one, so the position is their intersection.
        """
        placed = [one for one in positions if _binlog(one).file]
        result = min(placed, key=lambda one: one.order) if placed else positions[0]
        for other in positions:
            if _binlog(other).file:
                continue
            mine, its = _binlog(result).gtid, _binlog(other).gtid
            shared = self._server.value("select gtid_subtract(%s, gtid_subtract(%s, %s))", (mine, mine, its))
            text = str(shared or "").replace("\n", "")
            if text != mine:
                result = self._position(BinlogPosition(flavor=self._flavor, gtid=text), other.time_ms)
        return result

    def limited(self, start: LogPosition, end: LogPosition, most_bytes: int) -> LogPosition:
        """Return the end of a log file such that about `most_bytes` of the log lie before it."""
        first, last = _binlog(start), _binlog(end)
        if not first.file:
            return end
        size = 0
        for file, length in binlog_files(self._server):
            if file < first.file:
                continue
            if file >= last.file:
                return end
            size += length - (first.offset if file == first.file else 0)
            if size >= most_bytes:
                position = BinlogPosition(flavor=self._flavor, file=file, offset=length)
                return self._position(position, end.time_ms)
        return end

    def log_bytes(self, start: LogPosition, end: LogPosition) -> int:
        """Return the size of the log between two positions; 0 if the start's file offset is not known."""
        first, last = _binlog(start), _binlog(end)
        if not first.file or not last.file:
            return 0
        between = sum(length for file, length in binlog_files(self._server) if first.file <= file < last.file)
        return max(0, between + last.offset - first.offset)

    def confirm(self, positions: Sequence[LogPosition]) -> None:
        """Nothing to confirm: the server deletes its log by age."""

    def unconfirmed(self) -> tuple[str, int] | None:
        """Return None: the server deletes its log by age."""
        return None

    def chunks(
        self, table: SourceTable, key: Sequence[str], after: tuple[str, ...] | None, *, rows: int, most: int
    ) -> Sequence[Chunk]:
        """Return consecutive chunks after a key (see `DatabaseServer.chunks`)."""
        columns = {column.name: column for column in self._described[table.name].columns}
        literals = [literal(columns[name]) for name in key]
        expressions = [text for text in literals if text is not None]
        if len(expressions) < len(key):
            return (Chunk(after=after),)
        if len(key) == 1 and columns[key[0]].type in INTEGERS:
            borders = self._even(table.name, key[0], after, rows, most)
            if borders is not None:
                return chunks_between(after, borders, most)
        borders, previous = [], after
        while len(borders) < most:
            where = condition(key, Chunk(after=previous))
            order = ", ".join(quoted(name) for name in key)
            bounds = self._server.rows(
                f"select {', '.join(f'{text} as c{number}' for number, text in enumerate(expressions))} "
                f"from {quoted_table(table.name)} {f'where {where}' if where else ''} "
                f"order by {order} limit 1 offset {rows - 1}".replace("%", "%%")
            )
            if not bounds:
                break
            previous = tuple(_text(bounds[0][f"c{number}"]) for number in range(len(key)))
            borders.append(previous)
        return chunks_between(after, borders, most)

    @property
    def reads(self) -> MysqlReads:
        """Settings with which tasks read."""
        return MysqlReads(
            access=self._server.access,
            flavor=self._flavor,
            server_ids=self._settings.server_ids,
            identity=self._identity,
            columns={name: one.columns for name, one in self._described.items()},
        )

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _identify(self) -> str:
        if self._flavor == MYSQL:
            return self._server.variable("server_uuid")
        return self._server.variable("server_uid") or f"server_id={self._server.variable('server_id')}"

    def _mariadb(self, file: str, offset: int) -> BinlogPosition:
        gtid = str(self._server.value("select binlog_gtid_pos(%s, %s)", (file, offset)) or "")
        return BinlogPosition(flavor=MARIADB, gtid=gtid, file=file, offset=offset)

    def _time_ms(self) -> int:
        return int(self._server.value("select cast(unix_timestamp(now(3)) * 1000 as signed)"))

    def _position(self, position: BinlogPosition, time_ms: int) -> LogPosition:
        return LogPosition(server=self._identity, order=position.order, text=position.to_json(), time_ms=time_ms)

    def _even(
        self, name: str, key: str, after: tuple[str, ...] | None, rows: int, most: int
    ) -> list[tuple[str, ...]] | None:
        """Return borders that split an integer key evenly; None if the keys are sparse."""
        where = condition((key,), Chunk(after=after))
        bounds = self._server.rows(
            f"select min({quoted(key)}) as low, max({quoted(key)}) as high from {quoted_table(name)} "
            f"{f'where {where}' if where else ''}"
        )[0]
        if bounds["low"] is None:
            return []
        first = bounds["low"]
        if after is not None:
            # The estimate is of the whole table. Earlier commits chose the borders from it.
            first = self._server.value(f"select min({quoted(key)}) from {quoted_table(name)}")
        database, _, table = name.partition(".")
        estimate = self._server.value(
            "select table_rows from information_schema.tables where table_schema = %s and table_name = %s",
            (database, table),
        )
        numbers = KeyNumbers(
            low=int(bounds["low"]), high=int(bounds["high"]), first=int(first), rows=float(estimate or 0)
        )
        return numbers.borders(rows, most)


def _binlog(position: LogPosition) -> BinlogPosition:
    return BinlogPosition.from_json(position.text)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


log = logging.getLogger(__name__)
_CLOCK = SystemClock()
_WAIT_S, _POLL_S = 60.0, 0.5
#: MySQL errors for an account that may not list them; MariaDB needs no right.
_DENIED = (1227, 1401)


class PreparedTransactions:
    """Waits for the end of prepared XA transactions, in total for a minute.

    A snapshot does not include the rows of such a transaction, and the log contains them before the snapshot. So they
    would be missing after its commit.
    """

    def __init__(self, server: Questions, flavor: str) -> None:
        self._server = server
        self._statement = "xa recover format = 'SQL'" if flavor == MARIADB else "xa recover convert xid"
        self._deadline: float | None = None

    def wait(self, table: str) -> None:
        """Wait for all prepared transactions; raise OpenTransactionsError for a table if they do not end."""
        prepared = self._prepared()
        if not prepared:
            return
        log.info("waits up to %.0f s for prepared XA transactions: %s", _WAIT_S, ", ".join(sorted(prepared)))
        self._deadline = self._deadline or _CLOCK.monotonic_s() + _WAIT_S
        while prepared:
            if _CLOCK.monotonic_s() > self._deadline:
                raise OpenTransactionsError(
                    f"XA transactions have been prepared for more than {_WAIT_S:.0f} seconds "
                    f"({', '.join(sorted(prepared))}). A snapshot of {table} would lack their rows, so the table is "
                    "read after their end. Run XA COMMIT or XA ROLLBACK for each (XA RECOVER lists them), then run "
                    "again",
                    table=table,
                )
            _CLOCK.sleep(_POLL_S)
            prepared &= self._prepared()

    def _prepared(self) -> set[str]:
        try:
            rows = self._server.rows(self._statement)
        except LakehouseError as error:
            if error.facts.get("code") not in _DENIED:
                raise
            log.info("prepared XA transactions cannot be listed: %s", error.message)
            return set()
        return {str(row["data"]) for row in rows}
