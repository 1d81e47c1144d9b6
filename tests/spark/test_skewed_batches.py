"""Skewed batches on Spark: the rows of each task, and the table, with and without the exchange between tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse.core.files.stage import staged_parts
from lakehouse.core.operations.write import staged
from lakehouse.core.table.table import Table
from lakehouse.spark import engine

pytestmark = pytest.mark.spark
KEYS, TASKS = 1_000, 8


def test_hot_keys_are_spread_over_tasks(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = spark.range(0, 20_000, 1, TASKS)
    # Half of the rows have one key.
    key = F.when(F.col("id") % 2 == 0, 0).otherwise(F.col("id") % KEYS)
    batch = rows.select(key.alias("k"), F.col("id").alias("ts"), (F.col("k") % 3).cast("string").alias("p"))
    by_key = [row["count"] for row in batch.repartition(TASKS, "k").groupBy(F.spark_partition_id()).count().collect()]
    assert max(by_key) > 2 * sum(by_key) / TASKS

    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    monkeypatch.setattr(staged_parts, "_LEAST_BYTES", 1)
    of_tasks: list[int] = []

    def planned(parts: list[staged_parts.StagedPart], parallelism: int) -> list[staged_parts.MergeTask]:
        assert [part.incoming for part in parts] == [20_000 // TASKS] * TASKS
        assert all(part.rows < part.incoming for part in parts)
        del parallelism
        return staged_parts.plan_merges(parts, TASKS)

    def stage(attempt: staged.WriteAttempt) -> None:
        stage_before(attempt)
        of_tasks.extend(run.rows for run in attempt.staged)

    stage_before = staged.stage
    monkeypatch.setattr(staged, "plan_merges", planned)
    monkeypatch.setattr("lakehouse.core.operations.write.write.stage", stage)
    table = Table.create(str(tmp_path / "t"), name="t", record_key="k", ordering="ts", partition_by="p")
    table.upsert(batch)
    assert len(of_tasks) == TASKS
    assert max(of_tasks) <= 2 * sum(of_tasks) / TASKS
    found = {row["k"]: row["ts"] for row in table.scan().to_arrow().to_pylist()}
    assert found == {row["k"]: row["ts"] for row in batch.groupBy("k").agg(F.max("ts").alias("ts")).collect()}
    assert sum(of_tasks) == len(found)


def test_bulk_inserts_of_a_hot_partition_are_spread_over_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = spark.range(0, 40_000, 1, TASKS)
    # Nine of ten rows are in one of 16 partitions.
    part = F.when(F.col("id") % 10 > 0, 0).otherwise(F.col("id") % 160 + 1)
    batch = rows.select(F.col("id").alias("k"), F.sha2(F.col("id").cast("string"), 512).alias("v"), part.alias("p"))
    monkeypatch.setattr(engine, "SMALL_BYTES", 0)
    largest = {}
    for name, least in (("default", None), ("off", "0"), ("spread", "1")):
        options = {} if least is None else {"lakehouse.write.spread.min.bytes": least}
        table = Table.create(str(tmp_path / name), name="t", record_key="k", partition_by="p", options=options)
        table.bulk_insert(batch)
        stats = table.commits()[-1][1].stats
        assert sum(stat.num_writes for stat in stats) == table.scan().count() == 40_000
        largest[name] = max(stat.num_writes for stat in stats)
    assert largest["default"] == largest["off"] == 36_000
    assert largest["spread"] <= 36_000 * 3 / 4
    # A batch of 1 GB on 8 cores: 0 turns spreading off.
    sizes = [engine._shard_bytes(1 << 30, 8, least) for least in (0, 8 << 20, 128 << 20)]
    assert sizes == [engine._SHARD_BYTES, 64 << 20, 128 << 20]


def test_inserts_of_a_hot_partition_are_spread_over_file_groups(spark: SparkSession, tmp_path: Path) -> None:
    # Half of the rows are in one of 16 partitions.
    rows = spark.range(0, 8_000, 1, 2)
    part = F.when(F.col("id") % 2 == 0, 0).otherwise(F.col("id") % 16)
    batch = rows.select(F.col("id").alias("k"), part.cast("string").alias("p"))
    sizes = {}
    for least in ("0", "1"):
        options = {"lakehouse.write.spread.min.bytes": least, "hoodie.parquet.small.file.limit": "0"}
        table = Table.create(str(tmp_path / least), name="t", record_key="k", partition_by="p", options=options)
        table.insert(batch)
        sizes[least] = sorted(stat.num_writes for stat in table.commits()[-1][1].stats)
        assert table.scan().count() == 8_000
    cores = spark.sparkContext.defaultParallelism
    assert sizes["0"] == [500] * 8 + [4_000]
    assert max(sizes["1"]) <= 8_000 / cores * 2
    assert sum(sizes["1"]) == 8_000
