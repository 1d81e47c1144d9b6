"""Write incoming rows directly to new base files, without look-up (bulk_insert and overwrites).

Rows are grouped by partition, and each partition has one open file. A file is closed at the maximum size, or earlier if
the bloom filters of all open files exceed their share of the memory budget.

With several threads, the next rows are keyed and grouped while the last ones are written, and the columns of a row
group are encoded concurrently. The last rows of files are encoded while keys are hashed. Files, their rows and their
bytes do not depend on the number of threads.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakehouse.core.files.base.base_writer import BaseFileWriter
from lakehouse.core.files.base.file_bloom_filter import complete_small
from lakehouse.core.files.stage.markers import TaskMarkers, base_marker
from lakehouse.core.files.stage.staging import KEY, keyed_rows, with_generated_keys
from lakehouse.core.files.stage.write_context import MIN_KEYS_PER_FILE, Batches, WriteContext, give_back
from lakehouse.core.format.arrow_versions import size_bytes
from lakehouse.core.rows.record_merge import says_deleted
from lakehouse.core.system.threads import ahead, parallel_map
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat

_GATHERED_ROWS = 131_072
#: Partitions whose rows are copied together.
_PARTITIONS_AT_ONCE = 64
#: Files that are completed together; each has a bloom filter of some kilobytes.
_CLOSED_AT_ONCE = 512
#: Files whose last rows are encoded together; each is open on storage.
_COMPLETED_TOGETHER = 16
#: Files that are open on storage at the same time; a process usually may have 1,024.
_MOST_OPEN = 256


def write_shard(context: WriteContext, attempt: Attempt, batches: Batches) -> Iterator[WriteStat]:
    """Write the rows of one shard into new file groups and yield the write statistics of each file."""
    writers: dict[str, BaseFileWriter] = {}
    files = _NewFiles(context, attempt)
    written = 0
    try:
        batches = with_generated_keys(context, attempt, batches)
        with closing(ahead(attempt.threads, _pieces(context, attempt.threads, batches))) as pieces:
            for piece in pieces:
                files.expect(name for name in piece.starting if name not in writers)
                for partition, rows in piece.parts:
                    writer = writers.get(partition)
                    if writer is None:
                        writer = writers[partition] = files.open(partition)
                    writer.events.add(rows)
                    writer.write_new(rows, rows.column(KEY))
                    if writer.estimated_bytes >= context.policy.max_file_bytes:
                        yield _close(writers.pop(partition))
                written += piece.size_bytes
                if not piece.ends:
                    continue
                for full in _relieve(context, writers):
                    yield _close(writers.pop(full))
                if written > context.budget.encode_bytes:
                    give_back()
                    written = 0
        while writers:
            ending = list(writers)[:_CLOSED_AT_ONCE]
            complete_small([writers[partition].bloom for partition in ending])
            for some in _together([writers[partition] for partition in ending], context.budget.hash_bytes):
                _complete(attempt.threads, some)
                for writer in some:
                    yield _close(writers.pop(writer.file.partition))
    except BaseException as error:
        for writer in writers.values():
            writer.__exit__(type(error), error, error.__traceback__)
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    """Rows of some partitions, of the rows that were gathered together.

    `starting` are all partitions of the gathered rows, in their first piece; `ends` marks their last piece.
    """

    starting: Sequence[str]
    parts: Sequence[tuple[str, pa.Table]]
    size_bytes: int
    ends: bool


def _gathered(context: WriteContext, batches: Batches) -> Iterator[pa.Table]:
    """Join batches until there are enough rows for grouping by partition."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + size_bytes(batch)
        if rows >= _GATHERED_ROWS or size > context.budget.gathered_bytes:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)


def _pieces(context: WriteContext, threads: int, batches: Batches) -> Iterator[_Piece]:
    """Yield the rows by partition; the rows of one partition keep their order."""
    for gathered in _gathered(context, batches):
        size = size_bytes(gathered)
        rows, paths = keyed_rows(context, gathered)
        del gathered
        deleted = says_deleted(rows, context.rule, context.schema)
        if deleted.any():
            rows, paths = rows.filter(pa.array(~deleted)), paths.filter(pa.array(~deleted)).dictionary_encode()
            paths = pa.DictionaryArray.from_arrays(*_used(paths))
        names = paths.dictionary.to_pylist()
        if len(names) <= 1:
            yield _Piece(starting=names, parts=[(name, rows) for name in names], size_bytes=size, ends=True)
            continue
        places = _places(paths, len(names))
        rows = rows.combine_chunks()
        for start in range(0, len(names), _PARTITIONS_AT_ONCE):
            stop = min(start + _PARTITIONS_AT_ONCE, len(names))
            # Each partition gets a copy. Slices of one copy would keep the rows of all partitions in memory.
            parts = parallel_map(threads, rows.take, places[start:stop])
            first, last = start == 0, stop == len(names)
            yield _Piece(
                starting=names if first else (),
                parts=list(zip(names[start:stop], parts, strict=True)),
                size_bytes=size if last else 0,
                ends=last,
            )


