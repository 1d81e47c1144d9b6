"""Upserts with a record index on Spark: keys that tasks look up, and batches that one task reads from Parquet files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakehouse import Table
from lakehouse.core.metadata.read.table import MetadataTable, TaskLocations
from lakehouse.core.operations.placement import by_location
from lakehouse.core.operations.write import staged
from lakehouse.spark.engine import SparkEngine

pytestmark = pytest.mark.spark

OPTIONS = {
    "hoodie.index.type": "RECORD_INDEX",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.parquet.small.file.limit": "0",
}
ROWS = 60


def batch(keys: range, version: int, part: str) -> pa.Table:
    """Return rows of these keys."""
    return pa.table(
        {"id": [f"k{key:03d}" for key in keys], "ts": [version] * len(keys), "part": [part] * len(keys)},
        schema=pa.schema([("id", pa.string()), ("ts", pa.int64()), ("part", pa.string())]),
    )


def parquet(folder: Path, *tables: pa.Table) -> str:
    """Write tables to Parquet files and return their folder."""
    folder.mkdir()
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number}.parquet")
    return str(folder)


def created(path: Path, table_type: str) -> Table:
    """Return a table with rows in two partitions."""
    table = Table.create(
        path,
        name="located",
        record_key=["id"],
        partition_by=["part"],
        ordering="ts",
        table_type=table_type,
        options=OPTIONS,
    )
    table.upsert(pa.concat_tables([batch(range(ROWS // 2), 1, "a"), batch(range(ROWS // 2, ROWS), 1, "b")]))
    return table


def versions(table: Table) -> dict[str, tuple[int, str]]:
    """Return version and partition of each key; no key is stored twice."""
    rows = table.scan().to_arrow().to_pylist()
    found = {row["id"]: (row["ts"], row["part"]) for row in rows}
    assert len(found) == len(rows)
    return found


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_tasks_look_up_the_keys_of_a_batch_above_the_limit_of_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table_type: str
) -> None:
    table = created(tmp_path / "t", table_type)
    monkeypatch.setattr(by_location, "ROWS_HERE", 10)
    monkeypatch.setattr(staged, "ROWS_HERE", 10)
    readers: list[TaskLocations] = []
    made = MetadataTable.task_locations

    def counted(metadata: MetadataTable) -> TaskLocations:
        readers.append(made(metadata))
        return readers[-1]

    monkeypatch.setattr(MetadataTable, "task_locations", counted)
    changed = pa.concat_tables([batch(range(20, 40), 2, "a"), batch(range(ROWS, ROWS + 20), 2, "b")])
    frame = spark.createDataFrame(changed.to_pylist(), "id string, ts long, part string")
    table.upsert(frame.repartition(3))
    assert len(readers) == 1
    expected = {f"k{key:03d}": (1, "a" if key < ROWS // 2 else "b") for key in range(ROWS)}
    # A located row moves to the partition of its new version.
    expected |= {f"k{key:03d}": (2, "a") for key in range(20, 40)}
    expected |= {f"k{key:03d}": (2, "b") for key in range(ROWS, ROWS + 20)}
    assert versions(table) == expected


def test_one_task_reads_a_small_batch_of_parquet_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path / "t", "MERGE_ON_READ")
    read: list[bool] = []
    kept = SparkEngine._read

    def watched(self: SparkEngine, *arguments: object, alone: bool) -> object:
        read.append(alone)
        return kept(self, *arguments, alone=alone)  # type: ignore[arg-type]

    monkeypatch.setattr(SparkEngine, "_read", watched)
    # Versions of one key are in several files, so one task has to combine them.
    folder = parquet(tmp_path / "in", batch(range(10), 2, "a"), batch(range(5, 10), 4, "a"), batch(range(10), 3, "a"))
    table.upsert(spark.read.parquet(folder))
    assert read == [True]
    found = versions(table)
    assert [found[f"k{key:03d}"][0] for key in range(12)] == [3] * 5 + [4] * 5 + [1] * 2
    assert len(found) == ROWS
