"""Tables of a database server that are ingested with Spark, and comparisons with the source."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import CHECKPOINT, run_ingest
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.waiting import until

#: Statements of writers: an update, a delete, an insert or update, and a change of the key. The first value is the
#: number of the change, the others are the key.
WRITES = (
    "update t set n = {n} where a = '{a}' and b = {b}",
    "delete from t where a = '{a}' and b = {b}",
    "replace into t values ('{a}', {b}, -{n})",
    "update ignore t set b = b + 100000 where a = '{a}' and b = {b}",
)


class Shop:
    """A database of a server, and the tables that it is ingested into."""

    source_kind = "mysql"
    writes = WRITES

    def __init__(self, spark: SparkSession, server: Any, root: Path) -> None:
        self.spark, self.server, self.root = spark, server, root
        self.database = server.database()
        self.settings: dict[str, Any] = {"tables": f"{self.database}.t"}
        self.table_settings: dict[str, Any] = {"record_key": ["id"]}

    def sql(self, *statements: str) -> None:
        """Run statements in the database."""
        self.server.run(*statements, database=self.database)

    @property
    def spec(self) -> TableSpec:
        """The spec of the tables."""
        value = {
            "table": "shop",
            "location": str(self.root / "lake"),
            "ingest": {"source": self.source_kind, **self.settings},
            **self.table_settings,
        }
        # JSON is YAML.
        return parse_spec(json.dumps(value), source="shop.yaml")

    def run(self, **command: Any) -> IngestReport:
        """Run once."""
        wanted = IngestCommand(table="x", **command)
        return run_ingest(self.spark, self.spec, wanted, environ=self.server.connection)

    def table(self, name: str = "") -> Table:
        """Return a target table."""
        return Table.open(str(self.root / "lake" / name))

    def stored(self, columns: str, name: str = "") -> list[tuple[Any, ...]]:
        """Return columns of a target table, sorted."""
        names = columns.split(", ")
        rows = self.table(name).scan(columns=names).to_arrow().to_pylist()
        return sorted((tuple(row[one] for one in names) for row in rows), key=repr)

    def source(self, columns: str, name: str = "t") -> list[tuple[Any, ...]]:
        """Return columns of a source table, sorted."""
        return sorted(self.server.query(f"select {columns} from {self.database}.{name}"), key=repr)

    def checkpoint(self, name: str = "") -> Mapping[str, Any]:
        """Return the checkpoint of a target table."""
        found: Mapping[str, Any] = json.loads(str(self.table(name).last_commit_extra(CHECKPOINT)))
        return found

    @contextmanager
    def writers(self, keys: int, seed: int = 1) -> Iterator[list[int]]:
        """Change rows of the table `t` (a varchar, b int, n int; key a, b) in two sessions; yield their numbers."""
        done, stop = [0, 0], threading.Event()
        threads = [threading.Thread(target=self._write, args=(keys, seed + n, done, n, stop)) for n in range(2)]
        for thread in threads:
            thread.start()
        try:
            yield done
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    @contextmanager
    def inserts(self, statement: str) -> Iterator[list[int]]:
        """Run a statement with the numbers 1, 2, ... as `n` in a session; yield how many were run."""
        done, stop = [0], threading.Event()

        def insert() -> None:
            with closing(self.server.connect(self.database)) as connection, connection.cursor() as cursor:
                while not stop.wait(0.002):
                    cursor.execute(statement.format(n=done[0] + 1))
                    done[0] += 1

        thread = threading.Thread(target=insert)
        thread.start()
        try:
            yield done
        finally:
            stop.set()
            thread.join()

    def _write(self, keys: int, seed: int, done: list[int], number: int, stop: threading.Event) -> None:
        random = Random(seed)
        with closing(self.server.connect(self.database)) as connection, connection.cursor() as cursor:
            while not stop.wait(0.002):
                key = random.randrange(keys)
                (statement,) = random.choices(self.writes, (50, 20, 15, 15))
                cursor.execute(statement.format(n=done[number], a=name_of(key), b=key))
                done[number] += 1


def read_beside_writers(shop: Shop, keys: int = 1500) -> None:
    """Read a table and its log while rows change; the rows are those of the source, and nothing is left to do."""
    shop.sql("create table t (a varchar(10), b int, n int, primary key (a, b))")
    values = ", ".join(f"('{name_of(key)}', {key}, 0)" for key in range(keys))
    shop.sql(f"insert into t values {values}")
    shop.settings |= {"chunk_rows": 400, "max_chunks": 2, "metadata": ["position", "committed_at"]}
    shop.table_settings = {"type": "MERGE_ON_READ", "record_key": ["a", "b"]}
    with shop.writers(keys) as changes:
        first = shop.run()
        assert first.status is JobStatus.COMMITTED
        assert min(changes) > 0
    second = shop.run()
    assert second.status is JobStatus.COMMITTED
    assert shop.stored("a, b, n") == shop.source("a, b, n")
    commits = len(shop.table().commits())
    assert shop.run().status is JobStatus.NOTHING_TO_DO
    assert len(shop.table().commits()) == commits
    assert not [*(shop.root / "lake_staging").rglob("*.parquet")]


def append_beside_inserts(shop: Shop) -> None:
    """Read a table without key while rows are added; each row is there once."""
    shop.sql("create table t (n int)", "insert into t values (0), (0)")
    shop.table_settings = {"record_key": ["_source_position"]}
    shop.settings |= {"without_key": "append", "metadata": ["position"]}
    with shop.inserts("insert into t values ({n})") as changes:
        assert until(lambda: changes[0] > 20)
        shop.run()
    shop.run()
    assert shop.stored("n") == shop.source("n")


def name_of(key: int) -> str:
    """Return the text part of a key; texts that differ only in case or accents are equal for the server."""
    return f"{'abcXYZÜ'[key % 7]}{key % 3}"
