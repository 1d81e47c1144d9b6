"""The bucket index (BUCKET): the hash of a key determines its file group. No file is read to find a key.

    SIMPLE               each partition has a fixed number of buckets, set for the table or by rules per partition, and
                         one file group per bucket (DATA-7.3)
    CONSISTENT_HASHING   each partition has a ring of nodes, one file group per node, which has a range of hash values
                         (MDT-12.3, MDT-12.5)

A resize replaces buckets or nodes. While it is pending, rows of its groups are written twice: to the log of the present
group, and to a log of the future group. The second log is named after the resize, so readers see it when the resize
completes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from lakehouse.core.index.hash.bucket import NO_UUID, bucket_file_id, bucket_of
from lakehouse.core.index.hash.resizes import PendingResize
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.files import FileSlice
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, NUM_BUCKETS, BucketRules

#: A place in a partition: the number of a bucket, or the file id of a range.
PlaceT = TypeVar("PlaceT", int, str)


class HashPlaces(Protocol[PlaceT]):
    """The places of a partition into which hashes divide its rows: one file group for each."""

    def place_of(self, entry: StagedEntry) -> PlaceT:
        """Return the place of staged rows, whose hashes are all in one place."""
        ...

    def stored(self, slices: Sequence[FileSlice]) -> Mapping[tuple[str, PlaceT], FileSlice]:
        """Return the slice of each (partition, place); raise an error for a file group that has no place."""
        ...

    def new_file_id(self, partition: str, place: PlaceT, new_uuid: NewUuid) -> str:
        """Return the id of a new file group."""
        ...


@dataclass(frozen=True, slots=True)
class HashIndex(Generic[PlaceT]):
    """Assigns each record to the file group of its hash."""

    setup: IndexSetup
    places: HashPlaces[PlaceT]

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return no tasks: the task of a file group finds the matches in its one base file itself."""
        return ()

    def groups(
        self,
        entries: Sequence[StagedEntry],
        slices: Sequence[FileSlice],
        tags: Sequence[TagResult],
        *,
        in_clustering: Groups,
        new_uuid: NewUuid,
    ) -> tuple[GroupTask, ...]:
        """Return one task per file group that gets rows, and one per group that a pending resize will create.

        A group in `in_clustering` gets rows, too. Upserts and deletes are merged with the stored rows of the group;
        inserts are only added. On a merge-on-read table rows are appended to a log of the group, and no stored row is
        read. A new group begins with a base file, or with a log file if `new_in_logs` is set.

        Raises:
            UserError: A file group contradicts its partition's number of buckets.
            CorruptTableError: A file group belongs to no node of its partition.
        """
        stored = self.places.stored(slices)
        staged: dict[tuple[str, PlaceT], list[StagedEntry]] = {}
        for entry in entries:
            staged.setdefault((entry.partition, self.places.place_of(entry)), []).append(entry)
        tasks: list[GroupTask] = []
        for (partition, place), of_place in sorted(staged.items()):
            group = stored.get((partition, place))
            if group is None and not any(entry.upserts for entry in of_place):
                continue
            file_id = self.places.new_file_id(partition, place, new_uuid) if group is None else group.file_id
            task = _group_task(self.setup, partition, file_id, group, of_place)
            tasks.append(task)
            tasks.extend(_copies_for_resizes(self.setup, task))
        return tuple(tasks)


@dataclass(frozen=True, slots=True)
class NumberedBuckets:
    """The buckets of each partition, by number.

    The setup needs `buckets`. With `fixed_ids` concurrent writers that create the group of a bucket choose the same id.
    """

    setup: IndexSetup

    def place_of(self, entry: StagedEntry) -> int:
        """Return the bucket of staged rows."""
        return entry.bucket % self._rules.of(entry.partition)

    def stored(self, slices: Sequence[FileSlice]) -> dict[tuple[str, int], FileSlice]:
        """Return the slice of each (partition, bucket). Raises UserError if groups do not fit the bucket count."""
        groups: dict[tuple[str, int], FileSlice] = {}
        for file_slice in slices:
            bucket = bucket_of(file_slice.file_id)
            count = self._rules.of(file_slice.partition)
            if bucket >= count or (file_slice.partition, bucket) in groups:
                raise UserError(
                    f"file group {file_slice.file_id} of partition {file_slice.partition!r} does not fit {count} "
                    f"buckets; {NUM_BUCKETS} and {EXPRESSIONS} must have the values with which the table was created"
                )
            groups[(file_slice.partition, bucket)] = file_slice
        return groups

    def new_file_id(self, partition: str, bucket: int, new_uuid: NewUuid) -> str:
        """Return the id of a new group; with `fixed_ids` the first id of the bucket that no overwrite replaced."""
        if not self.setup.fixed_ids:
            return bucket_file_id(bucket, new_uuid())
        file_id, number = bucket_file_id(bucket, NO_UUID), 0
        while (partition, file_id) in self.setup.replaced:
            number += 1
            file_id = bucket_file_id(bucket, f"{NO_UUID[:-12]}{number:012d}")
        return file_id

    @property
    def _rules(self) -> BucketRules:
        if self.setup.buckets is None:
            raise UserError(f"the bucket index needs {NUM_BUCKETS}, the number of file groups per partition")
        return self.setup.buckets


