"""Sources whose ingestions are killed: each one changes its data, and compares its table with them.

files    JSON files with new versions of keys, upserted
table    the table of `files`, read as a source
kafka    messages of two partitions behind a proxy, appended: a message that is read twice would be two rows
mysql    a table of MariaDB behind a proxy, changed by four kinds of statements
postgres the same with PostgreSQL
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import load_spec
from tests.support.kafka import Message, secured_broker_at
from tests.support.mariadb import mariadb_server
from tests.support.mysql_ingest import Shop, name_of
from tests.support.postgres import PgServer, PgShop, postgres_server
from tests.support.postgresql import HOST
from tests.support.proxy import Proxy, proxy_to

KEYS = 400
_CHANGES = 40
Rows = list[tuple[Any, ...]]


@dataclass(kw_only=True)
class Source:
    """A source and its table.

    Attributes:
        name: The name of the source.
        home: The directory of the spec and the table.
        settings: The spec.
        change: Changes the data of the source.
        expected: Returns the rows that the table must have, sorted.
        columns: The columns of these rows.
        environ: Environment variables of runs.
        proxy: The proxy between the runs and the server; None without a server.
        restart: Kills the server and starts it again; None without a server.
        settle: Repeats what a fault may have ended in `change`, before rows are compared; None if nothing can be left.
    """

    name: str
    home: Path
    settings: dict[str, Any]
    change: Callable[[Random], None]
    expected: Callable[[], Rows]
    columns: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)
    proxy: Proxy | None = None
    restart: Callable[[], None] | None = None
    settle: Callable[[], object] | None = None

    def __post_init__(self) -> None:
        self.home.mkdir(parents=True, exist_ok=True)
        # JSON is YAML.
        self.spec.write_text(json.dumps({"table": self.name, "location": self.location, **self.settings}))

    @property
    def spec(self) -> Path:
        """The file of the spec."""
        return self.home / "spec.yaml"

    @property
    def location(self) -> str:
        """The location of the table."""
        return str(self.home / "table")

    def run(self, session: SparkSession) -> IngestReport:
        """Ingest once."""
        command = IngestCommand(table=str(self.spec))
        return run_ingest(session, load_spec(self.spec), command, environ=self.environ)

    def stored(self) -> Rows:
        """Return the rows of the table, sorted."""
        found = Table.open(self.location).scan(columns=list(self.columns)).to_arrow().to_pylist()
        return sorted((tuple(row[name] for name in self.columns) for row in found), key=repr)


@contextmanager
def files(session: SparkSession, home: Path) -> Iterator[Source]:
    """Files with rows; the newest version of a key is in the newest file that has the key."""
    landing, rows = home / "landing", dict[int, int]()
    landing.mkdir(parents=True)

    def change(random: Random) -> None:
        number = len(list(landing.iterdir()))
        new = {random.randrange(KEYS): number for _ in range(_CHANGES)}
        rows.update(new)
        lines = "".join(f'{{"id": {key}, "n": {number}}}\n' for key in new)
        (landing / f"{number:06d}.json").write_text(lines)

    yield Source(
        name="files",
        home=home,
        settings={
            "record_key": "id",
            "ordering": "n",
            "type": "MERGE_ON_READ",
            "schema": {"id": "bigint", "n": "bigint"},
            "options": {"hoodie.table.cdc.enabled": "true"},
            "ingest": {"path": str(landing)},
        },
        change=change,
        expected=lambda: sorted(rows.items(), key=repr),
        columns=("id", "n"),
    )


@contextmanager
def table(session: SparkSession, home: Path) -> Iterator[Source]:
    """A table that the ingestion of files writes; its rows are compared with those files."""
    with files(session, home / "raw") as raw:

        def change(random: Random) -> None:
            raw.change(random)
            raw.run(session)

        yield Source(
            name="copy",
            home=home,
            settings={
                "record_key": "id",
                "ordering": "n",
                "ingest": {"source": "table", "tables": {"raw": raw.location}},
            },
            change=change,
            settle=lambda: raw.run(session),
            expected=raw.expected,
            columns=("id", "n"),
        )


@contextmanager
def kafka(session: SparkSession, home: Path) -> Iterator[Source]:
    """A topic."""
    with secured_broker_at(home / "broker", "unused-password") as servers:
        topic, sent = servers.broker.topic(2), [0]

        def change(random: Random) -> None:
            numbers = range(sent[0], sent[0] + _CHANGES)
            messages = [Message(value=json.dumps({"id": n, "n": n}), partition=random.randrange(2)) for n in numbers]
            servers.broker.send(topic, messages)
            sent[0] += _CHANGES

        def restart() -> None:
            servers.node.kill()
            servers.node.start()

        extra = {"bootstrap.servers": servers.proxy.address, "reconnect.backoff.max.ms": "200"}
        yield Source(
            name="kafka",
            home=home,
            settings={
                "record_key": "id",
                "schema": {"id": "bigint", "n": "bigint"},
                "ingest": {"source": "kafka", "topic": topic, "operation": "insert"},
            },
            change=change,
            expected=lambda: sorted(((n, n) for n in range(sent[0])), key=repr),
            columns=("id", "n"),
            environ={"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": extra})},
            proxy=servers.proxy,
            restart=restart,
        )


@contextmanager
def mysql(session: SparkSession, home: Path) -> Iterator[Source]:
    """A table of MariaDB."""
    with mariadb_server() as server:
        shop = Shop(session, server, home)
        with _database(shop, home, "mysql", server.port) as source:

            def restart() -> None:
                server.stop(signal.SIGKILL)
                server.start()

            source.restart = restart
            yield source


@contextmanager
def postgres(session: SparkSession, home: Path) -> Iterator[Source]:
    """A table of PostgreSQL."""
    with postgres_server() as server:
        shop = PgShop(session, server.database(), home)
        shop.sql("create sequence moved start 1000000")
        with _database(shop, home, "postgres", server.running.port) as source:
            source.restart = lambda: _restarted(server)
            yield source


def _restarted(server: PgServer) -> None:
    # SIGKILL would leave shared memory behind. After this signal, the server recovers from its log as well.
    server.running.stop(signal.SIGQUIT)
    server.running.start()


@contextmanager
def _database(shop: Shop, home: Path, kind: str, port: int) -> Iterator[Source]:
    """Yield the source of the table `t` of a database, behind a proxy."""
    shop.sql("create table t (a varchar(10), b int, n int, primary key (a, b))")
    shop.sql("insert into t values " + ", ".join(f"('{name_of(key)}', {key}, 0)" for key in range(KEYS)))
    done = [0]

    def change(random: Random) -> None:
        statements = []
        for _ in range(_CHANGES):
            key = random.randrange(KEYS)
            (statement,) = random.choices(shop.writes, (50, 20, 15, 15))
            done[0] += 1
            statements.append(statement.format(n=done[0], a=name_of(key), b=key))
        shop.sql(*statements)

    with proxy_to(f"{HOST}:{port}") as proxy:
        ((name, text),) = shop.server.connection.items()
        yield Source(
            name=kind,
            home=home / kind,
            settings={
                "record_key": ["a", "b"],
                "ingest": {"source": kind, **shop.settings, "chunk_rows": 100, "max_chunks": 2},
            },
            change=change,
            expected=lambda: shop.source("a, b, n"),
            columns=("a", "b", "n"),
            environ={name: json.dumps({**json.loads(text), "port": proxy.port})},
            proxy=proxy,
        )


SOURCES = {"files": files, "table": table, "kafka": kafka, "mysql": mysql, "postgres": postgres}


@contextmanager
def opened(names: list[str], session: SparkSession, home: Path) -> Iterator[list[Source]]:
    """Open sources with their servers."""
    with ExitStack() as stack:
        yield [stack.enter_context(SOURCES[name](session, home / name)) for name in names]
