"""Runs tasks of operations on Spark. The incoming batch crosses the JVM once; stored rows never do."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark import AccumulatorParam, SparkContext, TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.functions import col
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakehouse.core.engine.progress import finished_task
from lakehouse.core.engine.protocol import R, ShardFunction, T, TaskFunction
from lakehouse.core.rows.list_offsets import with_offsets
from lakehouse.model.attempt import Attempt
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.parquet_input import FilePart, ParquetInput, parquet_input, read_parts
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.workers import prepare_for_reuse

# Size of shuffled rows that fill at least one base file; Spark's default of 64 MB would create small files.
_SHARD_BYTES = 256 * 1024 * 1024
#: Maximum size of a frame that one task reads faster than Spark starts several tasks.
SMALL_BYTES = 8 * 1024 * 1024
# Compressed bytes of Parquet input that fill at least one base file.
_PARQUET_BYTES = _SHARD_BYTES // 4
# Spark measures the Arrow batch after each row, which takes about a third of the conversion, unless this option has its
# maximum.
_BATCH_BYTES, _UNMEASURED = "spark.sql.execution.arrow.maxBytesPerBatch", str((1 << 31) - 1)
# Number of rows per batch if Spark does not measure it: 64 MB, the default of that option, for rows of 16 KB.
BATCH_ROWS, _UNMEASURED_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch", 4_096
# The same for rows that may be long if Spark cannot measure a batch: 64 MB for rows of 256 KB.
_LONG_ROWS = 256
_SHARD_OPTION = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# Estimated size per core from which rows are not shuffled to fill base files.
_LEAST_BYTES = _PARQUET_BYTES // 2
# Maximum share of the memory budget for a batch that is read.
_READ_SHARE = 16
# Spark tasks per core that light tasks are grouped into; more than one, because tasks differ in size.
_GROUPS_PER_CORE = 2
# Shards of an exchange without a shuffle: the minimum per core, and the maximum if the size of the rows is unknown.
_SHARDS_PER_CORE, _MOST_SHARDS = 4, 1_000
# Without statistics Spark estimates sizes of at least this many bytes.
_UNKNOWN_BYTES = 1 << 50
# Sizes, as shares of the memory budget, from which the allocator returns a single block, or free memory at the end of
# the heap. Returned memory causes page faults: with 4 MB they take a fifth of an upsert's time, with 32 MB none.
_BLOCK_SHARE, _FREE_SHARE = 256, 16
_MIN_BLOCK_BYTES, _MIN_FREE_BYTES = 256 << 10, 4 << 20
_WRAPPING = threading.Lock()
# Types whose values are usually short. Values of other types, such as images and documents, may take megabytes.
_SHORT = (NumericType, StringType, BooleanType, DateType, TimestampType, TimestampNTZType)
_RESULT = pa.schema([pa.field("result", pa.binary())])
#: Tasks or results, each with the number of its task.
Group = list[tuple[int, T]]


class SparkEngine:
    """Runs tasks on a Spark session; frames are DataFrames. Workers return memory according to the tasks' budget."""

    def __init__(self, spark: SparkSession, memory_budget_bytes: int) -> None:
        self._spark, self._budget = spark, memory_budget_bytes

    @property
    def parallelism(self) -> int:
        """Number of cores in the session."""
        return int(self._spark.sparkContext.defaultParallelism)

    def repeats(self, frame: Any) -> bool:
        """Return False: the data that a DataFrame is computed from may change between two reads."""
        return False

    def schema(self, frame: Any) -> pa.Schema:
        """Return the DataFrame's schema in Arrow types."""
        return to_arrow_schema(frame.schema)

    def divides(self, frame: Any) -> bool:
        """Return False for a small frame, because one task reads it faster than Spark starts several tasks."""
        return not is_small(frame)

    def exchange(
        self, frame: Any, function: ShardFunction[R], *, by: Sequence[str], hint: str, least_bytes: int = 0
    ) -> list[R]:
        """Divide the DataFrame in the JVM by the hint, and run `function` on the Arrow batches of each partition.

        The files of a DataFrame that need no shuffle and are Parquet are read in the workers.
        """
        # One task reads a small batch faster than Spark shuffles it.
        alone = hint == "exact" and is_small(frame)
        source = parquet_input(frame) if alone or (hint == "balanced" and not by) else None
        if source is not None:
            return self._read(source, function, alone=alone)
        columns = [col(_quoted(name)) for name in by]
        if alone:
            frame = frame.coalesce(1)
        else:
            frame = self._distributed(frame, columns, hint, least_bytes)

        return self._collected(frame, function)

    def _collected(self, frame: DataFrame, function: ShardFunction[R]) -> list[R]:
        """Run `function` on the Arrow batches of each partition of a DataFrame, and return the results."""

        def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            results = [pickle.dumps(result) for result in function(_attempt(), with_offsets(batches))]
            prepare_for_reuse()
            yield pa.RecordBatch.from_arrays([pa.array(results, pa.binary())], schema=_RESULT)

        with spark_failures("reading the batch"):
            with own_workers(self._spark, self._budget):
                mapped = frame.mapInArrow(run, "result binary")
            collected = mapped.collect()
        return [pickle.loads(bytes(row.result)) for row in collected]

    def _read(self, source: ParquetInput, function: ShardFunction[R], *, alone: bool) -> list[R]:
        """Run `function` on the rows of Parquet files, in tasks that read some row groups each, or in a single task."""
        schema, batch_bytes = source.schema, self._budget // _READ_SHARE

        def run(parts: Sequence[FilePart]) -> list[R]:
            results = list(function(_attempt(), read_parts(schema, parts, batch_bytes)))
            prepare_for_reuse()
            return results

        tasks = [list(source.parts)] if alone else source.tasks(_PARQUET_BYTES)
        with spark_failures("reading the batch"):
            mapped = self._spark.sparkContext.parallelize(tasks, len(tasks)).flatMap(run)
            with own_workers(self._spark, self._budget):
                # Spark serializes the function and the environment at the first access to `_jrdd`.
                assert mapped._jrdd is not None
            collected: list[R] = mapped.collect()
        return collected

    def _distributed(self, frame: DataFrame, columns: list[Column], hint: str, least_bytes: int) -> DataFrame:
        """Repartition the frame by the columns, or so that each shard fills about one base file."""
        options = batch_options(frame)
        if hint == "exact":
            return self.with_options(frame, options).repartition(*columns)
        size = estimated_bytes(frame)
        if hint != "balanced":
            # With thousands of small partitions, one task per partition would take longer than processing the rows.
            most = _MOST_SHARDS if size >= _UNKNOWN_BYTES else -(-size // _PARQUET_BYTES)
            return self.with_options(frame, options).coalesce(max(_SHARDS_PER_CORE * self.parallelism, most))
        if not columns and self.parallelism * _LEAST_BYTES <= size < _UNKNOWN_BYTES:
            # No columns determine the shard, and there are enough rows for every core, so a shuffle is not needed. It
            # would take a third of the write's whole CPU time.
            return self.with_options(frame, options).coalesce(max(self.parallelism, -(-size // _PARQUET_BYTES)))
        options[_SHARD_OPTION] = str(_shard_bytes(size, self.parallelism, least_bytes))
        return spark_version().rebalanced(self.with_options(frame, options), columns)

    def with_options(self, frame: DataFrame, options: Mapping[str, str]) -> DataFrame:
        """Return the frame in a clone of its session with options: the user's session and other threads keep theirs."""
        if not options:
            return frame
        clone = frame.sparkSession._jsparkSession.cloneSession()
        for name, value in options.items():
            clone.conf().set(name, value)
        plan = frame._jdf.queryExecution().analyzed()
        cloned = spark_version().dataset(self._spark, clone, plan)
        return DataFrame(cloned, SparkSession(self._spark.sparkContext, clone))

    def run(self, function: TaskFunction[T, R], tasks: Sequence[T], *, light: bool = False) -> list[R]:
        """Run one Spark task per task; light tasks are grouped, because the start of a Spark task takes about 30 ms."""
        if not tasks:
            return []
        numbered = list(enumerate(tasks))
        groups = min(_GROUPS_PER_CORE * self.parallelism, len(tasks)) if light else len(tasks)

        def run(group: list[tuple[int, T]]) -> list[tuple[int, R]]:
            # Row numbers and file names contain the number of the task, so each task of a group keeps its number.
            # No shuffle depends on this stage, so Spark never restarts it with attempt numbers from zero.
            context = TaskContext.get()
            attempt = replace(_attempt(), first=context is not None and context.attemptNumber() == 0)
            results = [(number, function(replace(attempt, partition=number), task)) for number, task in group]
            prepare_for_reuse()
            return results

        finished = finished_task()
        grouped = [numbered[first::groups] for first in range(groups)]
        with spark_failures("writing"):
            mapped = self._spark.sparkContext.parallelize(grouped, groups).map(
                run if finished is None else reported(self._spark.sparkContext, run, finished)
            )
            with own_workers(self._spark, self._budget):
                # Spark serializes the function and the environment at the first access to `_jrdd`.
                assert mapped._jrdd is not None
            collected = mapped.collect()
        return [result for _, result in sorted((pair for group in collected for pair in group), key=itemgetter(0))]


@contextmanager
def own_workers(spark: SparkSession, budget: int) -> Iterator[None]:
    """Run functions that are serialized in this block in separate workers that return free memory.

    Arrow's default allocator keeps free memory, so a process could exceed its budget. The allocator is chosen by
    environment variables when a process starts. Spark starts separate workers for a different environment, so workers
    of the user's functions are not affected.
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


def is_small(frame: DataFrame) -> bool:
    """Return whether one task reads the frame faster than Spark starts several."""
    return estimated_bytes(frame) <= SMALL_BYTES


def batch_options(frame: DataFrame) -> dict[str, str]:
    """Return the options with which Spark sends batches with few rows and does not measure them.

    Empty if the user limits the bytes of batches, or if rows may be long: a column is a list, a map or binary. A Spark
    that cannot measure batches gets fewer rows instead.
    """
    settings = frame.sparkSession._jsparkSession.conf()
    is_short = all(_is_short(field.dataType) for field in frame.schema)
    rows = int(settings.get(BATCH_ROWS))
    if not spark_version().LIMITS_BATCH_BYTES:
        limit = _UNMEASURED_ROWS if is_short else _LONG_ROWS
        return {BATCH_ROWS: str(min(rows, limit) if rows > 0 else limit)}
    if settings.contains(_BATCH_BYTES) or not is_short:
        return {}
    return {
        _BATCH_BYTES: _UNMEASURED,
        BATCH_ROWS: str(min(rows, _UNMEASURED_ROWS) if rows > 0 else _UNMEASURED_ROWS),
    }


def _is_short(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_short(field.dataType) for field in kind)
    return isinstance(kind, _SHORT)


def _shard_bytes(size: int, parallelism: int, least_bytes: int) -> int:
    """Return the size above which Spark divides rows with equal columns, such as a hot partition, over several tasks.

    Shuffled rows are compressed, so half of the mean estimated size is about the mean size of a task. With
    `least_bytes` of 0 rows are divided only if they fill more than one file.
    """
    if not least_bytes or size >= _UNKNOWN_BYTES:
        return _SHARD_BYTES
    return min(_SHARD_BYTES, max(least_bytes, size // (2 * parallelism)))


def estimated_bytes(frame: DataFrame) -> int:
    """Return Spark's estimate for the size of a DataFrame."""
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def _attempt() -> Attempt:
    context = TaskContext.get()
    assert context is not None
    return Attempt(partition=context.partitionId(), stage=context.stageId(), number=context.taskAttemptId())


def _quoted(name: str) -> str:
    return ".".join(f"`{part}`" for part in name.split("."))


class _Numbers(AccumulatorParam[tuple[int, ...]]):
    """Accumulator parameter: collects task numbers on workers, and reports them on the driver.

    Workers get a copy without the function.
    """

    def __init__(self, finished: Callable[[int], None] | None = None) -> None:
        self._finished = finished

    def __reduce__(self) -> tuple[type[_Numbers], tuple[()]]:
        return _Numbers, ()

    def zero(self, value: tuple[int, ...]) -> tuple[int, ...]:
        """Return no numbers."""
        return ()

    def addInPlace(self, value1: tuple[int, ...], value2: tuple[int, ...]) -> tuple[int, ...]:
        """On a worker return the numbers of both; on the driver report the new numbers."""
        if self._finished is None:
            return value1 + value2
        for number in value2:
            self._finished(number)
        return ()


def reported(
    context: SparkContext, run: Callable[[Group[T]], Group[R]], finished: Callable[[int], None]
) -> Callable[[Group[T]], Group[R]]:
    """Return `run`, extended so that the numbers of its tasks reach `finished` when the Spark task of a group ends.

    Each task adds its number to an accumulator, which Spark sends to the driver when a Spark task ends. Spark counts a
    task of a result stage once, even if it ran several times. The driver's copy of the accumulator calls `finished`
    instead of storing the numbers, so nothing polls.
    """
    numbers = context.accumulator((), _Numbers(finished))

    def run_and_report(group: Group[T]) -> Group[R]:
        results = run(group)
        numbers.add(tuple(number for number, _ in results))
        return results

    return run_and_report
