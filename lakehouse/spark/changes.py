"""Reads change data as DataFrames: one task for each commit and file group reads with Arrow in a Python worker."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.spark.engine import own_workers
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.workers import map_in_arrow, task_numbers


def changes_to_spark(spark: SparkSession, scan: ChangeScan) -> DataFrame:
    """Return planned changes as a DataFrame with op, ts_ms, and the rows before and after as structs."""
    if not scan.changes:
        return spark.createDataFrame([], spark_schema(scan.schema))

    def read(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from scan.read(scan.changes[number])

    schema = spark_schema(scan.schema)
    numbers = task_numbers(spark, len(scan.changes), scan.bytes)
    with own_workers(spark, scan.context.slices.budget_bytes):
        return map_in_arrow(numbers, read, schema)
