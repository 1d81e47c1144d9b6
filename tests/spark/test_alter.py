"""Spark reads tables whose columns changed by ids: its Parquet reader finds columns of old files by their old names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse import Table
from lakehouse.core.table.scan import TableScan
from tests.support.fixture_tables import canonical_rows

pytestmark = pytest.mark.spark

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")


def written(path: Path, kind: str) -> Table:
    """Return a table with a partition of old files only, and one with logs or rewritten files."""
    table = Table.create(str(path), name="t", record_key="id", partition_by="p", ordering="ts", table_type=kind)
    place = {"city": "Ulm", "zip": 1}
    columns = {"ts": [1, 1], "name": ["n1", "n2"], "note": ["x", "y"], "n": pa.array([1, 2], pa.int32())}
    for partition in "ab":
        keys = [f"{partition}1", f"{partition}2"]
        table.upsert(pa.table({"id": keys, "p": [partition] * 2, **columns, "place": [place, place]}))
    return table


def check(spark: SparkSession, scan: TableScan, *, by_spark: bool) -> None:
    """Check that Spark returns the rows of the reader in this process, with or without Python workers."""
    frame = scan.to_spark(spark)
    plan = str(frame._jdf.queryExecution().executedPlan().toString())
    assert ("MapInArrow" not in plan) == by_spark, plan
    reference = scan.to_arrow()
    assert canonical_rows(frame.toArrow(), with_meta=True) == canonical_rows(reference, with_meta=True)
    assert reference.num_rows


@pytest.mark.parametrize("kind", KINDS)
def test_parquet_reader_of_spark_finds_changed_columns(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    table = written(tmp_path, kind)
    changes = table.alter().rename_column("name", "title").drop_column("note").change_type("n", "string")
    changes.add_column("note", "int", first=True).execute()
    check(spark, table.scan(), by_spark=True)
    check(spark, table.scan(["note"]), by_spark=True)
    check(spark, table.scan(["id", "title"], where="title = 'n2' and note is null"), by_spark=True)
    table.upsert(pa.table({"id": ["a1"], "p": ["a"], "ts": [2], "title": ["new"], "note": pa.array([7], pa.int32())}))
    table.alter().rename_column("title", "name").rename_column("note", "title").execute()
    check(spark, table.scan(), by_spark=kind == "COPY_ON_WRITE")
    check(spark, table.scan(where="title = 7 or name = 'n1'"), by_spark=kind == "COPY_ON_WRITE")


@pytest.mark.parametrize("kind", KINDS)
def test_workers_read_files_with_other_fields_of_structs(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    table = written(tmp_path, kind)
    table.alter().rename_column("place.zip", "code").add_column("place.zip", "string").execute()
    check(spark, table.scan(), by_spark=False)
    check(spark, table.scan(["id", "name"]), by_spark=True)


def test_spark_writes_after_a_change(spark: SparkSession, tmp_path: Path) -> None:
    table = written(tmp_path, "COPY_ON_WRITE")
    table.alter().rename_column("name", "title").drop_column("note").execute()
    rows = pa.table({"id": ["a1", "a3"], "p": ["a", "a"], "ts": [5, 5], "title": ["t1", "t3"], "note": [1, 2]})
    table.upsert(spark.createDataFrame(rows.to_pylist()))
    check(spark, table.scan(), by_spark=True)
    read = {row["id"]: (row["title"], row["note"]) for row in table.scan().to_arrow().to_pylist()}
    assert read == {"a1": ("t1", 1), "a2": ("n2", None), "a3": ("t3", 2), "b1": ("n1", None), "b2": ("n2", None)}
