"""The engine of every job: Spark moves the incoming batch once and runs tasks; base rows never cross the JVM."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any
from zipimport import zipimporter

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import to_arrow_schema

from lakehouse.core.engine.protocol import R, ShardFunction, T, TaskFunction
from lakehouse.model.attempt import Attempt
from lakehouse.spark.failures import spark_failures

# Bytes of shuffled rows that make at least one full base file; Spark's own 64 MB would cut a partition into small ones.
_SHARD_BYTES = 256 * 1024 * 1024
_SMALL_BYTES = 8 * 1024 * 1024
# Shares per core that light tasks are dealt out to: more than one, because tasks differ in size.
_HANDS = 2
# Spark's estimates reach astronomic sizes where it knows nothing.
_UNKNOWN_BYTES = 1 << 50
# Large blocks go back at once, the end of the heap as soon as so much of it is free, as shares of the budget. What has
# gone back is paid for again, page by page: at 4 MB that was a fifth of an upsert's time, from 32 MB on nothing.
_BLOCK_SHARE, _FREE_SHARE = 256, 16
_MIN_BLOCK_BYTES, _MIN_FREE_BYTES = 256 << 10, 4 << 20
_WRAPPING = threading.Lock()
_RESULT = pa.schema([pa.field("result", pa.binary())])


class SparkEngine:
    """Runs tasks on a Spark session; frames are DataFrames. Workers hand back memory by the budget of their tasks."""

    def __init__(self, spark: SparkSession, memory_budget_bytes: int) -> None:
        self._spark, self._budget = spark, memory_budget_bytes

    @property
    def parallelism(self) -> int:
        """Cores of the session."""
        return int(self._spark.sparkContext.defaultParallelism)

    def repeats(self, frame: Any) -> bool:
        """Whether the frame gives the same rows again: what it is computed from may have changed."""
        return False

    def schema(self, frame: Any) -> pa.Schema:
        """Return the DataFrame's schema in Arrow types."""
        return to_arrow_schema(frame.schema)

    def exchange(self, frame: Any, function: ShardFunction[R], *, by: Sequence[str], hint: str) -> list[R]:
        """Shuffle the DataFrame once (by Spark, in the JVM) and run `function` over each partition's Arrow batches."""
        columns = [col(_quoted(name)) for name in by]
        if hint == "exact":
            # A small batch is sooner read by one task than shuffled.
            frame = frame.coalesce(1) if _estimated_bytes(frame) <= _SMALL_BYTES else frame.repartition(*columns)
        elif hint == "balanced":
            frame = self._balanced(frame, columns)

        def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            results = [pickle.dumps(result) for result in function(_attempt(), batches)]
            _settle_worker()
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], schema=_RESULT)

        with spark_failures("reading the batch"):
            with own_workers(self._spark, self._budget):
                mapped = frame.mapInArrow(run, "result binary")
            collected = mapped.collect()
        return [pickle.loads(bytes(row.result)) for row in collected]

    def _balanced(self, frame: DataFrame, columns: list[Column]) -> DataFrame:
        """Return the frame in shards that fill files: none larger than needed, none cut without need."""
        size = _estimated_bytes(frame)
        if not columns and self.parallelism * _SHARD_BYTES // 4 <= size < _UNKNOWN_BYTES:
            # Any rows may go together, and there are enough for every core: where they are is as good as elsewhere.
            return frame.coalesce(max(self.parallelism, -(-size // (_SHARD_BYTES // 4))))
        # A clone of the session takes our setting, so that neither the user's nor another thread's is touched.
        clone = frame.sparkSession._jsparkSession.cloneSession()
        clone.conf().set("spark.sql.adaptive.advisoryPartitionSizeInBytes", str(_SHARD_BYTES))
        plan = frame._jdf.queryExecution().analyzed()
        jvm: Any = self._spark._jvm
        cloned = jvm.org.apache.spark.sql.classic.Dataset.ofRows(clone, plan)
        return DataFrame(cloned, SparkSession(self._spark.sparkContext, clone)).hint("rebalance", *columns)

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        """Run one Spark task per task; light ones are dealt out to a few Spark tasks, which take some 30 ms each."""
        if not tasks:
            return []
        numbered = list(enumerate(tasks))
        hands = min(_HANDS * self.parallelism, len(tasks)) if light else len(tasks)

        def run(hand: list[tuple[int, T]]) -> list[tuple[int, R]]:
            # Numbers of rows and names of files are made of the number of the task, so each task keeps its own.
            # This stage has no shuffle behind it, so Spark never begins it anew with tries that count from zero.
            context = TaskContext.get()
            attempt = replace(_attempt(), first=context is not None and context.attemptNumber() == 0)
            results = [(number, function(replace(attempt, partition=number), task)) for number, task in hand]
            _settle_worker()
            return results

        dealt = [numbered[first::hands] for first in range(hands)]
        with spark_failures("writing"):
            mapped = self._spark.sparkContext.parallelize(dealt, hands).map(run)
            with own_workers(self._spark, self._budget):
                # The function is wrapped, with the environment, when this is asked for first.
                assert mapped._jrdd is not None
            found = mapped.collect()
        return [result for _, result in sorted((pair for hand in found for pair in hand), key=itemgetter(0))]


@contextmanager
def own_workers(spark: SparkSession, budget: int) -> Iterator[None]:
    """Functions wrapped in the block run in workers whose memory allocator gives back what is free.

    A budget means nothing where an allocator keeps as much again for later, as Arrow's own does. It is chosen when a
    process starts, so by its environment; by that Spark also tells our workers from those of the user's functions.
    """
    allocator = {
        "ARROW_DEFAULT_MEMORY_POOL": "system",
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": str(max(budget // _BLOCK_SHARE, _MIN_BLOCK_BYTES)),
        "MALLOC_TRIM_THRESHOLD_": str(max(budget // _FREE_SHARE, _MIN_FREE_BYTES)),
    }
    context = spark.sparkContext
    with _WRAPPING:
        environment = context.environment
        context.environment = {**allocator, **environment}
        try:
            yield
        finally:
            context.environment = environment


def _estimated_bytes(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def _attempt() -> Attempt:
    context = TaskContext.get()
    assert context is not None
    return Attempt(partition=context.partitionId(), stage=context.stageId(), number=context.taskAttemptId())


def _settle_worker() -> None:
    """Spare a worker what Spark does after each task before it is used again, some 0.15 s a task.

    Spark collects garbage among all modules, and reads the directory of each archive on the path anew. Modules stay,
    so they need not be looked at; archives do not change, and an import that needs one opens it again.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))
