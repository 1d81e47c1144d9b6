"""Write the next base file of one file group: stored rows merged with incoming rows, then inserts.

Stored rows are streamed in batches. Only a window of the incoming rows and a piece of the matches are in memory. The
positions of matches are known before the first row is written, so no row is looked up twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.base_writer import BaseFileWriter, kept_schema
from lakehouse.core.files.base.group_rewrite import copyable, has_large_groups, rewrite_groups
from lakehouse.core.files.base.partial_update_rows import Nulled
from lakehouse.core.files.keys.key_lookup import KEY, match_file
from lakehouse.core.files.keys.key_matches import (
    IN_PLACE,
    LOST,
    MOVED_OUT,
    EntryIndex,
    MatchCollector,
    Matches,
    stream_matches,
)
from lakehouse.core.files.log.cdc_writer import ChangeLog
from lakehouse.core.files.stage.markers import TaskMarkers, group_markers
from lakehouse.core.files.stage.staging import StagedReader
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry
from lakehouse.core.rows.absent_columns import LACKS, lacked
from lakehouse.core.rows.deduplicate import provided_sets
from lakehouse.core.rows.final_merge import merge_base
from lakehouse.core.rows.log_entries import ColumnSets, record_entries
from lakehouse.core.rows.record_merge import incoming_wins, says_deleted
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat

Pieces = Callable[[], Iterator[Matches]]

#: The number of set bits of each byte value, and the bytes that are counted together. NumPy 1 has no `bitwise_count`.
_SET_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
_COUNTED_BYTES = 1 << 16


def write_group(context: WriteContext, attempt: Attempt, task: GroupTask) -> WriteStat | None:
    """Write the next base file of the group and return its write statistics, or None if there is nothing to write."""
    with ExitStack() as stack:
        reader = None
        if task.base is not None:
            reader = BaseFileReader(context.storage, task.base.path)
            stack.callback(reader.close)
        matches = _matches(context, task, reader, stack)
        inserts = _Inserts(context, task, matches)
        if not inserts.rows and not any(True for _ in matches()):
            return None
        names = group_markers(context, attempt, task)
        markers = TaskMarkers(context, attempt, names)
        # Create all markers in one call, so that an attempt that marks its own files needs one storage request.
        markers.mark(*names)
        with (
            BaseFileWriter(markers, task.partition, task.file_id, task.base) as writer,
            ChangeLog(markers, task.base) as changes,
        ):
            updates = deletes = 0
            nulled = Nulled()
            if reader is not None:
                if writer.bloom.enabled:
                    writer.bloom.inherit(reader.bloom_filter(), inserts.rows)
                updates, deletes = _next_version(context, writer, changes, reader, matches())
            inserted = 0
            for rows in inserts.windows():
                writer.events.add(rows)
                writer.write_new(rows, rows.column(KEY))
                changes.inserted(rows)
                inserted += rows.num_rows
                nulled.add(context, rows)
        stat = writer.stat(inserts=inserted, updates=updates, deletes=deletes)
        return replace(stat, cdc_files=changes.files, nulled=nulled.rows)


def _matches(context: WriteContext, task: GroupTask, reader: BaseFileReader | None, stack: ExitStack) -> Pieces:
    """Return a function that yields the matches with the base file; it can be called repeatedly."""
    if task.base is not None and reader is not None and task.finds_matches:
        collector = stack.enter_context(MatchCollector(context, task.entries))
        match_file(context, task.base, reader, task.entries, collector)
        return collector.ordered
    path = task.matches_file
    return lambda: iter(()) if path is None or reader is None else stream_matches(context, path)


def _next_version(
    context: WriteContext,
    writer: BaseFileWriter,
    changes: ChangeLog,
    reader: BaseFileReader,
    matches: Iterator[Matches],
) -> tuple[int, int]:
    """Write the stored rows and the rows that replace them to the next file; return (updates, deletes)."""
    if writer.previous is None or not has_large_groups(context, reader):
        return _merge(context, writer, changes, reader, matches)
    with context.storage.open_input(reader.path) as source:
        stored = copyable(context, writer.previous, source)
        if stored is None or not writer.copies_from(stored.footer):
            return _merge(context, writer, changes, reader, matches)
        return rewrite_groups(writer, stored, partial(_merge_matches, context), _MatchWindow(context, matches).upto)


def _merge(
    context: WriteContext,
    writer: BaseFileWriter,
    changes: ChangeLog,
    reader: BaseFileReader,
    matches: Iterator[Matches],
) -> tuple[int, int]:
    """Stream the stored rows into `writer`, with matched rows replaced or dropped; return (updates, deletes)."""
    updates = deletes = start = 0
    window = _MatchWindow(context, matches)
    for stored in reader.batches(kept_schema(context.schema), reader.rows_within(context.budget.decoded_bytes)):
        stop = start + stored.num_rows
        gone = np.zeros(stored.num_rows, bool)
        fresh: list[pa.Table] = []
        for position, kind, incoming in window.upto(stop):
            replaced, dropped, rows = _merge_matches(context, stored, position - start, kind, incoming)
            gone[(position - start)[replaced | dropped]] = True
            fresh.append(rows)
            writer.events.add(incoming)
            changes.merged(stored, position - start, replaced, dropped, rows)
            updates, deletes = updates + int(replaced.sum()), deletes + int(dropped.sum())
        writer.write_kept(stored.filter(pa.array(~gone)) if gone.any() else stored)
        for rows in fresh:
            writer.write_new(rows, rows.column(KEY), is_stored=True)
        start = stop
    return updates, deletes


def _merge_matches(
    context: WriteContext, stored: pa.Table, position: np.ndarray, kind: np.ndarray, incoming: pa.Table
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Return masks of the matches that replace and that remove their stored row, and the replacing rows in order."""
    rule, at = context.rule, pa.array(position)
    if context.incoming.deletes_only:
        dropped = np.ones(len(position), bool)
        if context.incoming.ordered_deletes:
            dropped = incoming_wins(rule, stored.select(rule.compared).take(at), incoming, dropped)
        return np.zeros(len(position), bool), dropped, incoming.slice(0, 0)
    if rule.mixes:
        assert (kind == IN_PLACE).all(), "a write that moves rows between partitions is refused where versions mix"
        sets = ColumnSets()
        columns = None if context.incoming.provided_columns is None else frozenset(context.incoming.provided_columns)
        column_sets: int | np.ndarray = sets.number(columns)
        if context.incoming.lacks:
            column_sets, incoming = (
                provided_sets(incoming, context.incoming.lacks, sets),
                incoming.drop_columns([LACKS]),
            )
        entries = record_entries(incoming, rule, column_sets, table=context.schema)
        merged = merge_base(stored.select(incoming.column_names).take(at), entries, rule, sets)
        return merged.replaced, merged.removed, merged.rows
    deleted = says_deleted(incoming, rule, context.schema)
    wins = incoming_wins(rule, stored.select(rule.compared).take(at), incoming, deleted)
    replaced, moved = wins & ~deleted & (kind == IN_PLACE), kind == MOVED_OUT
    fresh = _completed(context, incoming.filter(pa.array(replaced)), stored, position[replaced])
    return replaced, moved | (wins & deleted & (kind == IN_PLACE)), fresh


