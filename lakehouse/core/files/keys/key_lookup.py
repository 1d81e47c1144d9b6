"""Look staged keys up in base files: one pass over the key column, hashed against the staged keys.

The matches are written to one matches file per base file in the staging folder. Only counts return to the plan.

Keys that a base file does not contain are excluded by its key range and its bloom filter (MDT-13). A file
without range or filter, or with a filter that cannot be used, may contain every key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader, convert
from lakehouse.core.files.keys.key_matches import IN_PLACE, LOST, MOVED_OUT, MatchCollector, Matches, read_matches
from lakehouse.core.files.stage.staging import StagedReader
from lakehouse.core.files.stage.write_context import Budget, WriteContext, give_back
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.format.parquet.bloom_probe import BloomProbe
from lakehouse.core.format.parquet.murmur_hash import key_blocks
from lakehouse.core.index.write_tasks import StagedEntry, TagResult, TagTask
from lakehouse.core.rows.keys import record_keys
from lakehouse.core.rows.record_merge import incoming_wins
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.display import some
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.index_type import BLOOM_MOVES, RECORD_MOVES, SIMPLE_MOVES
from lakehouse.spec.options.schema import MISSING_COLUMN

__all__ = ["IN_PLACE", "KEY", "LOST", "MOVED_OUT", "Matches", "read_matches"]

KEY = META_COLUMNS[2]
_KEY_BYTES = 64
#: Maximum number of columns in an error message.
_SHOWN = 10
#: Memory factor of keys that are tested against filters: their words, and the first hashes of a key (64 bytes), need
#: more memory than the keys.
FILTERED_KEY_FACTOR = 2.5
_SAMPLE_KEYS = 1_000
_VALUES_BATCH = 131_072
#: Number of consecutive files with keys of the batch after which filters are not used for further files. On a local
#: disk, using a filter takes a third of the time for reading the keys of a file with 20,000 rows.
_MOST_USELESS = 3
Entries = tuple[StagedEntry, ...]


def tag_files(context: WriteContext, attempt: Attempt, task: TagTask) -> list[TagResult]:
    """Look the keys of the task up in its base files, and write the matches of each to the staging folder."""
    is_local = context.storage.root.startswith("/")
    with ExitStack() as stack:
        readers = [BaseFileReader(context.storage, base.path) for base in task.bases]
        for reader in readers:
            stack.callback(reader.close)
        collectors = [stack.enter_context(MatchCollector(context, task.entries)) for _ in task.bases]
        for part in key_parts(context, task.entries, asks_filters=task.asks_filters):
            keys = staged_keys(context, part)
            bounds = pc.min_max(keys)
            candidates = CandidateKeys(keys) if task.asks_filters else None
            useless = 0
            for base, reader, matches in zip(task.bases, readers, collectors, strict=True):
                if not may_hold(reader, bounds):
                    continue
                possible = None if candidates is None else candidates.of_file(reader)
                if possible is not None and is_local:
                    # The key column is read anyway, so the filter of the file had no benefit.
                    useless = useless + 1 if len(possible) else 0
                    candidates = None if useless == _MOST_USELESS else candidates
                if possible is None:
                    matches.add(find(context, base, reader, StagedKeys(entries=part, keys=keys)))
                elif len(possible):
                    some = StagedKeys(entries=part, keys=keys.take(pa.array(possible)), positions=possible)
                    matches.add(find(context, base, reader, some))
        return [matches.write(attempt, base) for base, matches in zip(task.bases, collectors, strict=True)]


def match_file(
    context: WriteContext, base: BaseFile, reader: BaseFileReader, entries: Entries, matches: MatchCollector
) -> None:
    """Look the keys of `entries` up in one open base file and add the matching rows to `matches`."""
    for part in key_parts(context, entries):
        matches.add(find(context, base, reader, StagedKeys(entries=part, keys=staged_keys(context, part))))


def write_matches(
    context: WriteContext, attempt: Attempt, base: BaseFile | FileSlice, entries: Entries, parts: Iterable[Matches]
) -> TagResult:
    """Write the matches of one base file or slice to the staging folder; `parts` are the matches of each part."""
    with MatchCollector(context, entries) as collector:
        for matches in parts:
            collector.add(matches)
        return collector.write(attempt, base)


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedKeys:
    """Keys of staged rows: for all rows of `entries` in order, or for the rows at `positions`."""

    entries: Entries
    keys: pa.Array | pa.ChunkedArray
    positions: np.ndarray | None = None

    def rows(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the entry of each chosen key, and the position of its row in the entry."""
        staged = chosen if self.positions is None else self.positions[chosen]
        starts = np.concatenate([[0], np.cumsum([entry.rows for entry in self.entries])])
        entry = np.searchsorted(starts, staged, side="right") - 1
        return entry, staged - starts[entry]

    def matches(self, base_row: np.ndarray, entry: np.ndarray, position: np.ndarray, kind: np.ndarray) -> Matches:
        """Return the matches of stored rows with staged rows, which are named by entry and position in it."""
        runs = tuple(sorted({e.run for e in self.entries}))
        run_of_entry = np.array([runs.index(e.run) for e in self.entries], np.int32)
        offsets = np.array([e.offset for e in self.entries], np.int64)
        return Matches(base_row=base_row, run=run_of_entry[entry], row=position + offsets[entry], kind=kind, runs=runs)


