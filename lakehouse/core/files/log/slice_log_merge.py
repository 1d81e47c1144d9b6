"""Merge the logs of one slice to one entry per key, and match the entries with the rows of the base file.

Entries that fit into a share of the budget stay in memory as one part. Larger logs are split by key hash into local
files:

    entries ──hash──► part 0, 1, ...  each merged by itself, read back by memory map
    base keys ─hash──► part 0, 1, ...  each matched with the entries of its part: base row -> entry

If several base rows have the same key, only the first one is matched with the entry (DATA-5.2). Logs of Hudi may refer
to base rows by position; then these rows are matched.

The result of partial updates depends on the order of merging, so all versions of their keys are kept (`KeyVersions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.log.log_reader import KEY, SliceContext, read_entries
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock
from lakehouse.core.format.log.record_positions import decode_positions
from lakehouse.core.index.hash.bucket import bucket_ids
from lakehouse.core.rows.delta_merge import merge_entries
from lakehouse.core.rows.log_entries import RECORD, ColumnSets, Control
from lakehouse.model.files import LogFile
from lakehouse.model.merge import MergeRule, PartialMode

NamedRows: TypeAlias = Callable[[], np.ndarray | None]
#: Yields the keys of the base rows in file order, piece by piece, with the position of the first row of each piece. The
#: argument are the keys of the logs; rows that cannot have one of them may be left out. With None no row is.
StoredKeys: TypeAlias = Callable[[pa.ChunkedArray | None], Iterator[tuple[int, pa.Array]]]

_MIN_PART_BYTES = 64 * 1024
_BATCH_ROWS = 32_768
_ROW = "row"
_MAX_WAYS = 256
_EXPANSION = 8


@dataclass(frozen=True, slots=True)
class KeyVersions:
    """The entries of keys with several entries, which a base row must be merged with one after another.

    Attributes:
        entries: The entries. Entries of one key are adjacent, oldest first.
        starts: By merged entry, the position of its first version; `starts[n + 1] - starts[n]` is the number of
            versions, 0 if the merged entry is enough.
    """

    entries: pa.Table
    starts: np.ndarray

    @property
    def most(self) -> int:
        """The maximum number of versions per key."""
        return int(np.diff(self.starts).max(initial=0))

    def counts(self, entry: np.ndarray) -> np.ndarray:
        """Return the number of versions per merged entry."""
        numbers: np.ndarray = self.starts[entry + 1] - self.starts[entry]
        return numbers

    def of(self, entry: np.ndarray) -> tuple[pa.Table, np.ndarray]:
        """Return the versions of the merged entries that have versions, each with its position in `entry`."""
        counts = self.counts(entry)
        records = np.repeat(np.arange(len(entry)), counts)
        within = np.arange(len(records)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.entries.take(pa.array(self.starts[entry[records]] + within)), records

    def version(self, number: int) -> pa.Table:
        """Return version `number` (from 0) of the keys that have this many versions."""
        at = np.flatnonzero(np.diff(self.starts) > number)
        return self.entries.take(pa.array(self.starts[at] + number))


@dataclass(slots=True)
class LogPart:
    """The merged log entries for some keys, and the base rows with the same keys.

    Attributes:
        entries: The merged entries.
        base_row: The matched rows, as positions in the base file, ascending.
        entry: For each matched row, the position in `entries` of its merged entry.
        versions: The individual entries for keys whose merged entry is not sufficient to merge with a base row; None
            if there are no such keys.
    """

    entries: pa.Table
    base_row: np.ndarray
    entry: np.ndarray
    versions: KeyVersions | None = None

    def between(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the matched base rows in [start, stop) and the positions of their entries; None if there are none."""
        first, last = np.searchsorted(self.base_row, [start, stop])
        return None if first == last else (self.base_row[first:last], self.entry[first:last])

    def unmatched(self) -> Iterator[pa.Table]:
        """Yield the entries without a match, in pieces."""
        free = np.ones(self.entries.num_rows, bool)
        free[self.entry] = False
        rows = np.flatnonzero(free)
        for start in range(0, len(rows), _BATCH_ROWS):
            yield self.entries.take(pa.array(rows[start : start + _BATCH_ROWS]))


