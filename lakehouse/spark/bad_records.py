"""Separates bad records, which cannot be parsed or have no key, counts them and writes them as dead letters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark import StorageLevel, TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from lakehouse.core.rows.absent_columns import LACKS
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError, nearest
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.sources import (
    CORRUPT,
    FILE_SET,
    INTERNAL,
    PROBLEM,
    RAW,
    SOURCE_FILE,
    Frame,
    Schema,
    Session,
)
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.workers import map_in_arrow

REASON = "_lakehouse_reason"
#: The reason why a record is bad if it could not be parsed; the value that caused it may follow.
NOT_PARSED = "does not parse"
_ROWS_PER_PART = 50_000


def select_columns(frame: Frame, select: Sequence[str]) -> Frame:
    """Apply the SQL expressions of a spec and keep the columns `INTERNAL`.

    Raises UserError with the expression that Spark cannot parse or resolve.
    """
    if not select:
        return frame
    stars = [text for text in select if text.strip().startswith("*")]
    if len(stars) > 1:
        raise UserError(f"ingest.select: {' and '.join(map(repr, stars))} both stand for all columns; keep one")
    try:
        internal = [name for name in INTERNAL if name in frame.columns]
        return frame.selectExpr(*select, *(() if stars else internal))
    except PySparkException as error:
        raise _select_error(frame, select, error) from error


def mark_bad_records(frame: Frame, key_fields: Sequence[str]) -> Frame:
    """Add the column `REASON`: null for a good record, otherwise why the record is bad.

    A record has no key if all its key fields are null or empty. All key generators refuse such a record if there is one
    key field; the complex key generator refuses it for several. Without key fields all records that parse are good.
    Raises UserError for a key field that does not exist.
    """
    for name in key_fields:
        try:
            frame.select(name)
        except PySparkException as error:
            columns = [column for column in frame.columns if column not in INTERNAL]
            raise UserError(
                f"record key column {name!r} is not among the columns of the input.{nearest(name, columns)} "
                f"There are: {', '.join(columns)}.",
                column=name,
            ) from error
    not_parsed = f"concat('{NOT_PARSED}', coalesce(concat(': ', {PROBLEM}), ''))" if PROBLEM in frame.columns else ""
    reason = (
        F.when(F.expr(f"{CORRUPT} IS NOT NULL"), F.expr(not_parsed) if not_parsed else F.lit(NOT_PARSED))
        .when(F.expr(_lacks_key(key_fields)), F.lit(f"no record key: {', '.join(key_fields)} is null or empty"))
        .otherwise(F.lit(None).cast("string"))
    )
    return frame.withColumn(REASON, reason)


def rows_with_key(frame: Frame, key_fields: Sequence[str]) -> Frame:
    """Return the rows in which at least one key field is set; other rows cannot be written."""
    return frame.where(f"NOT ({_lacks_key(key_fields)})")


def _lacks_key(key_fields: Sequence[str]) -> str:
    """Return the condition that all key fields are empty.

    An SQL string takes fewer calls to the JVM than `Column` expressions.
    """
    return " AND ".join(_is_empty(name) for name in key_fields) if key_fields else "false"


def pin(frame: Frame) -> Frame:
    """Cache the parsed records at their first use, in memory and, if it is full, on the workers' disks."""
    return frame.persist(StorageLevel.MEMORY_AND_DISK)


def unpin(frame: Frame) -> None:
    """Remove the records from the cache."""
    frame.unpersist()


def count_records(marked: Frame, sets: int) -> tuple[tuple[int, int], ...]:
    """Return the numbers of all records and bad records per set of files; `sets` is the number of sets.

    Raises UserError for files that cannot be read.
    """
    with spark_failures("reading the files"):
        if sets == 1:
            return (_count_all(marked),)
        rows = marked.groupBy(FILE_SET).agg(F.count(F.lit(1)), F.count(REASON)).collect()
    counts = {int(row[0]): (int(row[1]), int(row[2])) for row in rows}
    return tuple(counts.get(number, (0, 0)) for number in range(sets))


def _count_all(marked: Frame) -> tuple[int, int]:
    """Return the numbers of all records and bad records; the tasks count while they compute, without a shuffle."""
    counts = Observation()
    observed = marked.select(REASON).observe(counts, F.count(F.lit(1)).alias("records"), F.count(REASON).alias("bad"))
    observed.write.format("noop").mode("append").save()
    return int(counts.get["records"]), int(counts.get["bad"])


