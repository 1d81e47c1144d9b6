"""Indexes that find keys in files or by stored locations: SIMPLE, BLOOM, RECORD_INDEX and their global variants.

simple   the key columns of the files
bloom    key ranges and bloom filters exclude files first (MDT-13); groups whose logs are read have no filter
record   the metadata table stores the file group of each key (MDT-4); only the groups of these locations are searched

# Plans

staged rows of a partition:   u u u u u u u u | d d       u = upsert, d = delete
tag:   found in files A, B    A A . B . . A . | A .       one matches file for A, one for B
plan:  A and B are rewritten with their matches. The 4 upserts without a match are inserts, numbered 0..3.
       Inserts fill small files first, then new groups of `rows_per_file` rows each.

Inserts into a hot partition are distributed over more groups, so that no task gets more than twice the mean (see
`spread`). Large values of the spread column have groups of their own; the others share groups.

# Spread of values with a skew: large values get tasks of their own, small ones share tasks

    value   a a a a a a a a a a | b b b | c c | d        weights 10, 3, 2, 1; four tasks, mean 4
    tasks   a a a a a | a a a a a | b d | c c ...        no task gets more than twice the mean

Proof of the bound for a mean m = W / n. A value of weight w > m gets k = floor(w / m) tasks of its own, each of weight
w / k < 2 m. These are at most n tasks, and the rest of the weight is at most m for each task that is left. Each small
value goes to the task with the minimum weight, which is at most m before, and adds at most m.

The rows of a split value are assigned to tasks by the hash of the record key, so that all rows of a key stay in one
task, or by position if the order of rows does not matter.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, Sizing, StagedEntry, TagResult, TagTask, fingerprint_of, united
from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import UserError
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True)
class FileIndex:
    """Searches stored keys in files.

    Attributes:
        setup: The facts about the table and the operation.
        global_keys: Whether a key is searched in the files of all partitions instead of its own partition. filters:
            Whether key ranges and bloom filters exclude files. A file without them is searched for every key. located:
            Whether the setup contains the locations of the batch's keys (`located`), which were read before.
    """

    setup: IndexSetup
    global_keys: bool = False
    filters: bool = False
    located: bool = False

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return look-ups in the files that may contain keys of the batch, or none if rows are only added."""
        if not self.setup.looks_up:
            return ()
        if self.located:
            return plan_located_tags(self.setup, entries, slices, parallelism=parallelism, read_logs_of=read_logs_of)
        if self.filters:
            return plan_filtered_tags(
                self.setup,
                entries,
                slices,
                global_keys=self.global_keys,
                parallelism=parallelism,
                read_logs_of=read_logs_of,
            )
        return plan_tags(
            entries, slices, global_keys=self.global_keys, parallelism=parallelism, read_logs_of=read_logs_of
        )

    def groups(
        self,
        entries: Sequence[StagedEntry],
        slices: Sequence[FileSlice],
        tags: Sequence[TagResult],
        *,
        in_clustering: Groups,
        new_uuid: NewUuid,
    ) -> tuple[GroupTask, ...]:
        """Return tasks that update the matched file groups and insert the other rows into small or new files."""
        available = without_groups(slices, in_clustering)
        return plan_groups(entries, available, tags, self.setup, lambda: f"{new_uuid()}-0")


V = TypeVar("V", bound=Hashable)
#: Multiples of the mean that are tried as maximum weight of a task, before the bound that is always possible.
_TRIED = (1.05, 1.1, 1.2, 1.35, 1.5, 1.75)


@dataclass(frozen=True, slots=True)
class Spread(Generic[V]):
    """Assignment of values to tasks.

    Attributes:
        tasks_of: By value, the numbers of its tasks. The rows of a value are divided among them equally.
        weights: The weight of each task.
        shared: The tasks that small values share; values that are not in `tasks_of` belong to them. If large values
            occupy all tasks, `shared` contains all tasks.
    """

    tasks_of: Mapping[V, tuple[int, ...]]
    weights: tuple[float, ...]
    shared: tuple[int, ...]

    @property
    def skew(self) -> float:
        """The maximum weight of a task, as a multiple of the mean; 1 if there is no weight."""
        total = sum(self.weights)
        return max(self.weights) * len(self.weights) / total if total else 1.0


