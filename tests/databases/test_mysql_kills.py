"""Runs from MariaDB that SIGKILL ends at a commit, while the source changes, leave nothing to repair."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.spec.contracts.job import JobStatus
from tests.support.killed_ingest import killed_run
from tests.support.mysql import DatabaseServer
from tests.support.mysql_ingest import Shop, name_of

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KEYS = 300


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
    settings = {"table": "shop", "location": str(tmp_path / "lake"), "ingest": {"source": "mysql", **shop.settings}}
    (tmp_path / "shop.yaml").write_text(json.dumps(settings))
    with shop.writers(KEYS):
        killed_run(tmp_path, mariadb.connection, moment, 2)
        shop.sql("delete from other where id = 1", "insert into other values (3, 3)")
    assert shop.run().status is JobStatus.COMMITTED
    assert shop.stored("a, b, n", "t") == shop.source("a, b, n")
    assert shop.stored("id, n", "other") == shop.source("id, n", "other") == [(2, 2), (3, 3)]
    assert shop.run().status is JobStatus.NOTHING_TO_DO
