"""A PostgreSQL database as a `DatabaseServer`: its tables, log positions, and key chunks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import OpenTransactionsError, RetryableError, SnapshotNeededError, UserError
from lakehouse.platform.sources.databases.server import Chunk, KeyNumbers, LogPosition, SourceTable, chunks_between
from lakehouse.platform.sources.pgoutput.columns import INT2, INT4, INT8
from lakehouse.platform.sources.pgoutput.decoder import lsn_number, lsn_text
from lakehouse.platform.sources.postgres.connection import Questions
from lakehouse.platform.sources.postgres.keys import as_text, condition, quoted, quoted_table
from lakehouse.platform.sources.postgres.publication import Publications
from lakehouse.platform.sources.postgres.reads import PostgresReads
from lakehouse.platform.sources.postgres.slot import Slot
from lakehouse.platform.sources.postgres.tables import ServerTable, described, domains, table_names
from lakehouse.spec.sources.postgres_connection import PostgresAccess
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec

log = logging.getLogger(__name__)
_CLOCK = SystemClock()
_POLL_S = 0.02
#: Maximum wait for transactions that changed a table before it was published.
_OLDER_S, _OLDER_POLL_S = 60.0, 0.1
#: Time for the server to flush the end of the log by itself.
_FLUSH_S = 1.0
#: Maximum time until a commit in the log is visible, without and with standbys that it waits for.
_SEEN_S, _SYNCHRONOUS_S = 5.0, 300.0
_INTEGERS = (INT2, INT4, INT8)


class PostgresServer:
    """A database, queried over one connection.

    Args:
        access: Host, database and sign-in.
        settings: The settings of the source.
        table: The name of the spec's table, from which the names of the slot and the publication are derived.
    """

    def __init__(self, access: PostgresAccess, settings: PostgresSourceSpec, table: str) -> None:
        self._server, self._settings = Questions(access), settings
        self._slot = Slot(server=self._server, name=settings.slot_of(table))
        self._publications = Publications(server=self._server, name=settings.publication_of(table))
        self._described: dict[str, ServerTable] = {}
        system = self._server.value("select system_identifier from pg_control_system()")
        self._identity = f"{system}/{access.database}"

    def check(self, tables: Sequence[SourceTable]) -> None:
        """Raise UserError if the log cannot be read (see `preflight`), or the account may not publish the tables."""
        # A slot that lost its log is dropped before the new one is created.
        needs_slot = self._slot.confirmed() is None and self._slot.state() is None
        check_server(self._server, self._settings.connection, needs_slot=needs_slot)
        statements = self._publications.missing(tables)
        if statements and not self._publications.may_complete(tables):
            raise UserError(self._publications.request(statements, "it does not own them"))

    def prepare(self, tables: Sequence[SourceTable], *, resumes: bool) -> frozenset[str]:
        """Publish tables and create the slot (see `DatabaseServer.prepare`)."""
        if not self._publications.missing(tables) and self._slot.confirmed() is not None:
            return frozenset()
        # Two concurrent runs must not create the same names.
        lock = (f"lakehouse {self._slot.name}",)
        self._server.rows("select pg_advisory_lock(hashtext(%s))", lock)
        try:
            statements = self._publications.missing(tables)
            published = self._publications.published() - self._publications.narrowed()
            self._publications.complete(statements)
            self._slot.ensure(resumes=resumes)
        finally:
            self._server.rows("select pg_advisory_unlock(hashtext(%s))", lock)
        return frozenset(table.name for table in tables) - published

    def tables(self) -> Sequence[str]:
        """Return the names of all tables that the account may read."""
        return table_names(self._server)

    def describe(self, names: Sequence[str]) -> Mapping[str, SourceTable]:
        """Return the columns and keys of tables, without those that do not exist."""
        self._described = described(self._server, names, self._publications.memberships())
        return {name: one.table for name, one in self._described.items()}

    def await_writers(self, table: str) -> None:
        """Wait for the transactions that have changed a table (see `DatabaseServer.await_writers`).

        The server uses the publication's state at the time of each change. So the log lacks a transaction's changes
        from before the table was published, even if it commits much later; no snapshot before its end includes them.
        """
        writers = self._writers(table)
        deadline = _CLOCK.monotonic_s() + _OLDER_S
        if writers:
            log.info("waits up to %.0f s for open transactions that change %s: %s", _OLDER_S, table, _shown(writers))
        while writers:
            if _CLOCK.monotonic_s() > deadline:
                raise OpenTransactionsError(
                    f"transactions that change {table} have been open for more than {_OLDER_S:.0f} seconds "
                    f"({_shown(writers)}). The log may lack what they changed before the table was published, so the "
                    "table is read after their end. Run again later, or end them: pg_stat_activity and "
                    "pg_prepared_xacts show them",
                    table=table,
                )
            _CLOCK.sleep(_OLDER_POLL_S)
            writers &= self._writers(table)

    def low_watermark(self, table: str) -> LogPosition:
        """Return a position such that every later read of a table includes all changes before it.

        A transaction is in the log before it is visible to others, and it holds its locks until it is. So the position
        is noted first, and then all transactions with locks for changes of the table have to end.
        """
        time_ms = self._time_ms()
        place = lsn_number(str(self._server.value("select pg_current_wal_flush_lsn()::text")))
        self._settle(table)
        return self._position(place, time_ms)

    def log_end(self) -> LogPosition:
        """Return the end of the log: every change in an earlier read of a table is before it.

        A transaction may be visible before the server has flushed its log to disk, and only the flushed log can be
        read. The server flushes it soon, or when a transaction commits, so this method commits a transaction.
        """
        time_ms = self._time_ms()
        place = lsn_number(str(self._server.value("select pg_current_wal_insert_lsn()::text")))
        deadline = _CLOCK.monotonic_s() + _FLUSH_S
        while not self._is_flushed(place):
            if _CLOCK.monotonic_s() > deadline:
                self._server.rows("select pg_logical_emit_message(true, 'lakehouse', 'end of the log')")
                deadline = _CLOCK.monotonic_s() + _FLUSH_S
            _CLOCK.sleep(_POLL_S)
        return self._position(place, time_ms)

    def resumed(self, position: LogPosition) -> LogPosition:
        """Return the position; raise UserError if it is from another database or its log was deleted."""
        if position.server != self._identity:
            raise SnapshotNeededError(
                f"the connection {self._settings.connection!r} leads to the database {self._identity}, and the table "
                f"was read from {position.server}, whose log has other places. Correct the connection, or read all "
                "tables again from this database with --full-refresh"
            )
        confirmed = self._slot.confirmed()
        if confirmed is None:
            raise SnapshotNeededError(f"{self._slot.problem()}. Read all tables of the spec again with --full-refresh")
        if confirmed > position.order:
            raise SnapshotNeededError(
                f"the replication slot {self._slot.name!r} has been moved to {lsn_text(confirmed)}, and the table has "
                f"the changes before {position.text}: those in between are lost. Another reader uses the slot, or the "
                "table was rolled back. Read the table again with --resnapshot and its name in the source, and name a "
                "slot of its own in ingest.slot"
            )
        end = lsn_number(str(self._server.value("select pg_current_wal_insert_lsn()::text")))
        if end < position.order:
            raise SnapshotNeededError(
                f"the log of the database {self._identity} has started again behind the position of the table: the "
                f"last commit has the position {position.text}, and the log ends at {lsn_text(end)}. The server was "
                "restored from a backup, or a standby that lacked changes was promoted, so changes are lost. Read all "
                "tables of the spec again with --full-refresh"
            )
        return position

    def earliest(self, positions: Sequence[LogPosition]) -> LogPosition:
        """Return the minimum position."""
        return min(positions, key=lambda one: one.order)

    def limited(self, start: LogPosition, end: LogPosition, most_bytes: int) -> LogPosition:
        """Return a position such that at most `most_bytes` of the log lie before it."""
        if end.order - start.order <= most_bytes:
            return end
        return self._position(start.order + most_bytes, end.time_ms)

    def log_bytes(self, start: LogPosition, end: LogPosition) -> int:
        """Return the size of the log between two positions."""
        return max(0, end.order - start.order)

    def confirm(self, positions: Sequence[LogPosition]) -> None:
        """Allow the server to delete its log before all of these positions."""
        places = [one.order for one in positions if one.server == self._identity]
        if places and len(places) == len(positions):
            self._slot.confirm(min(places))

    def unconfirmed(self) -> tuple[str, int] | None:
        """Return the slot name, and the number of log bytes behind the confirmed position."""
        state = self._slot.state()
        return None if state is None else (self._slot.name, max(0, int(state["behind"] or 0)))

    def chunks(
        self, table: SourceTable, key: Sequence[str], after: tuple[str, ...] | None, *, rows: int, most: int
    ) -> Sequence[Chunk]:
        """Return consecutive chunks after a key (see `DatabaseServer.chunks`)."""
        self._settle(table.name)
        columns = {column.name: column for column in self._described[table.name].columns}
        if len(key) == 1 and columns[key[0]].oid in _INTEGERS:
            borders = self._even(table.name, key[0], after, rows, most)
            if borders is not None:
                return chunks_between(after, borders, most)
        borders, previous = [], after
        texts = ", ".join(f"{as_text(name)} as c{number}" for number, name in enumerate(key)).replace("%", "%%")
        order = ", ".join(quoted(name) for name in key)
        while len(borders) < most:
            bounds = self._server.rows(
                f"select {texts} from {self._from(table.name)}{_where(key, previous)} order by {order} "
                f"limit 1 offset {rows - 1}",
                (),
            )
            if not bounds:
                break
            previous = tuple(str(bounds[0][f"c{number}"]) for number in range(len(key)))
            borders.append(previous)
        return chunks_between(after, borders, most)

    @property
    def reads(self) -> PostgresReads:
        """Settings with which tasks read."""
        return PostgresReads(
            access=self._server.access,
            identity=self._identity,
            slot=self._slot.name,
            publications=self._publications.names,
            columns={name: one.columns for name, one in self._described.items()},
            partitioned=frozenset(name for name, one in self._described.items() if one.is_partitioned),
            domains=domains(self._server),
        )

    def close(self) -> None:
        """Close the connection."""
        self._server.close()

    def _settle(self, table: str) -> None:
        """Wait until transactions in the log before this call that changed a table are visible to others."""
        waits_for_standbys = bool(self._server.setting("synchronous_standby_names"))
        writers = self._writers(table)
        deadline = _CLOCK.monotonic_s() + (_SYNCHRONOUS_S if waits_for_standbys else _SEEN_S)
        while writers and _CLOCK.monotonic_s() < deadline:
            _CLOCK.sleep(_POLL_S)
            writers &= self._writers(table)
        if writers and waits_for_standbys:
            raise RetryableError(
                f"transactions that change {table} have been open for {_SYNCHRONOUS_S:.0f} seconds "
                f"({_shown(writers)}). Commits wait for standbys "
                "(synchronous_standby_names), so rows that are in the log may not be seen yet. Run again later"
            )
        # Without standbys, a flushed transaction that is not visible after this time has not committed.

    def _writers(self, table: str) -> set[tuple[str, str]]:
        """Return the transactions that hold locks for changes of a table or its partitions."""
        description = self._described.get(table)
        if description is None:
            return set()
        rows = self._server.rows(
            "select distinct coalesce(l.pid::text, 'prepared') as pid, l.virtualtransaction as id from pg_locks l "
            "where l.locktype = 'relation' and l.granted and l.database = (select oid from pg_database where datname = "
            "current_database()) and l.mode in ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', "
            "'AccessExclusiveLock') and l.relation in (select %s::oid union all select relid from "
            "pg_partition_tree(%s::oid))",
            (description.oid, description.oid),
        )
        return {(str(row["pid"]), str(row["id"])) for row in rows}

    def _is_flushed(self, place: int) -> bool:
        return lsn_number(str(self._server.value("select pg_current_wal_flush_lsn()::text"))) >= place

    def _time_ms(self) -> int:
        return int(self._server.value("select (extract(epoch from clock_timestamp()) * 1000)::int8"))

    def _position(self, place: int, time_ms: int) -> LogPosition:
        return LogPosition(server=self._identity, order=place, text=lsn_text(place), time_ms=time_ms)

    def _from(self, name: str) -> str:
        """Return the FROM item of a table without tables that inherit from it; its partitions are included."""
        only = "" if self._described[name].is_partitioned else "only "
        return f"{only}{quoted_table(name)}".replace("%", "%%")

    def _even(
        self, name: str, key: str, after: tuple[str, ...] | None, rows: int, most: int
    ) -> list[tuple[str, ...]] | None:
        """Return borders that split an integer key evenly; None if the keys are sparse."""
        column = quoted(key).replace("%", "%%")
        low, high, first = (
            self._server.value(f"select {function}({column}) from {self._from(name)}{where}", ())
            for function, where in (("min", _where((key,), after)), ("max", ""), ("min", ""))
        )
        if low is None:
            return []
        estimate = self._server.value(
            "select sum(greatest(c.reltuples, 0)) from pg_class c where c.oid = %s or c.oid in (select relid from "
            "pg_partition_tree(%s::oid) where isleaf)",
            (self._described[name].oid, self._described[name].oid),
        )
        return KeyNumbers(low=low, high=high, first=first, rows=float(estimate or 0)).borders(rows, most)


def _shown(writers: set[tuple[str, str]]) -> str:
    return f"processes {', '.join(sorted(pid for pid, _ in writers))}"


def _where(key: Sequence[str], after: tuple[str, ...] | None) -> str:
    where = condition(key, Chunk(after=after))
    return f" where {where}".replace("%", "%%") if where else ""


#: Since this version a publication can publish changes of partitions under the partitioned table's name.
_LEAST_VERSION = 130_000


def check_server(server: Questions, connection: str, *, needs_slot: bool) -> None:
    """Raise UserError with all problems of a server, each with value and remedy.

    Args:
        server: The server.
        connection: The id of the connection.
        needs_slot: Whether a replication slot has to be created.
    """
    problems = [*_settings(server), *_rights(server), *(_slots(server) if needs_slot else ())]
    if problems:
        raise UserError(
            f"the server {server.access.address} of connection {connection!r} cannot be ingested: {'; '.join(problems)}"
        )


def _settings(server: Questions) -> list[str]:
    problems = []
    if int(server.setting("server_version_num")) < _LEAST_VERSION:
        problems.append(f"its version is {server.setting('server_version')}: update it to PostgreSQL 13 or later")
    if server.value("select pg_is_in_recovery()"):
        problems.append("it is a standby, which has no replication slots: connect to the primary server")
    level = server.setting("wal_level")
    if level != "logical":
        problems.append(
            f"wal_level is {level}, so the log has no rows: ALTER SYSTEM SET wal_level = 'logical', and restart it"
        )
    return problems


def _rights(server: Questions) -> list[str]:
    user = server.access.user
    if server.value("select rolreplication or rolsuper from pg_roles where rolname = current_user"):
        return []
    return [f"user {user!r} may not read the log: ALTER ROLE {user} REPLICATION"]


def _slots(server: Questions) -> list[str]:
    most = int(server.setting("max_replication_slots"))
    used = int(server.value("select count(*) from pg_replication_slots"))
    if used < most:
        return []
    return [
        f"all {most} replication slots are in use: drop one without a reader (pg_replication_slots), or ALTER SYSTEM "
        f"SET max_replication_slots = {most + 10}, and restart it"
    ]
