"""Implements `EngineAdapter` for Spark: `lakehouse.core.engine.adapters` imports it for objects of pyspark."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.operations.read.scan import Scan
from lakehouse.errors import UserError
from lakehouse.spark.changes import changes_to_spark
from lakehouse.spark.engine import SparkEngine
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


def scan_to_frame(session: SparkSession, scan: Scan | ChangeScan) -> DataFrame:
    """Return the rows of a planned read as a DataFrame."""
    require_classic(session)
    set_worker_python(session)
    if isinstance(scan, ChangeScan):
        return changes_to_spark(session, scan.in_order())
    return scan_to_spark(session, scan)
