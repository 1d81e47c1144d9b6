"""Rewrite the rows of one clustering group into new file groups, sorted if the layout requires it.

Rows keep the commit time and sequence number of the commit that wrote them; the file name is new (DATA-1).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.base_writer import BaseFileWriter, kept_schema
from lakehouse.core.files.base.row_group_copy import Joinable, join_groups, joinable, split
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.external_sort import RunSorter
from lakehouse.core.files.stage.markers import TaskMarkers, base_marker
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.planning.bucket_children import children_of
from lakehouse.core.planning.clustering import Layout
from lakehouse.core.rows.space_filling_curves import bits_of, bounds_of, codes_of, hilbert, z_order
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.errors import CorruptTableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile, FileSlice

_CURVES = {"z-order": z_order, "hilbert": hilbert}
_SAMPLED_ROWS = 1 << 16
_PLACE = "\0place"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringContext:
    """The settings for the tasks of one clustering: how to write, how to read, and the layout of rows.

    `ids` is the extra metadata of the commit with the column ids of the files.
    """

    write: WriteContext
    read: SliceContext
    layout: Layout
    ids: Mapping[str, str] = field(default_factory=dict)


def cluster_group(context: ClusteringContext, attempt: Attempt, group: ClusteringGroup) -> list[WriteStat]:
    """Write the rows of the group's slices into new file groups and return the write statistics of their files.

    If no order is requested and no slice has logs, row groups are copied without decoding if one file may contain them.

    Raises:
        CorruptTableError: The plan contains invalid names of data files.
    """
    slices = [slice_of(piece) for piece in group.slices]
    schema = kept_schema(context.write.schema)
    rows: Iterator[pa.Table] = (r for piece in slices for _, r in read_slice(context.read, piece, schema))
    with ExitStack() as stack:
        total = None
        if context.layout.columns:
            directory = Path(stack.enter_context(scratch_directory("lakehouse-cluster-")))
            rows, total = sorted_rows(context, slices, rows, directory)
        elif not any(piece.logs for piece in slices):
            joined = joinable(context.write, [piece.base for piece in slices if piece.base is not None])
            if joined is not None:
                return list(_joined(context, attempt, group, joined))
            total = sum(_stored_rows(context, piece) for piece in slices)
        return list(_written(context, attempt, group, rows, total))


def slice_of(piece: ClusteredSlice) -> FileSlice:
    """Return a file slice of a plan. Raises CorruptTableError for invalid names of data files."""
    partition, file_id = piece.partition, piece.file_id
    base = None if piece.data_file is None else parse_base_file(piece.data_file, partition, 0)
    sizes = piece.log_sizes or (0,) * len(piece.log_files)
    logs = [parse_log_file(name, partition, size) for name, size in zip(piece.log_files, sizes, strict=True)]
    valid_logs = [log for log in logs if log is not None]
    if (piece.data_file is not None and base is None) or len(valid_logs) < len(logs):
        raise CorruptTableError(
            f"the plan for file group {file_id} of {partition!r} names a file that is not a data file"
        )
    instant = base.instant if base is not None else valid_logs[0].instant
    return FileSlice(partition=partition, file_id=file_id, base_instant=instant, base=base, logs=tuple(valid_logs))


def sorted_rows(
    context: ClusteringContext,
    slices: list[FileSlice],
    rows: Iterator[pa.Table],
    directory: Path,
    first: tuple[str, ...] = (),
) -> tuple[Iterator[pa.Table], int]:
    """Return the rows in the order of the columns `first`, then of the layout, and their number."""
    place, by = _placer(context, slices), list(context.layout.columns)
    sorter = RunSorter(directory, [*first, *(by if place is None else [_PLACE])], context.write.budget.pending_bytes)
    for piece in rows:
        sorter.add(piece if place is None else piece.append_column(_PLACE, place(piece)))
    if place is None:
        return sorter.drain(), sorter.rows
    return (piece.drop_columns([_PLACE]) for piece in sorter.drain()), sorter.rows


def _placer(context: ClusteringContext, slices: list[FileSlice]) -> Callable[[pa.Table], pa.Array] | None:
    """Return a function that computes the positions of rows on the curve, or None if the rows need no curve."""
    names, curve = context.layout.columns, _CURVES.get(context.layout.curve)
    if curve is None or len(names) == 1:
        return None
    bits = bits_of(len(names))
    sample = _sample(context, slices)
    bounds = [bounds_of(sample.column(name), bits) for name in names]

    def place(rows: pa.Table) -> pa.Array:
        codes = [codes_of(rows.column(name), bound) for name, bound in zip(names, bounds, strict=True)]
        return pa.array(curve(codes, bits), pa.uint64())

    return place


def _sample(context: ClusteringContext, slices: list[FileSlice]) -> pa.Table:
    """Return the sort columns of an even sample of rows from base files, or from logs if there is no base file."""
    wanted = pa.schema([context.read.table.field(name) for name in context.layout.columns])
    total = sum(_stored_rows(context, piece) for piece in slices)
    step = max(total // _SAMPLED_ROWS, 1)
    sampled = [wanted.empty_table()]
    for piece in slices:
        if piece.base is None and total:
            continue
        read = (
            piece
            if piece.base is None
            else FileSlice(
                partition=piece.partition, file_id=piece.file_id, base_instant=piece.base_instant, base=piece.base
            )
        )
        for _, rows in read_slice(context.read, read, wanted):
            sampled.append(rows.take(pa.array(np.arange(0, rows.num_rows, step))))
    return pa.concat_tables(sampled)


def _stored_rows(context: ClusteringContext, piece: FileSlice) -> int:
    if piece.base is None:
        return 0
    reader = BaseFileReader(context.write.storage, piece.base.path)
    try:
        return reader.rows
    finally:
        reader.close()


def _joined(
    context: ClusteringContext, attempt: Attempt, group: ClusteringGroup, sources: Joinable
) -> Iterator[WriteStat]:
    """Copy row groups without decoding into one file after the other."""
    files = _NewFiles(context.write, attempt, group)
    share = _share(context, group, sum(stored.rows for stored in sources.groups))
    for groups in split(sources.groups, share):
        yield join_groups(context.write, files.next(), sources, groups)


def _share(context: ClusteringContext, group: ClusteringGroup, total: int | None) -> int:
    """Return the maximum rows per file: its share of `total`, if known, and the capacity of a bloom filter."""
    write = context.write
    most = write.budget.keys_per_file(write.policy.bloom_fpp) if write.policy.bloom_enabled else 1 << 62
    return most if total is None else min(max(-(-total // group.outputs), 1), most)


def _written(
    context: ClusteringContext,
    attempt: Attempt,
    group: ClusteringGroup,
    rows: Iterator[pa.Table],
    total: int | None,
) -> Iterator[WriteStat]:
    """Write rows to one file after the other. If `total` is known each file takes its share."""
    write, share = context.write, _share(context, group, total)
    files = _NewFiles(write, attempt, group)
    writer: BaseFileWriter | None = None
    try:
        for piece in rows:
            while piece.num_rows:
                if writer is None:
                    writer = files.open()
                capacity = share - writer.rows
                writer.write_kept(piece.slice(0, capacity), is_stored=False)
                piece = piece.slice(capacity)
                full = total is None and writer.estimated_bytes >= write.policy.max_file_bytes
                if writer.rows >= share or full:
                    done, writer = writer, None
                    yield _close(done)
        if writer is not None:
            done, writer = writer, None
            yield _close(done)
    except BaseException as error:
        if writer is not None:
            writer.__exit__(type(error), error, error.__traceback__)
        raise


class _NewFiles:
    """The files that a task attempt opens, one file group each."""

    def __init__(self, context: WriteContext, attempt: Attempt, group: ClusteringGroup) -> None:
        self._context, self._attempt, self._partition = context, attempt, group.partition
        self._markers = TaskMarkers(context, attempt, clustering_markers(context, attempt, group))
        self._opened = 0

    def next(self) -> BaseFile:
        """Return the next file, after marking it. If it was not planned, mark twice as many files in advance."""
        number, self._opened = self._opened, self._opened + 1
        ahead = (self._marker(later) for later in range(number + 1, 2 * number))
        self._markers.mark(self._marker(number), ahead=ahead)
        return BaseFile(
            partition=self._partition,
            file_id=_file_id(self._context, self._attempt, number),
            write_token=self._attempt.token,
            instant=self._context.instant,
        )

    def open(self) -> BaseFileWriter:
        """Open the next file."""
        writer = BaseFileWriter(self._markers, self._partition, self.next().file_id)
        writer.__enter__()
        return writer

    def _marker(self, number: int) -> str:
        file_id = _file_id(self._context, self._attempt, number)
        return base_marker(self._context, self._attempt, self._partition, file_id, is_new=True)


def clustering_markers(context: WriteContext, attempt: Attempt, group: ClusteringGroup) -> list[str]:
    """Return the markers of the files that an attempt of this group creates. It may create more if rows are many."""
    children = children_of(group)
    if children is not None:
        ids = list(children.file_ids)
    else:
        ids = [_file_id(context, attempt, number) for number in range(group.outputs)]
    return [base_marker(context, attempt, group.partition, file_id, is_new=True) for file_id in ids]


def _file_id(context: WriteContext, attempt: Attempt, number: int) -> str:
    """Return the file id of an output: the same for all attempts and executors of the task.

    If a stale executor writes late, its file is another version in the same file group, so rows are not duplicated.
    """
    digest = hashlib.md5(f"{context.storage.root}|{context.instant}|{attempt.partition}|{number}".encode()).digest()
    return f"{uuid.UUID(bytes=digest, version=4)}-0"


def _close(writer: BaseFileWriter) -> WriteStat:
    writer.__exit__(None, None, None)
    return writer.stat(inserts=writer.rows, updates=0, deletes=0)
