"""Query the bloom filters that are stored in base files for files that may contain staged keys (MDT-13).

The filters of a metadata table are read by a few requests, and no file without a key of the batch is opened. A file
whose filter is not stored, or cannot be used, may contain every key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from lakehouse.core.files.keys.key_lookup import CandidateKeys, Entries, key_parts, staged_keys
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import StagedEntry
from lakehouse.model.attempt import Attempt

#: Maximum number of filters that a task has in memory; one takes about 150 KB, or more for a large file.
_FILTERS = 128
#: Minimum number of filters per task, because each task reads all files of the index.
_LEAST_FILTERS = 64


class StoredFilters(Protocol):
    """The bloom filters of a metadata table."""

    def bloom_filters(self, files: pa.Table) -> pa.Table:
        """Return partition, name, type and encoded filter of the files that have a filter."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterTask:
    """Test the keys of `entries` against the filters of some base files, given by partition and name."""

    files: tuple[tuple[str, str], ...]
    entries: Entries


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredFiles:
    """Base files by partition and name: files that contain no key of the batch, and files with a usable filter."""

    excluded: frozenset[tuple[str, str]] = frozenset()
    asked: frozenset[tuple[str, str]] = frozenset()


def plan_filters(
    entries: Sequence[StagedEntry], files: Sequence[tuple[str, str]], *, parallelism: int
) -> tuple[FilterTask, ...]:
    """Return tasks that query the filters of `files`; each call of the metadata table returns many filters."""
    staged = tuple(sorted(entries, key=lambda e: (e.partition, e.run, e.offset)))
    ordered = sorted(files)
    size = min(_FILTERS, max(_LEAST_FILTERS, -(-len(ordered) // parallelism)))
    return tuple(
        FilterTask(files=tuple(ordered[first : first + size]), entries=staged) for first in range(0, len(ordered), size)
    )


def filter_files(context: WriteContext, filters: StoredFilters, attempt: Attempt, task: FilterTask) -> FilteredFiles:
    """Return the files of the task that contain no staged key of their partition; with a global index no staged key."""
    tested: set[tuple[str, str]] = set()
    possible: set[tuple[str, str]] = set()
    rows = filters.bloom_filters(_files(task.files))
    names = list(zip(*(rows.column(name).to_pylist() for name in ("partition", "name", "type")), strict=True))
    texts = rows.column("filter").combine_chunks()
    by_partition: dict[str, list[int]] = {}
    for number, (partition, _, _) in enumerate(names):
        by_partition.setdefault(context.layout.scope(partition), []).append(number)
    for searched, numbers in by_partition.items():
        entries = context.layout.entries_for(task.entries, searched)
        for part in key_parts(context, entries, asks_filters=True) if entries else ():
            candidates = CandidateKeys(staged_keys(context, part))
            for number in numbers:
                partition, name, kind = names[number]
                may_contain = candidates.of_filter(f"{partition}/{name}", texts[number].as_py(), kind)
                if may_contain is not None:
                    tested.add((partition, name))
                    if may_contain.any():
                        possible.add((partition, name))
    return FilteredFiles(excluded=frozenset(tested - possible), asked=frozenset(tested))


def united(results: Sequence[FilteredFiles]) -> FilteredFiles:
    """Combine the results of several tasks."""
    return FilteredFiles(
        excluded=frozenset().union(*(one.excluded for one in results)),
        asked=frozenset().union(*(one.asked for one in results)),
    )


def _files(files: Sequence[tuple[str, str]]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([partition for partition, _ in files], pa.string()),
            "name": pa.array([name for _, name in files], pa.string()),
        }
    )
