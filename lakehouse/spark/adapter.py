"""Implements `EngineAdapter` for Spark: `lakehouse.core.engine.adapters` imports it for objects of pyspark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lakehouse.core.engine.pieces import Shuffle
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.operations.read.scan import Scan
from lakehouse.errors import UserError
from lakehouse.spark.changes import changes_to_spark
from lakehouse.spark.engine import SparkEngine
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.pieces import SparkShuffle
from lakehouse.spark.scan import scan_to_spark
from lakehouse.spark.versions.choice import require_classic
from lakehouse.spark.worker_python import set_worker_python


def session_engine(session: SparkSession, memory_budget_bytes: int) -> Engine:
    """Return an engine that runs tasks on a Spark session; raise UserError if it is not supported."""
    require_classic(session)
    set_worker_python(session)
    return SparkEngine(session, memory_budget_bytes)


def frame_engine(frame: DataFrame, memory_budget_bytes: int) -> Engine:
    """Return an engine on the session of a DataFrame; raise UserError for other objects of pyspark."""
    require_classic(frame)
    if not isinstance(frame, DataFrame):
        raise UserError(f"expected a DataFrame, not {type(frame).__module__}.{type(frame).__name__}")
    return session_engine(frame.sparkSession, memory_budget_bytes)


def frame_batches(frame: DataFrame, batch_bytes: int) -> pa.RecordBatchReader:
    """Return the rows of a DataFrame as a stream. Spark computes and sends one partition after another."""
    schema = frame_engine(frame, batch_bytes).schema(frame)
    wire = frame.mapInArrow(_encoded, "batch binary")

    def batches() -> Iterator[pa.RecordBatch]:
        for row in wire.toLocalIterator():
            # Spark marks each column as nullable or not, which the values need not repeat.
            yield from pa.Table.from_batches(pa.ipc.open_stream(row.batch)).cast(schema).to_batches()

    return pa.RecordBatchReader.from_batches(schema, batches())


def _encoded(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        yield pa.record_batch({"batch": pa.array([sink.getvalue().to_pybytes()], pa.binary())})


def shuffle(owner: SparkSession | DataFrame, memory_budget_bytes: int) -> Shuffle:
    """Return the shuffle of a session, or of the session of a DataFrame."""
    require_classic(owner)
    session = owner.sparkSession if isinstance(owner, DataFrame) else owner
    set_worker_python(session)
    return SparkShuffle(session, memory_budget_bytes)


def unique_frame(frame: DataFrame, identity: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """Return some columns of a DataFrame; raise UserError if several of its rows have one key `identity`."""
    with spark_failures("reading the source of the MERGE"):
        counted = frame.groupBy(*[F.col(f"`{name}`") for name in identity]).count()
        repeated = counted.where(F.col("count") > 1).limit(1).collect()
    if repeated:
        key = {name: repeated[0][number] for number, name in enumerate(identity)}
        raise UserError(
            f"MERGE: {repeated[0]['count']} rows of the source have the key {key}, and SQL allows one. Remove "
            "duplicates from the source",
            key=str(key),
        )
    return frame.select(*[F.col(f"`{name}`") for name in columns])


def scan_to_frame(session: SparkSession, scan: Scan | ChangeScan) -> DataFrame:
    """Return the rows of a planned read as a DataFrame."""
    require_classic(session)
    set_worker_python(session)
    if isinstance(scan, ChangeScan):
        return changes_to_spark(session, scan.in_order())
    return scan_to_spark(session, scan)