@dataclass(frozen=True, slots=True)
class LogMerge:
    """The merge of a slice's logs.

    Attributes:
        context: The settings for reading the slice.
        columns: The columns of the entries.
        sets: Collects the sets of columns that partial rows provide.
        directory: Creates a directory for entries that do not fit into memory; called if there are some. The directory
            must exist as long as the parts are used.
        base_instant: The instant of the base file; empty without base file.
        seen: Collects the valid and the damaged blocks.
    """

    context: SliceContext
    columns: pa.Schema
    sets: ColumnSets
    directory: Callable[[], Path]
    base_instant: str = ""
    seen: list[LogBlock] = field(default_factory=list)

    def parts(self, logs: Sequence[LogFile], stored_keys: StoredKeys) -> list[LogPart]:
        """Return the merged entries of `logs` as parts, matched with the base file."""
        context = self.context
        limit = max(context.budget_bytes // 4, _MIN_PART_BYTES)
        pending: list[pa.Table] = []
        size = 0
        stream = read_entries(context, logs, self.columns, self.sets, self.seen)
        for entries in stream:
            pending.append(entries)
            size += entries.nbytes
            if size > limit:
                break
        else:
            if not pending:
                return []
            merged, versions = self._merged(pa.concat_tables(pending))
            part = _matched(merged, _numbered(stored_keys(merged.column(KEY))), self._named_rows)
            part.versions = versions
            return [part]
        total = _stored_bytes(context, logs)
        # Logs are compressed, so entries take several times the size of their files.
        ways = min(max(_EXPANSION * total // limit, 4), _MAX_WAYS)
        return self._spilled(_chain(pending, stream), stored_keys, ways)

    def _spilled(self, entries: Iterator[pa.Table], stored_keys: StoredKeys, ways: int) -> list[LogPart]:
        directory = self.directory()
        log_side = HashSplit(directory, "log", ways)
        for rows in entries:
            log_side.add(rows)
        log_files = log_side.finish()
        base_side = HashSplit(directory, "base", ways)
        for numbered in _numbered(stored_keys(None)):
            base_side.add(numbered)
        base_files = base_side.finish()
        parts = []
        for number, path in enumerate(log_files):
            if path is None:
                continue
            with pa.OSFile(str(path)) as source:
                merged, versions = self._merged(pa.ipc.open_stream(source).read_all())
            path.unlink()
            mapped = _mapped(directory / f"merged-{number}.arrow", merged)
            base = base_files[number]
            part = _matched(mapped, _read_pieces(base) if base is not None else iter(()), self._named_rows)
            part.base_row = _mapped_numbers(directory / f"rows-{number}", part.base_row)
            part.entry = _mapped_numbers(directory / f"entries-{number}", part.entry)
            if versions is not None:
                several = _mapped(directory / f"versions-{number}.arrow", versions.entries)
                part.versions = KeyVersions(several, _mapped_numbers(directory / f"starts-{number}", versions.starts))
            parts.append(part)
        return parts

    def _merged(self, entries: pa.Table) -> tuple[pa.Table, KeyVersions | None]:
        """Return the merged entries, and the versions of the keys that a base row is merged with one after another."""
        rule = self.context.rule
        has_partial = rule.partial is not PartialMode.NONE or bool(Control.of(entries).columns.any())
        merged = merge_entries(entries, rule, self.sets)
        if rule.merger is not None or not has_partial or merged.num_rows == entries.num_rows:
            return merged, None
        codes = pc.index_in(entries.column(KEY), value_set=merged.column(KEY).combine_chunks()).to_numpy()
        counts = np.bincount(codes, minlength=merged.num_rows)
        counts[~_depends_on_order(codes, counts, Control.of(entries), rule)] = 0
        at = np.argsort(codes, kind="stable")
        at = at[counts[codes[at]] > 0]
        return merged, KeyVersions(entries.take(pa.array(at)), np.concatenate([[0], np.cumsum(counts)]))

    def _named_rows(self) -> np.ndarray | None:
        return _named_rows(self.seen, self.base_instant)


def _depends_on_order(codes: np.ndarray, counts: np.ndarray, control: Control, rule: MergeRule) -> np.ndarray:
    """Return the mask of the keys whose merged row depends on whether versions or the base row are merged first.

    Without ordering columns the newest value of each column wins in any order of merging, unless there is a delete in
    between.
    """
    several: np.ndarray = counts > 1
    if not rule.compared:
        deleted = np.bincount(codes, weights=control.kind != RECORD, minlength=len(counts)) > 0
        several &= deleted
    return several


def _stored_bytes(context: SliceContext, logs: Sequence[LogFile]) -> int:
    """Return the total size of log files. The size of a file that a plan names without size is read from storage."""
    total = 0
    for log in logs:
        if log.size_bytes:
            total += log.size_bytes
        else:
            with context.storage.open_input(log.path) as source:
                total += source.size()
    return total


def _chain(pending: list[pa.Table], rest: Iterator[pa.Table]) -> Iterator[pa.Table]:
    while pending:
        yield pending.pop(0)
    yield from rest


def _matched(entries: pa.Table, numbered: Iterator[pa.Table], named: NamedRows) -> LogPart:
    """Find the entry of each base row."""
    value_set = entries.column(KEY).combine_chunks()
    base_rows, positions = [np.array([], np.int64)], [np.array([], np.int64)]
    for piece in numbered:
        indices = pc.index_in(piece.column(KEY), value_set=value_set)
        base_rows.append(piece.column(_ROW).filter(indices.is_valid()).to_numpy())
        positions.append(indices.drop_null().to_numpy().astype(np.int64))
    base_row, entry = np.concatenate(base_rows), np.concatenate(positions)
    order = np.argsort(base_row, kind="stable")
    base_row, entry = base_row[order], entry[order]
    if len(entry) and np.bincount(entry).max() > 1:
        meets = _meeting(base_row, entry, named())
        base_row, entry = base_row[meets], entry[meets]
    return LogPart(entries=entries, base_row=base_row, entry=entry)


def _meeting(base_row: np.ndarray, entry: np.ndarray, named: np.ndarray | None) -> np.ndarray:
    """Return the mask of the matched base rows (ascending): rows at given positions, or the first row per key."""
    meets = np.zeros(len(entry), bool) if named is None else np.isin(base_row, named)
    is_met = np.zeros(entry.max() + 1, bool)
    is_met[entry[meets]] = True
    _, first = np.unique(entry, return_index=True)
    meets[first] |= ~is_met[entry[first]]
    return meets


def _named_rows(blocks: Sequence[LogBlock], base_instant: str) -> np.ndarray | None:
    """Return the base rows at the positions in the blocks.

    If some blocks have none, return None: keys then decide, as in Hudi.
    """
    texts = [
        block.headers.get(BlockHeader.RECORD_POSITIONS)
        for block in blocks
        if block.headers.get(BlockHeader.BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS) == base_instant
    ]
    blocks = [block for block in blocks if block.kind is not BlockType.CORRUPT]
    positions = [decode_positions(text) for text in texts if text is not None]
    return np.unique(np.concatenate(positions)) if positions and len(positions) == len(blocks) else None


def _numbered(stored_keys: Iterable[tuple[int, pa.Array]]) -> Iterator[pa.Table]:
    for start, keys in stored_keys:
        yield pa.table({KEY: keys, _ROW: pa.array(np.arange(start, start + len(keys)))})


def _mapped(path: Path, rows: pa.Table) -> pa.Table:
    """Write rows to a local file and return them as a memory map, which the system caches as needed."""
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows.combine_chunks(), max_chunksize=_BATCH_ROWS)
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def _mapped_numbers(path: Path, numbers: np.ndarray) -> np.ndarray:
    """Write numbers to a local file and return them as a memory map. There is one per matched row."""
    if not len(numbers):
        return numbers
    numbers.tofile(path)
    return np.memmap(path, numbers.dtype, mode="r")


def _read_pieces(path: Path) -> Iterator[pa.Table]:
    with pa.OSFile(str(path)) as source:
        for batch in pa.ipc.open_stream(source):
            yield pa.Table.from_batches([batch])
    path.unlink()


class HashSplit:
    """Splits rows by the hash of their record key into local files; each file keeps their order."""

    def __init__(self, directory: Path, name: str, ways: int) -> None:
        self._paths = [directory / f"{name}-{way}.arrows" for way in range(ways)]
        self._sinks: list[pa.OSFile | None] = [None] * ways
        self._writers: list[pa.ipc.RecordBatchStreamWriter | None] = [None] * ways

    def add(self, rows: pa.Table, keys: pa.Array | None = None) -> None:
        """Append rows to the files of their keys, by default their record keys."""
        ways = bucket_ids(
            rows.column(KEY) if keys is None else keys, key_fields=("",), hash_fields=("",), buckets=len(self._paths)
        )
        order = np.argsort(ways, kind="stable")
        bounds = np.searchsorted(ways[order], np.arange(len(self._paths) + 1))
        whole = rows.combine_chunks()
        for way in np.flatnonzero(bounds[1:] > bounds[:-1]).tolist():
            self._writer(way, rows.schema).write_table(whole.take(pa.array(order[bounds[way] : bounds[way + 1]])))

    def finish(self) -> list[Path | None]:
        """Close the files and return them; None for files without rows."""
        for writer, sink in zip(self._writers, self._sinks, strict=True):
            if writer is not None and sink is not None:
                writer.close()
                sink.close()
        return [path if writer is not None else None for path, writer in zip(self._paths, self._writers, strict=True)]

    def _writer(self, way: int, schema: pa.Schema) -> pa.ipc.RecordBatchStreamWriter:
        writer = self._writers[way]
        if writer is None:
            sink = self._sinks[way] = pa.OSFile(str(self._paths[way]), "wb")
            writer = self._writers[way] = pa.ipc.new_stream(sink, schema)
        return writer
