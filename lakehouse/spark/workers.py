"""Runs functions on Arrow batches in the Python workers of Spark."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from zipimport import zipimporter

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lakehouse.core.rows.list_offsets import with_offsets

#: Spark's size for a number in a range.
_NUMBER_BYTES = 8
#: The maximum size estimate per number. A larger one would only slow the filter down.
_MOST_BYTES = 64 << 20

BatchFunction = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


def map_in_arrow(frame: DataFrame, function: BatchFunction, schema: StructType | str) -> DataFrame:
    """Return the rows in the batches that `function` yields for each partition, with the columns of `schema`.

    Use it instead of `DataFrame.mapInArrow`: it completes the batches, and prepares the worker for its next task.
    """
    return frame.mapInArrow(_InWorker(function), schema)


def task_numbers(spark: SparkSession, numbers: int, result_bytes: int, *, tasks: int | None = None) -> DataFrame:
    """Return the numbers from 0 to `numbers` - 1, divided among tasks in order, as input for `map_in_arrow`.

    Spark estimates the result of `mapInArrow` by the size of its input. For a few numbers that is a few bytes: Spark
    would broadcast a whole table in a join, and one task would write it. The numbers are therefore multiples that a
    filter takes from a longer range: Spark estimates the filtered numbers by the size of the range.

    Args:
        spark: The session.
        numbers: How many numbers there are.
        result_bytes: About how many bytes all tasks return together; the estimate is at least half of it, and at
            most 64 MB for each number.
        tasks: The number of tasks, at least 1; by default there is one for each number.
    """
    parts = max(numbers, 1) if tasks is None else tasks
    # The step is a power of two: a mask takes a task of 64 MB about 10 ms, a division 60 ms.
    estimate = min(result_bytes // max(numbers, 1), _MOST_BYTES)
    bits = max(1, estimate // _NUMBER_BYTES).bit_length() - 1
    if not bits:
        return spark.range(0, numbers, 1, parts)
    step = 1 << bits
    return (
        spark.range(0, numbers * step, 1, parts)
        .where(f"id & {step - 1} = 0")
        .selectExpr(f"shiftright(id, {bits}) AS id")
    )


def prepare_for_reuse() -> None:
    """Avoid work that Spark does in a worker before and after each task, 0.15 to 0.3 s of CPU time per task.

    Spark runs the garbage collector over all modules and reads the directory of each zip archive on the path again,
    once for each package in it. Modules are therefore frozen for the collector, and the cached archives are dropped; an
    import that needs an archive opens it again.
    """
    importers = sys.path_importer_cache
    for path in [path for path, importer in importers.items() if isinstance(importer, zipimporter)]:
        del importers[path]
    if not gc.get_freeze_count():
        gc.collect()
        gc.freeze()


@dataclass(frozen=True, slots=True)
class _InWorker:
    """Runs a function on complete batches, then `prepare_for_reuse`."""

    function: BatchFunction

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from self.function(with_offsets(batches))
        prepare_for_reuse()
