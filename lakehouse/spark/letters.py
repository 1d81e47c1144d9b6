"""Reads dead letters as DataFrames, so that their records can be parsed again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField

from lakehouse.spark.bad_records import NOT_PARSED, REASON, select_columns
from lakehouse.spark.csv_dialect import encoding_of
from lakehouse.spark.event_files import events_of_lines
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.lines import decoded
from lakehouse.spark.messages import DECODED, MESSAGES
from lakehouse.spark.sources import (
    CORRUPT,
    FILE_SET,
    INTERNAL,
    PROBLEM,
    RAW,
    SOURCE_FILE,
    FileSet,
    Frame,
    Schema,
    Session,
    divided,
    lines_of,
    parse_records,
)
from lakehouse.spark.workers import map_in_arrow

_LETTER = (
    "reason string, source_file string, record string, partition int, offset bigint, time timestamp, key string, "
    "value string"
)


def read_letters(session: Session, files: FileSet) -> Frame:
    """Return the dead letters in files that `write_dead_letters` has written."""
    letter = F.from_json("value", _LETTER, {"timeZone": "UTC"}).alias("letter")
    return lines_of(session, files).select(letter).select("letter.*")


def letter_sources(letters: Frame) -> tuple[str, ...]:
    """Return the files of the letters that did not parse."""
    with spark_failures("reading the dead letters"):
        rows = letters.where(F.col("reason").startswith(NOT_PARSED)).select("source_file").distinct().collect()
    return tuple(sorted(row["source_file"] for row in rows))


def letter_messages(letters: Frame) -> Frame:
    """Return letters of messages as they were read, with the columns of `MESSAGES`."""
    return letters.select(
        "partition",
        "offset",
        "time",
        F.unbase64("key").alias("key"),
        F.unbase64("value").alias("value"),
        F.lit(False).alias("is_end"),
    )


def decoded_messages(
    messages: Frame, read: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]], record: Schema
) -> Frame:
    """Return messages of a DataFrame with the columns that a decoder adds; `record` is the type of its records."""
    columns = [*from_arrow_schema(MESSAGES), StructField("record", record), *from_arrow_schema(pa.schema(DECODED))]
    return map_in_arrow(messages, read, type(record)(columns))


def letter_records(letters: Frame, sets: Sequence[FileSet], schema: Schema, select: Sequence[str]) -> Frame:
    """Return the records in letters of files, parsed again by the formats and headers of `sets`.

    A letter without a key contains the columns of its row, after `select`.
    """
    frames = []
    for files in sets:
        own = letters.where(F.col("reason").startswith(NOT_PARSED) & F.col("source_file").isin(list(files.paths)))
        lines = _texts(own, encoding_of(files.options))
        if files.format == "debezium":
            parsed = events_of_lines(lines, files, schema)
        else:
            parsed = parse_records(divided(lines, files), files, schema)
        frames.append(select_columns(parsed.withColumn(FILE_SET, F.lit(0)), select))
    rows = [column for column in frames[0].schema if column.name not in INTERNAL] if frames else list(schema)
    others = letters.where(~F.col("reason").startswith(NOT_PARSED))
    row = F.from_json("record", type(schema)(rows), {"timeZone": "UTC"}).alias("row")
    frames.append(
        others.select(row, "source_file").select(
            "row.*",
            *(F.lit(None).cast("string").alias(name) for name in (CORRUPT, PROBLEM)),
            F.col("source_file").alias(SOURCE_FILE),
            F.lit(0).alias(FILE_SET),
        )
    )
    return reduce(DataFrame.unionByName, frames)


def _texts(letters: Frame, encoding: str) -> Frame:
    """Return letters as strings; bytes that were invalid in the encoding of their run are decoded by this one."""
    whole = letters.where(F.col("value").isNull()).select(F.col("record").alias("value"), "source_file")
    damaged = letters.where(F.col("value").isNotNull()).select(F.unbase64("value").alias("value"), "source_file")
    texts = map_in_arrow(damaged, partial(_decoded_batches, encoding), "value string, source_file string")
    return whole.unionByName(texts).withColumnRenamed("source_file", "file")


def _decoded_batches(encoding: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        values = [decoded(value, encoding) for value in batch.column(0).to_pylist()]
        texts = pa.array(values, pa.binary()).view(pa.string())
        yield pa.RecordBatch.from_arrays([texts, batch.column(1)], names=["value", "source_file"])


def letter_lines(letters: Frame) -> Frame:
    """Return the letters that did not parse, as strings."""
    return letters.where(F.col("reason").startswith(NOT_PARSED)).select("record")


def unread_texts(lines: Frame, read: Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]) -> tuple[str, ...]:
    """Return the findings of tasks about fields in lines, the first column of a DataFrame."""
    with spark_failures("reading the fields of records"):
        rows = map_in_arrow(lines, read, "unread string").where(F.col("unread").isNotNull()).collect()
    return tuple(row["unread"] for row in rows)


def replay_counts(marked: Frame) -> Mapping[str, int]:
    """Return the number of records, `good` and `bad`, of letters that were parsed again."""
    with spark_failures("parsing the dead letters"):
        is_bad = F.col(REASON).isNotNull()
        row = marked.agg(F.count(F.when(~is_bad, 1)).alias("good"), F.count(F.when(is_bad, 1)).alias("bad")).head()
    return {"good": 0, "bad": 0} if row is None else {"good": row["good"], "bad": row["bad"]}


def split_ends(marked: Frame) -> tuple[Frame, tuple[str, ...]]:
    """Return messages without the rows that end a range, and the reports about fields in these rows."""
    raw = F.col(RAW)
    with spark_failures("parsing the dead letters"):
        rows = marked.where(raw["is_end"]).select(raw["unread"].alias("unread")).collect()
    return marked.where(~raw["is_end"]), tuple(row["unread"] for row in rows if row["unread"])
