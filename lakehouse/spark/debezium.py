"""Turns change events of Debezium into rows: the row after the change, or before it for a delete.

An event is `{before, after, op, ts_ms, source}`, or the same below `payload` with a description below `schema`. Facts
about the change become columns if the table's schema contains them; they have the names in Hudi's payloads:

    _change_operation_type              op: c, r, u, d
    _upstream_event_processed_ts_ms     ts_ms
    _event_origin_ts_ms                 source.ts_ms
    db_shard_source_partition           source.name
    db_schema_source_partition          source.schema
    _event_bin_file, _event_pos         source.file, source.pos, of MySQL; _event_row is source.row
    _event_seq                          file and position in one string
    _event_lsn, _event_tx_id, _event_xmin   source.lsn, source.txId, source.xmin, of PostgreSQL

Debezium writes dates as days since 1970, and times as numbers whose unit only `schema` states. A time that is a number
without `schema`, and a decimal that is neither a number nor its string, make a message a bad record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DateType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from lakehouse.spark.field_values import MARK, FieldRules, marked_json, quoted
from lakehouse.spark.json_text import repeated_key_problem
from lakehouse.spark.sources import CORRUPT, PROBLEM, Frame, Schema
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spec.sources.debezium import OPERATION

#: The paths in an event to a row; with a description of its types, the event is in `payload`.
EVENT_ROWS = (("after",), ("before",), ("payload", "after"), ("payload", "before"))
_TEXT, _NUMBER = StringType(), LongType()
_SOURCE = StructType(
    [
        *(StructField(name, _TEXT) for name in ("name", "schema", "file")),
        *(StructField(name, _NUMBER) for name in ("ts_ms", "pos", "row", "lsn", "txId", "xmin")),
    ]
)
_PATHS = {
    OPERATION: "op",
    "_upstream_event_processed_ts_ms": "ts_ms",
    "_event_origin_ts_ms": "source.ts_ms",
    "db_shard_source_partition": "source.name",
    "db_schema_source_partition": "source.schema",
    "_event_bin_file": "source.file",
    "_event_pos": "source.pos",
    "_event_row": "source.row",
    "_event_lsn": "source.lsn",
    "_event_tx_id": "source.txId",
    "_event_xmin": "source.xmin",
}
_SEQUENCE = "_event_seq"
#: The type of the schema in an event: the type names of the columns of `before` and `after`.
_DESCRIPTION = StructType(
    [
        StructField(
            "fields",
            ArrayType(
                StructType(
                    [
                        StructField("field", _TEXT),
                        StructField(
                            "fields", ArrayType(StructType([StructField("field", _TEXT), StructField("name", _TEXT)]))
                        ),
                    ]
                )
            ),
        )
    ]
)
_TEMPORAL = (DateType, TimestampType, TimestampNTZType)
_NUMBERS = rf"^{MARK}-?[0-9]+\z"
#: 0001-01-01 and 9999-12-31, as days since 1970.
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896


def facts_among(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names of columns that describe a change instead of the row."""
    return tuple(name for name in names if name in _PATHS or name == _SEQUENCE)


def row_type(schema: Schema) -> StructType:
    """Return the columns of a row before or after a change: the columns in `schema` without facts about the change."""
    own = set(facts_among(schema.names))
    return StructType([column for column in schema if column.name not in own])


def event_type(schema: Schema) -> StructType:
    """Return the type of an event whose rows have the columns of `schema`, with these types."""
    image = row_type(schema)
    return StructType(
        [
            StructField("before", image),
            StructField("after", image),
            StructField("op", _TEXT),
            StructField("ts_ms", _NUMBER),
            StructField("source", _SOURCE),
        ]
    )


def image_of(event: Column) -> Column:
    """Return the row after the change, or before it for a delete."""
    return F.when(event["op"] == "d", event["before"]).otherwise(event["after"])


def event_columns(event: Column, image: Column, schema: Schema) -> list[Column]:
    """Return the columns in `schema` for an event of `event_type`; `image` is its row."""
    own = set(facts_among(schema.names))
    return [
        (_fact(event, column.name).cast(column.dataType) if column.name in own else image[column.name]).alias(
            column.name
        )
        for column in schema
    ]


def json_type(schema: Schema, rules: FieldRules) -> StructType:
    """Return the type with which the string of an event is parsed; values that need a conversion stay strings."""
    event = event_type(schema)
    texts = [StructField(one.name, rules.text_kind(one.dataType)) for one in event]
    wrapped = [StructField("payload", StructType(texts))]
    if any(isinstance(column.dataType, _TEMPORAL) for column in schema):
        wrapped.append(StructField("schema", _DESCRIPTION))
    return StructType([*texts, *wrapped])


