"""Estimated sizes of what workers read decide how many tasks write it: many rows are never left to one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.spark.engine import SMALL_BYTES, is_small
from lakehouse.spark.messages import json_records, read_messages
from lakehouse.spark.sources import FileSet, declared_schema, per_file
from lakehouse.spark.workers import task_numbers

pytestmark = pytest.mark.spark

MB = 1 << 20


def size_of(frame: Any) -> int:
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


@pytest.mark.parametrize(
    ("numbers", "size", "tasks"),
    [(1, 0, None), (5, 40, None), (5, 3 * MB, None), (7, MB, 3), (100, 10 * MB, 8)],
)
def test_numbers_are_divided_in_order_and_have_the_estimated_size(
    spark: SparkSession, numbers: int, size: int, tasks: int | None
) -> None:
    frame = task_numbers(spark, numbers, size, tasks=tasks)
    parts = frame.rdd.map(lambda row: row[0]).glom().collect()
    assert [number for part in parts for number in part] == [*range(numbers)]
    assert len(parts) == (tasks or max(numbers, 1))
    assert size / 2 <= size_of(frame) <= max(size, 8 * numbers)


def test_estimate_of_a_number_has_a_bound(spark: SparkSession) -> None:
    assert size_of(task_numbers(spark, 3, 1 << 50)) == 3 * 64 * MB


@pytest.mark.parametrize(("count", "is_one_task"), [(1_000, True), (500_000, False), (50_000_000, False)])
def test_many_messages_are_not_written_by_one_task(spark: SparkSession, count: int, is_one_task: bool) -> None:
    schema = declared_schema({"id": "bigint", "city": "string", "fare": "double", "note": "string", "ts": "bigint"})
    messages = read_messages(spark, lambda batches: batches, 4, most=count, record=schema)
    records = json_records(messages, schema, "orders", schema.names).select(*schema.names)
    assert is_small(records) == is_one_task


def test_many_bytes_of_files_that_workers_read_are_not_written_by_one_task(spark: SparkSession, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path))
    for size, is_one_task in ((SMALL_BYTES // 4, True), (10 * SMALL_BYTES, False)):
        files = FileSet(storage=storage, paths=tuple(f"{n}.avro" for n in range(3)), format="avro", bytes=size)
        assert is_small(per_file(spark, files)) == is_one_task
        assert [row[0] for row in per_file(spark, files).collect()] == [0, 1, 2]
