"""Plans the reads of `format("lakehouse")` and `lakehouse.spark.read`: options -> request -> tasks.

The tasks are plain values, because Spark 3.5 has no Python data source: `source` wraps them for the versions that do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType, StructType

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.operations.load.table import LoadedTable, load_table, require_merger
from lakehouse.core.operations.read.bounded_query import query_schema
from lakehouse.core.operations.read.cdc import JSON_SCHEMA, ChangeScan, as_json
from lakehouse.core.operations.read.queries import Changes, Query, ScanRequest
from lakehouse.core.operations.read.row_reader import read_rows
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.planning.cdc import FileGroupChange
from lakehouse.core.planning.predicate import check_columns
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError, nearest
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.source_options import SourceOptions
from lakehouse.spark.workers import prepare_for_reuse

_SMALL_TASK_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SliceTask:
    """Some file slices of a scan, read by one task; the plan of `scan` has no slices."""

    scan: Scan
    slices: FileSlices


@dataclass(frozen=True, slots=True)
class ChangeTask:
    """The changes of one commit in one file group, read by one task; `columns` are the columns of the result."""

    scan: ChangeScan
    change: FileGroupChange | None
    columns: tuple[str, ...]


ReadTask: TypeAlias = SliceTask | ChangeTask


def open_table(options: SourceOptions) -> LoadedTable:
    """Load the table in the options; raise UserError if its rows cannot be merged."""
    env = Env(storage=open_storage(options.location, options.storage))
    table = load_table(env, allowed_functions=options.functions)
    require_merger(table.config)
    return table


def read_request(options: SourceOptions, query: Query, columns: Sequence[str]) -> ScanRequest:
    """Return the request of a query whose result has these columns."""
    request = ScanRequest(query=query, where=options.where)
    # Change columns contain images of whole rows, and damaged files cannot be skipped.
    if isinstance(query, Changes):
        return request
    return replace(request, columns=tuple(columns), skips_damage=options.skips_damage)


def result_schema(table: LoadedTable, query: Query, options: SourceOptions) -> pa.Schema:
    """Return the meta and data columns, or the columns of changes; only those in the option `columns`."""
    stored = query_schema(table, query)
    data = stored if stored is not None else pa.schema([])
    rows = with_meta_fields(data)
    if options.where is not None:
        check_columns(options.where, data if options.reads_changes else rows)
    full = JSON_SCHEMA if options.reads_changes else rows
    if options.columns is None:
        return full
    for name in options.columns:
        if name not in full.names:
            place = "the changes" if options.reads_changes else "the table"
            raise UserError(f"column {name!r} is not in {place}.{nearest(name, full.names)}", column=name)
    return pa.schema([full.field(name) for name in options.columns])


def check_change_columns(columns: Sequence[str]) -> None:
    """Raise UserError for a column that changes lack."""
    for name in columns:
        if name not in JSON_SCHEMA.names:
            raise UserError(f"changes have the columns {', '.join(JSON_SCHEMA.names)}, not {name!r}", column=name)


def check_types(scan: Scan | ChangeScan, schema: StructType, way_out: str) -> None:
    """Raise UserError if a column of the rows has another type than Spark expects.

    Spark would read the values in the type that it expects: it rounds decimals, and reads times as numbers.
    """
    rows = spark_schema(JSON_SCHEMA if isinstance(scan, ChangeScan) else scan.schema)
    for field in schema:
        stored, expected = (_type_text(kind) for kind in (rows[field.name].dataType, field.dataType))
        if stored != expected:
            raise UserError(
                f"column {field.name!r} has type {stored}, but this read expects {expected}: its type changed after "
                f"the read was created, or .schema(...) declares another one. {way_out}",
                column=field.name,
            )


def _type_text(kind: DataType) -> str:
    """Return a type without nullability. Both timestamp types have the same values: microseconds since 1970."""
    return kind.simpleString().replace("timestamp_ntz", "timestamp")


def read_tasks(scan: Scan | ChangeScan, columns: Sequence[str]) -> list[ReadTask]:
    """Divide a planned read into tasks.

    At least one task is returned: without any, Spark would start one and pass no partition to it.
    """
    if isinstance(scan, ChangeScan):
        changes: tuple[FileGroupChange | None, ...] = scan.in_order().changes or (None,)
        return [ChangeTask(scan=replace(scan, changes=()), change=change, columns=tuple(columns)) for change in changes]
    slices = scan.plan.slices
    alone = replace(scan, plan=scan.plan.without_slices(), stored_schemas={})
    # A task is complete with the slice that makes it large enough.
    filled = np.cumsum(slices.sizes)
    ends = [0]
    while ends[-1] < len(slices):
        before = filled[ends[-1] - 1] if ends[-1] else 0
        ends.append(min(int(np.searchsorted(filled, before + _SMALL_TASK_BYTES)) + 1, len(slices)))
    tasks = [SliceTask(scan=alone, slices=slices[first:last]) for first, last in pairwise(ends)]
    return list(tasks) or [SliceTask(scan=alone, slices=slices)]


def read_task(task: ReadTask) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one task in a worker."""
    yield from _rows(task)
    prepare_for_reuse()


def _rows(task: ReadTask) -> Iterator[pa.RecordBatch]:
    if isinstance(task, ChangeTask):
        if task.change is not None:
            for batch in task.scan.read(task.change):
                yield as_json(batch).select(list(task.columns))
        return
    assert isinstance(task, SliceTask)
    for file_slice in task.slices:
        yield from read_rows(task.scan.context, file_slice, task.scan.plan)