def json_event(parsed: Column, schema: Schema) -> Column:
    """Return the event that was parsed by `json_type`, as strings."""
    bare = F.struct(*(parsed[field.name].alias(field.name) for field in event_type(schema)))
    return F.when(parsed["payload"].isNotNull(), parsed["payload"]).otherwise(bare)


def json_columns(parsed: Column, event: Column, schema: Schema, rules: FieldRules) -> list[Column]:
    """Return the columns in `schema` for a JSON event, whose row is the string column `image`.

    A value is null if its string has no conversion.
    """
    columns, own = [], set(facts_among(schema.names))
    for column in schema:
        text = f"image.{quoted(column.name)}"
        if column.name in own:
            value = spark_version().try_cast(
                F.replace(_fact(event, column.name), F.lit(MARK), F.lit("")), column.dataType.simpleString()
            )
        elif isinstance(column.dataType, _TEMPORAL):
            value = _temporal(F.expr(text), column.dataType, _type_name(parsed, column.name))
            value = F.coalesce(value, F.expr(rules.value(text, column.dataType)))
        else:
            value = F.expr(rules.value(text, column.dataType))
        columns.append(value.alias(column.name))
    return columns


def json_rows(events: Frame, schema: Schema, options: Mapping[str, str]) -> tuple[Frame, list[Column], Column]:
    """Parse events in JSON, the column `text` of a DataFrame; `whole` is whether the string is one object.

    Returns the DataFrame with further columns, the columns of `schema` and `PROBLEM` over it, and the string of an
    event that does not parse, else null. `options` are passed to Spark's parser.
    """
    rules = FieldRules(options=options, is_json=True, declared={name.lower() for name in schema.names})
    parsed = StructType([*json_type(schema, rules).fields, StructField(CORRUPT, _TEXT)])
    records = events.withColumn("record", F.from_json(F.expr(marked_json("text")), parsed, dict(options)))
    # Each step is a separate column, because the next step uses it many times.
    frame = records.withColumn("event", json_event(F.col("record"), schema))
    frame = frame.withColumn("image", image_of(F.col("event")))
    frame = frame.withColumn("values", F.struct(*json_columns(F.col("record"), F.col("event"), schema, rules)))
    names = row_type(schema).names
    problem = rules.problem(
        [(name, schema[name].dataType) for name in names],
        lambda number: f"image.{quoted(names[number])}",
        lambda number: f"values.{quoted(names[number])}",
    )
    repeated = F.when(~F.col("whole"), repeated_key_problem(F.col("text"), options))
    frame = frame.withColumn(PROBLEM, F.coalesce(F.expr(problem), repeated))
    is_bad = (
        ~F.col("whole")
        | ~F.ltrim("text").startswith("{")
        | F.col(PROBLEM).isNotNull()
        | F.col(f"record.{CORRUPT}").isNotNull()
    )
    columns = [F.col(f"values.{quoted(name)}").alias(name) for name in schema.names]
    return frame, [*columns, F.col(PROBLEM)], F.when(is_bad, F.col("text"))


def _fact(event: Column, name: str) -> Column:
    source = event["source"]
    if name == _SEQUENCE:
        return F.concat(source["file"], F.lit("."), source["pos"].cast("string"))
    path = _PATHS[name]
    return source[path.removeprefix("source.")] if path.startswith("source.") else event[path]


def _type_name(parsed: Column, name: str) -> Column:
    """Return the type name that the description of the event states for a column, null if there is none."""
    images = F.filter(parsed["schema"]["fields"], lambda one: one["field"] == "after")
    own = F.filter(F.get(images, 0)["fields"], lambda one: one["field"] == name)
    return F.get(own, 0)["name"]


def _temporal(text: Column, kind: DataType, type_name: Column) -> Column:
    """Convert a number by Debezium's representation of dates and times; null for other strings, and without a unit.

    The result is also null for nanoseconds that are not whole microseconds, and for a year that clients cannot print.
    """
    digits = F.when(text.rlike(_NUMBERS), F.substring(text, 2, 40))
    if isinstance(kind, DateType):
        days = spark_version().try_cast(digits, "int")
        return F.when(days.between(_FIRST_DAY, _LAST_DAY), F.date_add(F.lit("1970-01-01").cast("date"), days))
    count = spark_version().try_cast(digits, "decimal(30,0)")
    micros = F.when(type_name.endswith(".MicroTimestamp"), count)
    micros = micros.when(type_name.endswith(".NanoTimestamp") & (count % 1000 == 0), count / 1000)
    micros = micros.when(type_name.endswith(".Timestamp"), count * 1000)
    bounds = (86_400_000_000 * _FIRST_DAY, 86_400_000_000 * (_LAST_DAY + 1) - 1)
    return F.when(micros.between(*bounds), F.timestamp_micros(micros.cast("long"))).cast(kind)
