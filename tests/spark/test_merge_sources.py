"""Spark DataFrames as sources of MERGE: written by executors, or read partition by partition."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse import Table
from lakehouse.core.engine.adapters import frame_batches
from lakehouse.errors import UserError

pytestmark = pytest.mark.spark
STORED = pa.table({"id": pa.array(range(40), pa.int64()), "v": pa.array(range(40), pa.int64())})


def test_dataframe_is_merged_by_executors_or_within_the_memory_budget(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", table_type="MERGE_ON_READ")
    table.upsert(STORED)
    source = spark.range(20, 2_000, 1, 3).selectExpr("id", "id * 10 AS v")
    read: list[object] = []

    def observed(frame: object, batch_bytes: int) -> pa.RecordBatchReader:
        read.append(frame)
        return frame_batches(frame, batch_bytes)

    monkeypatch.setattr("lakehouse.core.table.merge.frame_batches", observed)

    def by_key() -> dict[int, int]:
        rows = table.scan(columns=["id", "v"]).to_arrow()
        return dict(zip(*rows.to_pydict().values(), strict=True))

    upsert = table.merge(source, ["id"]).when_matched_update_all().when_not_matched_insert_all()
    upsert.execute()
    expected = {number: number for number in range(20)} | {number: number * 10 for number in range(20, 2_000)}
    assert by_key() == expected
    assert not read
    twice = table.merge(source.union(source), ["id"]).when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(UserError, match="2 rows of the source have the key"):
        twice.execute()
    changed = table.merge(source, "source.id = target.id").when_matched_update({"v": "target.v + source.v"})
    changed.execute(options={"lakehouse.write.memory.budget": "40000"})
    expected = {number: v if number < 20 else 2 * v for number, v in expected.items()}
    assert by_key() == expected
    assert len(read) == 1
    # The same kind of statement on executors, as the documentation describes it.
    joined = source.alias("s").join(table.scan(columns=["id", "v"]).to_spark(spark).alias("t"), "id")
    table.upsert(joined.where("t.v > 300").selectExpr("id", "t.v + s.v AS v"))
    table.delete(joined.where("t.v > 39000").select("id"))
    expected = {number: v if v <= 300 else v + v // 2 for number, v in expected.items() if v <= 39_000}
    assert by_key() == expected


def test_updates_that_lose_by_their_ordering_value_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="seq")
    table.upsert(STORED.append_column("seq", pa.array([5] * 40, pa.int64())))
    # Rows in memory are read by one task, the others by several.
    small = spark.createDataFrame([(1, 100, 6), (2, 100, 4), (50, 100, 1)], "id long, v long, seq long")
    large = spark.range(0, 2_000, 1, 3).selectExpr("id", "id * 10 AS v", "IF(id < 30, 3L, 7L) AS seq")
    for source, ignored in ((small, 1), (large, 30), (large, 30)):
        merge = table.merge(source, ["id"]).when_matched_update_all().when_not_matched_insert_all()
        assert merge.execute().ignored_updates == ignored
    lost = small.where("id = 2")
    outcome = table.merge(lost, ["id"]).when_matched_update_all().when_not_matched_insert_all().execute()
    assert outcome.ignored_updates == 1
    rows = dict(zip(*table.scan(columns=["id", "v"]).to_arrow().to_pydict().values(), strict=True))
    assert (rows[1], rows[2], rows[29], rows[30], rows[50]) == (100, 2, 29, 300, 500)
