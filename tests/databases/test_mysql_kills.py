"""Runs from MariaDB that SIGKILL ends at a commit, while the source changes, leave nothing to repair."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.spec.contracts.job import JobStatus
from tests.support.mysql import DatabaseServer
from tests.support.mysql_ingest import Shop, name_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]
#: Runs the command line; the process is killed before or after commit number n of the run is completed.
KILLED = """
import os, signal, sys
from lakehouse.cli.main import main
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.model.instant import Action

complete, left = TimelineStore.complete, [int(sys.argv[2])]

def killed(self, instant, *args, **kwargs):
    left[0] -= instant.action in (Action.COMMIT, Action.DELTACOMMIT) and "/metadata" not in self._env.storage.root
    if left[0] or sys.argv[1] == "after":
        found = complete(self, instant, *args, **kwargs)
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return found

TimelineStore.complete = killed
sys.exit(main(sys.argv[3:]))
"""
KEYS = 300


def killed_run(shop: Shop, root: Path, moment: str, commit: int) -> int:
    """Run the command line until it is killed; return the exit code."""
    settings: dict[str, Any] = {
        "table": "shop",
        "location": str(root / "lake"),
        "ingest": {"source": "mysql", **shop.settings},
        **shop.table_settings,
    }
    (root / "shop.yaml").write_text(json.dumps(settings))
    words = [sys.executable, "-c", KILLED, moment, str(commit), "ingest", "run", "--table", "shop.yaml"]
    environ = {**os.environ, **shop.server.connection, "SPARK_LOCAL_IP": "127.0.0.1"}
    return subprocess.run(words, cwd=root, env=environ, capture_output=True, check=False).returncode


@pytest.mark.parametrize("moment", ["before", "after"])
def test_run_that_is_killed_between_two_tables_is_completed_by_the_next_one(
    spark: SparkSession, mariadb: DatabaseServer, tmp_path: Path, moment: str
) -> None:
    shop = Shop(spark, mariadb, tmp_path)
    shop.sql(
        "create table t (a varchar(10), b int, n int, primary key (a, b))",
        "create table other (id int primary key, n int)",
        "insert into other values (1, 1), (2, 2)",
    )
    shop.sql("insert into t values " + ", ".join(f"('{name_of(key)}', {key}, 0)" for key in range(KEYS)))
    shop.settings = {"tables": [f"{shop.database}.*"], "into": "{table}", "chunk_rows": 100, "max_chunks": 2}
    shop.table_settings = {}
    with shop.writers(KEYS):
        assert killed_run(shop, tmp_path, moment, 2) == -signal.SIGKILL
        shop.sql("delete from other where id = 1", "insert into other values (3, 3)")
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("a, b, n", "t") == shop.source("a, b, n")
    assert shop.stored("id, n", "other") == shop.source("id, n", "other") == [(2, 2), (3, 3)]
    assert shop.run().status is JobStatus.NOTHING_TO_DO
