"""Base files straight from an incoming shard, nothing looked up: bulk_insert and the overwrites.

Rows are set apart by partition; each partition has one open file, rolled over at the maximum size, or sooner if the
filters of all open files outgrow their share of the budget.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from lakehouse.io.base_writer import BaseFileWriter
from lakehouse.io.budget import MIN_KEYS_PER_FILE, give_back
from lakehouse.io.context import Batches, WriteContext
from lakehouse.io.staging import KEY, PATH, keyed
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.rows.merge import says_deleted

_GATHERED_ROWS = 131_072


def write_shard(context: WriteContext, attempt: Attempt, batches: Batches) -> Iterator[WriteStat]:
    """Write the rows of one shard into new file groups and yield the stat of each file."""
    writers: dict[str, BaseFileWriter] = {}
    numbers = iter(range(1 << 30))
    taken = 0
    try:
        for gathered in _gathered(context, batches):
            taken += gathered.nbytes
            for partition, rows in _by_partition(context, gathered):
                writer = writers.get(partition)
                if writer is None:
                    writer = writers[partition] = _open(context, attempt, partition, next(numbers))
                writer.write_new(rows, rows.column(KEY))
                if writer.estimated_bytes >= context.policy.max_file_bytes:
                    yield _close(writers.pop(partition))
            for full in _relieve(context, writers):
                yield _close(writers.pop(full))
            if taken > context.budget.encode_bytes:
                give_back()
                taken = 0
        for partition in list(writers):
            yield _close(writers.pop(partition))
    except BaseException as error:
        for writer in writers.values():
            writer.__exit__(type(error), error, error.__traceback__)
        raise


def _gathered(context: WriteContext, batches: Batches) -> Iterator[pa.Table]:
    """Join batches until there is enough to be worth setting apart by partition."""
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


def _by_partition(context: WriteContext, gathered: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    rows = keyed(context, gathered)
    deleted = says_deleted(rows, context.rule, context.schema)
    if deleted.any():
        rows = rows.filter(pa.array(~deleted))
    paths = rows.column(PATH).combine_chunks().dictionary_encode()
    paths = paths.chunk(0) if isinstance(paths, pa.ChunkedArray) else paths
    data, names = rows.drop_columns([PATH]), paths.dictionary.to_pylist()
    if len(names) == 1:
        yield names[0], data
        return
    codes = paths.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    data = data.combine_chunks()
    bounds = np.searchsorted(codes[order], np.arange(len(names) + 1))
    for code, name in enumerate(names):
        if bounds[code + 1] > bounds[code]:
            # A copy for each: a slice of one copy would keep the rows of all partitions until the last is encoded.
            yield name, data.take(pa.array(order[bounds[code] : bounds[code + 1]]))


def _open(context: WriteContext, attempt: Attempt, partition: str, number: int) -> BaseFileWriter:
    # A worker has no source of ids of its own: instant and attempt are unique, so what is derived from them is too.
    digest = hashlib.md5(f"{context.storage.root}|{context.instant}|{attempt.token}|{number}".encode()).digest()
    file_id = f"{uuid.UUID(bytes=digest, version=4)}-0"
    writer = BaseFileWriter(context, attempt, partition, file_id)
    writer.__enter__()
    return writer


def _close(writer: BaseFileWriter) -> WriteStat:
    writer.__exit__(None, None, None)
    return writer.stat(inserts=writer.rows, updates=0, deletes=0)


def _relieve(context: WriteContext, writers: dict[str, BaseFileWriter]) -> Iterator[str]:
    """Free memory of the open files down to its share; yield the partitions whose file must be closed for that."""
    budget = context.budget
    while sum(writer.pending_bytes for writer in writers.values()) > budget.open_files_bytes:
        max(writers.values(), key=lambda writer: writer.pending_bytes).flush()
    while sum(writer.bloom.held_bytes for writer in writers.values()) > budget.held_key_bytes:
        max(writers.values(), key=lambda writer: writer.bloom.held_bytes).bloom.hash_held()
    while sum(writer.bloom.filter_bytes for writer in writers.values()) > budget.filter_bytes:
        partition = max(writers, key=lambda name: writers[name].bloom.filter_bytes)
        if writers[partition].rows < MIN_KEYS_PER_FILE:
            return
        yield partition
