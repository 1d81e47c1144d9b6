"""`lakehouse ingest stream` from PostgreSQL as a process: changes are committed while they come, also after SIGKILL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from tests.support.postgres import PgDatabase, PgServer
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPEC = """
table: t
location: ${{LAKEHOUSE_HOME}}/table
record_key: id
type: MERGE_ON_READ
ingest:
  source: postgres
  tables: public.t
  slot: {slot}
  stream: {{every: 1s, run_for: 1h}}
"""
LIMIT_S = 240.0


class Home:
    """A database, and the table that a stream fills."""

    def __init__(self, root: Path, database: PgDatabase) -> None:
        self.root, self.database = root, database
        (root / "spec.yaml").write_text(SPEC.format(slot=database.name))
        self.environ = {**os.environ, **database.connection, "LAKEHOUSE_HOME": str(root)}

    @contextmanager
    def stream(self) -> Iterator[subprocess.Popen[str]]:
        """Run the stream for the time of a block."""
        words = [sys.executable, "-m", "lakehouse", "ingest", "stream", "--table", str(self.root / "spec.yaml")]
        log = (self.root / "stream.log").open("a")
        process = subprocess.Popen(
            words,
            env={**self.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            log.close()

    def is_equal(self) -> bool:
        """Return whether the table has the rows of the source."""
        if not (self.root / "table/.hoodie/hoodie.properties").exists():
            return False
        table = Table.open(str(self.root / "table"))
        if not len(table.schema):
            return False
        rows = table.scan(columns=["id", "n"]).to_arrow().to_pylist()
        return sorted((row["id"], row["n"]) for row in rows) == self.database.query("select id, n from t order by id")

    def log(self) -> str:
        """Return the end of what the stream printed."""
        return (self.root / "stream.log").read_text()[-3000:]


def test_stream_follows_the_log_and_continues_after_sigkill(postgres: PgServer, tmp_path: Path) -> None:
    home = Home(tmp_path, postgres.database())
    home.database.sql("create table t (id int primary key, n int)", "insert into t values (1, 1), (2, 2), (3, 3)")
    with home.stream() as killed:
        assert until(home.is_equal, LIMIT_S), home.log()
        home.database.sql("update t set n = 5 where id = 1", "delete from t where id = 2")
        assert until(home.is_equal, LIMIT_S), home.log()
        home.database.sql("insert into t values (4, 4)")
        os.killpg(killed.pid, signal.SIGKILL)
    home.database.sql("update t set id = 10 where id = 3")
    with home.stream() as process:
        assert until(home.is_equal, LIMIT_S), home.log()
        home.database.sql("insert into t values (2, 20)", "update t set n = 6 where id = 1")
        assert until(home.is_equal, LIMIT_S), home.log()
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0, home.log()
    assert "commits in" in home.log()
    query = "select active from pg_replication_slots where slot_name = %s"
    assert home.database.query(query, (home.database.name,)) == [(False,)]
