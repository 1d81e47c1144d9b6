"""Exchange the rows of a batch between tasks through staged files, so that all rows with one key are in one task.

part     each task combines its incoming rows with equal keys, and writes the rest grouped by ways: hashes of keys
merge    each task reads some ways of all parts, combines rows with equal keys again, and stages them as runs

Ways are stored one after the other in a part, and a task reads a range of ways with one request per part. A hot key
leaves one row per task that reads it, so ways have similar row counts even if keys are skewed. Combining does not
depend on the order of rows (`rows.deduplicate`), so doing it twice gives the same result. If a merge needs all versions
of a record, rows are only exchanged, not combined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from lakehouse.core.files.stage.staging import KEY, keyed, set_aside, stage_keyed, with_generated_keys
from lakehouse.core.files.stage.write_context import Batches, WriteContext
from lakehouse.core.format.java_hash import string_hashes
from lakehouse.core.index.write_tasks import StagedRun
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.model.attempt import Attempt

#: The odd number of multiplicative hashing. Buckets and spilled files use the last digits of the same hash, so ways are
#: chosen by other digits.
_MIXED = np.uint32(2_654_435_769)
_MIN_WAYS, _MAX_WAYS = 16, 1024
#: Minimum and maximum bytes of rows per task.
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """One file with rows of an incoming batch: Arrow's messages of record batches, in the order of their ways.

    Attributes:
        path: The file.
        ends: For each way, the offset after its last byte; a way without rows ends where the one before it does.
        schema: The columns.
        rows: The number of rows.
        incoming: The number of rows before equal keys were combined.
    """

    path: str
    ends: tuple[int, ...]
    schema: pa.Schema
    rows: int
    incoming: int

    def range_of(self, first: int, last: int) -> tuple[int, int]:
        """Return the first byte and the length of the ways from `first` up to, not including, `last`."""
        start = self.ends[first - 1] if first else 0
        return start, self.ends[last - 1] - start


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """The byte ranges of the part files that one task stages, as (path, first byte, length)."""

    ranges: tuple[tuple[str, int, int], ...]
    schema: pa.Schema


def ways_for(parallelism: int) -> int:
    """Return the number of ways, a power of two: several per concurrent task."""
    return min(max(1 << (4 * parallelism - 1).bit_length(), _MIN_WAYS), _MAX_WAYS)


def write_parts(context: WriteContext, ways: int, attempt: Attempt, batches: Batches) -> Iterator[StagedPart]:
    """Divide the input rows of a task into parts and write each part.

    Within a part, rows with the same key are combined.
    """
    pending, size, incoming, number = list[pa.Table](), 0, 0, 0
    for batch in with_generated_keys(context, attempt, batches):
        if not batch.num_rows:
            continue
        rows = keyed(context, batch)
        pending.append(rows)
        size, incoming = size + rows.nbytes, incoming + rows.num_rows
        if size > context.budget.pending_bytes:
            yield _write_part(context, f"part-{attempt.token}-{number}", ways, set_aside(context, pending), incoming)
            size, incoming, number = 0, 0, number + 1
    if pending:
        yield _write_part(context, f"part-{attempt.token}-{number}", ways, set_aside(context, pending), incoming)


def plan_merges(parts: Sequence[StagedPart], parallelism: int) -> list[MergeTask]:
    """Return tasks that merge ranges of ways from all parts, with about the same number of bytes each."""
    if not parts:
        return []
    filled = np.sum([part.ends for part in parts], axis=0)
    total = int(filled[-1])
    wanted = min(max(parallelism, -(-total // _MOST_BYTES)), total // _LEAST_BYTES + 1, len(filled))
    cuts = np.searchsorted(filled, np.arange(1, wanted) * (total / wanted)) + 1
    bounds = np.unique([0, *cuts.tolist(), len(filled)]).tolist()
    tasks = []
    for first, last in pairwise(bounds):
        ranges = [(part.path, *part.range_of(first, last)) for part in parts]
        tasks.append(MergeTask(ranges=tuple(one for one in ranges if one[2]), schema=parts[0].schema))
    return [task for task in tasks if task.ranges]


def merge_parts(context: WriteContext, attempt: Attempt, task: MergeTask) -> list[StagedRun]:
    """Stage the rows of a task as runs. If duplicates are combined, each key is in exactly one run, once."""
    with scratch_directory("lakehouse-spill-") as directory:
        return list(stage_keyed(context, attempt, _read(context, task), Path(directory)))


def _read(context: WriteContext, task: MergeTask) -> Iterator[pa.Table]:
    for path, start, length in task.ranges:
        source = pa.BufferReader(context.storage.get_range(path, start, length))
        while source.tell() < length:
            yield pa.Table.from_batches([pa.ipc.read_record_batch(pa.ipc.read_message(source), task.schema)])


def _write_part(context: WriteContext, name: str, ways: int, rows: pa.Table, incoming: int) -> StagedPart:
    # The high digits of the product depend on all digits of the hash.
    hashes = string_hashes(rows.column(KEY).combine_chunks()).view(np.uint32) * _MIXED
    way_of = (hashes >> np.uint32(32 - ways.bit_length() + 1)).astype(np.int64)
    order = np.argsort(way_of, kind="stable")
    bounds = np.searchsorted(way_of[order], np.arange(ways + 1))
    rows, path = rows.combine_chunks(), f"{context.staging}/{name}.arrow"
    ends, written = list[int](), 0
    with context.storage.open_output(path) as sink:
        for first, last in pairwise(bounds.tolist()):
            for batch in rows.take(pa.array(order[first:last])).to_batches() if last > first else ():
                message = batch.serialize()
                sink.write(message)
                written += message.size
            ends.append(written)
    return StagedPart(path=path, ends=tuple(ends), schema=rows.schema, rows=rows.num_rows, incoming=incoming)