@dataclass(frozen=True, slots=True)
class HashRanges:
    """The ranges of hash values of each partition, by the file id of their nodes.

    The setup needs the `rings` of partitions. The ids of new groups follow from the rings, so that concurrent writers
    choose the same.
    """

    setup: IndexSetup

    def place_of(self, entry: StagedEntry) -> str:
        """Return the file id of the range of staged rows."""
        return self.setup.rings[entry.partition].node_of(entry.bucket).file_id

    def stored(self, slices: Sequence[FileSlice]) -> dict[tuple[str, str], FileSlice]:
        """Return the slice of each (partition, file id). Raises CorruptTableError for a group without node."""
        stored = {(piece.partition, piece.file_id): piece for piece in slices}
        for partition, file_id in stored:
            ring = self.setup.rings.get(partition)
            if ring is not None and ring.node_of_group(file_id) is None:
                raise CorruptTableError(
                    f"file group {file_id} of partition {partition!r} belongs to no range of hash values of "
                    f"{ring.metadata.instant}.hashing_meta; the table was written with another index, or its hashing "
                    "metadata was lost. Check the index options, or restore the table",
                    partition=partition,
                )
        return stored

    def new_file_id(self, partition: str, file_id: str, new_uuid: NewUuid) -> str:
        """Return the file id of the range."""
        return file_id


def _group_task(
    setup: IndexSetup, partition: str, file_id: str, group: FileSlice | None, entries: Sequence[StagedEntry]
) -> GroupTask:
    """Return the task that writes `entries` to one file group; `group` is its slice, None if the group is new."""
    task = GroupTask(
        partition=partition,
        file_id=file_id,
        base=group.base if group else None,
        entries=tuple(entries),
        is_new=group is None,
    )
    if setup.appends and (group is not None or setup.new_in_logs):
        if not setup.looks_up:
            # An insert never deletes, so rows that are flagged as deletes are not written.
            task = replace(task, entries=tuple(replace(e, rows=e.upserts, deletes=0) for e in entries))
        return replace(task, appends=True, file_slice=group)
    return replace(task, finds_matches=setup.looks_up and task.base is not None, insert_range=(0, None))


def _copies_for_resizes(setup: IndexSetup, task: GroupTask) -> list[GroupTask]:
    """Return the tasks that write the rows of `task` to the new groups of pending resizes, as logs."""
    staged: dict[tuple[str, str], list[StagedEntry]] = {}
    for resize in setup.resizes:
        for entry in task.entries:
            child = resize.child(task.partition, task.file_id, entry.bucket)
            if child is not None:
                staged.setdefault((resize.instant, child), []).append(entry)
    return [
        replace(_copy(task, instant, file_id), entries=tuple(entries))
        for (instant, file_id), entries in sorted(staged.items())
    ]


def copied_deletes(resizes: Sequence[PendingResize], task: GroupTask) -> list[GroupTask]:
    """Return the tasks that delete the keys of `task` in all groups that will replace its group.

    A delete without partition columns looks its keys up. Deleting a key in a group without this key is harmless.
    """
    return [
        _copy(task, resize.instant, file_id)
        for resize in resizes
        for file_id in resize.replacing.get((task.partition, task.file_id), ())
    ]


def _copy(task: GroupTask, resize: str, file_id: str) -> GroupTask:
    return replace(
        task,
        file_id=file_id,
        base=None,
        insert_range=None,
        finds_matches=False,
        appends=True,
        is_new=False,
        resize=resize,
    )
