"""Read the changes of one commit in one file group, from its change log or from the slices before and after it.

    change log       before slice   after slice
    op, key, images       │              │
        └─ keys ──────────┴── rows of ───┴─► pairs by key: both and different = u, only after = i, only before = d

Rows that wait to be paired stay in memory while they fit a share of the budget. Otherwise they are split by key hash
into local files, and paired file by file. If several rows share a key, the first row before is paired with the first
row after, and so on. Deletes precede inserts and updates, so that a replay by key does not delete a new row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import align
from lakehouse.core.files.log.log_reader import KEY, SliceContext, read_entries
from lakehouse.core.files.log.slice_log_merge import HashSplit
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.format.avro.decode import decode_avro_rows
from lakehouse.core.format.avro.schema import META_COLUMNS, avro_to_arrow
from lakehouse.core.format.json_rows import json_objects
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.cdc import AFTER, BEFORE, OP, RECORD_KEY, Op, change_schema, image, image_type, rows_of
from lakehouse.core.planning.cdc import ChangeCase, ChangePart, FileGroupChange
from lakehouse.core.rows.log_entries import ColumnSets
from lakehouse.core.rows.stored_names import by_current_names, stored_names
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CleanedHistoryError, CorruptTableError
from lakehouse.model.files import FileSlice, LogFile

_COMMIT_TIME, _SEQNO = META_COLUMNS[0], META_COLUMNS[1]
#: The images of a change.
SIDES = (BEFORE, AFTER)
#: The meta columns that differ between a rewritten row and a row that was copied unchanged.
_VERSION = (_COMMIT_TIME, _SEQNO)
_MIN_SIDE_BYTES = 64 * 1024
_MIN_ROWS, _MAX_ROWS = 1_024, 65_536
_BYTES_PER_VALUE = 24
_WAYS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeContext:
    """The settings for reading changes; small and picklable.

    Attributes:
        slices: The settings for reading the newest slices.
        images: The data columns of rows before and after.
        completions: The completion times of the writes on the timeline, by requested time. A log file with a version-6
            name has blocks of several commits, so they decide which blocks a slice before or after a commit includes.
    """

    slices: SliceContext
    images: pa.Schema
    completions: Mapping[str, str] = field(default_factory=dict)

    def before(self, change: FileGroupChange) -> SliceContext:
        """Return the settings for the slice before a change."""
        at = self.completions.get(change.instant, "")
        return self._with_blocks(frozenset(write for write, time in self.completions.items() if time < at))

    def after(self, change: FileGroupChange) -> SliceContext:
        """Return the settings for the slice after a change."""
        at = self.completions.get(change.instant, "")
        return self._with_blocks(frozenset(write for write, time in self.completions.items() if time <= at))

    def _with_blocks(self, instants: frozenset[str]) -> SliceContext:
        if not self.completions:
            return self.slices
        return replace(self.slices, visible=replace(self.slices.visible, instants=instants))

    @property
    def stored(self) -> pa.Schema:
        """The columns to read of slices: key and version of each row, then the columns of its image."""
        table = self.slices.table
        return pa.schema([*(table.field(name) for name in (KEY, *_VERSION)), *self.images])

    @property
    def rows_at_once(self) -> int:
        """The number of rows per result table, within a share of the budget."""
        width = 2 * len(self.images) * _BYTES_PER_VALUE
        return min(max(self.slices.budget_bytes // 16 // width, _MIN_ROWS), _MAX_ROWS)


def read_changes(context: ChangeContext, change: FileGroupChange, sides: Collection[str] = SIDES) -> Iterator[pa.Table]:
    """Yield the changes as tables of `change_schema(context.images)`, within the memory budget.

    Only rows of `change.part` are returned. If a key has several changes, deletes come first.

    Args:
        context: The settings.
        change: The changes of one commit in one file group.
        sides: The images that are used, BEFORE, AFTER or both; the other one may be null in all rows.

    Raises:
        CleanedHistoryError: Files that the changes are computed from were cleaned.
        CorruptTableError: The change log is damaged.
    """
    if change.case is ChangeCase.AS_IS:
        yield from _logged(context, change, sides)
    elif change.case is ChangeCase.BASE_FILE_INSERT:
        for rows in _rows_after(context, change) if change.part.has_upserts else ():
            yield _changes(context, change, Op.INSERT, after=rows)
    elif change.case in (ChangeCase.BASE_FILE_DELETE, ChangeCase.REPLACE_COMMIT):
        for rows in _rows_before(context, change) if change.part.has_deletes else ():
            yield _changes(context, change, Op.DELETE, before=rows)
    else:
        keys = _keys_of_logs(context.after(change), change.logs) if change.case is ChangeCase.LOG_FILE else None
        images = (_rows_before(context, change), _rows_after(context, change))
        yield from _paired(context, change, keys, images)


def _logged(context: ChangeContext, change: FileGroupChange, sides: Collection[str]) -> Iterator[pa.Table]:
    blocks = _blocks(context, change.change_logs)
    held = {name for _, block in blocks for name in avro_to_arrow(block.schema or "").names}
    if AFTER in held or not blocks:
        for path, block in blocks:
            yield from _whole_records(context, change, (path, block), sides)
        return
    if change.after is None or (BEFORE not in held and change.before is None):
        raise CleanedHistoryError(
            f"the change log of {change.instant} in file group {change.file_id} of partition {change.partition!r} "
            "has no images, and the files that have them were cleaned. Begin after that commit, let the cleaner "
            "retain more of them, or let tables log DATA_BEFORE_AFTER",
            instant=change.instant,
        )
    keys = (records.column(RECORD_KEY) for records in _records(context, blocks, [RECORD_KEY]))
    before = _images_before(context, change, blocks) if BEFORE in held else _rows_before(context, change)
    yield from _paired(context, change, keys, (before, _rows_after(context, change)), always=True)


def _whole_records(
    context: ChangeContext, change: FileGroupChange, block: tuple[str, LogBlock], sides: Collection[str]
) -> Iterator[pa.Table]:
    schema = change_schema(context.images)
    used = [name for name in SIDES if name in sides]
    fields = stored_names(context.images, change.instant).values()
    for records in _records(context, [block], [OP, *used], fields):
        records = _ordered(records, change.part)
        images = {name: _image_of(context, change, records.column(name), schema.field(name).type) for name in used}
        columns = [images.get(name, pa.nulls(records.num_rows, schema.field(name).type)) for name in SIDES]
        times = pa.repeat(change.instant, records.num_rows)
        made = pa.Table.from_arrays([records.column(OP), times, *columns], schema=schema)
        for start in range(0, made.num_rows, context.rows_at_once):
            yield made.slice(start, context.rows_at_once)


def _ordered(records: pa.Table, part: ChangePart) -> pa.Table:
    """Return the records of a change log that belong to the part, deletes first."""
    deletes = pc.fill_null(pc.equal(records.column(OP), Op.DELETE.value), False)
    pieces = [records.filter(deletes)] if part.has_deletes else []
    if pieces and not pieces[0].num_rows:
        # Logs usually contain only updates, which need no copy.
        return records if part.has_upserts else pieces[0]
    if part.has_upserts:
        pieces.append(records.filter(pc.invert(deletes)))
    return pa.concat_tables(pieces)


def _image_of(
    context: ChangeContext, change: FileGroupChange, column: pa.ChunkedArray, kind: pa.StructType
) -> pa.StructArray:
    """Return an image column of a change log in the columns of the result."""
    stored = rows_of(column)
    rows = align(by_current_names(stored, context.images, change.instant), context.images, stored.num_rows)
    if not column.null_count:
        return image(rows, kind)
    position = np.cumsum(np.asarray(pc.is_valid(column))) - 1
    return image(rows, kind, pa.array(position, mask=np.asarray(pc.is_null(column))))


def _images_before(
    context: ChangeContext, change: FileGroupChange, blocks: list[tuple[str, LogBlock]]
) -> Iterator[pa.Table]:
    """Yield the rows before the change from the log. They have no version columns."""
    for records in _records(context, blocks, [RECORD_KEY, BEFORE]):
        there = records.filter(pc.is_valid(records.column(BEFORE)))
        stored = by_current_names(rows_of(there.column(BEFORE)), context.stored, change.instant)
        rows = stored.append_column(KEY, there.column(RECORD_KEY))
        yield align(rows, context.stored)


def _blocks(context: ChangeContext, logs: Iterable[LogFile]) -> list[tuple[str, LogBlock]]:
    located = []
    for log in logs:
        try:
            with context.slices.storage.open_input(log.path) as source:
                blocks = scan_blocks(source)
        except NotFoundError as error:
            raise CleanedHistoryError(
                f"change log {log.path} was cleaned, so the changes of {log.instant} can no longer be read. Begin "
                "after that commit, or let the cleaner retain more of them",
                instant=log.instant,
            ) from error
        for block in blocks:
            if block.kind is not BlockType.CDC_DATA or block.schema is None:
                raise CorruptTableError(
                    f"{context.slices.storage.root}/{log.path}: a {block.kind.name} block at byte {block.offset} is "
                    "not a complete change block",
                    path=log.path,
                )
            located.append((log.path, block))
    return located


def _records(
    context: ChangeContext,
    blocks: list[tuple[str, LogBlock]],
    columns: list[str],
    fields: Collection[str] | None = None,
) -> Iterator[pa.Table]:
    """Yield the records of each block, with some fields of their images.

    The whole block is in memory, as it was in its writer.
    """
    for path, block in blocks:
        assert block.schema is not None, "blocks without schema were refused"
        with context.slices.storage.open_input(path) as source:
            source.seek(block.offset)
            content = source.read(block.length)
        yield decode_avro_rows(content, block.schema, columns, fields)


def _rows_before(context: ChangeContext, change: FileGroupChange) -> Iterator[pa.Table]:
    return _rows(context.before(change), change.before, context.stored)


def _rows_after(context: ChangeContext, change: FileGroupChange) -> Iterator[pa.Table]:
    return _rows(context.after(change), change.after, context.stored)


def _rows(slices: SliceContext, file_slice: FileSlice | None, columns: pa.Schema) -> Iterator[pa.Table]:
    if file_slice is None:
        return
    for _, rows in read_slice(slices, file_slice, columns):
        yield rows


def _keys_of_logs(slices: SliceContext, logs: tuple[LogFile, ...]) -> Iterator[pa.ChunkedArray]:
    columns = slices.merging(pa.schema([slices.table.field(KEY)]))
    for entries in read_entries(slices, logs, columns, ColumnSets()):
        yield entries.column(KEY)


def _changes(
    context: ChangeContext,
    change: FileGroupChange,
    op: Op,
    *,
    before: pa.Table | None = None,
    after: pa.Table | None = None,
) -> pa.Table:
    schema = change_schema(context.images)
    changed = after if after is not None else before
    assert changed is not None, "a change has a row before or a row after"
    count = changed.num_rows
    kind = schema.field(BEFORE).type
    images = [pa.nulls(count, kind) if rows is None else image(rows, kind) for rows in (before, after)]
    return pa.Table.from_arrays([pa.repeat(op.value, count), pa.repeat(change.instant, count), *images], schema=schema)


def _paired(
    context: ChangeContext,
    change: FileGroupChange,
    keys: Iterator[pa.ChunkedArray] | None,
    versions: tuple[Iterator[pa.Table], Iterator[pa.Table]],
    *,
    always: bool = False,
) -> Iterator[pa.Table]:
    """Yield the differences between the rows of `keys`, or all rows if None, before and after a commit.

    `versions` are the rows before and the rows after. With `always`, each row that is on both sides is an update.
    """
    limit = max(context.slices.budget_bytes // 16, _MIN_SIDE_BYTES)
    with scratch_directory("lakehouse-changes-") as directory:
        wanted = _Side(Path(directory), "keys", pa.schema([pa.field(KEY, pa.string())]), limit)
        for piece in keys or ():
            wanted.add(pa.table({KEY: piece}))
        wanted_keys = None if keys is None else wanted.in_memory()
        sides = [_Side(Path(directory), name, context.stored, limit) for name in SIDES]
        for side, rows in zip(sides, versions, strict=True):
            for piece in rows:
                side.add(piece if wanted_keys is None else _of_keys(piece, wanted_keys))
        is_split = any(side.is_split for side in (wanted, *sides))
        for part, old, new in zip(*(side.parts(split=is_split) for side in (wanted, *sides)), strict=True):
            if keys is not None and wanted_keys is None:
                old, new = _of_keys(old, part), _of_keys(new, part)
            yield from _pairs(context, change, old, new, always=always)


def _of_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    return rows.filter(pc.is_in(rows.column(KEY), value_set=keys.column(KEY).combine_chunks()))


class _Side:
    """Rows that wait to be paired: up to `limit` bytes in memory, then in local files by the hash of their keys."""

    def __init__(self, directory: Path, name: str, schema: pa.Schema, limit: int) -> None:
        self._place, self._schema, self._limit = (directory, name), schema, limit
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._split: HashSplit | None = None

    @property
    def is_split(self) -> bool:
        """Whether the rows exceeded the memory limit."""
        return self._split is not None

    def add(self, rows: pa.Table) -> None:
        """Append rows."""
        if self._split is not None:
            self._split.add(rows)
        elif rows.num_rows:
            self._held.append(rows)
            self._bytes += rows.nbytes
            if self._bytes > self._limit:
                self._spill()

    def in_memory(self) -> pa.Table | None:
        """Return all rows; None if they are in files."""
        return None if self._split is not None else self._all()

    def parts(self, *, split: bool) -> Iterator[pa.Table]:
        """Yield the rows; with `split` in as many parts as every other split side has."""
        if not split:
            yield self._all()
            return
        self._spill()
        assert self._split is not None
        for path in self._split.finish():
            if path is None:
                yield self._schema.empty_table()
                continue
            with pa.OSFile(str(path)) as source:
                rows = pa.ipc.open_stream(source).read_all()
            path.unlink()
            yield rows

    def _all(self) -> pa.Table:
        return pa.concat_tables([self._schema.empty_table(), *self._held])

    def _spill(self) -> None:
        if self._split is None:
            self._split = HashSplit(*self._place, _WAYS)
            for rows in self._held:
                self._split.add(rows)
            self._held, self._bytes = [], 0


def _pairs(
    context: ChangeContext, change: FileGroupChange, old: pa.Table, new: pa.Table, *, always: bool
) -> Iterator[pa.Table]:
    """Yield the changes from the rows `old` to the rows `new`: first deletes, then inserts and updates."""
    ids = _identities(old.column(KEY), new.column(KEY))
    _, old_row, new_row = np.intersect1d(ids[: old.num_rows], ids[old.num_rows :], True, True)
    came_from = np.full(new.num_rows, -1)
    came_from[new_row] = old_row
    shows = np.ones(new.num_rows, bool)
    if not always:
        shows[new_row] = _differ(context, old.take(pa.array(old_row)), new.take(pa.array(new_row)))
    gone = np.ones(old.num_rows, bool)
    gone[old_row] = False
    shows &= change.part.has_upserts
    gone &= change.part.has_deletes
    after = np.concatenate([np.full(int(gone.sum()), -1), np.flatnonzero(shows)])
    before = np.concatenate([np.flatnonzero(gone), came_from[shows]])
    schema = change_schema(context.images)
    ops = pa.array([Op.INSERT.value, Op.UPDATE.value, Op.DELETE.value])
    for start in range(0, len(after), context.rows_at_once):
        rows = [side[start : start + context.rows_at_once] for side in (before, after)]
        op = ops.take(pa.array(np.where(rows[1] < 0, 2, np.where(rows[0] < 0, 0, 1))))
        images = [
            image(side, schema.field(BEFORE).type, pa.array(row, mask=row < 0))
            for side, row in zip((old, new), rows, strict=True)
        ]
        yield pa.Table.from_arrays([op, pa.repeat(change.instant, len(op)), *images], schema=schema)


def _identities(old: pa.ChunkedArray, new: pa.ChunkedArray) -> np.ndarray:
    """Return a number for each row, old ones first. The n-th rows of one key have equal numbers on both sides."""
    whole = pa.concat_arrays([pa.array([], pa.string()), *old.chunks, *new.chunks])
    codes = whole.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    count = len(old)
    nth = np.concatenate([_occurrences(codes[:count]), _occurrences(codes[count:])])
    identities: np.ndarray = codes * (int(nth.max(initial=0)) + 1) + nth
    return identities


def _occurrences(codes: np.ndarray) -> np.ndarray:
    """Return for each code the number of equal codes before it."""
    order = np.argsort(codes, kind="stable")
    ranked = codes[order]
    starts = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]])) if len(codes) else np.array([], int)
    lengths = np.diff(np.append(starts, len(codes)))
    nth = np.empty(len(codes), np.int64)
    nth[order] = np.arange(len(codes)) - np.repeat(starts, lengths)
    return nth


def _differ(context: ChangeContext, old: pa.Table, new: pa.Table) -> np.ndarray:
    """Return which rows were rewritten, judged by their versions, and by their values if merges mix versions."""
    differ = np.zeros(old.num_rows, bool)
    for name in _VERSION:
        differ |= np.asarray(pc.fill_null(pc.not_equal(old.column(name), new.column(name)), True))
    if context.slices.mixes_versions:
        kind = image_type(context.images)
        differ |= np.asarray(pc.not_equal(json_objects(image(old, kind)), json_objects(image(new, kind))))
    return differ
