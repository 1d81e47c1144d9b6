"""Any interleaving of transactions with the steps of runs gives the rows of the source, also after crashes.

Each key has a history of its own, so one table with many keys has many interleavings.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.databases import SparkTasks
from lakehouse.platform.ingest.run import run_database
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.memory_database import FIRST_TEXT, NAME, MemoryDatabase, MemoryServer, in_this_process

pytestmark = pytest.mark.spark


class Lake:
    """A table that a database in memory is ingested into."""

    def __init__(self, spark: SparkSession, root: Path, database: MemoryDatabase, **settings: object) -> None:
        self.spark, self.root, self.database = spark, root, database
        self.has_texts = False
        value = {
            "table": "t",
            "location": str(root / "t"),
            "record_key": ["id"],
            "type": "MERGE_ON_READ",
            "ingest": {"source": "mysql", "tables": NAME, **settings},
        }
        self.spec = parse_spec(json.dumps(value), source="t.yaml")

    def run(self, **command: object) -> IngestReport:
        """Run once."""
        wanted = IngestCommand(table="t", **command)  # type: ignore[arg-type]
        tasks = SparkTasks(session=self.spark, run=in_this_process)
        return run_database(self.spec, wanted, MemoryServer(self.database, self.has_texts), tasks, access={})

    def finish(self) -> IngestReport:
        """Run once without further transactions."""
        self.database.show_all()
        self.database.each = 0
        return self.run()

    def rows(self) -> dict[int, int]:
        """Return the rows of the table."""
        rows = Table.open(self.spec.location).scan(columns=["id", "n"]).to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows)
        return {row["id"]: row["n"] for row in rows}

    def texts(self) -> dict[int, str]:
        """Return the long texts of the table."""
        rows = Table.open(self.spec.location).scan(columns=["id", "x"]).to_arrow().to_pylist()
        return {row["id"]: row["x"] for row in rows}


def loaded(keys: int, seed: int, each: int) -> MemoryDatabase:
    """Return a database whose rows exist before the first run."""
    return MemoryDatabase(keys=keys, random=Random(seed), each=each, rows={key: -1 for key in range(0, keys, 2)})


def test_any_interleaving_of_transactions_and_reads_gives_the_rows_of_the_source(
    spark: SparkSession, tmp_path: Path
) -> None:
    database = loaded(2000, seed=1, each=60)
    lake = Lake(spark, tmp_path, database, chunk_rows=200, max_chunks=4)
    lake.run()
    lake.finish()
    assert len(database.log) > 2000
    assert lake.rows() == database.rows
    assert lake.run().status is JobStatus.NOTHING_TO_DO


def test_long_texts_that_changes_lack_are_those_of_the_source(spark: SparkSession, tmp_path: Path) -> None:
    database = loaded(300, seed=6, each=10)
    lake = Lake(spark, tmp_path, database, chunk_rows=100, max_chunks=2)
    lake.has_texts = True
    lake.run()
    lake.finish()
    assert [kind for kind, _, _ in database.log].count("moved") > 20
    assert lake.rows() == database.rows
    assert lake.texts() == {key: database.texts.get(key, FIRST_TEXT) for key in database.rows}


def test_truncates_between_reads_delete_the_rows_before_them(spark: SparkSession, tmp_path: Path) -> None:
    database = loaded(300, seed=2, each=30)
    database.truncates = 0.002
    lake = Lake(spark, tmp_path, database, chunk_rows=60, max_chunks=3)
    lake.run()
    lake.finish()
    assert [kind for kind, _, _ in database.log].count("truncate") > 0
    assert lake.rows() == database.rows


def test_runs_that_crash_anywhere_leave_nothing_to_repair(spark: SparkSession, tmp_path: Path) -> None:
    database = loaded(400, seed=3, each=20)
    lake = Lake(spark, tmp_path, database, chunk_rows=100, max_chunks=2)
    crashes, random = 0, Random(4)
    while crashes < 6:
        database.crash_at = database.moments + random.randint(1, 14)
        with suppress(RuntimeError):
            lake.run()
        crashes += database.moments == database.crash_at
    lake.finish()
    assert lake.rows() == database.rows
    assert not [*(tmp_path / "t_staging").rglob("*.parquet")]


def test_rows_without_key_are_there_once_after_crashes_and_a_new_snapshot(spark: SparkSession, tmp_path: Path) -> None:
    database = loaded(4000, seed=7, each=20)
    database.appends = True
    lake = Lake(spark, tmp_path, database, without_key="append", metadata=["position"])
    lake.spec = replace(lake.spec, record_key=("_source_position",))
    for crash in (3, 6, 7, 8):
        database.crash_at = database.moments + crash
        with suppress(RuntimeError):
            lake.run()
    lake.run()
    lake.run(resnapshot=(NAME,), run_id="again")
    lake.finish()
    assert len(database.log) > 300
    assert lake.rows() == database.rows


def test_new_snapshot_waits_until_a_table_that_is_far_behind_has_the_log(spark: SparkSession, tmp_path: Path) -> None:
    database = loaded(200, seed=8, each=0)
    lake = Lake(spark, tmp_path, database, chunk_rows=100, max_log_bytes=20)
    lake.run()
    # The log lacks this row.
    database.rows[1] = 7
    database.each = 60
    database.moment()
    database.each = 0
    database.show_all()
    lake.run(resnapshot=(NAME,), run_id="again")
    assert lake.rows() == database.rows


def test_two_runs_at_once_apply_each_change_once(spark: SparkSession, tmp_path: Path) -> None:
    database = loaded(300, seed=5, each=10)
    lake = Lake(spark, tmp_path, database, chunk_rows=100, max_chunks=1)
    lake.run()
    inner = MemoryServer.log
    others: list[IngestReport] = []

    def log_with_another_run(server: MemoryServer, *arguments: object) -> object:
        found = [*inner(server, *arguments)]  # type: ignore[arg-type]
        if not others:
            others.append(IngestReport(status=JobStatus.NOTHING_TO_DO))
            others.append(lake.run())
        return iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryServer, "log", log_with_another_run)
        late = lake.run()
    assert others[1].status is JobStatus.COMMITTED
    assert late.status in (JobStatus.NOTHING_TO_DO, JobStatus.COMMITTED)
    lake.finish()
    assert lake.rows() == database.rows
