"""Structured Streaming queries write each of their batches exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import UserError
from lakehouse.spark.stream import STREAM, sink

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("value", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(str(tmp_path / "t"), name="t", record_key=["id"], ordering="ts", schema=SCHEMA)


def land(folder: Path, name: str, *rows: tuple[str, int, int]) -> None:
    folder.mkdir(exist_ok=True)
    lines = [json.dumps(dict(zip(SCHEMA.names, row, strict=True))) for row in rows]
    (folder / f"{name}.json").write_text("\n".join(lines))


def run(spark: Any, table: Table, folder: Path, checkpoint: Path, operation: str = "upsert") -> None:
    frame = spark.readStream.schema("id string, ts long, value long").option("maxFilesPerTrigger", 1).json(str(folder))
    query = (
        frame.writeStream.foreachBatch(sink(table, operation))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def batches(table: Table) -> list[str]:
    """Return the numbers of the batches that the commits hold, oldest first."""
    table.refresh()
    return [text for _, commit in table.commits() for key, text in commit.extra.items() if key.startswith(STREAM)]


def values(table: Table) -> list[tuple[str, int]]:
    table.refresh()
    return sorted((row["id"], row["value"]) for row in table.scan().to_arrow().to_pylist())


def test_query_writes_each_batch_in_one_commit_and_continues_later(spark: Any, table: Table, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    land(source, "1", ("a", 1, 1), ("b", 1, 1))
    run(spark, table, source, checkpoint)
    land(source, "2", ("a", 2, 2))
    run(spark, table, source, checkpoint)
    run(spark, table, source, checkpoint)
    assert batches(table) == ["0", "1"]
    assert values(table) == [("a", 2), ("b", 1)]


def test_batch_is_not_inserted_again_if_spark_did_not_record_it(spark: Any, table: Table, tmp_path: Path) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    land(source, "1", ("a", 1, 1))
    run(spark, table, source, checkpoint, "insert")
    for file in (checkpoint / "commits").iterdir():
        file.unlink()
    land(source, "2", ("b", 1, 1))
    run(spark, table, source, checkpoint, "insert")
    assert batches(table) == ["0", "1"]
    assert values(table) == [("a", 1), ("b", 1)]


def test_queries_with_their_own_checkpoints_do_not_hide_each_other(spark: Any, table: Table, tmp_path: Path) -> None:
    for name in ("x", "y"):
        land(tmp_path / name, "1", (name, 1, 1))
        run(spark, table, tmp_path / name, tmp_path / f"checkpoint-{name}")
    assert batches(table) == ["0", "0"]
    assert values(table) == [("x", 1), ("y", 1)]


def test_sink_refuses_an_unknown_operation_and_a_call_outside_of_a_query(spark: Any, table: Table) -> None:
    with pytest.raises(UserError, match="Did you mean 'upsert'"):
        sink(table, "upsrt")
    with pytest.raises(UserError, match="foreachBatch of a streaming query"):
        sink(table)(spark.createDataFrame([("a", 1, 1)], "id string, ts long, value long"), 0)
