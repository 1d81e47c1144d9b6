"""The Arrow batches in which Spark hands rows to tasks: how many rows they have, and whether Spark measures them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse.model.attempt import Attempt
from lakehouse.spark.engine import SparkEngine
from lakehouse.spark.versions.choice import spark_version
from tests.support.spark35 import needs_byte_limit

pytestmark = pytest.mark.spark

LIMIT, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
UNMEASURED = str((1 << 31) - 1)
COUNT = 10_000


# Workers cannot import this module. Functions for workers are therefore defined inside functions and pickled by value.
def batch_sizes() -> Callable[[Attempt, Iterator[pa.RecordBatch]], Iterator[tuple[list[int], str | None]]]:
    """Return a function that yields the rows of each batch, and the limit of bytes that the task has."""
    limit = LIMIT

    def measure(attempt: Attempt, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[list[int], str | None]]:
        from pyspark import TaskContext

        sizes = [batch.num_rows for batch in batches]
        yield sizes, TaskContext.get().getLocalProperty(limit)

    return measure


def texts(spark: SparkSession) -> DataFrame:
    """Return rows of short types."""
    return spark.range(0, COUNT, 1, 1).selectExpr("cast(id as string) as key", "named_struct('n', id) as value")


def sizes(frame: DataFrame, hint: str) -> tuple[list[int], set[str | None]]:
    """Return the rows of all batches, and the limits of bytes that tasks have."""
    found: list[Any] = SparkEngine(frame.sparkSession, 64 << 20).exchange(frame, batch_sizes(), by=(), hint=hint)
    return [size for of_task, _ in found for size in of_task], {limit for _, limit in found}


@needs_byte_limit
@pytest.mark.parametrize("hint", ["balanced", "none"])
def test_rows_of_short_types_come_in_batches_of_few_rows_that_are_not_measured(spark: SparkSession, hint: str) -> None:
    before = {name: spark.conf.get(name) for name in (LIMIT, ROWS)}
    found, limits = sizes(texts(spark), hint)
    assert sum(found) == COUNT
    assert max(found) <= 4_096
    assert limits == {UNMEASURED}
    assert {name: spark.conf.get(name) for name in (LIMIT, ROWS)} == before


@pytest.mark.parametrize(
    "column", ["cast(key as binary)", "array(key)", "map(key, key)", "named_struct('b', binary(key))"]
)
def test_rows_that_may_be_long_come_in_batches_that_spark_measures(spark: SparkSession, column: str) -> None:
    found, limits = sizes(texts(spark).selectExpr("key", f"{column} as value"), "none")
    assert sum(found) == COUNT
    assert limits == {None}


@pytest.mark.skipif(spark_version().LIMITS_BATCH_BYTES, reason="this version of Spark measures batches")
@pytest.mark.parametrize(("column", "most"), [("key", 4_096), ("cast(key as binary)", 256), ("array(key)", 256)])
def test_rows_come_in_small_batches_if_spark_cannot_measure_them(spark: SparkSession, column: str, most: int) -> None:
    counts, _ = sizes(texts(spark).selectExpr("key", f"{column} as value"), "none")
    assert (sum(counts), max(counts)) == (COUNT, most)


@needs_byte_limit
def test_a_limit_of_bytes_that_the_session_states_is_kept(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set(LIMIT, "16k")
    found, limits = sizes(texts(session), "none")
    assert sum(found) == COUNT
    assert max(found) < 4_096
    assert limits == {"16k"}


def test_fewer_rows_of_a_batch_that_the_session_states_are_kept(spark: SparkSession) -> None:
    session = spark.newSession()
    session.conf.set(ROWS, "100")
    found, _ = sizes(texts(session), "none")
    assert sum(found) == COUNT
    assert max(found) == 100