def find(context: WriteContext, base: BaseFile, reader: BaseFileReader, staged: StagedKeys) -> Matches:
    """Return the matches between the rows of `base` and the staged keys."""
    base_row, staged_row = _positions(context, reader, staged.keys)
    entry, position = staged.rows(staged_row)
    kind = np.full(len(base_row), IN_PLACE, np.int8)
    if context.move_partitions and len(base_row):
        located = _Located(base_row=base_row, entry=entry, position=position)
        kind = _kinds(context, base, reader, staged.entries, located)
    return staged.matches(base_row, entry, position, kind)


def _positions(
    context: WriteContext, reader: BaseFileReader, keys: pa.Array | pa.ChunkedArray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the file whose key is in `keys`, and the position of that key in `keys`."""
    value_set = keys.combine_chunks() if isinstance(keys, pa.ChunkedArray) else keys
    base_rows, positions, start = [np.array([], np.int64)], [np.array([], np.int64)], 0
    for stored in stored_keys(context, reader):
        staged_row = pc.index_in(stored, value_set=value_set)
        base_rows.append(np.flatnonzero(np.asarray(pc.is_valid(staged_row))) + start)
        positions.append(staged_row.drop_null().to_numpy(zero_copy_only=False).astype(np.int64))
        start += len(stored)
    return np.concatenate(base_rows), np.concatenate(positions)


def stored_keys(context: WriteContext, reader: BaseFileReader) -> Iterator[pa.Array]:
    """Yield the record keys of a base file, in pieces that fit their share of the budget."""
    bounds = [reader.footer(name) for name in ("hoodie_min_record_key", "hoodie_max_record_key")]
    size = context.budget.looked_up_keys(max((len(bound) for bound in bounds if bound), default=_KEY_BYTES))
    if KEY in reader.schema.names and reader.has_values(KEY):
        yield from reader.column_batches(KEY, size)
        return
    for rows in reader.batches(pa.schema([f for f in context.schema if f.name in _roots(context)]), size):
        keys = record_keys(rows, context.keys)
        yield from keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]


def staged_keys(context: WriteContext, entries: Entries) -> pa.ChunkedArray:
    """Return the keys of the entries' rows, in order."""
    chunks: list[pa.Array] = []
    for entry in entries:
        with StagedReader(context, entry.run) as reader:
            chunks.extend(reader.slice(entry.offset, entry.rows, [KEY]).column(0).chunks)
    return pa.chunked_array(chunks, pa.string())


def _roots(context: WriteContext) -> set[str]:
    return {name.split(".")[0] for name in context.keys.record_key_fields}


def entry_parts(entries: Entries, budget_bytes: int, key_bytes: float = _KEY_BYTES) -> Iterator[Entries]:
    """Split the entries into parts whose keys and hash table fit their share of the budget."""
    limit = Budget(budget_bytes).hashed_keys(key_bytes)
    part: list[StagedEntry] = []
    capacity = limit
    for entry in entries:
        rest = entry
        while rest.rows > capacity:
            head = replace(rest, rows=capacity, deletes=max(capacity - rest.upserts, 0))
            yield (*part, head)
            give_back()
            rest = replace(
                rest,
                offset=rest.offset + capacity,
                rows=rest.rows - capacity,
                deletes=min(rest.deletes, rest.rows - capacity),
            )
            part, capacity = [], limit
        part.append(rest)
        capacity -= rest.rows
    if part:
        yield tuple(part)


def key_parts(context: WriteContext, entries: Entries, *, asks_filters: bool = False) -> Iterator[Entries]:
    """Split the entries into parts whose keys fit the budget of a look-up, or of a look-up that reads filters first."""
    factor = FILTERED_KEY_FACTOR if asks_filters else 1.0
    return entry_parts(entries, context.policy.memory_budget_bytes, factor * _key_bytes(context, entries))


def _key_bytes(context: WriteContext, entries: Entries) -> float:
    """Estimate the average size of a staged key from the first keys."""
    sample = replace(entries[0], rows=min(entries[0].rows, _SAMPLE_KEYS))
    size: int = staged_keys(context, (sample,)).nbytes
    return size / max(sample.rows, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Located:
    """Matches by their row in the base file, and the entry and the position in it of the staged row."""

    base_row: np.ndarray
    entry: np.ndarray
    position: np.ndarray


def _kinds(
    context: WriteContext,
    base: BaseFile,
    reader: BaseFileReader,
    entries: Entries,
    located: _Located,
) -> np.ndarray:
    """Return the kind of each match: IN_PLACE, MOVED_OUT or LOST (DATA-7.2)."""
    base_row, entry, position = located.base_row, located.entry, located.position
    elsewhere = np.array([e.partition != base.partition for e in entries])[entry]
    deletes = position >= np.array([e.upserts for e in entries])[entry]
    moving = np.flatnonzero(elsewhere & ~deletes)
    kind = np.full(len(base_row), IN_PLACE, np.int8)
    kind[moving] = MOVED_OUT
    if len(moving):
        refuse_moves(context, len(moving))
    if context.rule.compared and len(moving):
        rows = base_row[moving]
        stored = pa.table({name: _stored(context, reader, name, rows) for name in context.rule.compared})
        incoming = staged_ordering(context, entries, entry[moving], position[moving])
        wins = incoming_wins(context.rule, stored, incoming, None)
        kind[moving[~wins]] = LOST
    return kind


def refuse_moves(context: WriteContext, rows: int) -> None:
    """Raise UnsupportedError if rows that move to another partition would have to be merged with stored ones."""
    if not (context.rule.mixes or context.incoming.keeps):
        return
    if context.rule.mixes:
        cause = "the table merges values of both versions of a record"
        complete = "use a table without merger and partial updates"
    else:
        cause = f"the batch lacks {some(sorted(context.missing_columns), _SHOWN)}, whose stored values are kept"
        complete = f"add the columns, or write null to them with {MISSING_COLUMN}=null"
    raise UnsupportedError(
        f"{context.storage.root}: {rows} stored rows would move to another partition, and {cause}; a write does not "
        f"carry values from partition to partition. To update rows where they are, set {SIMPLE_MOVES}=false "
        f"({BLOOM_MOVES} or {RECORD_MOVES} with that index). To move them, {complete}.",
        columns=sorted(context.missing_columns),
    )


def _stored(context: WriteContext, reader: BaseFileReader, name: str, rows: np.ndarray) -> pa.ChunkedArray:
    """Return a column's values in `rows` of a base file; `rows` is ascending."""
    wanted = context.schema.field(name).type
    if name not in reader.schema.names:
        return pa.chunked_array([pa.nulls(len(rows), wanted)])
    chunks: list[pa.Array] = []
    start = 0
    for batch in reader.column_batches(name, _VALUES_BATCH):
        first, last = np.searchsorted(rows, (start, start + len(batch)))
        chunks.append(batch.take(pa.array(rows[first:last] - start)))
        start += len(batch)
    return convert(pa.chunked_array(chunks, reader.schema.field(name).type), wanted)


def staged_ordering(context: WriteContext, entries: Entries, entry: np.ndarray, position: np.ndarray) -> pa.Table:
    """Return the ordering columns of staged rows, which are named by entry and by position in it."""
    names = list(context.rule.compared)
    tables, order = [], []
    for number in np.unique(entry):
        chosen = np.flatnonzero(entry == number)
        with StagedReader(context, entries[number].run) as reader:
            tables.append(reader.take(position[chosen] + entries[number].offset, names))
        order.append(chosen)
    back = np.argsort(np.concatenate(order), kind="stable")
    return pa.concat_tables(tables).take(pa.array(back))


logger = logging.getLogger(__name__)

_MIN_KEY, _MAX_KEY = "hoodie_min_record_key", "hoodie_max_record_key"
# Hudi sorts keys by UTF-16 units. That order equals the order of code points for characters below this one.
_FIRST_SURROGATE = "\ud800"


def key_range(reader: BaseFileReader) -> tuple[str, str] | None:
    """Return the minimum and the maximum key in a base file's footer; None if they are unknown.

    Bounds with characters that UTF-16 and UTF-8 order differently are unknown too, because writers differ.
    """
    low, high = reader.footer(_MIN_KEY), reader.footer(_MAX_KEY)
    if low is None or high is None or max(low + high, default="") >= _FIRST_SURROGATE:
        return None
    return low, high


def may_hold(reader: BaseFileReader, bounds: pa.StructScalar) -> bool:
    """Return whether the key range of a file overlaps the range `bounds` (min, max) of a batch."""
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is None:
        return False
    stored = key_range(reader)
    return stored is None or (first <= stored[1] and last >= stored[0])


class CandidateKeys:
    """The keys of a batch, prepared once so that they can be tested against the filters of many files."""

    def __init__(self, keys: pa.ChunkedArray) -> None:
        self._keys = keys
        self._probe: BloomProbe | None = None

    def of_file(self, reader: BaseFileReader) -> np.ndarray:
        """Return the positions of the keys that the file may contain, ascending."""
        mask = np.ones(len(self._keys), np.bool_)
        bounds = key_range(reader)
        if bounds is not None:
            low, high = (pa.scalar(bound, pa.string()) for bound in bounds)
            inside = pc.and_(pc.greater_equal(self._keys, low), pc.less_equal(self._keys, high))
            mask = np.asarray(inside, np.bool_)
        positions = np.flatnonzero(mask)
        if not len(positions):
            return positions
        if len(positions) * 2 < len(self._keys):
            candidates: np.ndarray = positions[_of_few(reader, self._keys.take(pa.array(positions)))]
            return candidates
        may_contain = self.of_filter(reader.path, *_stored_filter(reader))
        return positions if may_contain is None else positions[may_contain[positions]]

    def of_filter(self, path: str, text: bytes | None, type_code: str | None) -> np.ndarray | None:
        """Return for each key whether a file may contain it, by its encoded filter, or None if all keys are possible.

        A filter that cannot be used is logged as a warning.
        """
        if not text:
            return None
        if self._probe is None:
            self._probe = BloomProbe(key_blocks(self._keys))
        try:
            possible = self._probe.candidates(text, type_code)
            if possible is not None:
                return possible
            bloom = BloomFilter.from_text(text.decode(), type_code)
        except (CorruptTableError, UnsupportedError, UnicodeDecodeError) as error:
            _warn(path, error)
            return None
        return _murmur(path, bloom, self._keys)


def _stored_filter(reader: BaseFileReader) -> tuple[bytes | None, str | None]:
    """Return the filter in a footer as bytes, and its type; no filter, with a warning, if it is not ASCII."""
    try:
        text, type_code = (reader.footer(key) for key in BLOOM_FOOTER)
    except CorruptTableError as error:
        _warn(reader.path, error)
        return None, None
    return None if text is None else text.encode(), type_code


def _of_few(reader: BaseFileReader, keys: pa.ChunkedArray) -> np.ndarray:
    """Return for each of some keys whether the file may contain it."""
    try:
        bloom = reader.bloom_filter()
    except (CorruptTableError, UnsupportedError) as error:
        _warn(reader.path, error)
        bloom = None
    possible = None if bloom is None else _murmur(reader.path, bloom, keys)
    return np.ones(len(keys), np.bool_) if possible is None else possible


def _murmur(path: str, bloom: BloomFilter, keys: pa.ChunkedArray) -> np.ndarray | None:
    if not bloom.hashes_murmur:
        logger.warning("%s: all keys are looked up, because its bloom filter has another hash than murmur", path)
        return None
    return bloom.might_contain(keys)


def _warn(path: str, error: Exception) -> None:
    logger.warning("%s: all keys are looked up, because its bloom filter cannot be used: %s", path, error)
