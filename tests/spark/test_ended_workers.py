"""A Python worker of Spark that ends during a task: an error that a retry can remove."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
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


@dataclass
class JavaError:
    """A Java exception as py4j shows it."""

    kind: str
    message: str
    cause: JavaError | None = None
    _target_id: str = "o1"

    def getMessage(self) -> str:
        return self.message

    def getCause(self) -> JavaError | None:
        return self.cause

    def toString(self) -> str:
        return f"{self.kind}: {self.message}"


ABORTED = "Job aborted due to stage failure: Lost task 0.0 in stage 3.0 (TID 4): "


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (f"{ABORTED}java.net.SocketException: Connection reset", None),
        (f"{ABORTED}java.io.IOException: Broken pipe", None),
        (f"{ABORTED}ExecutorLostFailure (executor 1 exited)", None),
        (f"{ABORTED}org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location", None),
        ("Job 3 cancelled because SparkContext was shut down", None),
        ("Job aborted.", JavaError("java.net.SocketException", "Broken pipe")),
    ],
)
def test_lost_process_or_connection_is_retryable_wherever_spark_names_it(message: str, cause: JavaError | None) -> None:
    error = Py4JJavaError("failed", JavaError("org.apache.spark.SparkException", message, cause))
    with pytest.raises(RetryableError, match=r"^the run: a Python worker or an executor"), spark_failures("the run"):
        raise error


@pytest.mark.parametrize(
    "error",
    [Py4JNetworkError("Answer from Java side is empty"), Py4JError("An error occurred while calling o9.collect")],
)
def test_lost_java_process_is_retryable(error: Py4JError) -> None:
    with pytest.raises(RetryableError, match="the Java process of the Spark session ended"), spark_failures("the run"):
        raise error


@pytest.mark.parametrize("message", ["java.io.EOFException: Unexpected end of input stream", "null"])
def test_failure_of_unknown_cause_passes_unchanged(message: str) -> None:
    error = Py4JJavaError("failed", JavaError("org.apache.spark.SparkException", message))
    with pytest.raises(Py4JJavaError) as found, spark_failures("the run"):
        raise error
    assert found.value is error


def test_task_after_a_killed_one_succeeds(spark: SparkSession) -> None:
    assert map_in_arrow(spark.range(3), lambda batches: batches, "id long").count() == 3
