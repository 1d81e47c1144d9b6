"""Parquet files of a DataFrame are read by Arrow with the rows of Spark's reader, or left to Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse import Table
from lakehouse.model.attempt import Attempt
from lakehouse.spark.engine import SparkEngine
from lakehouse.spark.parquet_input import FilePart, ParquetInput, parquet_input, read_parts
from lakehouse.spark.versions.choice import spark_version

pytestmark = pytest.mark.spark

UTC = dt.UTC
ROWS = pa.table(
    {
        "id": ["a", "b", None],
        "tiny": pa.array([1, -1, None], pa.int8()),
        "day": pa.array([dt.date(1200, 3, 1), dt.date(2024, 2, 29), None], pa.date32()),
        "at": pa.array([dt.datetime(1200, 3, 1, tzinfo=UTC), dt.datetime(2024, 2, 29, 1, 2, 3, 456789, UTC), None]),
        "local": pa.array([dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 456789), None], pa.timestamp("us")),
        "money": pa.array([Decimal("1.20"), Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
        "raw": pa.array([b"\x00\xff", b"", None], pa.binary()),
        "list": pa.array([["x", None], [], None], pa.list_(pa.string())),
    }
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one Parquet file of Arrow."""
    folder = tmp_path / "with space"
    folder.mkdir()
    pq.write_table(ROWS, folder / "a.parquet", row_group_size=2)
    return folder


@pytest.fixture(autouse=True)
def stored_calendar(spark: SparkSession) -> Iterator[None]:
    """Set the calendar of files, without which Spark 3.5 refuses the old dates of these tests."""
    names = ("datetimeRebaseModeInRead", "datetimeRebaseModeInWrite", "int96RebaseModeInRead", "int96RebaseModeInWrite")
    for name in names:
        spark.conf.set(f"spark.sql.parquet.{name}", "CORRECTED")
    yield
    for name in names:
        spark.conf.unset(f"spark.sql.parquet.{name}")


