"""Spark 4.1: Unix sockets to Python workers; otherwise as Spark 4.0."""

from __future__ import annotations

from typing import Any

from lakehouse.spark.staged_writer import StagedWrite
from lakehouse.spark.stream_writer import LakehouseStreamWriter
from lakehouse.spark.versions.protocol import SocketSettings
from lakehouse.spark.versions.v40 import (
    DEFAULT_SETTINGS,
    HAS_DATA_SOURCE,
    JSON_SETTINGS,
    LIMITS_BATCH_BYTES,
    READS_OLD_DATES,
    dataset,
    from_arrow,
    is_valid_utf8,
    local_checkpoint,
    metadata_column,
    parsed_type,
    rebalanced,
    register,
    repeats_nested_key,
    to_arrow,
    to_ddl,
    try_cast,
)

__all__ = [
    "HAS_DATA_SOURCE",
    "DEFAULT_SETTINGS",
    "JSON_SETTINGS",
    "LIMITS_BATCH_BYTES",
    "READS_OLD_DATES",
    "SOCKETS",
    "dataset",
    "from_arrow",
    "is_valid_utf8",
    "local_checkpoint",
    "metadata_column",
    "parsed_type",
    "rebalanced",
    "register",
    "repeats_nested_key",
    "require_stream_writer",
    "stream_writer",
    "to_arrow",
    "to_ddl",
    "try_cast",
]

SOCKETS: SocketSettings | None = SocketSettings(
    enabled="spark.python.unix.domain.socket.enabled",
    folder="spark.python.unix.domain.socket.dir",
    switch="PYSPARK_UDS_MODE",
    most_characters=61,
)


def require_stream_writer() -> None:
    """Do nothing: this version passes Arrow batches to a streaming writer."""


def stream_writer(write: StagedWrite, key: str) -> Any:
    """Return the writer of one batch of a stream."""
    return LakehouseStreamWriter(write, key)
