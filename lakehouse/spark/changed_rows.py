"""Finds the rows that log files change, so that Spark's Parquet reader can read the unchanged rows of base files.

    base files ── Spark's Parquet reader ── anti join by position ── unchanged rows ──┐
    keys, logs ── Arrow in workers ──┬── positions of changed rows ── (broadcast)     ├── rows of the slices
                                     └── new versions of changed rows ────────────────┘

Of a base file Python decodes keys and ordering columns only, and only changed rows cross the JVM. A position is one
number: the checksum of the file name, and the row number in the file. Spark computes both while it reads.

The workers merge once: Spark stores their result as a shuffle, from which both branches read, until the DataFrame is
collected as garbage. A lost shuffle is computed again.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lakehouse.core.expressions.column_path import root_of
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_changes
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.planning.predicate import matching
from lakehouse.core.planning.scan import ScanPlan
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.files import FileSlice
from lakehouse.model.predicate import columns_of
from lakehouse.spark.engine import own_workers
from lakehouse.spark.stored_frames import stored_frame
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.workers import map_in_arrow, task_numbers

#: Bytes of the requested columns in base files, and share of the columns, from which the anti join is faster than
#: merging all rows in workers. The join takes the same time for each row, whatever its width.
LEAST_BYTES, LEAST_SHARE = 32 << 20, 0.5
#: A slice with more bytes of logs, relative to its base file, is merged by workers.
MOST_LOG_SHARE = 0.25
#: The driver and each executor keep about 60 bytes for each changed row: about as much as its log entry takes.
_MOST_LOG_BYTES = 64 << 20
#: Log bytes whose changed rows one task reads from the shuffle.
_STORED_BYTES = 16 << 20
# A base file has fewer rows than bytes, because each row has its own key. So a row number takes 31 bits.
_ROW_BITS = 31
_POSITION, _IS_ROW, _BASE_POSITION = "_lakehouse_position", "_lakehouse_is_row", "_lakehouse_base_position"
#: Spark shows names with other characters in another form.
_PLAIN_NAME = r"^[0-9A-Za-z._-]+$"


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The changes of some slices: positions of base rows that are not valid any more, and valid rows."""

    positions: DataFrame
    rows: DataFrame

    def unchanged(self, base: DataFrame) -> DataFrame:
        """Return the valid rows of a DataFrame that reads base files of the slices; it has its metadata column."""
        metadata = spark_version().metadata_column(base)
        file = F.shiftleft(F.crc32(metadata.getField("file_name").cast("binary")), _ROW_BITS)
        # Spark 3.5 refuses a metadata column in the condition of a join, so the position is a column of the frame.
        numbered = base.withColumn(_BASE_POSITION, file + metadata.getField("row_index"))
        changed = F.broadcast(self.positions)
        joined = numbered.join(changed, numbered[_BASE_POSITION] == self.positions[_POSITION], "left_anti")
        return joined.drop(_BASE_POSITION)


def few_changes(scan: Scan) -> np.ndarray:
    """Return the mask of the slices whose changed rows are worth a look-up: large base files with few log entries."""
    slices = scan.plan.slices
    names = slices.files.column("name").take(pa.array(slices.starts[:-1]))
    if (
        scan.context.mixes_versions
        or not len(slices)
        or {_POSITION, _IS_ROW, _BASE_POSITION} & set(scan.table_schema.names)
    ):
        # A merged row that has values of several versions needs all columns of the base row.
        return np.zeros(len(slices), bool)
    base_bytes = slices.base_sizes
    log_bytes = slices.sizes - base_bytes
    plain = pc.match_substring_regex(names, _PLAIN_NAME).to_numpy().astype(bool)
    mask = (slices.log_counts > 0) & slices.has_base & plain & (base_bytes < 1 << _ROW_BITS)
    mask &= log_bytes <= MOST_LOG_SHARE * base_bytes
    mask &= np.cumsum(np.where(mask, log_bytes, 0)) <= _MOST_LOG_BYTES
    numbers = [_file_number(name) if chosen else None for name, chosen in zip(names.to_pylist(), mask, strict=True)]
    repeated = {number for number, count in Counter(numbers).items() if count > 1}
    mask &= np.array([number not in repeated for number in numbers], bool)
    share = len(_read_schema(scan.context, scan.plan)) / len(scan.table_schema)
    is_worth = share >= LEAST_SHARE and base_bytes[mask].sum() * share >= LEAST_BYTES
    return mask if is_worth else np.zeros(len(slices), bool)


