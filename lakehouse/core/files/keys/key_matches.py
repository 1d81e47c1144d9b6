"""Matches between stored rows and staged rows, in pieces of bounded size, in the order of the stored rows.

A matches file is written to the staging folder for each base file with matches. It has one row per matched stored row:

    base_row int64 (position in the base file, ascending) | run dictionary<string> | row int64 (position in the run) |
    kind int8: IN_PLACE, MOVED_OUT (the incoming row goes to another partition), LOST (the stored row is newer),
    DELETED (there is no stored row; a log deletes the key with an ordering value)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import numpy as np
import pyarrow as pa

from lakehouse.core.files.stage.staging import KEY, StagedReader
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import StagedEntry, TagResult, row_hashes, run_seed, united
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import BaseFile, FileSlice

Number = TypeVar("Number", int, np.ndarray)
IN_PLACE, MOVED_OUT, LOST, DELETED = 0, 1, 2, 3
# A run (or entry) and a position in it are encoded as one number.
_ROW_BITS = 40
_SEGMENT = pa.schema([("base_row", pa.int64()), ("run", pa.int32()), ("row", pa.int64()), ("kind", pa.int8())])


@dataclass(frozen=True, slots=True, kw_only=True)
class Matches:
    """Matches between one base file and staged rows, ordered by `base_row`. All arrays have the same length."""

    base_row: np.ndarray
    run: np.ndarray
    row: np.ndarray
    kind: np.ndarray
    runs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.base_row)

    def take(self, chosen: np.ndarray | slice) -> Matches:
        """Return the chosen matches, in that order."""
        return Matches(
            base_row=self.base_row[chosen],
            run=self.run[chosen],
            row=self.row[chosen],
            kind=self.kind[chosen],
            runs=self.runs,
        )


class MatchCollector:
    """Collects the matches of one base file, one part of the batch after the other; use as a context manager.

    The matches of a single part stay in memory. Matches of several parts go to a local file, because their number grows
    with the batch. A staged row belongs to exactly one part.
    """

    def __init__(self, context: WriteContext, entries: Sequence[StagedEntry]) -> None:
        self._context = context
        self._index = EntryIndex(entries)
        self._stack = ExitStack()
        self._first: Matches | None = None
        self._spill = ""
        self._writer: pa.ipc.RecordBatchFileWriter | None = None
        self._segments: list[Matches] | None = None
        self._rows = 0
        self._repeated: tuple[str, int] | None = None
        self._consumed: dict[str, int] = {}
        self._fingerprints: dict[str, int] = {}

    def __enter__(self) -> MatchCollector:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def add(self, matches: Matches) -> None:
        """Add the matches with one part of the batch."""
        if not len(matches):
            return
        matches = self._index.renamed(matches)
        # A stored row that is newer than the incoming row is not changed, so its file need not be rewritten.
        self._rows += int((matches.kind != LOST).sum())
        self._repeated = self._repeated or _repeated_row(matches)
        for number, used, fingerprint in self._index.consumed(matches):
            partition = self._index.entries[number].partition
            self._consumed[partition] = self._consumed.get(partition, 0) + used
            self._fingerprints[partition] = united((self._fingerprints.get(partition, 0), fingerprint))
        if self._first is None and self._writer is None:
            self._first = matches
            return
        if self._writer is None:
            directory = self._stack.enter_context(scratch_directory("lakehouse-matches-"))
            self._spill = f"{directory}/segments.arrow"
            self._writer = self._stack.enter_context(pa.ipc.new_file(self._spill, _SEGMENT))
        for segment in [matches] if self._first is None else [self._first, matches]:
            arrays = [pa.array(a) for a in (segment.base_row, segment.run, segment.row, segment.kind)]
            self._writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_SEGMENT))
        self._first = None

    def ordered(self) -> Iterator[Matches]:
        """Yield all matches in the order of the stored rows, piece by piece. Call it after the last `add`."""
        if self._first is not None:
            yield self._first
        elif self._writer is not None:
            yield from _merged(self._spilled(self._writer), self._context.budget.matches)

    def write(self, attempt: Attempt, base: BaseFile | FileSlice) -> TagResult:
        """Write the matches file, unless there are no matches, and return the result of the look-up in `base`."""
        if self._first is None and self._writer is None:
            return TagResult(base=base)
        path = f"{self._context.staging}/matches/{base.file_id}_{attempt.token}.arrow"
        names = pa.array(self._index.runs, pa.string())
        schema = _SEGMENT.set(1, pa.field("run", pa.dictionary(pa.int32(), pa.string())))
        with self._context.storage.open_output(path) as sink, pa.ipc.new_file(sink, schema) as writer:
            for matches in self.ordered():
                run = pa.DictionaryArray.from_arrays(pa.array(matches.run, pa.int32()), names)
                columns = [pa.array(matches.base_row), run, pa.array(matches.row), pa.array(matches.kind)]
                writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        return TagResult(
            base=base,
            matches_file=path,
            matched_rows=self._rows,
            consumed=self._consumed,
            fingerprints=self._fingerprints,
            repeated_key=self.repeated_key(),
        )

    def repeated_key(self) -> str | None:
        """Return a key of the batch that several stored rows have; None if there is no such key."""
        if self._repeated is None:
            return None
        run, row = self._repeated
        with StagedReader(self._context, run) as reader:
            key: str = reader.slice(row, 1, [KEY]).column(0)[0].as_py()
        return key

    def _spilled(self, writer: pa.ipc.RecordBatchFileWriter) -> list[Matches]:
        if self._segments is None:
            writer.close()
            reader = pa.ipc.open_file(self._stack.enter_context(pa.memory_map(self._spill)))
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
            self._segments = [_of_batch(batch, self._index.runs) for batch in batches]
        return self._segments


class EntryIndex:
    """Finds the entry that contains a staged row, given the run and the position of the row in the run."""

    def __init__(self, entries: Sequence[StagedEntry]) -> None:
        self.runs = tuple(sorted({entry.run for entry in entries}))
        number = {run: n for n, run in enumerate(self.runs)}
        self.entries = tuple(sorted(entries, key=lambda entry: (entry.run, entry.offset)))
        self._starts = np.array([_code(number[e.run], e.offset) for e in self.entries], np.int64)
        self._upserts = np.array([e.upserts for e in self.entries], np.int64)
        self._offsets = np.array([e.offset for e in self.entries], np.int64)
        seeds = {run: run_seed(run) for run in self.runs}
        self._seeds = np.array([seeds[e.run] for e in self.entries], np.uint64)

    def renamed(self, matches: Matches) -> Matches:
        """Return the matches numbered by the runs of this index, without matches of other runs."""
        if matches.runs == self.runs:
            return matches
        numbers = {run: n for n, run in enumerate(self.runs)}
        number = np.array([numbers.get(run, -1) for run in matches.runs], np.int32)[matches.run]
        matches = Matches(base_row=matches.base_row, run=number, row=matches.row, kind=matches.kind, runs=self.runs)
        return matches if (number >= 0).all() else matches.take(number >= 0)

    def entries_of(self, run: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the entry, and the position in it, of rows that are named by number of the run and position."""
        code = _code(run.astype(np.int64), row)
        entry = np.searchsorted(self._starts, code, side="right") - 1
        return entry, code - self._starts[entry]

    def used_upserts(self, matches: Matches) -> tuple[np.ndarray, np.ndarray]:
        """Return the entry, and the position in it, of the upserts with a match, which are therefore not inserted."""
        stays = matches.kind != MOVED_OUT
        entry, position = self.entries_of(matches.run[stays], matches.row[stays])
        mine = (entry >= 0) & (position < self._upserts[entry])
        return entry[mine], position[mine]

    def consumed(self, matches: Matches) -> Iterator[tuple[int, int, int]]:
        """Yield entries with the number of their upserts with a match, and the fingerprint of these.

        Each upsert is counted once.
        """
        entry, position = self.used_upserts(matches)
        if len(entry):
            distinct = np.unique(_code(entry, position))
            entry, position = distinct >> _ROW_BITS, distinct & ((1 << _ROW_BITS) - 1)
            numbers, starts = np.unique(entry, return_index=True)
            hashes = row_hashes(self._seeds[entry], position + self._offsets[entry])
            sums = np.add.reduceat(hashes, starts)
            counts = np.diff(np.append(starts, len(entry)))
            yield from zip(numbers.tolist(), counts.tolist(), sums.tolist(), strict=True)


