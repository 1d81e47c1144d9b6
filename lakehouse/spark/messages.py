"""Turns messages of a log, such as a Kafka topic, into DataFrames of records; bad messages are kept with their bytes.

A task reads one range of offsets. After its messages it yields one row with the offset up to which it has read. A run
can therefore check that every range was read to its end, and continue where a limit ended it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructField, StructType

from lakehouse.spark.bad_records import REASON
from lakehouse.spark.debezium import event_columns, image_of, json_rows
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.field_values import FieldRules, marked_json
from lakehouse.spark.json_text import has_repeated_key, is_json_object, repeated_key_problem
from lakehouse.spark.sources import CORRUPT, FILE_SET, PROBLEM, RAW, SOURCE_FILE, Frame, Schema, Session
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.workers import map_in_arrow, task_numbers

#: The columns of messages as tasks read them.
MESSAGES = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("time", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("is_end", pa.bool_()),
    ]
)
#: The columns that decoders add after the record: why it is bad, and at the end of a range the unread fields.
DECODED = (pa.field("problem", pa.string()), pa.field("unread", pa.string()))
#: The estimated size of a row with all columns of a message. Spark estimates the remaining columns of the record at a
#: fifth of it.
_MESSAGE_BYTES = 400
#: The fields of `RAW`, and the fields that are kept only for bad messages.
_RAW_FIELDS, _BYTES = ("partition", "offset", "time", "key", "value", "is_end", "unread"), ("key", "value")
_PREFIX = "_kafka_"
_JSON_OPTIONS = {"timeZone": "UTC", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}

#: Yields the messages of the ranges whose positions are in the batches.
RangeFunction = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """The counts for one partition in a run.

    Attributes:
        records: The number of messages that belong to the run.
        bad: The number of bad ones among them.
        late: The number of messages that are older than the run's bound.
        newest_ms: The time of the newest message; None if there are no messages.
        ends: The offset up to which each range was read, in ascending order.
        unread: Reports of tasks about fields that were not read.
    """

    records: int
    bad: int
    late: int
    newest_ms: int | None
    ends: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBounds:
    """The times of a run's messages, in milliseconds since 1970.

    Attributes:
        interval: The messages to keep are at or after the first time and before the second; None to keep all.
        watermarks: By partition, the latest time in earlier runs: older messages are late.
    """

    interval: tuple[int, int] | None = None
    watermarks: Mapping[int, int] = field(default_factory=dict)


def read_messages(
    session: Session, read: RangeFunction, ranges: int, *, most: int, record: Schema | None = None
) -> Frame:
    """Return the messages of all ranges; a task reads one range.

    Args:
        session: The session.
        read: Reads ranges.
        ranges: The number of ranges.
        most: The limit on the number of messages. Their estimated size decides how many tasks write them.
        record: The type of the values if `read` decodes them; there are then the columns `record`, `problem` and
            `unread`.
    """
    columns = list(from_arrow_schema(MESSAGES))
    if record is not None:
        columns += [StructField("record", record), *from_arrow_schema(pa.schema(DECODED))]
    return map_in_arrow(task_numbers(session, ranges, most * _MESSAGE_BYTES), read, StructType(columns))


def json_records(messages: Frame, schema: Schema, topic: str, declared: Iterable[str]) -> Frame:
    """Return records with the columns of `schema`; values without a decoded `record` are parsed here as JSON objects.

    A message without a value, a value that is not one object, and an object with a value that is not of its type, are
    bad records. `declared` are the columns whose types the spec declares.
    """
    rules = FieldRules(options=_JSON_OPTIONS, is_json=True, declared={name.lower() for name in declared})
    texts = [StructField(column.name, rules.text_kind(column.dataType)) for column in schema]
    parsed = StructType([*texts, StructField(CORRUPT, StringType())])
    text = F.when(F.col("record").isNull(), F.col("value").cast("string"))
    is_slow = F.col("record").isNull() & ~F.col("is_end")
    # Each column is used many times, so it is computed once, and only for values without a decoded record.
    slow = F.when(is_slow, F.from_json(F.expr(marked_json("text")), parsed, _JSON_OPTIONS))
    problem = rules.problem(
        [(column.name, column.dataType) for column in schema],
        lambda number: f"slow.{_quoted(schema.names[number])}",
        lambda number: f"values.{_quoted(schema.names[number])}",
    )
    columns = [
        F.coalesce(F.col(f"record.{_quoted(column.name)}"), F.col(f"values.{_quoted(column.name)}")).alias(column.name)
        for column in schema
    ]
    is_object = F.ltrim("text").startswith("{") & is_json_object(F.col("text"), _JSON_OPTIONS)
    is_object = is_object & ~has_repeated_key(F.col("text"), _JSON_OPTIONS)
    is_bad = ~F.coalesce(is_object, F.lit(False))
    is_bad = is_bad | F.col(f"slow.{CORRUPT}").isNotNull() | F.col(PROBLEM).isNotNull()
    corrupt = F.when(is_slow & is_bad, F.coalesce("text", F.lit("")))
    repeated = F.when(F.col(CORRUPT).isNotNull(), repeated_key_problem(F.col("text"), _JSON_OPTIONS))
    return (
        messages.withColumn("text", text)
        .withColumn("slow", slow)
        .withColumn("values", F.expr(rules.value("slow", schema)))
        .withColumn(PROBLEM, F.expr(problem))
        .withColumn(CORRUPT, corrupt)
        .withColumn(PROBLEM, F.coalesce(PROBLEM, repeated))
        .select(*columns, *_metadata(topic), CORRUPT, PROBLEM, *_internal(topic, "unread"))
    )


def avro_records(messages: Frame, schema: Schema, topic: str) -> Frame:
    """Return decoded records. A message without a value, and one that does not decode, is a bad record."""
    columns = [F.col(f"record.{_quoted(column.name)}").alias(column.name) for column in schema]
    corrupt = F.when(~F.col("is_end") & F.col("value").isNull(), F.lit("")).otherwise(F.col("problem"))
    return messages.select(*columns, *_metadata(topic), corrupt.alias(CORRUPT), *_internal(topic, "unread"))


def debezium_avro_records(messages: Frame, schema: Schema, topic: str) -> Frame:
    """Return the rows of decoded change events; messages without a value, which follow deletes, are skipped."""
    event = F.col("record")
    columns = event_columns(event, F.col("image"), schema)
    corrupt = F.col("problem").alias(CORRUPT)
    return (
        _with_value(messages)
        .withColumn("image", image_of(event))
        .select(*columns, *_metadata(topic), corrupt, *_internal(topic, "unread"))
    )


def debezium_records(messages: Frame, schema: Schema, topic: str) -> Frame:
    """Return the rows of change events in JSON; messages without a value, which follow deletes, are skipped."""
    texts = _with_value(messages).withColumn("text", F.col("value").cast("string"))
    text = F.col("text")
    is_whole = is_json_object(text, _JSON_OPTIONS) & ~has_repeated_key(text, _JSON_OPTIONS)
    texts = texts.withColumn("whole", is_whole)
    events, columns, bad = json_rows(texts, schema, _JSON_OPTIONS)
    corrupt = F.when(F.col("is_end"), F.lit(None).cast("string")).otherwise(bad)
    return events.select(*columns, *_metadata(topic), corrupt.alias(CORRUPT), *_internal(topic, "unread"))


def _with_value(messages: Frame) -> Frame:
    return messages.where(F.col("is_end") | F.col("value").isNotNull())


def raw_records(messages: Frame, topic: str) -> Frame:
    """Return values unchanged, as the column `value` of bytes."""
    corrupt = F.lit(None).cast("string").alias(CORRUPT)
    return messages.select("value", *_metadata(topic), corrupt, *_internal(topic))


def without_metadata(records: Frame, keep: Sequence[str]) -> Frame:
    """Drop the columns of messages that the spec does not name."""
    names = {f"{_PREFIX}{name}" for name in keep}
    return records.drop(*(name for name in records.columns if name.startswith(_PREFIX) and name not in names))


def keep_bytes_of_bad(marked: Frame) -> Frame:
    """Drop the bytes and the position of messages that became records, so that they are not cached."""
    fields = ", ".join(
        f"'{name}', " + (f"IF({REASON} IS NULL, NULL, {RAW}.`{name}`)" if name in _BYTES else f"{RAW}.`{name}`")
        for name in _RAW_FIELDS
    )
    # SQL expressions take fewer calls to the JVM than columns.
    place = F.expr(f"IF({REASON} IS NULL, NULL, {SOURCE_FILE})")
    return marked.withColumns({SOURCE_FILE: place, RAW: F.expr(f"named_struct({fields})")})


def kept_rows(marked: Frame) -> Frame:
    """Keep the parsed messages at their first use, until `release`.

    Rows are kept unchanged. Spark's cache would divide them into columns and join them again, which takes as long as
    parsing. If an executor is lost, a cache recomputes its rows. Kept rows cannot be recomputed: the run fails, and the
    next try reads the same offsets. Therefore a session with dynamic allocation uses a cache.
    """
    if marked.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return marked.persist(StorageLevel.MEMORY_AND_DISK)
    return spark_version().local_checkpoint(marked, eager=False)


def release(marked: Frame) -> None:
    """Remove messages that were kept."""
    plan = marked._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "LogicalRDD":
        plan.rdd().unpersist(False)
    else:
        marked.unpersist()


def materialised(marked: Frame) -> Frame:
    """Read all messages once. If a time limit ended the read, a second read would end at another offset."""
    with spark_failures("reading the messages"):
        return spark_version().local_checkpoint(marked, eager=True)


def facts_of(marked: Frame, bounds: TimeBounds) -> dict[int, PartitionFacts]:
    """Return the counts for each partition."""
    is_message = f"NOT {RAW}.`is_end`"
    is_inside = f"{is_message} AND {_inside(bounds)}"
    aggregates = {
        "records": f"count_if({is_inside})",
        "bad": f"count_if({is_inside} AND {REASON} IS NOT NULL)",
        "late": f"count_if({is_message} AND {_late(bounds)})",
        "newest": f"max(IF({is_message}, unix_millis({RAW}.`time`), NULL))",
        "ends": f"sort_array(collect_list(IF({RAW}.`is_end`, {RAW}.`offset`, NULL)))",
        "unread": f"collect_list({RAW}.`unread`)",
    }
    with spark_failures("reading the messages"):
        groups = marked.groupBy(F.expr(f"{RAW}.`partition`").alias("partition"))
        rows = groups.agg(*[F.expr(f"{text} AS {name}") for name, text in aggregates.items()]).collect()
    return {
        row["partition"]: PartitionFacts(
            records=row["records"],
            bad=row["bad"],
            late=row["late"],
            newest_ms=row["newest"],
            ends=tuple(row["ends"]),
            unread=tuple(row["unread"]),
        )
        for row in rows
    }


def kept_messages(marked: Frame, bounds: TimeBounds) -> Frame:
    """Return the messages that belong to the run, without the rows with the ends of ranges."""
    return marked.where(f"NOT {RAW}.`is_end` AND {_inside(bounds)}")


def _inside(bounds: TimeBounds) -> str:
    """Return the condition that a message belongs to the run."""
    if bounds.interval is None:
        return "true"
    moment = f"unix_millis({RAW}.`time`)"
    return f"({moment} >= {bounds.interval[0]} AND {moment} < {bounds.interval[1]})"


def _late(bounds: TimeBounds) -> str:
    """Return the condition that a message is older than the run's bound."""
    moment = f"unix_millis({RAW}.`time`)"
    if bounds.interval is not None:
        return f"{moment} < {bounds.interval[0]}"
    older = [f"({RAW}.`partition` = {n} AND {moment} < {newest})" for n, newest in bounds.watermarks.items()]
    return f"({' OR '.join(older)})" if older else "false"


def _metadata(topic: str) -> list[Column]:
    values = {
        "topic": F.lit(topic),
        "partition": F.col("partition"),
        "offset": F.col("offset"),
        "timestamp": F.col("time"),
        "key": F.col("key").cast("string"),
    }
    return [value.alias(f"{_PREFIX}{name}") for name, value in values.items()]


def _internal(topic: str, unread: str = "") -> list[Column]:
    place = F.concat(F.lit(f"{topic}["), F.col("partition"), F.lit("]@"), F.col("offset"))
    text = F.col(unread) if unread else F.lit(None).cast("string")
    raw = F.struct(*(text.alias(name) if name == "unread" else F.col(name) for name in _RAW_FIELDS))
    return [place.alias(SOURCE_FILE), F.lit(0).alias(FILE_SET), raw.alias(RAW)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
