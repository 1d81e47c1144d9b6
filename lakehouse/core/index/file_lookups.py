"""Plans of indexes that find keys by reading files (TL-6, DATA-7.1).

staged rows of a partition:   u u u u u u u u | d d       u = upsert, d = delete
tag:   found in files A, B    A A . B . . A . | A .       one matches file for A, one for B
plan:  A and B are rewritten with their matches. The 4 upserts without a match are inserts, numbered 0..3.
       Inserts fill small files first, then new groups of `rows_per_file` rows each.

Inserts of a hot partition are divided over more groups, so that no task gets more than twice the mean
(`index.spread`). Large values of the spread column have groups of their own; the others share groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from lakehouse.core.index.matched_rows import fingerprint_of, united
from lakehouse.core.index.protocol import Groups, IndexSetup
from lakehouse.core.index.spread import spread
from lakehouse.core.index.write_tasks import GroupTask, Sizing, StagedEntry, TagResult, TagTask
from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.files import FileSlice


def plan_tags(
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    *,
    global_keys: bool,
    parallelism: int,
    read_logs_of: Groups = frozenset(),
) -> tuple[TagTask, ...]:
    """Return the look-ups that find the staged keys in stored files.

    Args:
        entries: The staged entries of the batch.
        slices: The newest file slices of the partitions to search.
        global_keys: Search each key in the files of all partitions; otherwise only in those of its own partition.
        parallelism: The number of tasks that run at the same time.
        read_logs_of: File groups whose logs are read too. For other groups only the base file is read.
    """
    by_partition = _by_partition(entries)
    everything = tuple(entry for partition in sorted(by_partition) for entry in by_partition[partition])
    wanted = FileSlices.of(slices)
    if not global_keys:
        wanted = wanted.filter(members(wanted.partitions, list(by_partition)))
    reads_logs = wanted.is_in_groups(read_logs_of) | ~wanted.has_base
    tasks = []
    for file_slice in wanted.filter(reads_logs) if everything else ():
        searched = everything if global_keys else tuple(by_partition[file_slice.partition])
        tasks.append(TagTask(bases=(), entries=searched, slices=(file_slice,)))
    bases = wanted.filter(~reads_logs)
    # The files of one task share one read of the staged keys. Enough tasks remain to keep all cores busy.
    size = max(1, -(-len(bases) // (4 * parallelism)))
    for partition, of_partition in _parts(bases, -bases.base_sizes) if everything else ():
        searched = everything if global_keys else tuple(by_partition[partition])
        files = of_partition.bases()
        tasks += [TagTask(bases=files[i : i + size], entries=searched) for i in range(0, len(files), size)]
    return tuple(tasks)


# parameters: those of `plan_tags`, and the setup
def plan_filtered_tags(
    setup: IndexSetup,
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    *,
    global_keys: bool,
    parallelism: int,
    read_logs_of: Groups,
) -> tuple[TagTask, ...]:
    """Return the look-ups of a bloom index: files ask their filter first, unless a stored filter was asked before.

    Base files whose stored filter excludes all keys are not searched. Groups in `read_logs_of` are searched in any
    case, because logs may have other keys than the base file.
    """
    staged = list(entries)
    searched = FileSlices.of(slices)
    searched = searched.filter(~(searched.is_in_groups(setup.without_keys - read_logs_of) & searched.has_base))
    is_asked = searched.is_in_groups(setup.asked)
    asked, others = searched.filter(is_asked), searched.filter(~is_asked)
    tasks = [
        replace(task, asks_filters=asks_filters)
        for some, asks_filters in ((others, True), (asked, False))
        for task in plan_tags(staged, some, global_keys=global_keys, parallelism=parallelism, read_logs_of=read_logs_of)
    ]
    return tuple(tasks)


def plan_located_tags(
    setup: IndexSetup,
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    *,
    parallelism: int,
    read_logs_of: Groups,
) -> tuple[TagTask, ...]:
    """Return look-ups in the file groups that have keys of the batch by their stored locations (`setup.located`).

    A group in `read_logs_of` is searched with its logs, unless locations are trusted.
    """
    staged = tuple(sorted(entries, key=lambda e: (e.partition, e.run, e.offset)))
    located = setup.located
    found = FileSlices.of(slices).in_groups(located).ordered()
    trusted, others = [s for s in found if _is_trusted(setup, s)], [s for s in found if not _is_trusted(setup, s)]
    merged = [s for s in others if s.base is None or (s.partition, s.file_id) in read_logs_of]
    read = [s for s in others if s.base is not None and (s.partition, s.file_id) not in read_logs_of]
    tasks = [TagTask(bases=(), entries=staged, slices=(s,), located=(located[s.partition, s.file_id],)) for s in merged]
    for some, trusts in ((trusted, True), (read, False)):
        bases = [s.base for s in some if s.base is not None]
        # Enough tasks remain to keep all cores busy.
        size = max(1, -(-len(bases) // (4 * parallelism)))
        for first in range(0, len(bases), size):
            chosen = tuple(bases[first : first + size])
            rows = tuple(located[base.partition, base.file_id] for base in chosen)
            tasks.append(TagTask(bases=chosen, entries=staged, located=rows, trusts_locations=trusts))
    return tuple(tasks)


def plan_groups(
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    tags: Sequence[TagResult],
    setup: IndexSetup,
    new_file_id: Callable[[], str],
) -> tuple[GroupTask, ...]:
    """Return one task per file group that changes.

    Groups with matches are rewritten, or get a log file if `setup.appends` (merge on read). Inserts fill small files,
    then new groups. On a merge-on-read table only files without logs are filled, because their groups are rewritten.

    Args:
        entries: The staged entries of the batch.
        slices: The newest file slices of groups that may take inserts or log files.
        tags: The results of all look-ups.
        setup: The sizes of files, and whether changes are appended to logs.
        new_file_id: Returns the id of a new file group.
    """
    tasks: dict[tuple[str, str], GroupTask] = {}
    for tag in tags:
        if tag.matched_rows:
            group = (tag.base.partition, tag.base.file_id)
            base = tag.base.base if isinstance(tag.base, FileSlice) else tag.base
            tasks[group] = GroupTask(partition=group[0], file_id=group[1], base=base, matches_file=tag.matches_file)
            if tag.deleted_rows:
                tasks[group] = replace(tasks[group], all_stored=False, other_matches=_other_matches(tag, tags))
    available = FileSlices.of(slices)
    by_partition, consuming = _by_partition(entries), _consuming(tags)
    small, added = _small_files(available, setup, by_partition), list[_Added]()
    for partition, staged in sorted(by_partition.items()):
        of_partition = consuming.get(partition, [])
        inserts = sum(entry.upserts for entry in staged) - sum((tag.consumed or {})[partition] for tag in of_partition)
        consumed_by = tuple(tag.matches_file for tag in of_partition if tag.matches_file)
        if inserts <= 0 and len(consumed_by) > 1 and not _all_matched(staged, of_partition):
            # A row whose key is in several files is counted by each of them, so some rows may still be inserts.
            inserts = 1
        if of_partition:
            added.append(_Added(partition, None, staged, inserts, consumed_by))
        else:
            added += _by_value(partition, staged)
    most = _rows_per_task(added, setup.sizing)
    for number, one in enumerate(added):
        own = (piece for piece in small.get(one.partition, ()) if setup.owners.get(piece.file_id) == one.value)
        sizing = replace(setup.sizing, rows_per_task=most[number])
        for task in _insert_tasks(one.partition, one.inserts, own, sizing, new_file_id):
            group = (one.partition, task.file_id)
            planned = tasks.get(group, task)
            tasks[group] = replace(
                planned,
                entries=tuple(one.entries),
                insert_range=task.insert_range,
                consumed_by=one.consumed_by,
                value=one.value,
            )
    if setup.appends:
        logged = [group for group, task in tasks.items() if task.matches_file and task.insert_range is None]
        slice_of = {(s.partition, s.file_id): s for s in available.in_groups(logged)}
        tasks |= {group: replace(tasks[group], appends=True, file_slice=slice_of.get(group)) for group in logged}
    return tuple(tasks[group] for group in sorted(tasks))


class _Added(NamedTuple):
    """Inserts that may share file groups: those of a partition, or of one large value in it."""

    partition: str
    value: str | None
    entries: Sequence[StagedEntry]
    inserts: int
    consumed_by: tuple[str, ...] = ()


def _by_value(partition: str, staged: Sequence[StagedEntry]) -> list[_Added]:
    """Return the inserts of a partition in which no key has a match, by the large values of the spread column."""
    values: dict[str | None, list[StagedEntry]] = {}
    for entry in staged:
        values.setdefault(entry.value, []).append(entry)
    ordered = sorted(values.items(), key=lambda pair: (pair[0] is not None, pair[0] or ""))
    return [_Added(partition, value, own, sum(entry.upserts for entry in own)) for value, own in ordered]


def _rows_per_task(added: Sequence[_Added], sizing: Sizing) -> list[int | None]:
    """Return the largest number of rows of a task for each of `added`; None if one task may have all of them."""
    if sizing.tasks <= 1:
        return [None] * len(added)
    weights = {number: float(max(one.inserts, 0)) for number, one in enumerate(added)}
    tasks_of = spread(weights, sizing.tasks).tasks_of
    return [
        max(-(-one.inserts // len(tasks_of[number])), sizing.least_rows, 1) if len(tasks_of[number]) > 1 else None
        for number, one in enumerate(added)
    ]


def without_groups(slices: Sequence[FileSlice], groups: Groups) -> FileSlices:
    """Return the slices that do not belong to some file groups."""
    found = FileSlices.of(slices)
    return found.filter(~found.is_in_groups(groups)) if groups else found


def _parts(slices: FileSlices, order: np.ndarray[Any, Any]) -> Iterable[tuple[str, FileSlices]]:
    """Yield the partitions, ascending, with their slices in this order."""
    partitions = slices.partitions.dictionary_encode()
    names = partitions.dictionary.to_pylist()
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    codes = rank[partitions.indices.to_numpy()]
    chosen = np.lexsort((order, codes))
    bounds = np.append(np.flatnonzero(np.diff(codes[chosen], prepend=-1)), len(chosen))
    for name, start, end in zip(sorted(names), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        yield name, slices.take(chosen[start:end])


def _small_files(slices: FileSlices, setup: IndexSetup, partitions: Iterable[str]) -> Mapping[str, FileSlices]:
    """Return the slices of each partition that inserts may fill, from the smallest one.

    They are filled in the order of their sizes, so that the plan does not depend on the order of the listing.
    """
    mask = slices.has_base & (slices.base_sizes < setup.sizing.small_file_bytes)
    if setup.appends:
        mask &= slices.log_counts == 0
    small = slices.filter(mask)
    small = small.filter(members(small.partitions, list(partitions))).ordered()
    return dict(_parts(small, small.base_sizes))


def _consuming(tags: Iterable[TagResult]) -> dict[str, list[TagResult]]:
    """Return the results that found upserts of each partition."""
    found: dict[str, list[TagResult]] = {}
    for tag in tags:
        for partition, used in (tag.consumed or {}).items():
            if used:
                found.setdefault(partition, []).append(tag)
    return found


def _all_matched(staged: Sequence[StagedEntry], tags: Sequence[TagResult]) -> bool:
    """Return whether each upsert of a partition has exactly one match, by the results that found some of them.

    It is False if it is unknown.
    """
    partition, counted = staged[0].partition, 0
    found = []
    for tag in tags:
        if tag.fingerprints is None:
            return False
        counted += (tag.consumed or {})[partition]
        found.append(tag.fingerprints.get(partition, 0))
    return counted == sum(entry.upserts for entry in staged) and united(found) == fingerprint_of(staged)


def _other_matches(tag: TagResult, tags: Sequence[TagResult]) -> tuple[tuple[str, bool], ...]:
    others = [
        t
        for t in tags
        if t.matches_file and t.matches_file != tag.matches_file and t.base.partition == tag.base.partition
    ]
    return tuple((t.matches_file or "", t.base.file_id < tag.base.file_id) for t in others)


def _insert_tasks(
    partition: str, inserts: int, small: Iterable[FileSlice], sizing: Sizing, new_file_id: Callable[[], str]
) -> list[GroupTask]:
    tasks: list[GroupTask] = []
    start, most = 0, inserts if sizing.rows_per_task is None else sizing.rows_per_task
    for base in (piece.base for piece in small if inserts > 0):
        if start >= inserts:
            break
        free = 0 if base is None else min(sizing.free_rows(base), most, inserts - start)
        if base is not None and free > 0:
            tasks.append(
                GroupTask(partition=partition, file_id=base.file_id, base=base, insert_range=(start, start + free))
            )
            start += free
    while start < inserts:
        count = min(sizing.rows_per_file, most, inserts - start)
        tasks.append(GroupTask(partition=partition, file_id=new_file_id(), insert_range=(start, start + count)))
        start += count
    if tasks:
        # The number of inserts is an estimate if stored keys repeat, so the last task takes all rows that remain.
        last = tasks[-1].insert_range
        assert last is not None
        tasks[-1] = replace(tasks[-1], insert_range=(last[0], None))
    return tasks


def _by_partition(entries: Iterable[StagedEntry]) -> dict[str, list[StagedEntry]]:
    by_partition: dict[str, list[StagedEntry]] = {}
    for entry in sorted(entries, key=lambda e: (e.partition, e.run, e.offset)):
        by_partition.setdefault(entry.partition, []).append(entry)
    return by_partition


def _is_trusted(setup: IndexSetup, file_slice: FileSlice) -> bool:
    """Return whether rows are appended to a group unread. A small file may be rewritten with inserts instead."""
    base = file_slice.base
    if not setup.trusts_locations or base is None:
        return False
    return bool(file_slice.logs) or not setup.sizing.free_rows(base)