def stream_matches(context: WriteContext, path: str) -> Iterator[Matches]:
    """Yield the matches of a matches file in order, piece by piece as they were written."""
    with context.storage.open_input(path) as source, pa.ipc.open_file(source) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            run = batch.column(1)
            yield _of_batch(batch.set_column(1, "run", run.indices), tuple(run.dictionary.to_pylist()))


def without_held(context: WriteContext, matches: Matches, others: Sequence[tuple[str, bool]]) -> Matches:
    """Remove DELETED matches of rows that have a better match in another file.

    A match with a stored row is better than a match with a deleted key. Of two deleted keys, the one in the file with
    precedence is better.

    Args:
        context: The settings of the write.
        matches: The matches of one slice.
        others: Other matches files, and whether each one takes precedence over this one.
    """
    keep = np.ones(len(matches), bool)
    deleted = np.flatnonzero(matches.kind == DELETED)
    codes = _code(matches.run[deleted].astype(np.int64), matches.row[deleted])
    for path, has_precedence in others if len(deleted) else ():
        for piece in stream_matches(context, path):
            number = np.array([matches.runs.index(run) if run in matches.runs else -1 for run in piece.runs], np.int64)
            better = (piece.kind == IN_PLACE) | (has_precedence & (piece.kind == DELETED))
            better &= number[piece.run] >= 0
            taken = _code(number[piece.run[better]], piece.row[better])
            keep[deleted[np.isin(codes, taken)]] = False
    return matches if keep.all() else matches.take(keep)


