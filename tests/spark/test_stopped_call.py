"""A signal that stops a job during a Spark call."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.system.stop import JobStop, before_stop, stop_job
from lakehouse.spark.session import end_spark_call


@pytest.fixture
def handler() -> Iterator[None]:
    def handle(number: int, frame: FrameType | None) -> None:
        del frame
        stop_job(f"stopped by {signal.Signals(number).name}")

    before_stop(end_spark_call)
    before = signal.signal(signal.SIGUSR1, handle)
    yield
    signal.signal(signal.SIGUSR1, before)


def test_stop_during_a_spark_call_cancels_it_and_later_calls_read_their_own_results(
    spark: SparkSession, handler: None
) -> None:
    del handler
    tracker, done = spark.sparkContext.statusTracker(), threading.Event()

    def send() -> None:
        while not tracker.getActiveJobsIds() and not done.wait(0.05):
            pass
        os.kill(os.getpid(), signal.SIGUSR1)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        with pytest.raises(JobStop, match="SIGUSR1"):
            spark.sql("SELECT count(*) FROM range(100000000000000) WHERE sin(id) > 2").collect()
    finally:
        done.set()
        sender.join()
    assert spark.range(5).count() == 5
    assert [row.n for row in spark.sql("SELECT 7 AS n").collect()] == [7]
    polls = 0
    while tracker.getActiveJobsIds() and polls < 1200:
        done.clear()
        done.wait(0.05)
        polls += 1
    assert not tracker.getActiveJobsIds(), "the job of the interrupted call was cancelled"
