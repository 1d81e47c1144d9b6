"""Export the rows of file slices to sorted plain Parquet files of a chosen size, for engines that cannot read Hudi."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.files.base.column_bounds import leaf_types
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.external_sort import RunSorter
from lakehouse.core.files.stage.write_context import Budget
from lakehouse.core.rows.casting import writable
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.core.storage.protocol import Storage
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import FileSlice

_PIECE_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTask:
    """The work of one task: copy `slices` into files of `folder` whose names begin with `number`."""

    folder: str
    number: int
    slices: tuple[FileSlice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyContext:
    """The settings of an export: read with `read`, write `columns`, sort by `sort_by`, files of about `file_bytes`."""

    read: SliceContext
    columns: pa.Schema
    sort_by: tuple[str, ...]
    target: Storage
    file_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """A file that was written."""

    path: str
    rows: int
    size_bytes: int


def copy_slices(context: CopyContext, attempt: Attempt, task: CopyTask) -> list[Copied]:
    """Write the rows of some slices and return the files.

    Names and contents do not depend on the attempt, so attempts replace each other's files with equal ones.
    """
    del attempt
    rows: Iterator[pa.Table] = (
        piece for s in task.slices for _, piece in read_slice(context.read, s, _wanted(context))
    )
    with scratch_directory("lakehouse-copy-") as directory:
        if context.sort_by:
            sorter = RunSorter(Path(directory), context.sort_by, Budget(context.budget_bytes).pending_bytes)
            for piece in rows:
                sorter.add(piece)
            rows = sorter.drain()
        return list(_written(context, task, (piece.select(context.columns.names) for piece in rows)))


def _wanted(context: CopyContext) -> pa.Schema:
    """Return the columns to read: the file columns and the sort columns."""
    extra = [name for name in context.sort_by if name not in context.columns.names]
    return pa.schema([*context.columns, *(context.read.table.field(name) for name in extra)])


def _written(context: CopyContext, task: CopyTask, rows: Iterator[pa.Table]) -> Iterator[Copied]:
    pieces = (piece.slice(start, _PIECE_ROWS) for piece in rows for start in range(0, piece.num_rows, _PIECE_ROWS))
    piece, number = next(pieces, None), 0
    # Write no bounds of floats: Arrow's bounds ignore NaN, so Spark would wrongly skip rows.
    bounded = [name for name, kind in leaf_types(context.columns).items() if not pa.types.is_floating(kind)]
    while piece is not None:
        folder = f"{task.folder}/" if task.folder else ""
        path = f"{folder}part-{task.number:05d}-{number:05d}.parquet"
        count, held, number = 0, [], number + 1
        with context.target.open_output(path) as sink:
            with pq.ParquetWriter(
                sink, context.columns, compression="zstd", store_schema=False, write_statistics=bounded
            ) as writer:
                while piece is not None and sink.tell() < context.file_bytes:
                    held.append(piece)
                    count += piece.num_rows
                    piece = next(pieces, None)
                    if piece is None or sum(p.nbytes for p in held) >= context.budget_bytes // 4:
                        writer.write_table(writable(pa.concat_tables(held), context.columns), row_group_size=1 << 20)
                        held = []
                if held:
                    writer.write_table(writable(pa.concat_tables(held), context.columns), row_group_size=1 << 20)
            size = sink.tell()
        yield Copied(path=path, rows=count, size_bytes=size)


def bins_of(folder: str, slices: Sequence[FileSlice], task_bytes: int) -> tuple[CopyTask, ...]:
    """Group slices into tasks of about `task_bytes` each. The slices of one file group stay together."""
    tasks: list[list[FileSlice]] = []
    filled = task_bytes
    for file_slice in slices:
        size = (file_slice.base.size_bytes if file_slice.base is not None else 0) + file_slice.total_log_bytes
        if filled + size > task_bytes or not tasks:
            tasks.append([])
            filled = 0
        tasks[-1].append(file_slice)
        filled += size
    return tuple(CopyTask(folder=folder, number=number, slices=tuple(members)) for number, members in enumerate(tasks))