def read_matches(context: WriteContext, path: str) -> Matches:
    """Return all matches of a matches file."""
    pieces = list(stream_matches(context, path))
    if not pieces:
        empty = np.array([], np.int64)
        return Matches(base_row=empty, run=empty, row=empty, kind=empty, runs=())
    return _joined(pieces)


def _repeated_row(matches: Matches) -> tuple[str, int] | None:
    """Return the run and the position of a staged row that changes several stored rows."""
    chosen = matches.take((matches.kind == IN_PLACE) | (matches.kind == MOVED_OUT))
    codes = np.sort(_code(chosen.run.astype(np.int64), chosen.row))
    repeated = codes[1:][codes[1:] == codes[:-1]]
    if not len(repeated):
        return None
    return chosen.runs[int(repeated[0]) >> _ROW_BITS], int(repeated[0]) & ((1 << _ROW_BITS) - 1)


def _merged(segments: Sequence[Matches], limit: int) -> Iterator[Matches]:
    """Merge ordered pieces. Only the matches in one range of stored rows are in memory."""
    start = min(int(segment.base_row[0]) for segment in segments)
    stop = max(int(segment.base_row[-1]) for segment in segments) + 1
    while start < stop:
        end = min(start + limit, stop)
        parts = [s.take(slice(*np.searchsorted(s.base_row, (start, end)).tolist())) for s in segments]
        joined = _joined([part for part in parts if len(part)] or parts[:1])
        if len(joined):
            yield joined.take(np.argsort(joined.base_row, kind="stable"))
        start = end


def _joined(pieces: Sequence[Matches]) -> Matches:
    if len(pieces) == 1:
        return pieces[0]
    return Matches(
        base_row=np.concatenate([piece.base_row for piece in pieces]),
        run=np.concatenate([piece.run for piece in pieces]),
        row=np.concatenate([piece.row for piece in pieces]),
        kind=np.concatenate([piece.kind for piece in pieces]),
        runs=pieces[0].runs,
    )


def _of_batch(batch: pa.RecordBatch, runs: tuple[str, ...]) -> Matches:
    base_row, run, row, kind = (batch.column(i).to_numpy() for i in range(4))
    return Matches(base_row=base_row, run=run, row=row, kind=kind, runs=runs)


def _code(number: Number, row: Number) -> Number:
    code: Number = (number << _ROW_BITS) + row
    return code
