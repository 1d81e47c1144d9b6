"""Read the rows of one file slice: base rows merged with the logs, then rows that are only in logs (DATA-5.2)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import REPEATED, REPEATING, BaseFileReader, align
from lakehouse.core.files.log.log_reader import COMMIT_TIME, KEY, SliceContext
from lakehouse.core.files.log.slice_log_merge import LogMerge, LogPart
from lakehouse.core.format.log.blocks import BlockType
from lakehouse.core.rows.final_merge import fold_into_base, inserted_rows, merge_base
from lakehouse.core.rows.keys import record_keys
from lakehouse.core.rows.log_entries import CONTROL, RECORD, ColumnSets, Control
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.model.files import FileSlice

_KEY_BYTES = 64
_FEW_KEYS = 1_000
_ROWS_AT_ONCE = 131_072
#: Merges stored rows at some positions with entries: masks of those replaced and removed, and the replacing rows.
_Merge: TypeAlias = Callable[[pa.Table, np.ndarray, pa.Table, np.ndarray], tuple[np.ndarray, np.ndarray, pa.Table]]


class RowOrigin(Enum):
    """The origin of a merged row: unchanged in the base file, changed by a log, or in a log only."""

    KEPT = "kept"
    UPDATED = "updated"
    INSERTED = "inserted"


@dataclass(slots=True)
class SliceCounts:
    """The row counts of a merge; complete after all rows were read.

    Attributes:
        updated: Rows of the base file that a log updated.
        deleted: Rows of the base file that a log deleted.
        inserted: Rows that only logs have.
        log_entries: Merged entries of the logs. This and the following values are complete before the first rows.
        log_blocks: Valid blocks of the logs.
        corrupt_blocks: Committed blocks that are damaged.
        unmatched: Entries without a base row.
        deleted_keys: If this is a list, it receives the keys that the logs delete with an ordering value. A base row
            may be newer than such a delete.
    """

    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    log_entries: int = 0
    log_blocks: int = 0
    corrupt_blocks: int = 0
    unmatched: int = 0
    deleted_keys: list[pa.ChunkedArray] | None = None


def read_slice(
    context: SliceContext,
    file_slice: FileSlice,
    columns: pa.Schema,
    counts: SliceCounts | None = None,
    base: BaseFileReader | None = None,
) -> Iterator[tuple[RowOrigin, pa.Table]]:
    """Yield the rows of a slice with their origin, as tables of `columns`, within the memory budget.

    Args:
        context: The settings for reading.
        file_slice: The base file, the logs, or both.
        columns: Columns of the table. Columns in `base_reader.REPEATING` may be dictionary-encoded, as in files.
        counts: Receives the numbers of rows and blocks, and the deleted keys if it requests them.
        base: The open base file of the slice, if the caller has one. It stays open.
    """
    counts = counts if counts is not None else SliceCounts()
    merging = context.merging(columns)
    with ExitStack() as stack:
        reader = base
        if reader is None and file_slice.base is not None:
            reader = BaseFileReader(context.storage, file_slice.base.path)
            stack.callback(reader.close)
        if not file_slice.logs:
            assert reader is not None, "a slice has a base file or logs"
            for rows in reader.batches(columns, reader.rows_within(context.budget_bytes // 8, columns)):
                yield RowOrigin.KEPT, rows
            return
        sets = ColumnSets()
        base_instant = "" if file_slice.base is None else file_slice.base.instant
        merge = LogMerge(context, merging, sets, partial(_directory, stack), base_instant)
        parts = merge.parts(file_slice.logs, partial(_merging_keys, context, reader, sets))
        seen = merge.seen
        counts.corrupt_blocks = sum(block.kind is BlockType.CORRUPT for block in seen)
        counts.log_blocks = len(seen) - counts.corrupt_blocks
        counts.log_entries = sum(part.entries.num_rows for part in parts)
        matched = sum(int(np.count_nonzero(np.bincount(part.entry))) for part in parts)
        counts.unmatched = counts.log_entries - matched
        if counts.deleted_keys is not None:
            counts.deleted_keys += [_ordered_deletes(part.entries) for part in parts]
        if reader is not None:
            yield from _BaseMerge(context, columns, merging, sets, counts).rows(reader, parts)
        for part in parts:
            for entries in part.unmatched():
                rows = align(inserted_rows(entries, merging).select(columns.names), columns)
                counts.inserted += rows.num_rows
                if rows.num_rows:
                    yield RowOrigin.INSERTED, rows


def read_changes(
    context: SliceContext, file_slice: FileSlice, columns: pa.Schema
) -> Iterator[tuple[np.ndarray, pa.Table]]:
    """Yield the changes that the logs of a slice make to its base file, for readers that scan the base file themselves.

    The rows of the slice are the base rows at other positions, and the rows of all changes. Of the base file only keys
    and ordering columns are decoded, unless merged rows have values of several versions.

    Args:
        context: The settings for reading.
        file_slice: A base file and its logs.
        columns: Columns of the changed rows.

    Yields:
        The positions of base rows that are replaced or removed, and the rows that replace them or are inserted.
    """
    assert file_slice.base is not None, "a slice without base file has no rows to change"
    merging = context.merging(columns)
    with ExitStack() as stack:
        reader = BaseFileReader(context.storage, file_slice.base.path)
        stack.callback(reader.close)
        sets = ColumnSets()
        merge = LogMerge(context, merging, sets, partial(_directory, stack), file_slice.base.instant)
        parts = merge.parts(file_slice.logs, partial(_merging_keys, context, reader, sets))
        yield from _BaseMerge(context, columns, merging, sets, SliceCounts()).changes(reader, parts)
        for part in parts:
            for entries in part.unmatched():
                rows = align(inserted_rows(entries, merging).select(columns.names), columns)
                if rows.num_rows:
                    yield np.array([], np.int64), rows


def _directory(stack: ExitStack) -> Path:
    """Create a directory that is deleted when the slice has been read."""
    return Path(stack.enter_context(scratch_directory("lakehouse-slice-")))


def _ordered_deletes(entries: pa.Table) -> pa.ChunkedArray:
    control = Control.of(entries)
    return entries.column(KEY).filter(pa.array((control.kind != RECORD) & ~control.default)).cast(pa.string())


def _merging_keys(
    context: SliceContext, reader: BaseFileReader | None, sets: ColumnSets, log_keys: pa.ChunkedArray | None
) -> Iterator[tuple[int, pa.Array]]:
    """Yield the keys of the base rows that are merged with logs, with the position of the first row of each piece.

    Keys of rows that are not merged are null. Row groups that can have none of `log_keys` are left out. The logs have
    been read when the first key is requested, so `sets` contains the sets of partial rows.
    """
    if reader is None:
        return
    if context.commit_times is None or context.mixes_versions or len(sets.sets) > 1:
        for run in _runs_with_keys(reader, log_keys):
            start = run.start
            for keys in stored_keys(context, reader, run.groups):
                yield start, keys
                start += len(keys)
        return
    # Read both columns in one pass. If they were read separately, their batches might end at different rows.
    columns = pa.schema([context.table.field(COMMIT_TIME), context.table.field(KEY)])
    start = 0
    for rows in reader.batches(columns, _keys_at_once(context)):
        of_range = context.of_range(rows.column(COMMIT_TIME))
        yield start, pc.if_else(of_range, rows.column(KEY), pa.scalar(None, pa.string())).combine_chunks()
        start += rows.num_rows


@dataclass(slots=True)
class _Run:
    """Adjacent row groups of a base file, and the position of their first row."""

    start: int
    groups: list[int]


def _runs_with_keys(reader: BaseFileReader, log_keys: pa.ChunkedArray | None) -> Iterator[_Run]:
    """Yield the row groups that may have one of the keys, by their statistics."""
    run, start = _Run(0, []), 0
    for number in range(reader.statistics.num_row_groups):
        size = reader.statistics.row_group(number).num_rows
        if log_keys is not None and not _may_have(log_keys, reader.text_bounds(KEY, number)):
            if run.groups:
                yield run
            run = _Run(start + size, [])
        else:
            run.groups.append(number)
        start += size
    if run.groups:
        yield run


def _may_have(keys: pa.ChunkedArray, bounds: tuple[str, str] | None) -> bool:
    """Return whether a key is between the bounds. A few keys are compared first: usually one of them is."""
    if bounds is None:
        return True
    for some in (keys[:_FEW_KEYS], keys):
        inside = pc.and_(pc.greater_equal(some, bounds[0]), pc.less_equal(some, bounds[1]))
        if pc.any(inside).as_py():
            return True
    return False


def _keys_at_once(context: SliceContext) -> int:
    return max(context.budget_bytes // 8 // _KEY_BYTES, 1_024)


def stored_keys(
    context: SliceContext, reader: BaseFileReader, groups: Sequence[int] | None = None
) -> Iterator[pa.Array]:
    """Yield the record keys of a base file in file order. Keys that are not stored (virtual keys) are computed.

    `groups` are the numbers of the row groups to read; None: all.
    """
    rows = _keys_at_once(context)
    if KEY in reader.schema.names and reader.has_values(KEY):
        yield from reader.column_batches(KEY, rows, groups)
        return
    roots = {name.split(".")[0] for name in context.keys.record_key_fields}
    for piece in reader.batches(pa.schema([field for field in context.table if field.name in roots]), rows, groups):
        keys = pc.cast(record_keys(piece, context.keys), pa.string())
        yield from keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]


@dataclass(frozen=True, slots=True)
class _BaseMerge:
    """Merges the rows of a base file with the parts of its logs."""

    context: SliceContext
    columns: pa.Schema
    merging: pa.Schema
    sets: ColumnSets
    counts: SliceCounts

    def rows(self, reader: BaseFileReader, parts: list[LogPart]) -> Iterator[tuple[RowOrigin, pa.Table]]:
        """Yield the rows of the base file that are unchanged, and those that the logs changed."""
        columns, start = self.columns, 0
        whole = not self.context.mixes_versions and len(self.sets.sets) == 1
        needed = _with_ordering(self.context, columns) if whole else self.merging
        merge = self._replaced if whole else self._mixed
        size_bytes = self.context.batch_bytes or self.context.budget_bytes // 16
        for stored in reader.batches(needed, reader.rows_within(size_bytes, needed)):
            stop = start + stored.num_rows
            gone = None
            for part in parts:
                matched = part.between(start, stop)
                if matched is None:
                    continue
                position = matched[0] - start
                for place, replaced, removed, rows in self._merges(merge, stored, position, part, matched[1]):
                    gone = np.zeros(stored.num_rows, bool) if gone is None else gone
                    gone[place[replaced | removed]] = True
                    self.counts.deleted += int(removed.sum())
                    if rows.num_rows:
                        self.counts.updated += rows.num_rows
                        yield RowOrigin.UPDATED, rows
            unchanged = stored.select(columns.names)
            unchanged = unchanged if gone is None else unchanged.filter(pa.array(~gone))
            if unchanged.num_rows:
                yield RowOrigin.KEPT, align(unchanged, columns)
            start = stop

    def changes(self, reader: BaseFileReader, parts: list[LogPart]) -> Iterator[tuple[np.ndarray, pa.Table]]:
        """Yield the positions of base rows that the logs replace or remove, and the replacing rows."""
        start = 0
        whole = not self.context.mixes_versions and len(self.sets.sets) == 1
        merge = self._replaced if whole else self._mixed
        for stored in self._deciding(reader) if whole else self._all_merging(reader):
            stop = start + stored.num_rows
            for part in parts:
                matched = part.between(start, stop)
                if matched is None:
                    continue
                for place, replaced, removed, rows in self._merges(merge, stored, matched[0] - start, part, matched[1]):
                    gone = place[replaced | removed]
                    if len(gone):
                        yield gone + start, rows
            start = stop

    def _all_merging(self, reader: BaseFileReader) -> Iterator[pa.Table]:
        return reader.batches(self.merging, reader.rows_within(self.context.budget_bytes // 16))

    def _deciding(self, reader: BaseFileReader) -> Iterator[pa.Table]:
        """Yield the base columns that decide which version wins; a column of nulls if the later commit wins."""
        fields = [field for field in self.merging if field.name in self.context.rule.compared]
        if fields:
            yield from reader.batches(pa.schema(fields), reader.rows_within(self.context.budget_bytes // 16))
            return
        for start in range(0, reader.rows, _ROWS_AT_ONCE):
            yield pa.table({KEY: pa.nulls(min(_ROWS_AT_ONCE, reader.rows - start), pa.string())})

    def _merges(
        self, merge: _Merge, stored: pa.Table, position: np.ndarray, part: LogPart, entry: np.ndarray
    ) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, pa.Table]]:
        """Yield positions of stored rows, masks of those that are replaced and removed, and the replacing rows."""
        versions = part.versions
        several = np.zeros(len(entry), bool) if versions is None else versions.counts(entry) > 0
        single = ~several
        if single.any():
            yield position[single], *merge(stored, position[single], part.entries, entry[single])
        if versions is not None and several.any():
            place, (entries, records) = position[several], versions.of(entry[several])
            folded = fold_into_base(stored.take(pa.array(place)), entries, records, self.context.rule, self.sets)
            rows = align(folded.rows.select(self.columns.names), self.columns)
            yield place, folded.replaced, folded.removed, rows

    def _replaced(
        self, stored: pa.Table, position: np.ndarray, entries: pa.Table, entry: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, pa.Table]:
        """Return masks of the stored rows that are replaced and removed, and the replacing rows, all from entries.

        Few columns decide which version wins, so only these are read of both sides before the decision.
        """
        rule = self.context.rule
        deciding = [name for name in rule.compared if name in stored.column_names] or stored.column_names[:1]
        base = stored.select(deciding).take(pa.array(position))
        merged = merge_base(base, entries.select([*deciding, *CONTROL.names]).take(pa.array(entry)), rule, self.sets)
        rows = entries.select(self.columns.names).take(pa.array(entry[merged.replaced]))
        return merged.replaced, merged.removed, align(rows, self.columns)

    def _mixed(
        self, stored: pa.Table, position: np.ndarray, entries: pa.Table, entry: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, pa.Table]:
        """Return the same as `_replaced`, for replacing rows with values of both sides."""
        taken = stored.take(pa.array(position)), entries.take(pa.array(entry))
        merged = merge_base(*taken, self.context.rule, self.sets)
        rows = align(merged.rows.select(self.columns.names), self.columns)
        return merged.replaced, merged.removed, rows


def _with_ordering(context: SliceContext, columns: pa.Schema) -> pa.Schema:
    """Return the columns of a base row that are needed if an entry's row replaces it completely or not at all.

    Meta columns with few values stay dictionary-encoded, because indices are faster to filter than strings.
    """
    wanted = {*columns.names, *context.rule.compared}
    fields = [field for field in context.table if field.name in wanted]
    return pa.schema([field.with_type(REPEATED) if field.name in REPEATING else field for field in fields])