def _used(paths: pa.DictionaryArray) -> tuple[pa.Array, pa.Array]:
    """Return indices and dictionary of the paths without those that no row has."""
    encoded = paths.indices.dictionary_encode()
    return encoded.indices, paths.dictionary.take(encoded.dictionary)


def _places(paths: pa.DictionaryArray, count: int) -> list[pa.Array]:
    """Return the positions of the rows of each path, in order."""
    codes = paths.indices.to_numpy(zero_copy_only=False)
    # numpy sorts small integers in linear time.
    codes = codes.astype(np.uint16) if count <= 1 << 16 else codes
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=count))
    return [pa.array(places) for places in np.split(order, ends[:-1])]


class _NewFiles:
    """The files that a task attempt opens, one file group each; markers name many of them in advance."""

    def __init__(self, context: WriteContext, attempt: Attempt) -> None:
        self._context, self._attempt = context, attempt
        self._markers = TaskMarkers(context, attempt)
        self._opened: dict[str, int] = {}

    def expect(self, partitions: Iterable[str]) -> None:
        """Create the marker of the next file for each partition."""
        wanted = {name: self._opened.get(name, 0) for name in partitions}
        # Partitions that already have files fill up at a similar rate, so the same number of further files is marked
        # for each.
        ahead = (
            self._marker(name, number) for name, count in self._opened.items() for number in range(count, 2 * count)
        )
        self._markers.mark(*(self._marker(name, count) for name, count in wanted.items()), ahead=ahead)

    def open(self, partition: str) -> BaseFileWriter:
        """Open the next file of this partition."""
        self.expect([partition])
        number = self._opened.get(partition, 0)
        self._opened[partition] = number + 1
        writer = BaseFileWriter(self._markers, partition, self._file_id(partition, number))
        writer.__enter__()
        return writer

    def _marker(self, partition: str, number: int) -> str:
        file_id = self._file_id(partition, number)
        return base_marker(self._context, self._attempt, partition, file_id, is_new=True)

    def _file_id(self, partition: str, number: int) -> str:
        # Workers have no source of ids. Instant and attempt are unique, so an id that is derived from them is unique
        # too.
        context, token = self._context, self._attempt.token
        text = f"{context.storage.root}|{context.instant}|{token}|{partition}|{number}"
        return f"{uuid.UUID(bytes=hashlib.md5(text.encode()).digest(), version=4)}-0"


def _together(writers: Sequence[BaseFileWriter], limit: int) -> Iterator[list[BaseFileWriter]]:
    """Yield the writers in groups whose keys can be hashed concurrently within `limit` bytes."""
    group: list[BaseFileWriter] = []
    size = 0.0
    for writer in writers:
        if len(group) == _COMPLETED_TOGETHER or (group and size + writer.bloom.hashing_bytes > limit):
            yield group
            group, size = [], 0.0
        group.append(writer)
        size += writer.bloom.hashing_bytes
    if group:
        yield group


def _complete(threads: int, writers: Sequence[BaseFileWriter]) -> None:
    """Hash the keys and encode the last rows of files; both overlap, because numpy hashes in one thread only."""
    if threads > 1:
        work = [step for writer in writers for step in (writer.bloom.complete, writer.flush)]
        parallel_map(threads, lambda step: step(), work)


def _close(writer: BaseFileWriter) -> WriteStat:
    writer.__exit__(None, None, None)
    return writer.stat(inserts=writer.rows, updates=0, deletes=0)


def _relieve(context: WriteContext, writers: dict[str, BaseFileWriter]) -> Iterator[str]:
    """Reduce the memory of the open files to its share; yield the partitions whose file has to be closed for that."""
    budget = context.budget
    opened = sum(writer.is_open for writer in writers.values())
    for name in _largest(writers, lambda name: writers[name].pending_bytes, budget.open_files_bytes):
        if not writers[name].is_open and opened >= _MOST_OPEN:
            yield name
            continue
        opened += not writers[name].is_open
        writers[name].flush()
    for name in _largest(writers, lambda name: writers[name].bloom.held_bytes, budget.held_key_bytes):
        writers[name].bloom.hash_held()
    while sum(writer.bloom.filter_bytes for writer in writers.values()) > budget.filter_bytes:
        partition = max(writers, key=lambda name: writers[name].bloom.filter_bytes)
        if writers[partition].rows < MIN_KEYS_PER_FILE:
            return
        yield partition


def _largest(names: Iterable[str], size: Callable[[str], int], allowed: int) -> list[str]:
    """Return the names with the largest sizes, such that the other sizes add up to at most `allowed`."""
    ordered = sorted(names, key=size, reverse=True)
    rest = sum(map(size, ordered))
    chosen = []
    for name in ordered:
        if rest <= allowed:
            break
        chosen.append(name)
        rest -= size(name)
    return chosen
