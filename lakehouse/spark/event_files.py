"""Reads change events of Debezium from files: lines of JSON, or container files of Avro.

The events are the same as the messages that Debezium sends to a topic; see `lakehouse.spark.debezium`. A line that is
empty or `null` (the message without a value that follows a delete) is not an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial, reduce
from typing import Protocol

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StringType, StructField, StructType

from lakehouse.core.storage.protocol import Storage
from lakehouse.spark.debezium import event_columns, event_type, image_of, json_rows
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import (
    CORRUPT,
    FILE_SET,
    SOURCE_FILE,
    FileSet,
    Frame,
    Schema,
    Session,
    divided,
    lines_of,
    per_file,
    text_options,
    to_arrow,
)
from lakehouse.spark.typed_files import avro_columns, avro_records, event_batches
from lakehouse.spark.workers import map_in_arrow

_AT_ONCE = 16
_OPTIONS = {"timeZone": "UTC", "mode": "PERMISSIVE", "columnNameOfCorruptRecord": CORRUPT}


class Collector(Protocol):
    """Collects fields of records that are not read. It is sent to the workers."""

    def is_needed(self, kind: pa.StructType) -> bool:
        """Return whether records of a type have such fields."""

    def __call__(self, records: Iterable[pa.StructArray]) -> str | None:
        """Return the fields of all records as strings for the driver; None if there are none."""


def read_events(session: Session, sets: Sequence[FileSet], schema: Schema) -> Frame:
    """Return the rows of the events in files, with the columns of `schema` and the columns `INTERNAL` of files."""
    with spark_failures("reading the change events"):
        frames = [
            events_of_lines(lines_of(session, one), one, schema)
            if one.format == "debezium"
            else _avro_events(session, one, schema)
            for one in sets
        ]
        numbered = [frame.withColumn(FILE_SET, F.lit(number)) for number, frame in enumerate(frames)]
        return reduce(DataFrame.unionByName, numbered)


def event_records(session: Session, files: FileSet) -> Frame:
    """Return the records of files of events; see `records_of`."""
    return _events(lines_of(session, files), files)


def events_of_lines(lines: Frame, files: FileSet, schema: Schema) -> Frame:
    """Return the rows of lines (`value`, `file`) by the options of files."""
    texts = _events(lines, files).withColumnRenamed("value", "text")
    events, columns, bad = json_rows(texts, schema, {**_OPTIONS, **text_options(files)})
    return events.select(*columns, bad.alias(CORRUPT), F.col("file").alias(SOURCE_FILE))


def _events(lines: Frame, files: FileSet) -> Frame:
    events = lines.where(~F.trim("value").isin("", "null"))
    return divided(events, replace(files, checks_keys=True))


def unread_of_records(session: Session, files: FileSet, collector: Collector) -> tuple[str, ...]:
    """Return the findings of tasks about record fields in Avro files; only files with such fields are read."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        kinds = pool.map(partial(avro_columns, files.storage), files.paths)
        paths = tuple(path for path, kind in zip(files.paths, kinds, strict=True) if collector.is_needed(kind))
    if not paths:
        return ()
    read = partial(_collected, files.storage, paths, collector)
    with spark_failures("reading the fields of change events"):
        reports = map_in_arrow(per_file(session, replace(files, paths=paths)), read, "unread string")
        rows = reports.where(F.col("unread").isNotNull()).collect()
    return tuple(row["unread"] for row in rows)


def _avro_events(session: Session, files: FileSet, schema: Schema) -> Frame:
    kind = event_type(schema)
    stored = StructType([StructField("event", kind), StructField("file", StringType())])
    read = partial(_event_rows, files.storage, files.paths, pa.struct(list(to_arrow(kind))))
    rows = map_in_arrow(per_file(session, files), read, stored)
    events = rows.withColumn("image", image_of(F.col("event")))
    columns = event_columns(F.col("event"), F.col("image"), schema)
    return events.select(*columns, F.lit(None).cast("string").alias(CORRUPT), F.col("file").alias(SOURCE_FILE))


def _event_rows(
    storage: Storage, paths: tuple[str, ...], target: pa.StructType, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for path in _paths(paths, batches):
        for events in event_batches(storage, path, target):
            files = pa.repeat(f"{storage.root}/{path}", len(events))
            yield pa.RecordBatch.from_arrays([events, files], names=["event", "file"])


def _collected(
    storage: Storage,
    paths: tuple[str, ...],
    collect: Collector,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    report = collect(records for path in _paths(paths, batches) for records in avro_records(storage, path))
    yield pa.RecordBatch.from_arrays([pa.array([report], pa.string())], names=["unread"])


def _paths(paths: tuple[str, ...], batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
    return (paths[index] for batch in batches for index in batch.column(0).to_pylist())
