"""Append log files to file groups: one log file per group and commit (DATA-4, DATA-13).

    data block (parquet: rows inserted and updated)   delete blocks (keys; one block per type of ordering value)

A file has at most the maximum log size; further rows go to the next version. A block begins with its length, so a data
block is collected in memory or in a local file, and copied to the log when it is complete.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import reduce
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.base_writer import column_ranges, ensure_partition
from lakehouse.core.files.base.column_bounds import RowBounds, merged_bounds
from lakehouse.core.files.base.partial_update_rows import PartialRows, partial_rows
from lakehouse.core.files.keys.key_lookup import LOST, MOVED_OUT, match_file, read_matches
from lakehouse.core.files.keys.key_matches import DELETED, MatchCollector, without_held
from lakehouse.core.files.log.log_bounds import deletes_only
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.stage.markers import TaskMarkers, first_log, group_markers, log_attempt, mark_log
from lakehouse.core.files.stage.staging import KEY, StagedReader
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.avro.schema import META_COLUMNS, arrow_to_avro, with_meta_fields
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, block_frame
from lakehouse.core.format.log.delete_block import encode_deletes
from lakehouse.core.format.log.delete_values import written_as
from lakehouse.core.index.write_tasks import GroupTask
from lakehouse.core.planning.predicate import Range
from lakehouse.core.rows.absent_columns import bits_of, lacking_columns
from lakehouse.core.rows.casting import writable
from lakehouse.core.rows.event_time import EventTimes
from lakehouse.core.rows.ordering import without_ordering
from lakehouse.core.rows.record_merge import says_deleted
from lakehouse.core.storage.os_errors import translated
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import ColumnBounds, WriteStat
from lakehouse.model.files import FileSlice, LogFile
from lakehouse.model.merge import MergeRule

_COPY_BYTES = 1 << 20
_CODECS = {"none": "NONE"}


def append_group(context: WriteContext, read: SliceContext, attempt: Attempt, task: GroupTask) -> list[WriteStat]:
    """Append the rows of the task to its file group, and return the write statistics of its log files."""
    gaps, attempt = partial_rows(context, read, task), log_attempt(context, attempt)
    markers = TaskMarkers(context, attempt, group_markers(context, attempt, task))
    first = first_log(context, attempt, task)
    if context.incoming.deletes_only and task.matches_file is None and task.resize is None:
        _require_one_row_per_key(context, task)
    writer = LogWriter(markers, task.partition, task.file_id, is_new=task.is_new, gaps=gaps, first=first)
    try:
        for rows, kind in _incoming(context, task):
            writer.add(rows, None if kind is None else kind == MOVED_OUT)
            writer.revived += 0 if kind is None else int((kind == DELETED).sum())
        if task.resize is not None:
            return [_as_copy(stat) for stat in writer.finish()]
        if task.log_slice is not None:
            return _with_named_slice(task.file_slice, task.log_slice, writer.finish())
        return _with_base_slice(task.file_slice, writer.finish())
    finally:
        writer.discard()


def _require_one_row_per_key(context: WriteContext, task: GroupTask) -> None:
    """Raise UserError if several base rows have a key that the task deletes by its hash, without a look-up.

    Readers merge a log entry with one of these rows, so the others would remain.
    """
    if task.base is None:
        return
    with (
        closing(BaseFileReader(context.storage, task.base.path)) as reader,
        MatchCollector(context, task.entries) as collector,
    ):
        match_file(context, task.base, reader, task.entries, collector)
        key = collector.repeated_key()
    if key is not None:
        raise UserError(
            f"several rows in file group {task.file_id} of partition {task.partition!r} have the record key {key!r}, "
            "and a log deletes one of them only; nothing was written. Replace the partition by insert_overwrite with "
            "one row for each key, without the rows to delete",
            key=key,
            partition=task.partition,
        )


def _as_copy(stat: WriteStat) -> WriteStat:
    """Return the statistics of copied rows with zero counts, because the present group already counts them."""
    return replace(stat, num_inserts=0, num_updates=0, num_deletes=0, nulled={}, event_time=None)


def _with_base_slice(file_slice: FileSlice | None, stats: list[WriteStat]) -> list[WriteStat]:
    """Add the slice that the logs extend to write statistics. Hudi uses it to read the rows before a change."""
    if file_slice is None:
        return stats
    base, names, results = file_slice.base, [log.name for log in file_slice.logs], []
    for stat in stats:
        names.append(stat.path.rpartition("/")[2])
        extended = replace(stat, base_file=base.name if base else "", log_files=tuple(names))
        results.append(replace(extended, prev_commit=file_slice.base_instant))
    return results


def _with_named_slice(file_slice: FileSlice | None, named: str, stats: list[WriteStat]) -> list[WriteStat]:
    """Add the slice with the base instant `named` to write statistics, as Hudi 0.15 does.

    While a compaction is pending, the slice is named after it and has no base file yet.
    """
    base = None if file_slice is None else file_slice.base
    names = [] if file_slice is None else [log.name for log in file_slice.logs if log.instant == named]
    base_file, results = base.name if base is not None and base.instant == named else "", []
    for stat in stats:
        names.append(stat.path.rpartition("/")[2])
        results.append(replace(stat, prev_commit=named, base_file=base_file, log_files=tuple(names)))
    return results


def _incoming(context: WriteContext, task: GroupTask) -> Iterator[tuple[pa.Table, np.ndarray | None]]:
    """Yield staged rows, piece by piece, with the kinds of their matches; without matches the kinds are None."""
    if task.matches_file is None:
        for entry in task.entries:
            with StagedReader(context, entry.run) as reader:
                size = context.budget.window_rows(reader.bytes_per_row)
                for start in range(0, entry.rows, size):
                    yield reader.slice(entry.offset + start, min(size, entry.rows - start)), None
        return
    matches = without_held(context, read_matches(context, task.matches_file), task.other_matches)
    effective = np.flatnonzero(matches.kind != LOST)
    for number, run in enumerate(matches.runs):
        of_run = effective[matches.run[effective] == number]
        # Sort by the order of the run, so that the run is read once from start to end.
        of_run = of_run[np.argsort(matches.row[of_run], kind="stable")]
        with StagedReader(context, run) as reader:
            size = context.budget.window_rows(reader.bytes_per_row)
            for start in range(0, len(of_run), size):
                chosen = of_run[start : start + size]
                row, first = np.unique(matches.row[chosen], return_index=True)
                yield reader.take(row), matches.kind[chosen[first]]


class LogWriter:
    """Collects the rows and deletes of one file group and writes its log files.

    Call `finish` at the end, and `discard` in any case.
    """

    # parameters: the file group, and the header of its log
    def __init__(
        self,
        markers: TaskMarkers,
        partition: str,
        file_id: str,
        *,
        is_new: bool,
        gaps: PartialRows | None = None,
        first: LogFile | None = None,
    ) -> None:
        """Collect the log of one file group.

        Args:
            markers: The markers of the attempt, with the settings of the write.
            partition: The partition path of the group.
            file_id: The id of the group.
            is_new: Whether the log begins the group.
            gaps: Splits rows of a partial update into complete and partial rows.
            first: The first log file; None for version 1 of the write's own instant.
        """
        context = markers.context
        self._context, self._attempt, self._markers, self._gaps = context, markers.attempt, markers, gaps
        self._partition, self._file_id, self._is_new = partition, file_id, is_new
        self._headers = {BlockHeader.INSTANT_TIME: context.instant}
        # Blocks by the columns that the rows provide: rows of partial updates go to separate blocks.
        self._blocks: dict[tuple[str, ...], _DataBlock] = {}
        self._deletes: list[tuple[pa.Array, pa.Array | None]] = []
        self._delete_bytes = 0
        self._sequence = self._inserted = 0
        self._events = EventTimes(context.event_time)
        self._first = first or LogFile(
            partition=partition,
            file_id=file_id,
            instant=context.instant,
            version=1,
            write_token=markers.attempt.token,
        )
        self._version = self._first.version
        #: Number of rows whose keys an earlier log of the group deletes.
        self.revived = 0
        self._started = context.clock.monotonic_s()
        self._stats: list[WriteStat] = []

    def replace_blocks(self, instants: Sequence[str]) -> None:
        """Declare that the new blocks replace the blocks of `instants` (log compaction), before rows are added."""
        if instants:
            self._headers[BlockHeader.COMPACTED_BLOCK_TIMES] = ",".join(instants)

    def add(self, rows: pa.Table, moved: np.ndarray | None = None) -> None:
        """Append staged rows: upserts become data rows; deletes and rows that moved away become keys to delete."""
        if self._context.incoming.ordered_deletes:
            self._delete_flagged(rows, np.ones(rows.num_rows, bool))
            return
        if self._context.incoming.deletes_only:
            self.add_deletes(rows.column(KEY), None)
            return
        self._events.add(rows)
        dead = says_deleted(rows, self._context.rule, self._context.schema)
        if moved is not None and moved.any():
            self.add_deletes(rows.column(KEY).filter(pa.array(moved)), None)
            rows, dead = rows.filter(pa.array(~moved)), dead[~moved]
        if dead.any():
            rows = rows.filter(pa.array(~self._delete_flagged(rows, dead)))
        names = tuple(self._context.schema.names)
        if self._context.incoming.lacks and self._gaps is None:
            self._add_by_columns(rows, names)
            return
        provided = self._context.incoming.provided_columns or names
        whole, some = (rows.slice(0, 0), rows) if self._gaps is None else self._gaps.parted(rows)
        # Rows of a partial update are written with all columns if their keys are not stored.
        self._inserted += 0 if self._gaps is None or self._gaps.completes else whole.num_rows
        self._add_upserts(whole, names)
        self._add_upserts(some, provided)

    def _add_by_columns(self, rows: pa.Table, names: tuple[str, ...]) -> None:
        """Append rows that provide different columns, one block per set of provided columns."""
        bits = bits_of(rows)
        for distinct in np.unique(bits).tolist():
            lacking = lacking_columns(self._context.incoming.lacks, distinct)
            provided = tuple(name for name in names if name not in lacking)
            self._add_upserts(rows.filter(pa.array(bits == distinct)), provided)

    def add_stored(self, rows: pa.Table) -> None:
        """Append data rows with meta columns. Stored rows keep their values of the columns that are absent."""
        names = tuple(name for name in rows.column_names if name not in META_COLUMNS)
        if names not in self._blocks:
            self._blocks[names] = _DataBlock(self._context, names)
        self._blocks[names].write(rows)
        if sum(block.size_bytes for block in self._blocks.values()) >= self._context.max_log_bytes:
            self.roll()

    def add_deletes(self, keys: pa.ChunkedArray, ordering: pa.ChunkedArray | None) -> None:
        """Append keys to delete. With `ordering`, a delete only applies if it is not older than the stored row."""
        texts = pa.concat_arrays([*keys.chunks, pa.array([], pa.string())])
        values = None if ordering is None else pa.concat_arrays([*ordering.chunks, pa.array([], ordering.type)])
        if not len(texts):
            return
        self._deletes.append((texts, values))
        self._delete_bytes += texts.nbytes + (0 if values is None else values.nbytes)
        if self._delete_bytes > max(self._context.policy.memory_budget_bytes // 8, _COPY_BYTES):
            self.roll()

    def finish(self) -> list[WriteStat]:
        """Write the last file and return the write statistics of all files."""
        self.roll()
        if self._gaps is not None and self._stats and self._gaps.nulled.rows:
            self._stats[-1] = replace(self._stats[-1], nulled=dict(self._gaps.nulled.rows))
        return self._stats

    def discard(self) -> None:
        """Delete the local files."""
        for block in self._blocks.values():
            block.discard()

    def _delete_flagged(self, rows: pa.Table, dead: np.ndarray) -> np.ndarray:
        """Add the flagged rows as deletes and return their mask.

        A row whose ordering value cannot be stored in a delete block remains a data row.
        """
        rule, keys = self._context.rule, rows.column(KEY)
        default: np.ndarray = dead & without_ordering(rows, rule)
        self.add_deletes(keys.filter(pa.array(default)), None)
        ordering = delete_ordering(rows, rule)
        if ordering is None:
            return default
        others = dead & ~default & ordering.is_valid().to_numpy()
        self.add_deletes(keys.filter(pa.array(others)), ordering.filter(pa.array(others)))
        taken: np.ndarray = default | others
        return taken

    def _add_upserts(self, rows: pa.Table, names: tuple[str, ...]) -> None:
        if rows.num_rows:
            self.add_stored(self._with_meta(rows, names))

    def _with_meta(self, rows: pa.Table, names: tuple[str, ...]) -> pa.Table:
        count, context = rows.num_rows, self._context
        # One counter for all data rows of an attempt: sequence numbers have to be unique inside the commit only
        # (DATA-1).
        numbers = pa.array(np.arange(self._sequence, self._sequence + count)).cast(pa.string())
        prefix = f"{context.instant}_{self._attempt.partition}_"
        self._sequence += count
        meta = [
            pa.repeat(context.instant, count),
            pc.binary_join_element_wise(pa.scalar(prefix), numbers, ""),
            rows.column(KEY),
            pa.repeat(self._partition, count),
            pa.repeat(self._file_id, count),
        ]
        return pa.table([*meta, *(rows.column(name) for name in names)], names=[*META_COLUMNS, *names])

    def roll(self) -> None:
        """Write the collected rows as one log file; the next file has the next version."""
        if not self._blocks and not self._deletes:
            return
        log = replace(self._first, version=self._version)
        storage = self._context.storage
        mark_log(self._markers, log, self._first.version)
        if self._is_new and self._version == self._first.version:
            ensure_partition(self._context, self._partition)
        with storage.open_output(log.path) as sink:
            footers = [block.copy_to(sink, self._headers) for block in self._blocks.values()]
            for content in self._delete_contents():
                headers = self._headers | {BlockHeader.SCHEMA: _avro_schema(self._context, None)}
                before, after = block_frame(BlockType.DELETE, headers, len(content))
                for piece in (before, content, after):
                    sink.write(piece)
            size = sink.tell()
        rows, deleted = sum(footer.num_rows for footer in footers), sum(len(keys) for keys, _ in self._deletes)
        inserted = rows if self._is_new else min(self._inserted, rows)
        self._inserted -= inserted
        self._stats.append(
            WriteStat(
                partition=self._partition,
                file_id=self._file_id,
                path=log.path,
                prev_commit=self._context.instant,
                num_writes=rows + deleted,
                num_inserts=inserted,
                num_updates=rows - inserted,
                num_deletes=deleted,
                size_bytes=size,
                ranges=self._ranges(footers),
                bounds=self._bounds(),
                is_partial=any(len(names) < len(self._context.schema) for names in self._blocks),
                seconds=self._context.clock.monotonic_s() - self._started,
                event_time=self._events.range,
                revived=self.revived,
            )
        )
        self._version += 1
        self._started = self._context.clock.monotonic_s()
        self._deletes, self._delete_bytes = [], 0
        self._events = EventTimes(self._context.event_time)
        self.discard()
        self._blocks = {}

    def _bounds(self) -> dict[str, ColumnBounds] | None:
        """Return the bounds of the rows in the file; a column that no row provides is left out."""
        if self._context.indexed is None:
            return None
        if not self._blocks:
            return deletes_only(self._context.indexed)
        return merged_bounds(block.bounds or {} for block in self._blocks.values())

    def _ranges(self, footers: Sequence[pq.FileMetaData]) -> dict[str, Range]:
        """Return the ranges for the commit, without columns that the metadata table indexes."""
        # With deletes or several blocks, the bounds of one block do not cover the file.
        is_exact = len(footers) == 1 and len(self._blocks) == 1
        return column_ranges(footers[0]) if is_exact and self._context.indexed is None else {}

    def _delete_contents(self) -> Iterator[bytes]:
        """Yield one delete block content per type of ordering value. Readers refuse a mix of types in one block."""
        plain = [keys for keys, ordering in self._deletes if ordering is None]
        if plain:
            yield encode_deletes(pa.concat_arrays(plain), self._partition)
        ordered = [(keys, ordering) for keys, ordering in self._deletes if ordering is not None]
        if ordered:
            keys = pa.concat_arrays([keys for keys, _ in ordered])
            yield encode_deletes(keys, self._partition, pa.concat_arrays([ordering for _, ordering in ordered]))


def delete_ordering(rows: pa.Table, rule: MergeRule) -> pa.ChunkedArray | None:
    """Return the ordering values of `rows` for a delete block: a struct for several columns, null without value.

    Returns None if delete blocks cannot store them. Rows that are deletes then stay data rows.
    """
    names = rule.compared
    if not names or rule.by_parts or not all(_orders_deletes(rows.schema.field(name).type) for name in names):
        return None
    if len(names) == 1:
        return rows.column(names[0])
    columns = [rows.column(name).combine_chunks() for name in names]
    is_complete = reduce(np.logical_and, [column.is_valid().to_numpy(zero_copy_only=False) for column in columns])
    return pa.chunked_array([pa.StructArray.from_arrays(columns, names=list(names), mask=pa.array(~is_complete))])


def _orders_deletes(kind: pa.DataType) -> bool:
    try:
        written_as(kind)
    except UnsupportedError:
        return False
    return True


def _avro_schema(context: WriteContext, names: tuple[str, ...] | None) -> str:
    declared = pa.schema([field for field in context.schema if names is None or field.name in names])
    return arrow_to_avro(with_meta_fields(declared), table=context.table)


class _DataBlock:
    """The Parquet content of a data block under construction. `names` are the data columns that its rows provide."""

    def __init__(self, context: WriteContext, names: tuple[str, ...]) -> None:
        self._context, self._names = context, names
        self._spool: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115 - closed by `discard`
            max_size=max(context.policy.memory_budget_bytes // 16, _COPY_BYTES), prefix="lakehouse-log-"
        )
        self._footers: list[pq.FileMetaData] = []
        self.bounds: dict[str, ColumnBounds] | None = None
        codec = context.policy.compression
        self._schema = with_meta_fields(pa.schema([field for field in context.schema if field.name in names]))
        self._examined = None if context.indexed is None else RowBounds(self._schema, context.indexed)
        self._writer = pq.ParquetWriter(
            self._spool,
            self._schema,
            compression=_CODECS.get(codec, codec),
            use_dictionary=[META_COLUMNS[0], META_COLUMNS[3], META_COLUMNS[4]],
            store_schema=False,
            write_statistics=True,
            metadata_collector=self._footers,
        )

    @property
    def size_bytes(self) -> int:
        """The number of bytes encoded so far."""
        return self._spool.tell()

    def write(self, rows: pa.Table) -> None:
        """Append rows with meta columns as one row group."""
        with translated(tempfile.gettempdir(), writing=True):
            plain = writable(rows.select(self._schema.names), self._schema)
            self._writer.write_table(plain, row_group_size=rows.num_rows)
        if self._examined is not None:
            self._examined.add(plain)

    def copy_to(self, sink: Any, headers: Mapping[BlockHeader, str]) -> pq.FileMetaData:
        """Complete the content, write the whole block, and return the footer."""
        with translated(tempfile.gettempdir(), writing=True):
            self._writer.close()
        if self._examined is not None:
            self.bounds = self._examined.finish(self._footers[:1], sizes=False)
        own = {BlockHeader.SCHEMA: _avro_schema(self._context, self._names)}
        if len(self._names) < len(self._context.schema):
            own[BlockHeader.IS_PARTIAL] = "true"
        before, after = block_frame(BlockType.PARQUET_DATA, {**headers, **own}, self._spool.tell())
        sink.write(before)
        self._spool.seek(0)
        with translated(tempfile.gettempdir()):
            shutil.copyfileobj(self._spool, sink, _COPY_BYTES)
        sink.write(after)
        return self._footers[0]

    def discard(self) -> None:
        """Delete the local file, if there is one."""
        # The writer must not complete the file when it is garbage-collected.
        self._writer.is_open = False
        self._spool.close()
