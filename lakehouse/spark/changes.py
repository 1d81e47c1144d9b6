"""Reads change data as DataFrames: one task for each commit and file group reads with Arrow in a Python worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.planning.cdc import FileGroupChange
from lakehouse.spark.engine import own_workers
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.workers import map_in_arrow, task_numbers

#: Types by whose values Arrow can group rows. Rows with other types, such as floats and lists, are all returned.
_GROUPED = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_date,
    pa.types.is_timestamp,
    pa.types.is_string,
    pa.types.is_large_string,
)
#: Size of changes that this process reads faster than Spark starts a task.
_BYTES_HERE = 16 * 1024 * 1024


def changes_to_spark(spark: SparkSession, scan: ChangeScan) -> DataFrame:
    """Return planned changes as a DataFrame with op, ts_ms, and the rows before and after as structs."""
    return _read(spark, scan, scan.schema, scan.read)


def rows_of_changes(
    spark: SparkSession, scan: ChangeScan, sides: Sequence[str], *, distinct: bool = False
) -> DataFrame:
    """Return the before images, the after images, or both, of planned changes, with the columns of their images.

    With `changes_to_spark`, Spark would first convert each change to a row with two structs.

    Args:
        spark: The session.
        scan: The planned changes.
        sides: BEFORE, AFTER or both.
        distinct: Whether equal rows may be returned once, so that Spark gets few rows. Some equal rows may remain.
    """

    def read(change: FileGroupChange) -> Iterator[pa.RecordBatch]:
        batches = scan.rows(change, sides)
        return _fewer(batches) if distinct and _is_grouped(scan.row_schema) else batches

    return _read(spark, scan, scan.row_schema, read)


def few_distinct_rows(scan: ChangeScan, sides: Sequence[str]) -> pa.Table | None:
    """Return the distinct rows of a few planned changes, read by this process, or None if a task has to read them.

    A task has to read them if they are many, or if they have columns by which Arrow cannot group.
    """
    if scan.bytes > _BYTES_HERE or not _is_grouped(scan.row_schema):
        return None
    batches = [batch for change in scan.changes for batch in _fewer(scan.rows(change, sides))]
    return distinct_rows(pa.Table.from_batches(batches, schema=scan.row_schema))


def distinct_rows(rows: pa.Table) -> pa.Table:
    """Return the distinct rows of a table whose columns Arrow groups."""
    return rows.group_by(rows.schema.names, use_threads=False).aggregate([]).select(rows.schema.names).cast(rows.schema)


def _is_grouped(schema: pa.Schema) -> bool:
    return all(any(test(field.type) for test in _GROUPED) for field in schema)


def _fewer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the distinct rows of each batch."""
    for batch in batches:
        yield from distinct_rows(pa.Table.from_batches([batch])).to_batches()


def _read(
    spark: SparkSession,
    scan: ChangeScan,
    schema: pa.Schema,
    function: Callable[[FileGroupChange], Iterable[pa.RecordBatch]],
) -> DataFrame:
    """Return the results of the function for each change; one task reads one commit in one file group."""
    fields = spark_schema(schema)
    if not scan.changes:
        return spark.createDataFrame([], fields)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from function(scan.changes[number])

    numbers = task_numbers(spark, len(scan.changes), scan.bytes)
    with own_workers(spark, scan.context.slices.budget_bytes):
        return map_in_arrow(numbers, read, fields)
