"""Reads the rows of planned slices, in several threads.

A slice without log files is read by row groups. With a condition, a row group is skipped if the statistics of its
columns exclude it. Then the columns of the condition are read, and the other columns only if a row meets it.

A large file is divided into parts of several row groups, so that all threads have work if a plan has few files.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.engine.streams import Source, read_in_threads
from lakehouse.core.expressions.column_path import root_of
from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.planning.predicate import matching
from lakehouse.core.planning.ranges import ColumnRanges, may_match
from lakehouse.core.planning.scan import ScanPlan
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.files import FileSlice
from lakehouse.model.predicate import Predicate, columns_of, statistics_condition

#: A plan with fewer bytes is read by one thread: starting threads takes longer.
_FEW_BYTES = 1 << 20
#: Each thread gets about this number of parts, so that threads with larger parts do not finish much later.
_PARTS_PER_THREAD = 4
#: A part of a file has at least this number of bytes.
_LEAST_PART_BYTES = 4 << 20
#: Parts of object storage are fetched as a whole, so they must be small.
_MOST_FETCHED_BYTES = 32 << 20
#: Each thread needs some memory for a batch.
_LEAST_BUDGET_BYTES = 32 << 20
_REMOTE_THREADS = 8
#: The size of merged batches is this part of the budget, for any number of threads.
_BATCHES_IN_BUDGET = 64
_ROW = "\0row"


@dataclass(frozen=True, slots=True)
class _FilePart:
    """Some row groups of a base file, whose footer was read."""

    footer: pq.FileMetaData
    groups: tuple[int, ...]


def read_plan(
    context: SliceContext, plan: ScanPlan, *, threads: int | None = None, ordered: bool = True
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a plan.

    Args:
        context: The settings for reading; all threads share its memory budget.
        plan: The slices, columns and condition.
        threads: The number of threads. By default, as many as Arrow uses (`pyarrow.set_cpu_count`), eight for object
            stores, and one for a few rows or a table in memory.
        ordered: Yield the slices in the order of the plan, and the rows of a slice without logs in the order of its
            file. Those of a slice with logs have an order that the number of threads does not change, as long as its
            logs fit into the memory of a thread. Otherwise the batches come in the order in which they are read.

    Raises:
        UserError: `threads` is less than 1.
    """
    threads = _default_threads(context, plan) if threads is None else threads
    if threads < 1:
        raise UserError(f"threads={threads} must be at least 1", threads=threads)
    threads = min(threads, max(context.budget_bytes // _LEAST_BUDGET_BYTES, 1))
    # Half of the budget is for the threads, a quarter for batches that wait, the rest for the batch of the consumer.
    of_thread = replace(
        context,
        budget_bytes=context.budget_bytes if threads == 1 else context.budget_bytes // (2 * threads),
        batch_bytes=context.budget_bytes // _BATCHES_IN_BUDGET,
    )
    sources = _sources(of_thread, plan, threads)
    return read_in_threads(sources, threads=threads, capacity_bytes=context.budget_bytes // 4, ordered=ordered)


def _default_threads(context: SliceContext, plan: ScanPlan) -> int:
    root = context.storage.root
    if root.startswith("memory://") or plan.slices.bytes < _FEW_BYTES:
        return 1
    return _REMOTE_THREADS if _is_remote(context.storage) else pa.cpu_count()


def _is_remote(storage: Storage) -> bool:
    return not storage.root.startswith(("/", "memory://"))


def _sources(context: SliceContext, plan: ScanPlan, threads: int) -> Iterator[Source]:
    """Yield the parts of the plan in order; large files without logs are divided."""
    part_bytes = max(plan.slices.bytes // (_PARTS_PER_THREAD * threads), _LEAST_PART_BYTES)
    if _is_remote(context.storage):
        part_bytes = min(part_bytes, _MOST_FETCHED_BYTES)
    elif threads == 1:
        part_bytes = plan.slices.bytes
    for file_slice in plan.slices:
        base = file_slice.base
        if base is None or file_slice.logs or base.size_bytes <= part_bytes:
            yield partial(read_rows, context, file_slice, plan)
            continue
        with closing(BaseFileReader(context.storage, base.path)) as reader:
            footer = reader.statistics
        for groups in _divided(footer, part_bytes):
            part, prefetches = _FilePart(footer, groups), _is_remote(context.storage)
            yield partial(_base_rows, context, base.path, plan, part, prefetches=prefetches)


def _divided(footer: pq.FileMetaData, part_bytes: int) -> Iterator[tuple[int, ...]]:
    """Yield adjacent row groups of about `part_bytes` together."""
    groups: list[int] = []
    size = 0
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        stored = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        if groups and size + stored > part_bytes:
            yield tuple(groups)
            groups, size = [], 0
        groups.append(number)
        size += stored
    if groups:
        yield tuple(groups)


def read_rows(context: SliceContext, file_slice: FileSlice, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    """Yield the rows of one slice that meet the plan's condition, with the plan's columns."""
    base = file_slice.base
    if base is not None and not file_slice.logs:
        is_small = 0 < base.size_bytes <= _MOST_FETCHED_BYTES
        yield from _base_rows(context, base.path, plan, prefetches=is_small and _is_remote(context.storage))
        return
    read = _columns_to_read(context, plan)
    for _, rows in read_slice(context, file_slice, read):
        if plan.residual is not None:
            rows = matching(rows, plan.residual, read).select(plan.schema.names)
        yield from _as_batches(rows)


def _columns_to_read(context: SliceContext, plan: ScanPlan) -> pa.Schema:
    """Return the columns of the result and of the condition."""
    filtered = () if plan.residual is None else columns_of(plan.residual)
    names = dict.fromkeys((*plan.schema.names, *(root_of(name, context.table) for name in filtered)))
    return pa.schema([context.table.field(name) for name in names])


def _as_batches(rows: pa.Table) -> list[pa.RecordBatch]:
    return rows.combine_chunks().to_batches() if rows.num_rows else []


def _base_rows(
    context: SliceContext, path: str, plan: ScanPlan, part: _FilePart | None = None, *, prefetches: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a base file, or of a part of it, that meet the plan's condition."""
    footer = None if part is None else part.footer
    with closing(BaseFileReader(context.storage, path, footer, prefetches=prefetches)) as reader:
        groups = range(reader.statistics.num_row_groups) if part is None else part.groups
        if plan.residual is None:
            at_once = reader.rows_within(context.budget_bytes // 8, plan.schema)
            for rows in reader.batches(plan.schema, at_once, groups):
                yield from _as_batches(rows)
            return
        yield from _FilteredFile(context, plan, reader, plan.residual).batches(groups)


@dataclass(frozen=True, slots=True)
class _FilteredFile:
    """The rows of an open base file that meet a condition."""

    context: SliceContext
    plan: ScanPlan
    reader: BaseFileReader
    where: Predicate

    def batches(self, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups that meet the condition."""
        read = _columns_to_read(self.context, self.plan)
        names = {root_of(name, self.context.table) for name in columns_of(self.where)}
        tested = pa.schema([field for field in read if field.name in names])
        others = pa.schema([field for field in self.plan.schema if field.name not in names])
        at_once = self.reader.rows_within(self.context.budget_bytes // 8, read)
        for number in self._groups_that_may_match(groups, tested):
            rows_of_group = self.reader.statistics.row_group(number).num_rows
            if len(others) and len(tested) and rows_of_group <= at_once:
                yield from _as_batches(self._tested_first(number, tested, others))
                continue
            for rows in self.reader.batches(read, at_once, [number]):
                yield from _as_batches(matching(rows, self.where, read).select(self.plan.schema.names))

    def _tested_first(self, number: int, tested: pa.Schema, others: pa.Schema) -> pa.Table:
        """Return the matching rows of a row group; the other columns are read only if there are some."""
        rows = self._row_group(number, tested)
        numbered = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        matches = matching(numbered, self.where, tested)
        if not matches.num_rows:
            return self.plan.schema.empty_table()
        rest = self._row_group(number, others)
        if matches.num_rows < rest.num_rows:
            rest = rest.take(matches.column(_ROW))
        columns = {name: side.column(name) for side in (matches, rest) for name in side.column_names}
        return pa.Table.from_arrays([columns[name] for name in self.plan.schema.names], schema=self.plan.schema)

    def _row_group(self, number: int, columns: pa.Schema) -> pa.Table:
        size = self.reader.statistics.row_group(number).num_rows
        return pa.concat_tables(self.reader.batches(columns, max(size, 1), [number])).combine_chunks()

    def _groups_that_may_match(self, groups: Sequence[int], tested: pa.Schema) -> list[int]:
        """Return the row groups that their statistics do not exclude."""
        if not len(groups):
            return []
        ranges = {
            field.name: stated for field in tested if (stated := _group_ranges(self.reader, groups, field)) is not None
        }
        pruning = statistics_condition(self.where)
        if not ranges or pruning is None:
            return list(groups)
        flags = may_match(pruning, ranges, self.context.table, len(groups))
        return [number for number, flag in zip(groups, flags.tolist(), strict=True) if flag]


def _group_ranges(reader: BaseFileReader, groups: Sequence[int], field: pa.Field) -> ColumnRanges | None:
    """Return the ranges of a column in row groups; None if the file states none that can be used.

    A column that was written with another type may have bounds with another order.
    """
    name = reader.stored_name(field)
    stored = None if name is None else reader.schema.field(name).type
    if stored is not None and pa.types.is_dictionary(stored):
        stored = stored.value_type
    if stored != field.type:
        return None
    footer = reader.statistics
    column = footer.schema.names.index(name) if name in footer.schema.names else -1
    if column < 0 or footer.schema.column(column).path != name:
        return None  # a column with nested fields
    lows, highs, nulls, values = [], [], [], []
    try:
        for number in groups:
            chunk = footer.row_group(number).column(column)
            stats = chunk.statistics
            has_bounds = stats is not None and stats.has_min_max and not _is_zero(stats)
            lows.append(stats.min if has_bounds else None)
            highs.append(stats.max if has_bounds else None)
            nulls.append(stats.null_count if stats is not None and stats.has_null_count else None)
            values.append(chunk.num_values)
        low, high = pa.array(lows, field.type), pa.array(highs, field.type)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        # Python cannot represent dates and times before year 1 or after 9999.
        return None
    return ColumnRanges(
        low=low, high=high, nulls=pa.array(nulls, pa.int64()), values=pa.array(values, pa.int64()), ignores_nan=True
    )


def _is_zero(stats: pq.Statistics) -> bool:
    """Whether both bounds are 0.0: some writers store that for a float column that contains NaN."""
    return isinstance(stats.min, float) and stats.min == stats.max == 0
