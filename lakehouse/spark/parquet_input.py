"""Reads the Parquet files of a DataFrame with Arrow, so that its rows do not pass the JVM.

Spark decodes Parquet files to rows and converts the rows to Arrow batches for Python workers; this takes longer than
all other work of a bulk_insert without partitions. A DataFrame that is only a selection of Parquet columns is
therefore read by the workers themselves:

    driver   plan of the DataFrame -> paths; footers -> row groups of each task
    task     row groups -> Arrow batches in the types of the DataFrame

The rows must equal those that Spark reads. Where Spark's reader would do more than decode (a cached DataFrame, legacy
calendars, options of the reader, columns that a file lacks, types that differ), `parquet_input` returns None, and
Spark reads the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema

from lakehouse.spark.versions.choice import spark_version

_RELATION = "org.apache.spark.sql.execution.datasources.LogicalRelation"
_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_FORMAT = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"
_INDEX = "org.apache.spark.sql.execution.datasources.InMemoryFileIndex"
_PROJECT = "org.apache.spark.sql.catalyst.plans.logical.Project"
_ATTRIBUTE = "org.apache.spark.sql.catalyst.expressions.AttributeReference"
_REBASE = ("spark.sql.parquet.datetimeRebaseModeInRead", "spark.sql.parquet.int96RebaseModeInRead")
#: Options of Spark's session with the only value under which its reader decodes files as Arrow does.
_SETTINGS = {
    **dict.fromkeys(_REBASE, "CORRECTED"),
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
}
#: Options of a reader that select files. Any other option may change how the files are decoded.
_SELECTING = frozenset({"path", "paths", "recursivefilelookup", "pathglobfilter", "modifiedbefore", "modifiedafter"})
_VERSION, _LEGACY = b"org.apache.spark.version", b"org.apache.spark.legacy"
#: Earlier versions of Spark wrote dates and times in the hybrid calendar.
_PROLEPTIC_SINCE = (3, 1)
#: First year whose dates and times are equal in both calendars, for Spark's reader.
_RECENT_YEAR = 1900
_MAX_FILES = 10_000
_READERS = 16
_BATCH_ROWS = 65_536
_MIN_BATCH_ROWS = 256
_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePart:
    """Row groups of one file; `size_bytes` is their compressed size, `row_bytes` the mean size of a decoded row."""

    path: str
    row_groups: tuple[int, ...]
    size_bytes: int
    row_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetInput:
    """The files of a DataFrame as parts, and the schema in which their rows are read."""

    schema: pa.Schema
    parts: tuple[FilePart, ...]

    def tasks(self, task_bytes: int) -> list[list[FilePart]]:
        """Divide the parts, in order, among tasks that read about `task_bytes` each; at least one task."""
        total = sum(part.size_bytes for part in self.parts)
        count = max(round(total / task_bytes), 1)
        tasks: list[list[FilePart]] = [[] for _ in range(count)]
        before = 0
        for part in self.parts:
            middle = before + part.size_bytes / 2
            tasks[min(int(middle * count / max(total, 1)), count - 1)].append(part)
            before += part.size_bytes
        return [task for task in tasks if task] or [[]]


def parquet_input(frame: DataFrame) -> ParquetInput | None:
    """Return the Parquet files of a DataFrame, or None if Spark must read it."""
    paths = _paths(frame)
    if paths is None:
        return None
    schema, only_recent = to_arrow_schema(frame.schema), _refuses_old_dates(frame)
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            parts_by_file = list(pool.map(lambda path: _parts(path, schema, only_recent=only_recent), paths))
    except (OSError, pa.ArrowException):
        # Spark's own error names the file and how it was read.
        return None
    parts: list[FilePart] = []
    for of_file in parts_by_file:
        if of_file is None:
            return None
        parts += of_file
    return ParquetInput(schema=schema, parts=tuple(parts))


def read_parts(schema: pa.Schema, parts: Sequence[FilePart], batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the parts as batches of at most about `batch_bytes`."""
    for part in parts:
        rows = int(batch_bytes / max(part.row_bytes, 1))
        with _open(part.path) as file:
            for batch in file.iter_batches(
                batch_size=max(min(rows, _BATCH_ROWS), _MIN_BATCH_ROWS),
                row_groups=list(part.row_groups),
                columns=schema.names,
                use_threads=False,
            ):
                columns = [batch.column(field.name).cast(field.type) for field in schema]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _open(path: str) -> pq.ParquetFile:
    return pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False, coerce_int96_timestamp_unit="us")


