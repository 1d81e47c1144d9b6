"""The interface that the module of each version of Spark implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketSettings:
    """Names of the settings for Unix sockets between the JVM and Python workers.

    Attributes:
        enabled: Setting that turns the sockets on.
        folder: Setting with the folder of the sockets.
        switch: Environment variable that Spark itself reads instead of `enabled`.
        most_characters: Maximum length of the folder's path, because paths of sockets are short.
    """

    enabled: str
    folder: str
    switch: str
    most_characters: int


class SparkVersion(Protocol):
    """The differences between versions of Spark; a module implements them."""

    @property
    def HAS_DATA_SOURCE(self) -> bool:
        """Whether `format("lakehouse")` exists, for batch reads and streams."""
        ...

    @property
    def LIMITS_BATCH_BYTES(self) -> bool:
        """Whether Spark limits Arrow batches for workers by bytes, not only by rows."""
        ...

    @property
    def READS_OLD_DATES(self) -> bool:
        """Whether Spark's Parquet reader takes old dates as stored if the footer names no Spark version.

        Otherwise it refuses dates before 1582 and times before 1900 unless a setting names their calendar.
        """
        ...

    @property
    def SOCKETS(self) -> SocketSettings | None:
        """The settings of Unix sockets; None if the version has only TCP."""
        ...

    @property
    def JSON_SETTINGS(self) -> Mapping[str, str]:
        """Settings of a session with which `repeats_nested_key` finds repeated keys."""
        ...

    @property
    def DEFAULT_SETTINGS(self) -> Mapping[str, str]:
        """Settings of an ingestion whose default newer versions changed; a value of the user takes precedence."""
        ...

    def register(self, spark: SparkSession) -> None:
        """Register `format("lakehouse")` with a session if it exists, and set the Python of its workers."""
        ...

    def require_stream_writer(self) -> None:
        """Raise UserError if this version has no streaming writer of Arrow batches."""
        ...

    def stream_writer(self, write: Any, key: str) -> Any:
        """Return the writer of one batch of a stream."""
        ...

    def dataset(self, spark: SparkSession, java_session: Any, plan: Any) -> Any:
        """Return the Java Dataset of a logical plan in a Java session of this JVM."""
        ...

    def rebalanced(self, frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
        """Return the rows divided into shuffle partitions of similar size, by columns or, without any, in any way."""
        ...

    def local_checkpoint(self, frame: DataFrame, *, eager: bool) -> DataFrame:
        """Return the rows kept in the memory of executors and, if it is full, on their disks."""
        ...

    def to_arrow(self, frame: DataFrame) -> pa.Table:
        """Return all rows as an Arrow table."""
        ...

    def metadata_column(self, frame: DataFrame) -> Column:
        """Return the metadata column of a file-based DataFrame, even if a data column has its name."""
        ...

    def parsed_type(self, text: str) -> DataType:
        """Return the type with a name in SQL, such as `array<int>`; raise ParseException if there is none."""
        ...

    def to_ddl(self, schema: StructType) -> str:
        """Return the columns in SQL, as in a CREATE TABLE statement."""
        ...

    def from_arrow(self, spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
        """Return the rows of an Arrow table as a DataFrame with the columns of a schema."""
        ...

    def is_valid_utf8(self, text: Column) -> Column:
        """Return whether the bytes of a string are UTF-8."""
        ...

    def try_cast(self, value: Column, kind: str) -> Column:
        """Return the value in a type (DDL), null if it has none, in a session with or without ANSI mode."""
        ...

    def repeats_nested_key(self, text: Column, options: Mapping[str, str]) -> Column:
        """Return whether any object of a JSON string repeats a key; null or true if the string does not parse.

        `options` are passed to Spark's parser. The session has the settings `JSON_SETTINGS`.
        """
        ...
