"""Write incoming rows directly to new base files, without look-up (bulk_insert and overwrites).

Rows are grouped by partition, and each partition has one open file. A file is closed at the maximum size, or earlier if
the bloom filters of all open files exceed their share of the memory budget.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa

from lakehouse.core.files.base.base_writer import BaseFileWriter
from lakehouse.core.files.base.file_bloom_filter import complete_small
from lakehouse.core.files.stage.markers import TaskMarkers, base_marker
from lakehouse.core.files.stage.staging import KEY, PATH, keyed
from lakehouse.core.files.stage.write_context import MIN_KEYS_PER_FILE, Batches, WriteContext, give_back
from lakehouse.core.rows.record_merge import says_deleted
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat

_GATHERED_ROWS = 131_072
#: Number of files that are completed together; each has a bloom filter of some kilobytes.
_CLOSED_AT_ONCE = 512
#: Maximum number of files that are open on storage at the same time; a process usually may have 1,024.
_MOST_OPEN = 256


def write_shard(context: WriteContext, attempt: Attempt, batches: Batches) -> Iterator[WriteStat]:
    """Write the rows of one shard into new file groups and yield the write statistics of each file."""
    writers: dict[str, BaseFileWriter] = {}
    files = _NewFiles(context, attempt)
    taken = 0
    try:
        for gathered in _gathered(context, batches):
            taken += gathered.nbytes
            names, parts = _by_partition(context, gathered)
            files.expect(name for name in names if name not in writers)
            for partition, rows in parts:
                writer = writers.get(partition)
                if writer is None:
                    writer = writers[partition] = files.open(partition)
                writer.events.add(rows)
                writer.write_new(rows, rows.column(KEY))
                if writer.estimated_bytes >= context.policy.max_file_bytes:
                    yield _close(writers.pop(partition))
            for full in _relieve(context, writers):
                yield _close(writers.pop(full))
            if taken > context.budget.encode_bytes:
                give_back()
                taken = 0
        while writers:
            ending = list(writers)[:_CLOSED_AT_ONCE]
            complete_small([writers[partition].bloom for partition in ending])
            for partition in ending:
                yield _close(writers.pop(partition))
    except BaseException as error:
        for writer in writers.values():
            writer.__exit__(type(error), error, error.__traceback__)
        raise


def _gathered(context: WriteContext, batches: Batches) -> Iterator[pa.Table]:
    """Join batches until there are enough rows for grouping by partition."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _GATHERED_ROWS or size > context.budget.gathered_bytes:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)


def _by_partition(context: WriteContext, gathered: pa.Table) -> tuple[list[str], Iterator[tuple[str, pa.Table]]]:
    """Return the partitions of the rows, and an iterator that copies and yields the rows of each partition."""
    rows = keyed(context, gathered)
    deleted = says_deleted(rows, context.rule, context.schema)
    if deleted.any():
        rows = rows.filter(pa.array(~deleted))
    paths = rows.column(PATH).combine_chunks().dictionary_encode()
    paths = paths.chunk(0) if isinstance(paths, pa.ChunkedArray) else paths
    data, names = rows.drop_columns([PATH]), paths.dictionary.to_pylist()
    if len(names) == 1:
        return names, iter([(names[0], data)])
    return names, _parted(data, paths.indices.to_numpy(zero_copy_only=False), names)


def _parted(data: pa.Table, codes: np.ndarray, names: list[str]) -> Iterator[tuple[str, pa.Table]]:
    order = np.argsort(codes, kind="stable")
    data = data.combine_chunks()
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for code, name in enumerate(names):
        if bounds[code + 1] > bounds[code]:
            # Each partition gets a copy. Slices of one copy would keep the rows of all partitions in memory.
            yield name, data.take(pa.array(order[bounds[code] : bounds[code + 1]]))


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
