"""Spark 3.5: no Python data source, no variant type, and a Dataset with another class name.

`format("lakehouse")` and stream reads do not exist there. `lakehouse.spark.read` reads the same queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter
from pyspark.sql.types import DataType, StructType, _parse_datatype_string

from lakehouse.errors import UserError
from lakehouse.spark.json_pattern import token_pattern
from lakehouse.spark.source_options import NAME
from lakehouse.spark.versions.protocol import SocketSettings
from lakehouse.spark.worker_python import set_worker_python
from lakehouse.spark.workers import map_in_arrow, task_numbers

HAS_DATA_SOURCE = False
LIMITS_BATCH_BYTES = False
READS_OLD_DATES = False
SOCKETS: SocketSettings | None = None
JSON_SETTINGS: Mapping[str, str] = {}
#: Without ANSI mode a division by zero, an overflow and a text that is no number are null or a wrong number.
DEFAULT_SETTINGS: Mapping[str, str] = {"spark.sql.ansi.enabled": "true"}
#: Spark's JSON parser refuses deeper objects.
_DEPTH = 1_000
#: Readers and writers with `format`, and the call to use instead.
_WAYS: dict[Any, str] = {
    DataFrameReader: "lakehouse.spark.read(spark, path, options)",
    DataFrameWriter: "lakehouse.spark.write(df, path, options, mode=...)",
    DataStreamReader: "lakehouse.spark.read(spark, path, options) with an incremental query",
    DataStreamWriter: "foreachBatch(lambda df, id: lakehouse.spark.write(df, path, options, batch_id=id))",
}
_FLAT_OBJECT = r"\{[^{}]*+\}"


def register(spark: SparkSession) -> None:
    """Set the Python of the session's workers; Spark 3.5 has no Python data sources.

    Spark would answer `format("lakehouse")` with "Failed to find the data source"; it is refused with the way out.
    """
    set_worker_python(spark)
    for kind, way in _WAYS.items():
        if not isinstance(kind.format, _RefusedFormat):
            kind.format = _RefusedFormat(kind.format, way)


class _RefusedFormat:
    """The method `format` of a reader or writer, which refuses one name."""

    def __init__(self, original: Any, way: str) -> None:
        self._original, self._way = original, way

    def __get__(self, instance: Any, owner: type) -> Any:
        return partial(self, instance) if instance is not None else self

    def __call__(self, instance: Any, source: str) -> Any:
        if source.lower() == NAME:
            raise UserError(
                f'Spark 3.5 has no format("{NAME}"), because it has no Python data sources. Call {self._way}'
            )
        return self._original(instance, source)


def require_stream_writer() -> None:
    """Raise UserError: there are no Python data sources."""
    raise UserError(f"Spark 3.5 has no streaming writer. Call {_WAYS[DataStreamWriter]}")


def stream_writer(write: Any, key: str) -> Any:
    """Raise UserError."""
    require_stream_writer()


def dataset(spark: SparkSession, java_session: Any, plan: Any) -> Any:
    """Return the Java Dataset of a logical plan."""
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.Dataset.ofRows(java_session, plan)


def rebalanced(frame: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return the rows divided into shuffle partitions of similar size.

    The hint accepts unresolved attributes only, which Python cannot pass.
    """
    java_frame: Any = frame
    java_columns: Sequence[Any] = columns
    parameters = java_frame._jseq([column._jc.expr() for column in java_columns])
    hinted = java_frame._jdf.hint("rebalance", parameters)
    return DataFrame(hinted, frame.sparkSession)


def local_checkpoint(frame: DataFrame, *, eager: bool) -> DataFrame:
    """Return the rows kept in memory and on disks: the only storage level of local checkpoints in this version."""
    return frame.localCheckpoint(eager=eager)


def to_arrow(frame: DataFrame) -> pa.Table:
    """Return all rows as an Arrow table."""
    schema = to_arrow_schema(frame.schema)
    collected: Any = frame
    batches = collected._collect_as_arrow()
    return pa.Table.from_batches(batches).cast(schema) if batches else schema.empty_table()


