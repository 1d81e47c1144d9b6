"""Write the skeleton file of a source file: its meta columns, with the range and the bloom filter of its keys.

Only the key columns of the source are read. Name and content of a skeleton file depend on the source file alone, so a
task that runs again writes the same file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_writer import BaseFileWriter
from lakehouse.core.files.stage.markers import TaskMarkers
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.rows.keys import partition_paths, record_keys, refuse_ambiguous_keys, required_columns
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat

_BATCH_ROWS = 65_536
#: The schema that Hudi writes into the footer of skeleton files.
SKELETON_SCHEMA = json.dumps(
    {
        "type": "record",
        "name": "HoodieRecordKey",
        "doc": "",
        "fields": [{"name": name, "type": ["null", "string"], "doc": "", "default": None} for name in META_COLUMNS],
    },
    separators=(",", ":"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkeletonTask:
    """Write the skeleton file of one source file; `number` is its number among all files of the source.

    `values` are the values of partition columns that the names of its folders contain.
    """

    number: int
    source_path: str
    partition: str
    values: Mapping[str, str | None]


class _WithoutMarkers(TaskMarkers):
    """Files of a table that is not published need no markers: a repeated task replaces them."""

    def mark(self, *names: str, ahead: Iterable[str] = ()) -> None:
        del names, ahead


def skeleton_file_id(source_path: str) -> str:
    """Return the file id for a source file."""
    return f"{uuid5(NAMESPACE_URL, source_path)}-0"


def write_skeleton(context: WriteContext, source: Storage, attempt: Attempt, task: SkeletonTask) -> WriteStat:
    """Write the skeleton file and return its write statistics.

    Raises:
        UserError: A key is null, or rows belong to another partition than their folder; the message names the file.
        CorruptTableError: The file is not a readable Parquet file.
    """
    planned = replace(Attempt.planned(task.number), threads=attempt.threads)
    markers = _WithoutMarkers(context, planned)
    with BaseFileWriter(markers, task.partition, skeleton_file_id(task.source_path)) as writer:
        for rows in source_rows(source, task, required_columns(context.keys)):
            _check_partition(context, rows, task, source.root)
            refuse_ambiguous_keys(rows, context.keys)
            writer.write_new(rows, record_keys(rows, context.keys))
    return writer.stat(inserts=writer.rows, updates=0, deletes=0)


def source_rows(source: Storage, task: SkeletonTask, columns: Iterable[str] | None) -> Iterator[pa.Table]:
    """Yield rows of a source file, with the partition columns that only the names of its folders contain.

    `columns` are the columns to read; None: all.
    """
    with _readable(source, task), _opened(source, task) as file:
        names = file.schema_arrow.names
        wanted = names if columns is None else [name for name in columns if name in names]
        more = [name for name in task.values if name not in names]
        for batch in file.iter_batches(_BATCH_ROWS, columns=wanted, use_threads=False):
            rows = pa.Table.from_batches([batch])
            for name in more:
                value = pa.scalar(task.values[name], pa.string())
                rows = rows.append_column(name, pa.repeat(value, batch.num_rows))
            yield rows


def source_columns(source: Storage, task: SkeletonTask) -> pa.Schema:
    """Return the columns of `source_rows`; reads the footer only."""
    with _readable(source, task), _opened(source, task) as file:
        stored: pa.Schema = file.schema_arrow.remove_metadata()
    more = [pa.field(name, pa.string()) for name in task.values if name not in stored.names]
    return pa.schema([*stored, *more])


@contextmanager
def _opened(source: Storage, task: SkeletonTask) -> Iterator[pq.ParquetFile]:
    with source.open_input(task.source_path) as stored:
        yield pq.ParquetFile(stored, pre_buffer=False, coerce_int96_timestamp_unit="us")


@contextmanager
def _readable(source: Storage, task: SkeletonTask) -> Iterator[None]:
    """Raise CorruptTableError if Arrow cannot decode the file. System errors, which have an errno, are passed on."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise CorruptTableError(
            f"{source.root}/{task.source_path} is not a readable Parquet file: {error}", path=task.source_path
        ) from error


def _check_partition(context: WriteContext, rows: pa.Table, task: SkeletonTask, root: str) -> None:
    """Raise UserError if rows do not belong to the partition of their folder."""
    if not context.keys.partition_fields or not rows.num_rows:
        return
    paths = pc.unique(partition_paths(rows, context.keys))
    wrong = next((path for path in paths.to_pylist() if path != task.partition), None)
    if wrong is not None:
        raise UserError(
            f"{root}/{task.source_path} has rows whose partition columns give the partition {wrong!r}, but its folder "
            f"is {task.partition!r}. An update of these rows would be written to the other partition. Bootstrap with "
            "mode full, which moves them, or correct the source",
            path=task.source_path,
        )
