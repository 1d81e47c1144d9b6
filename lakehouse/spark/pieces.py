"""Implements `Shuffle` for Spark: pieces are rows with binary columns, in DataFrames.

Arrow workers encode and decode the pieces. Spark divides them by shard and stores shuffled pieces on the executors'
disks, so it converts no value, and a lost or repeated task neither loses nor repeats rows.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.core.engine.pieces import (
    PIECES_PER_BATCH,
    REPORT,
    Batches,
    OfSlices,
    TaskDivision,
    ToPieces,
    decoded,
)
from lakehouse.core.engine.protocol import R, ShardFunction
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.spark.engine import BATCH_ROWS, SparkEngine, batch_options, estimated_bytes, own_workers
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.scan import slice_shares
from lakehouse.spark.stored_frames import stored_frame
from lakehouse.spark.workers import map_in_arrow, task_numbers

_DDL = "shard int, side int, data binary"
_DOING = "running the statement"
#: A worker gets few pieces at a time, because each may have a megabyte.
_FEW_ROWS = {BATCH_ROWS: str(PIECES_PER_BATCH)}


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces that are not computed yet, and the settings of Spark with which their query is planned."""

    frame: DataFrame
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class PieceRows:
    """Rows in the pieces of a DataFrame; `read` has the number of rows that the last exchange read."""

    pieces: DataFrame
    schema: pa.Schema
    read: list[int] = field(default_factory=list)


class PieceEngine(SparkEngine):
    """A `SparkEngine` whose frames are `PieceRows`."""

    def schema(self, frame: PieceRows) -> pa.Schema:
        """Return the columns of the rows."""
        return frame.schema

    def divides(self, frame: PieceRows) -> bool:
        """Return True: pieces are spread over tasks already."""
        return True

    def exchange(
        self, frame: PieceRows, function: ShardFunction[R], *, by: Sequence[str], hint: str, least_bytes: int = 0
    ) -> list[R]:
        """Run `function` on the rows of each partition; statements need no other division."""
        assert hint == "none", "rows of a statement are written by key, so they are divided when they are staged"
        names, counts = frame.schema.names, list[int]()

        def run(attempt: Any, batches: Iterator[pa.RecordBatch]) -> Iterator[R | _Count]:
            count = _Count()
            yield from function(attempt, _rows(batches, names, count))
            yield count

        results = []
        pieces = self.with_options(frame.pieces, _FEW_ROWS)
        for result in self._collected(pieces, run):
            if isinstance(result, _Count):
                counts.append(result.rows)
            else:
                results.append(result)
        frame.read[:] = [sum(counts)]
        return results


@dataclass(slots=True)
class _Count:
    rows: int = 0


def _rows(batches: Batches, names: Sequence[str], count: _Count) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for data in batch.column("data"):
            rows = decoded(data).select(names)
            count.rows += rows.num_rows
            yield from rows.to_batches()


def _union(pieces: Sequence[Pieces | DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionByName, [each.frame if isinstance(each, Pieces) else each for each in pieces])


class SparkShuffle:
    """Divides pieces among the tasks of a session."""

    def __init__(self, spark: SparkSession, memory_budget_bytes: int) -> None:
        self._spark, self._budget = spark, memory_budget_bytes
        self.engine = PieceEngine(spark, memory_budget_bytes)

    def bytes_of(self, frame: DataFrame) -> int:
        """Return Spark's estimate for the size of a DataFrame."""
        return estimated_bytes(frame)

    def of_frame(self, frame: DataFrame, function: ToPieces) -> Pieces:
        """Return the pieces of each partition of a DataFrame."""
        return Pieces(self._mapped(frame, function), batch_options(frame))

    def of_slices(self, slices: FileSlices, function: OfSlices) -> Pieces:
        """Return the pieces of file slices; each task gets some of them."""
        if not len(slices):
            return Pieces(self._spark.createDataFrame([], _DDL))
        shares = slice_shares(slices, self.engine.parallelism)

        def read(batches: Batches) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from function(shares[number])

        return Pieces(self._mapped(task_numbers(self._spark, len(shares), slices.bytes), read))

    def by_shard(self, pieces: Sequence[Pieces | DataFrame], function: ToPieces, division: TaskDivision) -> Pieces:
        """Return the pieces that `function` yields for the pieces of each group, in the order of groups and sides."""
        rows = _union(pieces).where(F.col("side") != REPORT)
        grouped = rows.selectExpr(f"shard % {division.groups} AS shard", "side", "data")
        ordered = grouped.repartition(division.tasks, "shard").sortWithinPartitions("shard", "side")
        return Pieces(self._mapped(ordered, function), _FEW_ROWS)

    def of_task(self, function: Callable[[], Iterator[pa.RecordBatch]]) -> Pieces:
        """Return the pieces that one task yields."""
        return Pieces(self._mapped(self._spark.range(0, 1, 1, 1), lambda _: function()))

    def stored(self, pieces: Sequence[Pieces | DataFrame], tasks: int) -> DataFrame:
        """Return pieces that Spark keeps as a shuffle, and computes again only if an executor that has them is lost."""
        together = _union(pieces).repartition(tasks, "shard")
        options = {key: value for each in pieces if isinstance(each, Pieces) for key, value in each.options.items()}
        with spark_failures(_DOING):
            return stored_frame(self._spark, together, options)

    def reports(self, stored: DataFrame) -> list[Any]:
        """Return the reports among pieces."""
        with spark_failures(_DOING):
            rows = stored.where(F.col("side") == REPORT).select("data").collect()
        return [pickle.loads(bytes(row.data)) for row in rows]

    def run(self, pieces: Pieces) -> None:
        """Compute pieces, which are discarded."""
        with spark_failures(_DOING):
            self.engine.with_options(pieces.frame, pieces.options).count()

    def of_sides(self, stored: DataFrame, sides: Sequence[int]) -> DataFrame:
        """Return the pieces of some sides."""
        return stored.where(F.col("side").isin(list(sides)))

    def rows(self, stored: DataFrame, schema: pa.Schema) -> PieceRows:
        """Return the rows in pieces as a frame of the engine."""
        return PieceRows(stored, schema)

    def rows_read(self, frame: PieceRows) -> int:
        """Return the number of rows that the last exchange read."""
        return frame.read[0]

    def _mapped(self, frame: DataFrame, function: ToPieces) -> DataFrame:
        with own_workers(self._spark, self._budget):
            return map_in_arrow(frame, function, _DDL)