def spread(weights: Mapping[V, float], tasks: int) -> Spread[V]:
    """Assign values to tasks so that no task has more than twice the mean weight.

    The assignment depends only on the weights, not on their order.

    Args:
        weights: The weight of each value, such as its bytes or rows; not negative.
        tasks: The number of tasks, at least 1.
    """
    if tasks < 1:
        raise ValueError(f"values are spread over at least one task, not {tasks}")
    # Values are ordered as strings, so that equal weights have one result.
    ordered = sorted(weights.items(), key=lambda pair: (-pair[1], repr(pair[0])))
    mean = sum(weights.values()) / tasks
    best = _packed(ordered, _floors(ordered, mean, tasks), tasks)
    for most in _TRIED:
        if best.skew <= most:
            break
        pieces = {value: math.ceil(w / (most * mean)) for value, w in ordered if w > most * mean}
        if sum(pieces.values()) <= tasks - (len(pieces) < len(ordered)):
            tried = _packed(ordered, pieces, tasks)
            best = tried if tried.skew < best.skew else best
    return best


def pieces(weights: Mapping[V, float], most: float) -> dict[V, int]:
    """Return the number of equal pieces per value, such that no piece weighs more than `most`."""
    return {value: max(math.ceil(weight / most), 1) for value, weight in weights.items()}


def _floors(ordered: list[tuple[V, float]], mean: float, tasks: int) -> dict[V, int]:
    """Return for each large value the number of its own tasks, as in the proof."""
    own, left = dict[V, int](), tasks
    for value, weight in ordered:
        if not mean or weight <= mean:
            break
        # Floating-point rounding may make the quotient too large, which would require one task too many.
        own[value] = max(min(math.floor(weight / mean), left), 1)
        left -= own[value]
    return own


def _packed(ordered: list[tuple[V, float]], own: Mapping[V, int], tasks: int) -> Spread[V]:
    """Return the assignment in which each value in `own` gets that number of tasks; the other values share tasks."""
    loads = [0.0] * tasks
    tasks_of = dict[V, tuple[int, ...]]()
    following = 0
    for value, weight in ordered:
        if value in own:
            tasks_of[value] = tuple(range(following, following + own[value]))
            for number in tasks_of[value]:
                loads[number] = weight / own[value]
            following += own[value]
    shared = tuple(range(following, tasks)) or tuple(range(tasks))
    heap = [(loads[number], number) for number in shared]
    heapq.heapify(heap)
    for value, weight in ordered:
        if value not in own:
            load, number = heapq.heappop(heap)
            tasks_of[value] = (number,)
            loads[number] = load + weight
            heapq.heappush(heap, (loads[number], number))
    return Spread(tasks_of, tuple(loads), shared)


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
        global_keys: Search each key in the files of all partitions; otherwise only in its own partition.
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


