"""A PostgreSQL server with logical replication, its accounts, and databases of it that are ingested with Spark."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.support.mysql_ingest import Shop
from tests.support.postgresql import HOST, USER, Server, server

#: The account of an ingestion, with the rights that the how-to names.
READER, READER_PASSWORD = "reader", "reader-password"
_SETTINGS = {"wal_level": "logical", "max_replication_slots": "40", "max_wal_senders": "10", "timezone": "-3:30"}
_names = count(1)


class PgDatabase:
    """A database of a server; `run` and `query` use the account that may do everything."""

    kind = "postgres"

    def __init__(self, running: Server, name: str) -> None:
        self.running, self.name = running, name
        self.port = running.port

    def database(self) -> str:
        """Return the name of the schema of the tables."""
        return "public"

    def connect(self, database: str | None = None, **settings: Any) -> Any:
        """Return a psycopg connection with autocommit."""
        import psycopg

        given = {"host": HOST, "port": self.port, "user": USER, "dbname": self.name, "options": "-c timezone=UTC"}
        return psycopg.connect(**{**given, **settings}, autocommit=True, cursor_factory=psycopg.ClientCursor)

    def run(self, *statements: str, database: str | None = None) -> None:
        """Run statements in one session; each one commits."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def sql(self, *statements: str) -> None:
        """Run statements as the account of ingestions, which then owns the tables."""
        self.run(f"set role {READER}", *statements)

    def query(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    @property
    def connection(self) -> dict[str, str]:
        """The environment variable of the Airflow connection `postgres_default`, with the account of an ingestion."""
        value = {
            "conn_type": "postgres",
            "host": HOST,
            "port": self.port,
            "login": READER,
            "password": READER_PASSWORD,
            "schema": self.name,
        }
        return {"AIRFLOW_CONN_POSTGRES_DEFAULT": json.dumps(value)}


class PgServer:
    """A server whose databases are ingested."""

    def __init__(self, running: Server) -> None:
        self.running = running
        self.admin = PgDatabase(running, "postgres")
        self.admin.run(f"create role {READER} login replication password '{READER_PASSWORD}'")

    def database(self) -> PgDatabase:
        """Create a database whose tables the account of ingestions owns; each call makes another one."""
        name = f"shop_{next(_names)}"
        self.admin.run(f"create database {name} owner {READER}")
        found = PgDatabase(self.running, name)
        found.run(f"grant all on schema public to {READER}")
        return found


class PgShop(Shop):
    """A database of PostgreSQL, and the tables that it is ingested into."""

    source_kind = "postgres"
    writes = (
        "update t set n = {n} where a = '{a}' and b = {b}",
        "delete from t where a = '{a}' and b = {b}",
        "insert into t values ('{a}', {b}, -{n}) on conflict (a, b) do update set n = excluded.n",
        "update t set b = nextval('moved') where a = '{a}' and b = {b}",
    )

    def __init__(self, spark: SparkSession, server: PgDatabase, root: Path) -> None:
        super().__init__(spark, server, root)
        # The slots of a server have different names, also those of different databases.
        self.settings["slot"] = server.name

    def sql(self, *statements: str) -> None:
        """Run statements as the account of ingestions, which owns the tables."""
        self.server.sql(*statements)

    @contextmanager
    def connected(self) -> Iterator[Callable[..., None]]:
        """Yield a function that runs statements in one session."""
        with closing(self.server.connect()) as session, session.cursor() as cursor:
            yield lambda *statements: [cursor.execute(one) for one in statements] and None

    def slot(self) -> tuple[Any, ...]:
        """Return the confirmed place of the slot, and whether it is in use."""
        query = "select confirmed_flush_lsn - '0/0', active from pg_replication_slots where slot_name = %s"
        (found,) = self.server.query(query, (self.server.name,))
        return found


def require_clients() -> None:
    """Skip the test if a client of the source is not installed."""
    for name in ("psycopg", "asyncpg"):
        if find_spec(name) is None:
            pytest.skip(f"missing: {name}; install lakehouse-tables[postgres]")


@contextmanager
def postgres_server(**settings: str) -> Iterator[PgServer]:
    """Run PostgreSQL with logical replication; `settings` replace parameters of the server."""
    require_clients()
    with server(**{**_SETTINGS, **settings}) as running:
        try:
            yield PgServer(running)
        finally:
            # Readers of the log delay an orderly end.
            running.process.send_signal(signal.SIGQUIT)
            running.process.wait(timeout=30)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PgServer]:
    """A PostgreSQL server for all tests of a process."""
    with postgres_server() as running:
        yield running