def _completed(context: WriteContext, fresh: pa.Table, stored: pa.Table, position: np.ndarray) -> pa.Table:
    """Return rows of a partial update, with the stored values in the columns that the rows do not provide."""
    if not context.incoming.keeps:
        return fresh
    rows = pa.array(position)
    for name, lacking in lacked(fresh, context.incoming.lacks):
        if name in stored.column_names:
            old, number = stored.column(name).take(rows), fresh.column_names.index(name)
            fresh = fresh.set_column(number, name, pc.if_else(pa.array(lacking), old, fresh.column(number)))
    if context.incoming.provided_columns is None:
        return fresh
    for number, name in enumerate(fresh.column_names):
        if name in stored.column_names and name not in context.incoming.provided_columns and name != KEY:
            fresh = fresh.set_column(number, name, stored.column(name).take(rows))
    return fresh


class _MatchWindow:
    """The staged rows of the next matches, read one window at a time."""

    def __init__(self, context: WriteContext, matches: Iterator[Matches]) -> None:
        self._context, self._pieces = context, matches
        self._matches: Matches | None = None
        self._next = self._start = self._stop = 0
        self._rows = pa.table({})

    def upto(self, base_row: int) -> Iterator[tuple[np.ndarray, np.ndarray, pa.Table]]:
        """Yield (base rows, kinds, incoming rows) of the matches before `base_row` that were not yielded yet."""
        while self._has_more():
            assert self._matches is not None
            end = int(np.searchsorted(self._matches.base_row, base_row))
            if end == self._next:
                return
            if self._next >= self._stop:
                self._gather()
            start, stop = self._next, min(end, self._stop)
            self._next = stop
            rows = self._rows.slice(start - self._start, stop - start)
            yield self._matches.base_row[start:stop], self._matches.kind[start:stop], rows

    def _has_more(self) -> bool:
        while self._matches is None or self._next == len(self._matches):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            # A stored row that is newer than the incoming row is not changed.
            self._matches = piece if (piece.kind != LOST).all() else piece.take(piece.kind != LOST)
            self._next = self._start = self._stop = 0
        return True

    def _gather(self) -> None:
        assert self._matches is not None
        # Release this window before the next one is read, because both together would need twice the memory share.
        self._rows = pa.table({})
        self._start, size = self._next, 0
        tables, order = [], []
        with StagedReader(self._context, self._matches.runs[int(self._matches.run[self._start])]) as reader:
            size = self._context.budget.window_rows(reader.bytes_per_row)
        self._stop = min(self._start + size, len(self._matches))
        run, row = self._matches.run[self._start : self._stop], self._matches.row[self._start : self._stop]
        for number in np.unique(run):
            chosen = np.flatnonzero(run == number)
            with StagedReader(self._context, self._matches.runs[number]) as reader:
                tables.append(reader.take(row[chosen]))
            order.append(chosen)
        if len(tables) == 1:
            self._rows = tables[0]
            return
        back = np.argsort(np.concatenate(order), kind="stable")
        self._rows = pa.concat_tables(tables).take(pa.array(back))