def _paths(frame: DataFrame) -> list[str] | None:
    """Return the local files whose columns the DataFrame selects, or None if its plan does more."""
    settings = frame.sparkSession.conf
    if any(settings.get(name, value) != value for name, value in _SETTINGS.items()):
        return None
    level = frame.storageLevel
    if level.useMemory or level.useDisk:
        return None
    plan = frame._jdf.queryExecution().optimizedPlan()
    if _class(plan) == _PROJECT:
        selected = plan.projectList()
        if any(_class(selected.apply(place)) != _ATTRIBUTE for place in range(selected.length())):
            return None
        plan = plan.child()
    relation = plan.relation() if _class(plan) == _RELATION else None
    if relation is None or not _is_plain(relation, frame.columns):
        return None
    addresses = [urlsplit(address) for address in relation.location().inputFiles()]
    if len(addresses) > _MAX_FILES or any(one.scheme != "file" or one.netloc for one in addresses):
        return None
    return sorted(unquote(address.path) for address in addresses)


def _is_plain(relation: Any, columns: Sequence[str]) -> bool:
    """Return whether a relation reads Parquet files that contain all columns, without partitions and buckets."""
    if _class(relation) != _FILES or _class(relation.fileFormat()) != _FORMAT:
        return False
    stored = {name.lower() for name in relation.dataSchema().fieldNames()}
    return (
        not relation.partitionSchema().length()
        and not relation.bucketSpec().isDefined()
        and _class(relation.location()) == _INDEX
        and len(stored) == relation.dataSchema().length()
        and len({name.lower() for name in columns} & stored) == len(columns)
        and _only_selects(relation.options())
    )


def _class(instance: Any) -> str:
    return str(instance.getClass().getName())


def _only_selects(options: Any) -> bool:
    names = options.keySet().toSeq()
    return all(names.apply(place).lower() in _SELECTING for place in range(names.length()))


def _refuses_old_dates(frame: DataFrame) -> bool:
    """Return whether Spark's reader refuses old dates if the footer names no Spark version."""
    settings = frame.sparkSession.conf
    return not spark_version().READS_OLD_DATES and any(settings.get(name, None) is None for name in _REBASE)


def _parts(path: str, schema: pa.Schema, *, only_recent: bool) -> list[FilePart] | None:
    """Return the row groups of a file, or None if Arrow would read it differently from Spark."""
    with _open(path) as file:
        footer = file.metadata
        if not _is_proleptic(footer.metadata or {}) or not _has_columns(file, schema):
            return None
        wanted = [
            place
            for place in range(footer.num_columns)
            if footer.schema.column(place).path.partition(".")[0] in schema.names
        ]
        is_unknown = only_recent and _VERSION not in (footer.metadata or {})
        parts = []
        for number in range(footer.num_row_groups):
            group = footer.row_group(number)
            columns = [group.column(place) for place in wanted]
            if is_unknown and not all(_is_recent(column) for column in columns):
                return None
            parts.append(
                FilePart(
                    path=path,
                    row_groups=(number,),
                    size_bytes=sum(column.total_compressed_size for column in columns),
                    row_bytes=sum(column.total_uncompressed_size for column in columns) / max(group.num_rows, 1),
                )
            )
        return parts


def _is_proleptic(values: Mapping[bytes, bytes]) -> bool:
    """Return whether, according to the footer, dates and times are in the proleptic Gregorian calendar."""
    if any(name.startswith(_LEGACY) for name in values):
        return False
    version = values.get(_VERSION)
    if version is None:
        return True
    numbers = re.match(rb"(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _PROLEPTIC_SINCE


def _is_recent(column: pq.ColumnChunkMetaData) -> bool:
    """Return whether column statistics show no dates and times before `_RECENT_YEAR`."""
    if column.physical_type == "INT96":
        return False
    statistics = column.statistics
    if statistics is None or not statistics.has_min_max:
        return column.physical_type not in ("INT32", "INT64") or (
            statistics is not None and statistics.null_count == column.num_values
        )
    year = getattr(statistics.min, "year", None)
    return year is None or year >= _RECENT_YEAR


def _has_columns(file: pq.ParquetFile, schema: pa.Schema) -> bool:
    stored = file.schema_arrow
    if len({name.lower() for name in stored.names}) != len(stored.names):
        return False
    nanosecond_columns = {
        column.path
        for column in map(file.schema.column, range(len(file.schema.names)))
        if column.physical_type == "INT96"
    }
    return all(
        field.name in stored.names
        and _reads_as(stored.field(field.name).type, field.type, is_int96=field.name in nanosecond_columns)
        for field in schema
    )


def _reads_as(stored: pa.DataType, wanted: pa.DataType, *, is_int96: bool) -> bool:
    """Return whether a cast of the stored type gives the values that Spark reads as the wanted type."""
    if pa.types.is_dictionary(stored):
        stored = stored.value_type
    if pa.types.is_timestamp(wanted):
        # Spark stores timestamps with time zone in UTC; 96-bit timestamps are not marked as UTC.
        is_known = pa.types.is_timestamp(stored) and stored.unit in ("ms", "us")
        is_utc = is_int96 or (pa.types.is_timestamp(stored) and stored.tz is not None)
        return is_known and is_utc == (wanted.tz is not None)
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored))
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_binary(stored) or pa.types.is_large_binary(stored))
    return bool(stored.equals(wanted))