def collected(spark: SparkSession, frame: DataFrame, hint: str) -> list[dict[str, Any]]:
    """Return the rows that the engine passes to a task."""

    def collect(attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[list[dict[str, Any]]]:
        yield [row for batch in batches for row in batch.to_pylist()]

    shards = SparkEngine(spark, 64 << 20).exchange(frame, collect, by=(), hint=hint)
    return sorted((row for shard in shards for row in shard), key=repr)


def require(found: ParquetInput | None) -> ParquetInput:
    """Return an input that must have been found."""
    assert found is not None
    return found


def test_parquet_input_gives_the_rows_of_spark(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.parquet(str(folder))
    assert len(require(parquet_input(frame)).parts) == 2
    assert collected(spark, frame, "balanced") == collected(spark, frame, "none")


@pytest.mark.parametrize("stored", ["INT96", "TIMESTAMP_MILLIS", "TIMESTAMP_MICROS"])
def test_parquet_input_gives_the_times_of_spark_in_each_stored_form(
    spark: SparkSession, folder: Path, tmp_path: Path, stored: str
) -> None:
    spark.conf.set("spark.sql.parquet.outputTimestampType", stored)
    try:
        spark.read.parquet(str(folder)).write.parquet(str(tmp_path / "written"))
    finally:
        spark.conf.unset("spark.sql.parquet.outputTimestampType")
    frame = spark.read.parquet(str(tmp_path / "written"))
    assert require(parquet_input(frame)).schema.field("at").type == pa.timestamp("us", "UTC")
    assert collected(spark, frame, "balanced") == collected(spark, frame, "none")


def test_parquet_input_leaves_old_dates_to_a_spark_that_refuses_them(
    spark: SparkSession, folder: Path, tmp_path: Path
) -> None:
    for name in ("datetimeRebaseModeInRead", "int96RebaseModeInRead"):
        spark.conf.unset(f"spark.sql.parquet.{name}")
    recent = tmp_path / "recent"
    recent.mkdir()
    pq.write_table(ROWS.slice(1), recent / "a.parquet")
    pq.write_table(ROWS.select(["id", "money"]), recent / "b.parquet")
    old = spark.read.parquet(str(folder))
    assert (parquet_input(old) is not None) is spark_version().READS_OLD_DATES
    assert parquet_input(old.select("id", "money")) is not None
    assert parquet_input(spark.read.parquet(str(recent / "a.parquet"))) is not None
    assert parquet_input(spark.read.parquet(str(recent / "b.parquet"))) is not None


def test_parquet_input_reads_selected_columns_in_their_order(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.parquet(str(folder)).select("money", "id")
    assert require(parquet_input(frame)).schema.names == ["money", "id"]
    assert collected(spark, frame, "balanced") == collected(spark, frame, "none")


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame.where("tiny > 0"),
        lambda frame: frame.limit(1),
        lambda frame: frame.select(F.col("id").alias("other")),
        lambda frame: frame.withColumn("file", F.input_file_name()),
        lambda frame: frame.union(frame),
        lambda frame: frame.distinct(),
    ],
    ids=["filter", "limit", "alias", "file name", "union", "distinct"],
)
def test_parquet_input_leaves_other_plans_to_spark(spark: SparkSession, folder: Path, change: Any) -> None:
    assert parquet_input(change(spark.read.parquet(str(folder)))) is None


def test_parquet_input_leaves_cached_frames_to_spark(spark: SparkSession, folder: Path) -> None:
    frame = spark.read.parquet(str(folder))
    frame.cache()
    try:
        assert parquet_input(frame) is None
    finally:
        frame.unpersist()


def test_parquet_input_leaves_partition_columns_in_paths_to_spark(spark: SparkSession, folder: Path) -> None:
    (folder / "p=1").mkdir()
    (folder / "a.parquet").rename(folder / "p=1" / "a.parquet")
    assert parquet_input(spark.read.parquet(str(folder))) is None


def test_parquet_input_leaves_reader_options_to_spark(spark: SparkSession, folder: Path) -> None:
    assert parquet_input(spark.read.option("pathGlobFilter", "*.parquet").parquet(str(folder))) is not None
    assert parquet_input(spark.read.option("datetimeRebaseMode", "LEGACY").parquet(str(folder))) is None


@pytest.mark.parametrize(
    "rows",
    [
        ROWS.drop_columns(["tiny"]),
        ROWS.set_column(1, "tiny", pa.array([1, 2, 3], pa.int16())),
        ROWS.append_column("ID", pa.array([1, 2, 3])),
        ROWS.replace_schema_metadata({"org.apache.spark.version": "2.4.8"}),
        ROWS.replace_schema_metadata({"org.apache.spark.version": "3.5.1", "org.apache.spark.legacyDateTime": ""}),
    ],
    ids=["missing column", "other type", "ambiguous name", "old calendar by version", "old calendar by mark"],
)
def test_parquet_input_leaves_files_that_arrow_reads_differently_to_spark(
    spark: SparkSession, folder: Path, rows: pa.Table
) -> None:
    frame = spark.read.parquet(str(folder))
    schema = frame.schema
    pq.write_table(rows, folder / "b.parquet")
    assert parquet_input(spark.read.schema(schema).parquet(str(folder))) is None


def test_parquet_input_leaves_sessions_with_other_calendars_to_spark(spark: SparkSession, folder: Path) -> None:
    spark.conf.set("spark.sql.parquet.datetimeRebaseModeInRead", "EXCEPTION")
    try:
        assert parquet_input(spark.read.parquet(str(folder))) is None
    finally:
        spark.conf.unset("spark.sql.parquet.datetimeRebaseModeInRead")


def test_parquet_input_divides_row_groups_among_tasks_by_size() -> None:
    parts = tuple(FilePart(path="f", row_groups=(n,), size_bytes=10, row_bytes=1.0) for n in range(10))
    tasks = ParquetInput(schema=pa.schema([]), parts=parts).tasks(50)
    assert [[part.row_groups[0] for part in task] for task in tasks] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert ParquetInput(schema=pa.schema([]), parts=()).tasks(50) == [[]]


def test_read_parts_keeps_batches_below_their_share_of_memory(folder: Path) -> None:
    pq.write_table(pa.table({"n": pa.array(range(10_000), pa.int64())}), folder / "n.parquet")
    part = FilePart(path=str(folder / "n.parquet"), row_groups=(0,), size_bytes=1, row_bytes=8.0)
    batches = list(read_parts(pa.schema([("n", pa.int64())]), [part], 8_000))
    assert max(batch.num_rows for batch in batches) <= 1_000
    assert sum(batch.num_rows for batch in batches) == 10_000


def test_bulk_insert_of_parquet_files_writes_their_rows(spark: SparkSession, folder: Path, tmp_path: Path) -> None:
    rows = ROWS.slice(0, 2)
    pq.write_table(rows, folder / "a.parquet")
    table = Table.create(tmp_path / "t", name="t", record_key="id")
    frame = spark.read.parquet(str(folder))
    assert parquet_input(frame) is not None
    table.bulk_insert(frame)
    assert table.scan().to_arrow().select(rows.column_names).to_pylist() == rows.to_pylist()
