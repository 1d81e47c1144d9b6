"""Which file group takes which incoming rows (TL-6, DATA-7.1).

staged rows of a partition:   u u u u u u u u | d d         u = upsert, d = delete
tag:   found in files A, B    A A . B . . A . | A .         hits, written beside the rows
plan:  A, B are rewritten with their hits; the 4 rows found nowhere are inserts, numbered 0..3:
       they fill small files first, then new groups of `rows_per_file` rows each
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.core.index.bucket import bucket_of
from lakehouse.errors import UserError
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.spec.bucket_rules import EXPRESSIONS, NUM_BUCKETS, BucketRules


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedEntry:
    """Rows [offset, offset + rows) of a run belong to this partition (and bucket; -1 without); deletes come last."""

    run: str
    partition: str
    bucket: int
    offset: int
    rows: int
    deletes: int

    @property
    def upserts(self) -> int:
        """Rows that are not deletes; they stand first."""
        return self.rows - self.deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRun:
    """One staged file: its entries, by the `buckets` of that time, and its rows and bytes in memory."""

    path: str
    entries: tuple[StagedEntry, ...]
    rows: int
    size_bytes: int
    buckets: BucketRules | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TagTask:
    """Look for the keys of these entries in these base files, and in these slices as their logs left them."""

    bases: tuple[BaseFile, ...]
    entries: tuple[StagedEntry, ...]
    slices: tuple[FileSlice, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TagResult:
    """What a base file, or a slice of base and logs, holds of the batch.

    `hit_rows` are stored rows hit, `consumed` the upserts used up per partition of the batch. `deleted_rows` of the
    hits are no stored rows but keys that a log deletes.
    """

    base: BaseFile | FileSlice
    hits: str | None = None
    hit_rows: int = 0
    consumed: Mapping[str, int] | None = None
    deleted_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupTask:
    """Write the next base file of one file group, or append a log file to it (`appends`).

    `hits` names the matches with `base`; `finds_matches` says that the task looks for them itself (bucket index).
    `insert_range` counts over the partition's upserts that no file holds; an open end takes all that remain.
    `consumed_by` are the hits files that tell which those are. A log takes the rows of `hits`, or all of `entries`;
    `file_slice` is what it is appended to. `all_stored`: every key of `hits` is that of a stored row; else `other_hits`
    are the hits files that may have a stored row for it, and whether each goes before this one.
    """

    partition: str
    file_id: str
    base: BaseFile | None = None
    hits: str | None = None
    finds_matches: bool = False
    entries: tuple[StagedEntry, ...] = ()
    insert_range: tuple[int, int | None] | None = None
    consumed_by: tuple[str, ...] = ()
    appends: bool = False
    is_new: bool = False
    file_slice: FileSlice | None = None
    all_stored: bool = True
    other_hits: tuple[tuple[str, bool], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizing:
    """File sizes as row counts: what fills a file, and the bytes below which a file is small."""

    rows_per_file: int
    bytes_per_row: float
    max_file_bytes: int
    small_file_bytes: int

    def room(self, base: BaseFile) -> int:
        """Rows that still fit into a small file; 0 if it is not small."""
        if base.size_bytes >= self.small_file_bytes:
            return 0
        return max(int((self.max_file_bytes - base.size_bytes) / self.bytes_per_row), 0)


def plan_tags(
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    *,
    global_keys: bool,
    parallelism: int,
    deep: frozenset[tuple[str, str]] = frozenset(),
) -> tuple[TagTask, ...]:
    """Return the look-ups that find the incoming keys: in files of the same partition, or of all if keys are global.

    Of groups in `deep` the logs are read too, because they may have deleted or added keys; of others the base file.
    """
    by_partition = _by_partition(entries)
    everything = tuple(entry for partition in sorted(by_partition) for entry in by_partition[partition])
    tasks = []
    merged = [s for s in slices if s.base is None or (s.partition, s.file_id) in deep]
    for file_slice in merged:
        wanted = everything if global_keys else tuple(by_partition.get(file_slice.partition, ()))
        if wanted:
            tasks.append(TagTask(bases=(), entries=wanted, slices=(file_slice,)))
    bases = [s.base for s in slices if s.base is not None and (s.partition, s.file_id) not in deep]
    partitions = sorted({base.partition for base in bases})
    for partition in partitions:
        wanted = everything if global_keys else tuple(by_partition.get(partition, ()))
        if not wanted:
            continue
        files = sorted((b for b in bases if b.partition == partition), key=lambda b: -b.size_bytes)
        # Files of one task share the read of the incoming keys; enough tasks remain to keep every core busy.
        size = max(1, -(-len(bases) // (4 * parallelism)))
        tasks += [TagTask(bases=tuple(files[i : i + size]), entries=wanted) for i in range(0, len(files), size)]
    return tuple(tasks)


def plan_groups(
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    tags: Sequence[TagResult],
    sizing: Sizing,
    new_file_id: Callable[[], str],
    *,
    appends: bool = False,
) -> tuple[GroupTask, ...]:
    """Return a task per file group that changes: hits rewrite their file, the rest fills small files, then new ones.

    With `appends` (merge on read) hits go to a log, and only files without logs are filled: their groups are rewritten.
    """
    tasks: dict[tuple[str, str], GroupTask] = {}
    for tag in tags:
        if tag.hit_rows:
            group = (tag.base.partition, tag.base.file_id)
            base = tag.base.base if isinstance(tag.base, FileSlice) else tag.base
            tasks[group] = GroupTask(partition=group[0], file_id=group[1], base=base, hits=tag.hits)
            if tag.deleted_rows:
                tasks[group] = replace(tasks[group], all_stored=False, other_hits=_other_hits(tag, tags))
    for partition, staged in sorted(_by_partition(entries).items()):
        used = sum((tag.consumed or {}).get(partition, 0) for tag in tags)
        inserts = sum(entry.upserts for entry in staged) - used
        consumed_by = (
            tuple(tag.hits for tag in tags if tag.hits and (tag.consumed or {}).get(partition)) if used else ()
        )
        bases = [s.base for s in slices if s.base is not None and s.partition == partition and not (appends and s.logs)]
        if inserts <= 0 and len(consumed_by) > 1:
            # A row whose key several files hold is counted by each of them, so some rows may still be nobody's.
            inserts = 1
        for task in _insert_tasks(partition, inserts, bases, sizing, new_file_id):
            group = (partition, task.file_id)
            known = tasks.get(group, task)
            tasks[group] = replace(
                known, entries=tuple(staged), insert_range=task.insert_range, consumed_by=consumed_by
            )
    if appends:
        known_slices = {(s.partition, s.file_id): s for s in slices}
        logged = [group for group, task in tasks.items() if task.hits and task.insert_range is None]
        tasks |= {group: replace(tasks[group], appends=True, file_slice=known_slices.get(group)) for group in logged}
    return tuple(tasks[group] for group in sorted(tasks))


def plan_buckets(
    entries: Iterable[StagedEntry],
    slices: Sequence[FileSlice],
    buckets: BucketRules,
    new_file_id: Callable[[int], str],
    *,
    looks_up: bool,
    appends: bool = False,
    new_in_logs: bool = False,
) -> tuple[GroupTask, ...]:
    """Return one task per bucket that gets rows; the group is known from the key alone.

    With `looks_up` its stored rows meet the incoming ones; else (insert) rows are only added. With `appends` (merge on
    read) rows go to a log of the bucket's group, unread; a new group begins with a base file, or `new_in_logs`.
    Raises UserError if groups contradict the number of buckets of their partition: it must not change.
    """
    groups: dict[tuple[str, int], FileSlice] = {}
    for file_slice in slices:
        bucket = bucket_of(file_slice.file_id)
        count = buckets.of(file_slice.partition)
        if bucket >= count or (file_slice.partition, bucket) in groups:
            raise UserError(
                f"file group {file_slice.file_id} of partition {file_slice.partition!r} does not fit {count} buckets; "
                f"{NUM_BUCKETS} and {EXPRESSIONS} must stay what they were when the table was made"
            )
        groups[(file_slice.partition, bucket)] = file_slice
    staged: dict[tuple[str, int], list[StagedEntry]] = {}
    for entry in entries:
        staged.setdefault((entry.partition, entry.bucket), []).append(entry)
    tasks = []
    for (partition, bucket), of_bucket in sorted(staged.items()):
        group = groups.get((partition, bucket))
        if group is None and not any(entry.upserts for entry in of_bucket):
            continue
        task = GroupTask(
            partition=partition,
            file_id=group.file_id if group else new_file_id(bucket),
            base=group.base if group else None,
            entries=tuple(of_bucket),
            is_new=group is None,
        )
        if appends and (group is not None or new_in_logs):
            # Rows that are only added never delete: flagged ones among them stay out, as they do of a base file.
            taken = task.entries if looks_up else tuple(replace(e, rows=e.upserts, deletes=0) for e in task.entries)
            tasks.append(replace(task, entries=taken, appends=True, file_slice=group))
        else:
            finds = looks_up and task.base is not None
            tasks.append(replace(task, finds_matches=finds, insert_range=(0, None)))
    return tuple(tasks)


def _other_hits(tag: TagResult, tags: Sequence[TagResult]) -> tuple[tuple[str, bool], ...]:
    others = [t for t in tags if t.hits and t.hits != tag.hits and t.base.partition == tag.base.partition]
    return tuple((t.hits or "", t.base.file_id < tag.base.file_id) for t in others)


def _insert_tasks(
    partition: str, inserts: int, bases: Sequence[BaseFile], sizing: Sizing, new_file_id: Callable[[], str]
) -> list[GroupTask]:
    tasks: list[GroupTask] = []
    start = 0
    # The smallest file first: it gains most, and the order makes the plan the same however files were listed.
    for base in sorted(bases, key=lambda b: (b.size_bytes, b.file_id)):
        room = min(sizing.room(base), inserts - start)
        if room > 0:
            tasks.append(
                GroupTask(partition=partition, file_id=base.file_id, base=base, insert_range=(start, start + room))
            )
            start += room
    while start < inserts:
        count = min(sizing.rows_per_file, inserts - start)
        tasks.append(GroupTask(partition=partition, file_id=new_file_id(), insert_range=(start, start + count)))
        start += count
    if tasks:
        # Numbers of rows are estimates where a stored key repeats; the last task takes whatever is left.
        last = tasks[-1].insert_range
        assert last is not None
        tasks[-1] = replace(tasks[-1], insert_range=(last[0], None))
    return tasks


def _by_partition(entries: Iterable[StagedEntry]) -> dict[str, list[StagedEntry]]:
    found: dict[str, list[StagedEntry]] = {}
    for entry in sorted(entries, key=lambda e: (e.partition, e.run, e.offset)):
        found.setdefault(entry.partition, []).append(entry)
    return found
