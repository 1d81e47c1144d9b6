"""`format("lakehouse")` of batch and stream writers, and `lakehouse.spark.write`, with Hudi's options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse import Table
from lakehouse.errors import UserError
from lakehouse.spark import register, write
from lakehouse.spark.stream import STREAM
from lakehouse.spark.versions.choice import spark_version

pytestmark = pytest.mark.spark

COLUMNS = "id string, ts long, day string, v long"
OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.upsert.shuffle.parallelism": "2",
}
Row = tuple[str, int, str, int]


def streams_by_format() -> bool:
    """Return whether this version of Spark has `writeStream.format("lakehouse")`."""
    try:
        spark_version().require_stream_writer()
    except UserError:
        return False
    return True


by_format = pytest.mark.skipif(not streams_by_format(), reason="this version of Spark has no streaming writer")


def rows_of(location: Path) -> list[tuple[str, int, int]]:
    rows = Table.open(str(location)).scan(columns=["id", "ts", "v"]).to_arrow().to_pylist()
    return sorted((row["id"], row["ts"], row["v"]) for row in rows)


def staged(location: Path) -> list[Path]:
    return [path for path in (location / ".hoodie" / ".staging").rglob("*") if path.is_file()]


@pytest.mark.parametrize("way", ["format", "function"])
def test_job_writes_with_the_options_of_hudi(spark: Any, tmp_path: Path, way: str) -> None:
    register(spark)
    location = tmp_path / "orders"

    def save(rows: list[Row], mode: str = "append", **more: str) -> None:
        frame, options = spark.createDataFrame(rows, COLUMNS), {**OPTIONS, **more}
        if way == "format":
            frame.repartition(2).write.format("lakehouse").options(**options).mode(mode).save(str(location))
        else:
            write(frame, str(location), options, mode=mode)

    save([("a", 1, "mon", 1), ("b", 1, "tue", 1)])
    save([("a", 2, "mon", 2), ("b", 0, "tue", 9), ("c", 1, "tue", 1)])
    assert rows_of(location) == [("a", 2, 2), ("b", 1, 1), ("c", 1, 1)]
    save([("a", 0, "mon", 0)], **{"hoodie.datasource.write.operation": "delete"})
    assert [row[0] for row in rows_of(location)] == ["b", "c"]
    save([("d", 1, "tue", 1)], **{"hoodie.datasource.write.operation": "insert_overwrite"})
    assert [row[0] for row in rows_of(location)] == ["d"]
    save([("e", 1, "mon", 1), ("e", 2, "mon", 2)], mode="overwrite")
    assert rows_of(location) == [("e", 2, 2)]
    assert staged(location) == []
    assert Table.open(str(location)).config.keys.partition_fields == ("day",)


def test_function_has_all_save_modes(spark: Any, tmp_path: Path) -> None:
    location, frame = str(tmp_path / "orders"), spark.createDataFrame([("a", 1, "mon", 1)], COLUMNS)
    write(frame, location, OPTIONS, mode="error")
    with pytest.raises(UserError, match="there is a table"):
        write(frame, location, OPTIONS, mode="error")
    other = spark.createDataFrame([("z", 1, "mon", 1)], COLUMNS)
    assert "ignore" in str(write(other, location, OPTIONS, mode="ignore"))
    assert rows_of(tmp_path / "orders") == [("a", 1, 1)]


def test_rows_above_the_limit_are_refused_and_nothing_is_left(spark: Any, tmp_path: Path) -> None:
    register(spark)
    location = tmp_path / "orders"
    frame = spark.createDataFrame([("a", 1, "mon", 1)], COLUMNS)
    writer = frame.write.format("lakehouse").options(**OPTIONS).option("lakehouse.write.local.max.bytes", "10")
    with pytest.raises(Exception, match=r"lakehouse\.spark\.write\(df, path, options\)"):
        writer.mode("append").save(str(location))
    assert rows_of(location) == []
    assert staged(location) == []
    write(frame, str(location), OPTIONS)
    assert rows_of(location) == [("a", 1, 1)]


def test_writes_to_tables_of_the_catalog_are_refused(spark: Any) -> None:
    register(spark)
    frame = spark.createDataFrame([("a", 1, "mon", 1)], COLUMNS)
    with pytest.raises(Exception, match=r"got no location.*\.save\(path\)"):
        frame.write.format("lakehouse").options(**OPTIONS).saveAsTable("orders")


def test_empty_frame_creates_a_table_with_columns(spark: Any, tmp_path: Path) -> None:
    register(spark)
    spark.createDataFrame([], COLUMNS).write.format("lakehouse").options(**OPTIONS).mode("append").save(
        str(tmp_path / "orders")
    )
    assert Table.open(str(tmp_path / "orders")).schema.names == ["id", "ts", "day", "v"]


def land(folder: Path, name: str, *rows: Row) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(("id", "ts", "day", "v"), row, strict=True))) for row in rows]
    (folder / f"{name}.json").write_text("\n".join(lines))


def stream(spark: Any, folder: Path, checkpoint: Path, location: Path, way: str) -> None:
    options = {**OPTIONS, "hoodie.datasource.write.operation": "insert"}
    writer = spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(folder)).writeStream
    if way == "format":
        writer = writer.format("lakehouse").options(**options).option("path", str(location))
    else:
        writer = writer.foreachBatch(lambda frame, batch: write(frame, str(location), options, batch_id=batch) and None)
    writer = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
    writer.start().awaitTermination()


@pytest.mark.parametrize("way", [pytest.param("format", marks=by_format), "foreachBatch"])
def test_stream_writes_each_batch_once(spark: Any, tmp_path: Path, way: str) -> None:
    register(spark)
    folder, checkpoint, location = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "orders"
    land(folder, "1", ("a", 1, "mon", 1))
    stream(spark, folder, checkpoint, location, way)
    # Spark did not record the batch, so it repeats the batch.
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    land(folder, "2", ("b", 1, "mon", 1))
    stream(spark, folder, checkpoint, location, way)
    assert rows_of(location) == [("a", 1, 1), ("b", 1, 1)]
    commits = Table.open(str(location)).commits()
    batches = [text for _, commit in commits for key, text in commit.extra.items() if key.startswith(STREAM)]
    assert batches == ["0", "1"]
    assert staged(location) == []


@by_format
def test_both_ways_of_a_stream_share_their_batches(spark: Any, tmp_path: Path) -> None:
    register(spark)
    folder, checkpoint, location = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "orders"
    land(folder, "1", ("a", 1, "mon", 1))
    stream(spark, folder, checkpoint, location, "foreachBatch")
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    stream(spark, folder, checkpoint, location, "format")
    assert rows_of(location) == [("a", 1, 1)]


@by_format
def test_stream_without_a_checkpoint_folder_is_refused(spark: Any, tmp_path: Path) -> None:
    register(spark)
    land(tmp_path / "in", "1", ("a", 1, "mon", 1))
    spark.conf.set("spark.sql.streaming.checkpointLocation", str(tmp_path / "of-session"))
    try:
        query = (
            spark.readStream.schema(COLUMNS)
            .json(str(tmp_path / "in"))
            .writeStream.format("lakehouse")
            .options(**OPTIONS)
            .option("path", str(tmp_path / "orders"))
            .trigger(availableNow=True)
        )
        with pytest.raises(Exception, match="checkpointLocation"):
            query.start().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")