# parameters: the parameters of `plan_tags`, and the setup
def plan_filtered_tags(
    setup: IndexSetup,
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    *,
    global_keys: bool,
    parallelism: int,
    read_logs_of: Groups,
) -> tuple[TagTask, ...]:
    """Return the look-ups of a bloom index.

    The filter in a file is checked first, unless its stored filter was already read.

    Base files whose stored filter excludes all keys are not searched. Groups in `read_logs_of` are searched in any
    case, because logs may contain other keys than the base file.
    """
    staged = list(entries)
    searched = FileSlices.of(slices)
    searched = searched.filter(~(searched.is_in_groups(setup.without_keys - read_logs_of) & searched.has_base))
    is_asked = searched.is_in_groups(setup.asked)
    by_stored_filter, others = searched.filter(is_asked), searched.filter(~is_asked)
    tasks = [
        replace(task, asks_filters=asks_filters)
        for some, asks_filters in ((others, True), (by_stored_filter, False))
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
    """Return look-ups in the file groups that contain keys of the batch by stored location (`setup.located`).

    A group in `read_logs_of` is searched with its logs, unless locations are trusted.
    """
    staged = tuple(sorted(entries, key=lambda e: (e.partition, e.run, e.offset)))
    located = setup.located
    stored = FileSlices.of(slices).in_groups(located).ordered()
    trusted, others = [s for s in stored if _is_trusted(setup, s)], [s for s in stored if not _is_trusted(setup, s)]
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
            # A row whose key is in several files is counted once per file, so some rows may still be inserts.
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
        repeated = {(tag.base.partition, tag.base.file_id): tag.repeated_key for tag in tags if tag.repeated_key}
        for group in logged:
            if group in repeated:
                _require_rewritable(group, repeated[group], slice_of.get(group))
            else:
                tasks[group] = replace(tasks[group], appends=True, file_slice=slice_of.get(group))
    return tuple(tasks[group] for group in sorted(tasks))


def _require_rewritable(group: tuple[str, str], key: str | None, file_slice: FileSlice | None) -> None:
    """Raise UserError if a group with a repeated key cannot be rewritten, because it has logs or is being clustered.

    Readers merge a log entry with one of the base rows that have its key, so a log cannot change the others.
    """
    if file_slice is None or file_slice.logs:
        raise UserError(
            f"several rows in file group {group[1]} of partition {group[0]!r} have the record key {key!r}, and a log "
            "changes one of them only; nothing was written. Complete the pending services of the table, run "
            "table.services.compaction.run(force=True), and repeat the write, which then replaces the base file",
            key=key,
            partition=group[0],
        )


class _Added(NamedTuple):
    """The inserts of a partition, or of one large value in it, which may share file groups."""

    partition: str
    value: str | None
    entries: Sequence[StagedEntry]
    inserts: int
    consumed_by: tuple[str, ...] = ()


def _by_value(partition: str, staged: Sequence[StagedEntry]) -> list[_Added]:
    """Return the inserts of a partition without matches, by the large values of the spread column."""
    values: dict[str | None, list[StagedEntry]] = {}
    for entry in staged:
        values.setdefault(entry.value, []).append(entry)
    ordered = sorted(values.items(), key=lambda pair: (pair[0] is not None, pair[0] or ""))
    return [_Added(partition, value, own, sum(entry.upserts for entry in own)) for value, own in ordered]


def _rows_per_task(added: Sequence[_Added], sizing: Sizing) -> list[int | None]:
    """Return the maximum number of rows per task for each item of `added`, or None if one task may write all rows."""
    if sizing.tasks <= 1:
        return [None] * len(added)
    weights = {number: float(max(one.inserts, 0)) for number, one in enumerate(added)}
    tasks_of = spread(weights, sizing.tasks).tasks_of
    return [
        max(-(-one.inserts // len(tasks_of[number])), sizing.least_rows, 1) if len(tasks_of[number]) > 1 else None
        for number, one in enumerate(added)
    ]


def without_groups(slices: Sequence[FileSlice], groups: Groups) -> FileSlices:
    """Return the slices that do not belong to `groups`."""
    columns = FileSlices.of(slices)
    return columns.filter(~columns.is_in_groups(groups)) if groups else columns


def _parts(slices: FileSlices, order: np.ndarray[Any, Any]) -> Iterable[tuple[str, FileSlices]]:
    """Yield the partitions in ascending order, each with its slices in the given order."""
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
    """Return by partition the slices that inserts may fill, in ascending order of size.

    Because of this order the plan does not depend on the order of the listing.
    """
    mask = slices.has_base & (slices.base_sizes < setup.sizing.small_file_bytes) & ~slices.is_skeleton
    if setup.appends:
        mask &= slices.log_counts == 0
    small = slices.filter(mask)
    small = small.filter(members(small.partitions, list(partitions))).ordered()
    return dict(_parts(small, small.base_sizes))


def _consuming(tags: Iterable[TagResult]) -> dict[str, list[TagResult]]:
    """Return by partition the look-up results with matches for its upserts."""
    by_partition: dict[str, list[TagResult]] = {}
    for tag in tags:
        for partition, used in (tag.consumed or {}).items():
            if used:
                by_partition.setdefault(partition, []).append(tag)
    return by_partition


def _all_matched(staged: Sequence[StagedEntry], tags: Sequence[TagResult]) -> bool:
    """Return whether each upsert of a partition has exactly one match, given the results with matches.

    Returns False if this is unknown.
    """
    partition, counted = staged[0].partition, 0
    fingerprints = []
    for tag in tags:
        if tag.fingerprints is None:
            return False
        counted += (tag.consumed or {})[partition]
        fingerprints.append(tag.fingerprints.get(partition, 0))
    return counted == sum(entry.upserts for entry in staged) and united(fingerprints) == fingerprint_of(staged)


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
    """Return whether rows are appended to a group without reading it.

    A small file may be rewritten with inserts instead.
    """
    base = file_slice.base
    if not setup.trusts_locations or base is None:
        return False
    return bool(file_slice.logs) or not setup.sizing.free_rows(base)