def metadata_column(frame: DataFrame) -> Column:
    """Return the metadata column of a file-based DataFrame, even if a data column has its name."""
    java_frame: Any = frame
    column: Any = Column
    result: Column = column(java_frame._jdf.metadataColumn("_metadata"))
    return result


def parsed_type(text: str) -> DataType:
    """Return the type with a name in SQL, such as `array<int>`."""
    return _parse_datatype_string(text)


def to_ddl(schema: StructType) -> str:
    """Return the columns in SQL."""
    jvm, _ = _java(SparkSession.active())
    return str(jvm.org.apache.spark.sql.types.DataType.fromJson(schema.json()).toDDL())


def from_arrow(spark: SparkSession, rows: pa.Table, schema: StructType) -> DataFrame:
    """Return the rows of an Arrow table as a DataFrame: one task gets them with its function."""
    batches = rows.cast(to_arrow_schema(schema)).combine_chunks().to_batches()

    def same(numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in numbers:
            if number.num_rows:
                yield from batches

    return map_in_arrow(task_numbers(spark, 1, rows.nbytes), same, schema)


def is_valid_utf8(text: Column) -> Column:
    """Return whether the bytes of a string are UTF-8: decoding replaces other bytes."""
    stored = text.cast("binary")
    return F.encode(F.decode(stored, "UTF-8"), "UTF-8") == stored


def try_cast(value: Column, kind: str) -> Column:
    """Return the value in a type, or null. Only SQL text has this function, so the JVM's expression is created."""
    jvm, java_session = _java(SparkSession.active())
    java_value: Any = value
    target = java_session.parseDataType(_parse_datatype_string(kind).json())
    mode = getattr(jvm.org.apache.spark.sql.catalyst.expressions, "EvalMode$")
    cast = jvm.org.apache.spark.sql.catalyst.expressions.Cast(
        java_value._jc.expr(), target, jvm.scala.Option.empty(), getattr(mode, "MODULE$").TRY()
    )
    column: Any = Column
    result: Column = column(jvm.org.apache.spark.sql.Column(cast))
    return result


def repeats_nested_key(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether any object repeats a key.

    Each step looks for repeated keys in the objects that contain no other object, and replaces these objects by a
    number. An outer object contains no other object in a later step.
    """
    tokens = F.regexp_extract_all(text, F.lit(token_pattern(options)), F.lit(0))
    plain = F.array_join(F.transform(tokens, _without_braces), "")
    # The number of opening braces is at least the depth.
    braces = F.length(F.regexp_replace(text, r"[^{]", ""))
    steps = F.sequence(F.lit(1), F.greatest(F.least(braces, F.lit(_DEPTH)), F.lit(1)))
    start = F.struct(plain.alias("rest"), F.lit(False).alias("repeats"))

    def repeats(flat: Column) -> Column:
        keys = F.map_keys(F.from_json(flat, "map<string,string>", dict(options)))
        return F.coalesce(F.size(F.array_distinct(keys)) < F.size(keys), F.lit(False))

    def step(state: Column, _: Column) -> Column:
        objects = F.regexp_extract_all(state["rest"], F.lit(_FLAT_OBJECT), F.lit(0))
        return F.struct(
            F.regexp_replace(state["rest"], _FLAT_OBJECT, "0").alias("rest"),
            (state["repeats"] | F.exists(objects, repeats)).alias("repeats"),
        )

    return F.aggregate(steps, start, step)["repeats"]


def _without_braces(token: Column) -> Column:
    """Return a JSON token with the braces of a string as escape sequences, and a comment as a space."""
    escaped = F.replace(F.replace(token, F.lit("{"), F.lit(r"\u007b")), F.lit("}"), F.lit(r"\u007d"))
    is_string = token.startswith('"') | token.startswith("'")
    is_comment = token.startswith("/") | token.startswith("#")
    return F.when(is_string, escaped).when(is_comment, " ").otherwise(token)


def _java(session: SparkSession) -> tuple[Any, Any]:
    jvm: Any = session._jvm
    java_session: Any = session._jsparkSession
    return jvm, java_session