def changed_rows(spark: SparkSession, scan: Scan, slices: FileSlices, schema: StructType, tasks: int) -> ChangedRows:
    """Return the changes of slices as DataFrames; the first one that is executed computes both.

    Args:
        spark: The session.
        scan: The planned read.
        slices: Slices of it with base file and logs.
        schema: The columns of the result in Spark's types.
        tasks: The maximum number of tasks.
    """
    context, plan = scan.context, scan.plan.without_slices()
    shares = _shares(slices, tasks)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for file_slice in shares[number]:
                    yield from _changes(context, file_slice, plan)

    columns = StructType([*schema.fields]).add(_POSITION, "long").add(_IS_ROW, "boolean")
    log_bytes = slices.bytes - int(slices.base_sizes.sum())
    with own_workers(spark, context.budget_bytes):
        merged = map_in_arrow(task_numbers(spark, len(shares), log_bytes), read, columns)
    shuffled = merged.repartition(-(-log_bytes // _STORED_BYTES))
    # Adaptive execution would run the shuffle here, not when the result is used.
    stored = stored_frame(spark, shuffled, {"spark.sql.adaptive.enabled": "false"})
    positions = stored.where(F.col(_POSITION).isNotNull()).select(_POSITION)
    return ChangedRows(positions, stored.where(F.col(_IS_ROW)).drop(_POSITION, _IS_ROW))


def _changes(context: SliceContext, file_slice: FileSlice, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Yield the changes of a slice as batches with the columns of the plan, the position and whether it is a row."""
    assert file_slice.base is not None
    first = _file_number(file_slice.base.path.rpartition("/")[2]) << _ROW_BITS
    read = _read_schema(context, plan)
    for gone, rows in read_changes(context, file_slice, read):
        if plan.residual is not None:
            rows = matching(rows, plan.residual, read)
        size = max(len(gone), rows.num_rows)
        position = pa.array(gone.astype(np.int64) + first)
        columns = [_padded(column, size) for column in rows.select(plan.schema.names).columns]
        columns += [_padded(pa.chunked_array([position]), size), pa.chunked_array([np.arange(size) < rows.num_rows])]
        if size:
            fields = [field.with_nullable(True) for field in plan.schema]
            schema = pa.schema([*fields, (_POSITION, pa.int64()), (_IS_ROW, pa.bool_())])
            yield from pa.Table.from_arrays(columns, schema=schema).combine_chunks().to_batches()


def _padded(column: pa.ChunkedArray, size: int) -> pa.ChunkedArray:
    return pa.chunked_array([*column.chunks, pa.nulls(size - len(column), column.type)], column.type)


def _read_schema(context: SliceContext, plan: ScanPlan) -> pa.Schema:
    """Return the columns of the result and of the condition."""
    used = () if plan.residual is None else [root_of(name, context.table) for name in columns_of(plan.residual)]
    return pa.schema([context.table.field(name) for name in dict.fromkeys((*plan.schema.names, *used))])


def _file_number(name: str) -> int:
    return zlib.crc32(name.encode())


def _shares(slices: FileSlices, tasks: int) -> list[FileSlices]:
    """Divide slices in order into shares of about the same size."""
    filled = np.cumsum(slices.sizes)
    ends = np.searchsorted(filled, filled[-1] * np.arange(1, tasks) / tasks)
    bounds = np.unique([0, *(ends + 1).tolist(), len(slices)])
    return [slices[first:last] for first, last in pairwise(bounds[bounds <= len(slices)].tolist())]
