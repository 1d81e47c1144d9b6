"""Read the rows of one file slice: base rows merged with the logs, then rows that only the logs have (DATA-5.2,
DATA-0.1).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base_reader import REPEATED, REPEATING, BaseFileReader, align
from lakehouse.core.files.log_reader import COMMIT_TIME, KEY, SliceContext
from lakehouse.core.files.slice_log_merge import LogPart, fold_logs
from lakehouse.core.format.log.blocks import BlockType, LogBlock
from lakehouse.core.rows.final_merge import inserted, settle
from lakehouse.core.rows.keys import record_keys
from lakehouse.core.rows.log_entries import CONTROL, RECORD, ColumnSets, Control
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.model.files import FileSlice

_KEY_BYTES = 64


class Origin(Enum):
    """The origin of a row of a slice: unchanged in the base file, changed by a log, or in a log only."""

    KEPT = "kept"
    UPDATED = "updated"
    INSERTED = "inserted"


@dataclass(slots=True)
class SliceCounts:
    """The numbers of rows of a merge; complete after all rows were read.

    `log_entries`, `log_blocks`, `corrupt_blocks` (committed but damaged) and `unmatched` (entries without a base row)
    are complete before the first rows.
    """

    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    log_entries: int = 0
    log_blocks: int = 0
    corrupt_blocks: int = 0
    unmatched: int = 0


def read_slice(
    context: SliceContext,
    file_slice: FileSlice,
    columns: pa.Schema,
    counts: SliceCounts | None = None,
    base: BaseFileReader | None = None,
    deleted: list[pa.ChunkedArray] | None = None,
) -> Iterator[tuple[Origin, pa.Table]]:
    """Yield the rows of a slice as tables of `columns` (a part of the table's), within the memory budget.

    Columns named in base_reader.REPEATING may be asked for as dictionaries, which is what files hold.
    `base` is the slice's base file if the caller has it open already. `deleted` is given the keys that the logs delete
    as of an ordering value, before the first rows come; a row of the base file may be newer than such a delete.
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
            for rows in reader.batches(columns, reader.rows_within(context.budget_bytes // 8)):
                yield Origin.KEPT, rows
            return
        sets = ColumnSets()
        directory = Path(stack.enter_context(scratch_directory("lakehouse-slice-")))
        keys = _merging_keys(context, reader, sets) if reader is not None else iter(())
        base_instant = "" if file_slice.base is None else file_slice.base.instant
        seen: list[LogBlock] = []
        parts = fold_logs(
            context, file_slice.logs, merging, sets, keys, directory, base_instant=base_instant, seen=seen
        )
        counts.corrupt_blocks = sum(block.kind is BlockType.CORRUPT for block in seen)
        counts.log_blocks = len(seen) - counts.corrupt_blocks
        counts.log_entries = sum(part.entries.num_rows for part in parts)
        counts.unmatched = counts.log_entries - sum(len(np.unique(part.entry)) for part in parts)
        if deleted is not None:
            deleted += [_ordered_deletes(part.entries) for part in parts]
        if reader is not None:
            yield from _merged(context, reader, parts, merging, columns, sets, counts)
        for part in parts:
            for entries in part.unmatched():
                rows = align(inserted(entries, merging).select(columns.names), columns)
                counts.inserted += rows.num_rows
                if rows.num_rows:
                    yield Origin.INSERTED, rows


def _ordered_deletes(entries: pa.Table) -> pa.ChunkedArray:
    control = Control.of(entries)
    return entries.column(KEY).filter(pa.array((control.kind != RECORD) & ~control.default)).cast(pa.string())


def _merging_keys(context: SliceContext, reader: BaseFileReader, sets: ColumnSets) -> Iterator[pa.Array]:
    """Yield the keys of the base rows that are merged with logs; null for rows that are not.

    The logs have been read when the first key is requested, so `sets` says whether there are partial rows.
    """
    if context.commit_times is None or context.mixes_versions or len(sets.sets) > 1:
        yield from stored_keys(context, reader)
        return
    # Both columns in one pass. If they were read separately their batches might end at different rows.
    columns = pa.schema([context.table.field(COMMIT_TIME), context.table.field(KEY)])
    for rows in reader.batches(columns, _keys_at_once(context)):
        of_range = context.of_range(rows.column(COMMIT_TIME))
        yield pc.if_else(of_range, rows.column(KEY), pa.scalar(None, pa.string())).combine_chunks()


def _keys_at_once(context: SliceContext) -> int:
    return max(context.budget_bytes // 8 // _KEY_BYTES, 1_024)


def stored_keys(context: SliceContext, reader: BaseFileReader) -> Iterator[pa.Array]:
    """Yield the record keys of a base file in file order. Keys that are not stored (virtual keys) are computed."""
    rows = _keys_at_once(context)
    if KEY in reader.schema.names and reader.has_values(KEY):
        yield from reader.column_batches(KEY, rows)
        return
    roots = {name.split(".")[0] for name in context.keys.record_key_fields}
    for piece in reader.batches(pa.schema([field for field in context.table if field.name in roots]), rows):
        keys = pc.cast(record_keys(piece, context.keys), pa.string())
        yield from keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]


def _merged(
    context: SliceContext,
    reader: BaseFileReader,
    parts: list[LogPart],
    merging: pa.Schema,
    columns: pa.Schema,
    sets: ColumnSets,
    counts: SliceCounts,
) -> Iterator[tuple[Origin, pa.Table]]:
    start = 0
    whole = not context.mixes_versions and len(sets.sets) == 1
    needed = _with_ordering(context, columns) if whole else merging
    for stored in reader.batches(needed, reader.rows_within(context.budget_bytes // 16)):
        stop = start + stored.num_rows
        gone = None
        for part in parts:
            met = part.between(start, stop)
            if met is None:
                continue
            position = met[0] - start
            replaced, removed, rows = (_replaced if whole else _mixed)(
                context, stored, position, part.entries, met[1], columns, sets
            )
            gone = np.zeros(stored.num_rows, bool) if gone is None else gone
            gone[position[replaced | removed]] = True
            counts.deleted += int(removed.sum())
            if rows.num_rows:
                counts.updated += rows.num_rows
                yield Origin.UPDATED, rows
        kept = stored.select(columns.names)
        kept = kept if gone is None else kept.filter(pa.array(~gone))
        if kept.num_rows:
            yield Origin.KEPT, align(kept, columns)
        start = stop


def _replaced(
    context: SliceContext,
    stored: pa.Table,
    position: np.ndarray,
    entries: pa.Table,
    entry: np.ndarray,
    columns: pa.Schema,
    sets: ColumnSets,
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Return which of the stored rows are replaced, which removed, and what replaces them, all of it from entries.

    Which side survives is decided by few columns, so only those are gathered of both sides before it is known.
    """
    deciding = [name for name in context.rule.compared if name in stored.column_names] or stored.column_names[:1]
    base = stored.select(deciding).take(pa.array(position))
    settled = settle(base, entries.select([*deciding, *CONTROL.names]).take(pa.array(entry)), context.rule, sets)
    rows = entries.select(columns.names).take(pa.array(entry[settled.replaced]))
    return settled.replaced, settled.removed, align(rows, columns)


def _mixed(
    context: SliceContext,
    stored: pa.Table,
    position: np.ndarray,
    entries: pa.Table,
    entry: np.ndarray,
    columns: pa.Schema,
    sets: ColumnSets,
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Do the same where replacing rows take values of both sides."""
    settled = settle(stored.take(pa.array(position)), entries.take(pa.array(entry)), context.rule, sets)
    return settled.replaced, settled.removed, align(settled.rows.select(columns.names), columns)


def _with_ordering(context: SliceContext, columns: pa.Schema) -> pa.Schema:
    """Return the columns that a base row needs if the row of an entry replaces it completely or not at all.

    Meta columns with few values stay dictionary-encoded, because indices are faster to filter than texts.
    """
    wanted = {*columns.names, *context.rule.compared}
    fields = [field for field in context.table if field.name in wanted]
    return pa.schema([field.with_type(REPEATED) if field.name in REPEATING else field for field in fields])
