"""Tables that were bootstrapped by metadata: reads, writes and services of the Spark engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse import Table
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.rows.stored_names import is_skeleton
from lakehouse.spark import register
from tests.support.parquet_folders import regions

pytestmark = pytest.mark.spark
OPTIONS = {"hoodie.metadata.enable": "false"}


def amounts(rows: DataFrame) -> dict[str, int]:
    return {row["id"]: row["amount"] for row in rows.select("id", "amount").collect()}


def skeletons(table: Table) -> int:
    return sum(is_skeleton(base.name) for base in load_slices(table.refresh()).bases())


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_spark_reads_writes_and_services_skeleton_files(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    table = Table.bootstrap(
        tmp_path / "table",
        source=regions(tmp_path / "source"),
        name="orders",
        record_key="id",
        ordering="ts",
        table_type=kind,
        options=OPTIONS,
    )
    expected = {f"k{number:04d}": number for number in range(100)}
    register(spark)
    frame = spark.read.format("lakehouse").load(table.location)
    assert amounts(frame) == expected
    assert amounts(frame.where("region = 'south' and amount < 62")) == {"k0060": 60, "k0061": 61}
    assert amounts(table.scan().to_spark(spark)) == expected
    changed = spark.createDataFrame(
        [("k0005", -5, 2, "north"), ("k0100", 100, 2, "south")], "id string, amount long, ts long, region string"
    )
    table.upsert(changed)
    table.delete(spark.createDataFrame([("k0099", "south")], "id string, region string"))
    expected = {key: value for key, value in (expected | {"k0005": -5, "k0100": 100}).items() if key != "k0099"}
    assert amounts(spark.read.format("lakehouse").load(table.location)) == expected
    if kind == "MERGE_ON_READ":
        assert skeletons(table) > 0
        table.services.compaction.run(force=True, spark=spark)
        assert amounts(table.scan().to_spark(spark)) == expected
    table.services.clustering.run(force=True, spark=spark)
    assert amounts(spark.read.format("lakehouse").load(table.location)) == expected
    assert table.validate(deep=True, spark=spark).findings == ()