class _Inserts:
    """The rows that a group inserts: the range of the task among the upserts of the partition without a match.

    One bit per staged row marks whether it has a match. The rows themselves are read window by window.
    """

    def __init__(self, context: WriteContext, task: GroupTask, matches: Pieces) -> None:
        self._context = context
        self._first, last = task.insert_range or (0, 0)
        self._index = EntryIndex(task.entries if task.insert_range else ())
        self._used = [np.zeros((entry.upserts + 7) // 8, np.uint8) for entry in self._index.entries]
        if self._used:
            for piece in matches() if task.finds_matches else _consumed_matches(context, task):
                self._mark(piece)
        taken = [_set_bits(used) for used in self._used]
        self._free = [entry.upserts - used for entry, used in zip(self._index.entries, taken, strict=True)]
        total = sum(self._free)
        self._last = total if last is None else min(last, total)
        self.rows = max(self._last - self._first, 0)

    def windows(self) -> Iterator[pa.Table]:
        """Yield the rows, piece by piece."""
        number = 0
        for entry, used, free in zip(self._index.entries, self._used, self._free, strict=True):
            if number < self._last and number + free > self._first:
                yield from self._of_entry(entry, used, number)
            number += free

    def _of_entry(self, entry: StagedEntry, used: np.ndarray, number: int) -> Iterator[pa.Table]:
        with StagedReader(self._context, entry.run) as reader:
            size = self._context.budget.window_rows(reader.bytes_per_row) // 8 * 8
            for start in range(0, entry.upserts, size):
                count = min(size, entry.upserts - start)
                bits = np.unpackbits(used[start // 8 : (start + size) // 8], count=count, bitorder="little")
                rows = np.flatnonzero(bits == 0) + (entry.offset + start)
                chosen = rows[max(self._first - number, 0) : max(self._last - number, 0)]
                number += len(rows)
                if len(chosen) == 0:
                    continue
                if chosen[-1] - chosen[0] == len(chosen) - 1:
                    yield reader.slice(int(chosen[0]), len(chosen))
                else:
                    yield reader.take(chosen)

    def _mark(self, piece: Matches) -> None:
        entry, position = self._index.used_upserts(self._index.renamed(piece))
        for number in np.unique(entry).tolist():
            rows = position[entry == number]
            np.bitwise_or.at(self._used[number], rows >> 3, np.left_shift(1, rows & 7).astype(np.uint8))


def _set_bits(used: np.ndarray) -> int:
    pieces = (used[start : start + _COUNTED_BYTES] for start in range(0, len(used), _COUNTED_BYTES))
    return sum(int(_SET_BITS[piece].sum(dtype=np.int64)) for piece in pieces)


def _consumed_matches(context: WriteContext, task: GroupTask) -> Iterator[Matches]:
    for path in task.consumed_by:
        yield from stream_matches(context, path)
