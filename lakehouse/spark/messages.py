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
from lakehouse.spark.sources import CORRUPT, FILE_SET, RAW, SOURCE_FILE, Frame, Schema, Session
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
#: The estimated size of a row with all columns of a message. Spark estimates that the columns of a record, which
#: remain of it, are about a quarter of it.
_MESSAGE_BYTES = 400
_PREFIX = "_kafka_"
_JSON_OPTIONS = {"timeZone": "UTC", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}

#: Yields the messages of the ranges whose positions are in the batches.
RangeFunction = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """What a run read of one partition.

    Attributes:
        records: The number of messages that belong to the run.
        bad: The number of bad ones among them.
        late: The number of messages that are older than the run's bound.
        newest_ms: The time of the newest message; None if there are no messages.
        ends: The offset up to which each range was read, in ascending order.
        unread: Texts of tasks about fields that were not read.
    """

    records: int
    bad: int
    late: int
    newest_ms: int | None
    ends: tuple[int, ...] = ()
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBounds:
    """The times of the messages of a run, in milliseconds since 1970.

    Attributes:
        interval: The messages to keep are at or after the first time and before the second; None to keep all.
        watermarks: By partition, the time of the newest message of earlier runs: older messages are late.
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
        most: The largest number of messages. Their estimated size decides how many tasks write them.
        record: The type of the values if `read` decodes them; there are then the columns `record`, `problem` and
            `unread`.
    """
    columns = list(from_arrow_schema(MESSAGES))
    if record is not None:
        columns += [StructField("record", record), *from_arrow_schema(pa.schema(DECODED))]
    return map_in_arrow(task_numbers(session, ranges, most * _MESSAGE_BYTES), read, StructType(columns))


def json_records(messages: Frame, schema: Schema, topic: str) -> Frame:
    """Return records with the columns of `schema`; values without a decoded `record` are parsed here as JSON objects.

    A message without a value, and a value that is not one object, is a bad record.
    """
    parsed = StructType([*schema.fields, StructField(CORRUPT, StringType())])
    text = F.when(F.col("record").isNull(), F.col("value").cast("string"))
    # The column is used many times, so it is computed once, and only for values without a record.
    slow = F.when(F.col("record").isNull() & ~F.col("is_end"), F.from_json("text", parsed, _JSON_OPTIONS))
    columns = [
        F.coalesce(F.col(f"record.{_quoted(column.name)}"), F.col(f"slow.{_quoted(column.name)}")).alias(column.name)
        for column in schema
    ]
    corrupt = F.when(F.ltrim("text").startswith("{"), F.col(f"slow.{CORRUPT}")).otherwise(F.coalesce("text", F.lit("")))
    is_slow = F.col("record").isNull() & ~F.col("is_end")
    return (
        messages.withColumn("text", text)
        .withColumn("slow", slow)
        .select(*columns, *_metadata(topic), F.when(is_slow, corrupt).alias(CORRUPT), *_internal(topic, "unread"))
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
    """Drop bytes and place of messages that became records, so that the cache does not hold them."""
    is_bad = F.col(REASON).isNotNull()
    raw = F.col(RAW)
    return marked.withColumn(SOURCE_FILE, F.when(is_bad, F.col(SOURCE_FILE))).withColumn(
        RAW, raw.withField("key", F.when(is_bad, raw["key"])).withField("value", F.when(is_bad, raw["value"]))
    )


def kept_rows(marked: Frame) -> Frame:
    """Keep the parsed messages at their first use, until `release`.

    Rows are kept as they are: Spark's cache divides them into columns, and joins them again, which takes as long as
    parsing them. A cache recomputes the rows of an executor that is lost; kept rows end the run, and the next try reads
    the same offsets. So a session that gives up executors on its own gets a cache.
    """
    if marked.sparkSession.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        return marked.persist(StorageLevel.MEMORY_AND_DISK)
    return marked.localCheckpoint(eager=False, storageLevel=StorageLevel.MEMORY_AND_DISK)


def release(marked: Frame) -> None:
    """Remove messages that were kept."""
    plan = marked._jdf.queryExecution().analyzed()
    if plan.getClass().getSimpleName() == "LogicalRDD":
        plan.rdd().unpersist(False)
    else:
        marked.unpersist()


def materialised(marked: Frame) -> Frame:
    """Read all messages once; what a limit of time has ended must not be read again with another end."""
    with spark_failures("reading the messages"):
        return marked.localCheckpoint(eager=True, storageLevel=StorageLevel.MEMORY_AND_DISK)


def facts_of(marked: Frame, bounds: TimeBounds) -> dict[int, PartitionFacts]:
    """Return what was read of each partition."""
    raw = F.col(RAW)
    is_message = ~raw["is_end"]
    kept = is_message & _inside(bounds)
    with spark_failures("reading the messages"):
        rows = (
            marked.groupBy(raw["partition"].alias("partition"))
            .agg(
                F.count(F.when(kept, 1)).alias("records"),
                F.count(F.when(kept & F.col(REASON).isNotNull(), 1)).alias("bad"),
                F.count(F.when(is_message & _late(bounds), 1)).alias("late"),
                F.max(F.when(is_message, F.unix_millis(raw["time"]))).alias("newest"),
                F.sort_array(F.collect_list(F.when(raw["is_end"], raw["offset"]))).alias("ends"),
                F.collect_list(raw["unread"]).alias("unread"),
            )
            .collect()
        )
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
    return marked.where(~F.col(RAW)["is_end"] & _inside(bounds))


def _inside(bounds: TimeBounds) -> Column:
    if bounds.interval is None:
        return F.lit(True)
    moment = F.unix_millis(F.col(RAW)["time"])
    return (moment >= bounds.interval[0]) & (moment < bounds.interval[1])


def _late(bounds: TimeBounds) -> Column:
    moment, partition = F.unix_millis(F.col(RAW)["time"]), F.col(RAW)["partition"]
    if bounds.interval is not None:
        return moment < bounds.interval[0]
    late = F.lit(False)
    for number, newest in bounds.watermarks.items():
        late = late | ((partition == number) & (moment < newest))
    return late


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
    raw = F.struct("partition", "offset", "time", "key", F.col("value"), "is_end", text.alias("unread"))
    return [place.alias(SOURCE_FILE), F.lit(0).alias(FILE_SET), raw.alias(RAW)]


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
