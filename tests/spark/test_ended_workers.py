"""A Python worker of Spark that ends during a task: an error that a retry can remove."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import RetryableError
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.workers import map_in_arrow

pytestmark = pytest.mark.spark


def end(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    os.kill(os.getpid(), signal.SIGKILL)
    yield from batches


def test_worker_that_was_killed_is_a_retryable_error_that_names_the_step(spark: SparkSession) -> None:
    frame = map_in_arrow(spark.range(1), end, "id long")
    wanted = r"^reading the batch: a Python worker .* ended before .*memoryOverhead"
    with pytest.raises(RetryableError, match=wanted), spark_failures("reading the batch"):
        frame.collect()


def test_task_after_a_killed_one_succeeds(spark: SparkSession) -> None:
    assert map_in_arrow(spark.range(3), lambda batches: batches, "id long").count() == 3
