"""Spark 4.0: the data source exists; Python workers are connected over TCP.

Newer versions import the unchanged functions from here. `pyspark.sql.datasource` lacks the classes of pushed filters
in 4.0; the readers of `source` do not use them in any version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from lakehouse.errors import UserError
from lakehouse.spark import source
from lakehouse.spark.versions.protocol import SocketSettings

HAS_DATA_SOURCE = True
LIMITS_BATCH_BYTES = True
READS_OLD_DATES = True
SOCKETS: SocketSettings | None = None
#: Parsing to a variant then refuses objects with a repeated key.
JSON_SETTINGS: Mapping[str, str] = {"spark.sql.variant.allowDuplicateKeys": "false"}
DEFAULT_SETTINGS: Mapping[str, str] = {}


def register(spark: SparkSession) -> None:
    """Register `format("lakehouse")`."""
    source.register(spark)


def require_stream_writer() -> None:
    """Raise UserError: a streaming writer of Spark 4.0 gets its rows one by one."""
    raise UserError(
        'writeStream.format("lakehouse") needs Spark 4.1, because Spark 4.0 passes rows one by one to a streaming '
        "writer. Write the stream by foreachBatch(lambda df, id: lakehouse.spark.write(df, path, options, batch_id=id))"
    )


def stream_writer(write: Any, key: str) -> Any:
    """Raise UserError."""
    require_stream_writer()


def dataset(spark: SparkSession, java_session: Any, plan: Any) -> Any:
    """Return the Java Dataset of a logical plan.

    Since 4.0 the class that plans in this process is separate from the interface that it shares with Spark Connect.
    """
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.classic.Dataset.ofRows(java_session, plan)


def rebalanced(frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the rows divided into shuffle partitions of similar size."""
    return frame.hint("rebalance", *columns)


def local_checkpoint(frame: DataFrame, *, eager: bool) -> DataFrame:
    """Return the rows kept in memory and on disks."""
    return frame.localCheckpoint(eager=eager, storageLevel=StorageLevel.MEMORY_AND_DISK)


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return all rows as an Arrow table."""
    return frame.toArrow()


def metadata_column(frame: DataFrame) -> Column:
    """Return the metadata column of a file-based DataFrame, even if a data column has its name."""
    return frame.metadataColumn("_metadata")


def parsed_type(text: str) -> DataType:
    """Return the type with a name in SQL, such as `array<int>`."""
    return DataType.fromDDL(text)


def to_ddl(schema: StructType) -> str:
    """Return the columns in SQL."""
    return schema.toDDL()


def from_arrow(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return the rows of an Arrow table as a DataFrame."""
    return spark.createDataFrame(rows, schema)


def is_valid_utf8(text: Column) -> Column:
    """Return whether the bytes of a string are UTF-8."""
    return F.is_valid_utf8(text)


def try_cast(value: Column, kind: str) -> Column:
    """Return the value in a type, or null."""
    return value.try_cast(kind)


def repeats_nested_key(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether any object repeats a key: a variant cannot contain such an object."""
    return F.from_json(text, "variant", dict(options)).isNull()
