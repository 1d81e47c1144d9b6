"""Compare the key ranges of base files with staged keys: a file without a key in its range is not opened (MDT-13).

The ranges come from the index partition `column_stats` of the metadata table. A file without range may contain every
key, and so may one whose bounds have characters that UTF-16 and UTF-8 order differently, because writers differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.keys.key_lookup import Entries, key_parts, staged_keys
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.arrow_versions import search_sorted
from lakehouse.core.index.write_tasks import StagedEntry
from lakehouse.model.attempt import Attempt

RANGES = pa.schema([("file", pa.int64()), ("partition", pa.string()), ("low", pa.string()), ("high", pa.string())])
#: Characters from U+E000 on, whose order relative to surrogates differs between UTF-16 and UTF-8.
_ORDERED_DIFFERENTLY = r"[\x{E000}-\x{10FFFF}]"
#: Number of keys that are compared first. If each file has one of them in its range, the other keys need not be sorted.
_SAMPLE = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeTask:
    """Compare base files, rows of `RANGES`, with the keys of `entries`."""

    ranges: pa.Table
    entries: Entries


def plan_range_tasks(entries: Sequence[StagedEntry], ranges: pa.Table, *, is_global: bool) -> tuple[RangeTask, ...]:
    """Return tasks that compare all files with all keys, or the files of each partition with its keys.

    Args:
        entries: The staged entries of the batch.
        ranges: The known ranges of base files, as `RANGES`.
        is_global: Whether a key may be in the files of any partition.
    """
    usable = usable_ranges(ranges)
    staged = sorted(entries, key=lambda e: (e.partition, e.run, e.offset))
    if is_global:
        return (RangeTask(ranges=usable, entries=tuple(staged)),) if staged and usable.num_rows else ()
    tasks = []
    for partition in dict.fromkeys(entry.partition for entry in staged):
        of_partition = usable.filter(pc.equal(usable.column("partition"), partition))
        if of_partition.num_rows:
            own = tuple(entry for entry in staged if entry.partition == partition)
            tasks.append(RangeTask(ranges=of_partition, entries=own))
    return tuple(tasks)


def usable_ranges(ranges: pa.Table) -> pa.Table:
    """Return the ranges with both bounds, in an order on which all writers agree."""
    usable = pa.array(np.ones(ranges.num_rows, np.bool_))
    for name in ("low", "high"):
        bound = ranges.column(name)
        differs = pc.fill_null(pc.match_substring_regex(bound, _ORDERED_DIFFERENTLY), True)
        usable = pc.and_(usable, pc.invert(differs))
    return ranges.filter(usable)


def files_without_keys(context: WriteContext, attempt: Attempt, task: RangeTask) -> np.ndarray:
    """Return the numbers (column `file`) of the task's files that have no staged key in their range."""
    rest = task.ranges
    for part in key_parts(context, task.entries, asks_filters=True):
        keys = staged_keys(context, part).combine_chunks()
        for some in (keys.slice(0, _SAMPLE), keys):
            rest = rest.filter(pa.array(~has_key(rest, some)))
            if not rest.num_rows:
                return np.array([], np.int64)
    numbers: np.ndarray = rest.column("file").to_numpy()
    return numbers


def has_key(ranges: pa.Table, keys: pa.Array) -> np.ndarray:
    """Return for each range whether one of the keys is in it, bounds included."""
    ordered = keys.take(pc.sort_indices(keys))
    low, high = (ranges.column(name).combine_chunks() for name in ("low", "high"))
    first, end = search_sorted(ordered, low, "left"), search_sorted(ordered, high, "right")
    contains_key: np.ndarray = end > first
    return contains_key