def good_rows(marked: Frame, *, without: Iterable[str] = (), bits: Sequence[int] = ()) -> Frame:
    """Return the good records without internal columns.

    Args:
        marked: Records with the column `REASON`.
        without: More columns to drop.
        bits: For each set of files, a bit mask of the columns that its rows lack (see core.rows.absent_columns). If all
            masks are zero, the result has no column with the mask.
    """
    good = marked.where(f"{REASON} IS NULL")
    if any(bits):
        lacks = F.element_at(F.array(*(F.lit(number).cast("long") for number in bits)), F.col(FILE_SET) + 1)
        good = good.withColumn(LACKS, lacks)
    return good.drop(*INTERNAL, REASON, *without)


def selected(frame: Frame, select: Sequence[str], lacking: Collection[str]) -> frozenset[str]:
    """Return the selected columns that are computed from columns that some files lack."""
    if not select or not lacking:
        return frozenset(lacking)
    rest, columns = frame.drop(*lacking), set[str]()
    for text in select:
        if text.strip().startswith("*"):
            columns |= set(lacking)
            continue
        try:
            rest.selectExpr(text).schema  # noqa: B018 - reading the schema makes Spark resolve the columns
        except PySparkException:
            columns |= set(frame.selectExpr(text).columns)
    return frozenset(columns)


def key_inputs(session: Session, schema: Schema, select: Sequence[str], key: Sequence[str]) -> frozenset[str]:
    """Return the columns, in lower case, from which the expressions of `select` compute the record key."""
    frame = session.createDataFrame([], schema)
    keys = {name.split(".")[0].lower() for name in key}
    texts = [text for text in select if not text.strip().startswith("*")]
    texts = [text for text in texts if keys & {name.lower() for name in select_columns(frame, [text]).columns}]
    named = [name for name in schema.names if any(name.lower() in text.lower() for text in texts)]
    return frozenset(name.lower() for name in named if selected(frame, texts, [name]))


def first_bad_record(marked: Frame) -> tuple[str, str, str]:
    """Return reason, file and content of one bad record; at least one must exist."""
    row = _dead_letters(marked).head()
    assert row is not None, "there is no bad record"
    return row["reason"], row["source_file"], row["record"]


def write_dead_letters(marked: Frame, storage: Storage, folder: str) -> int:
    """Write every bad record as a JSON line `{reason, source_file, record}` below `folder` and return their number.

    The record is the raw string if it could not be parsed, otherwise its columns as JSON. A string that is not in the
    declared encoding is also written as `value`, its bytes in base64. A message has `partition`, `offset`, `time`, and
    the bytes `key` and `value` in base64.
    """
    lines = _dead_letters(marked).select(F.to_json(F.struct("*")).alias("line"))
    with spark_failures("writing dead letters"):
        written = map_in_arrow(lines, partial(_write_parts, storage, folder), "rows long").agg(F.sum("rows")).head()
    return int(written[0] or 0) if written is not None else 0


def _dead_letters(marked: DataFrame) -> DataFrame:
    columns = [F.col(f"`{name}`") for name in marked.columns if name not in (*INTERNAL, REASON)]
    as_json = F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})
    raw = F.col(RAW)
    message = [
        *(raw[name].alias(name) for name in ("partition", "offset", "time")),
        *(F.base64(raw[name]).alias(name) for name in ("key", "value")),
    ]
    return marked.where(F.col(REASON).isNotNull()).select(
        F.col(REASON).alias("reason"),
        F.col(SOURCE_FILE).alias("source_file"),
        F.coalesce(F.col(CORRUPT), as_json).alias("record"),
        *(message if RAW in marked.columns else (_undecoded(F.col(CORRUPT)).alias("value"),)),
    )


def _undecoded(text: Column) -> Column:
    """Return the bytes of a string that is not UTF-8 in base64, else null; as a string they would be replaced."""
    return F.when(~spark_version().is_valid_utf8(text), F.base64(text.cast("binary")))


def _write_parts(storage: Storage, folder: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    part = 0
    for batch in batches:
        for start in range(0, batch.num_rows, _ROWS_PER_PART):
            lines = batch.column(0).slice(start, _ROWS_PER_PART)
            text = "\n".join(lines.to_pylist())
            # A retried task attempt writes files with the same names, so no record is written twice.
            storage.put(f"{folder}/part-{partition:05d}-{part:04d}.json", f"{text}\n".encode())
            part += 1
        yield pa.RecordBatch.from_arrays([pa.array([batch.num_rows])], names=["rows"])


def _is_empty(name: str) -> str:
    column = ".".join(f"`{part}`" for part in name.split("."))
    return f"({column} IS NULL OR CAST({column} AS STRING) = '')"


def _select_error(frame: Frame, select: Sequence[str], error: PySparkException) -> UserError:
    for text in select:
        try:
            frame.selectExpr(text)
        except PySparkException as own:
            message = str(own).partition("\n")[0].partition(" SQLSTATE")[0]
            return UserError(f"ingest.select: {text!r}: {message}", expression=text)
    return UserError(f"ingest.select: {list(select)}: {str(error).partition(chr(10))[0]}")
