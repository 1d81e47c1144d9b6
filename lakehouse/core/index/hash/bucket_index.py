"""The bucket index (BUCKET): the hash of a key determines its file group (DATA-7.3).

Each partition has a fixed number of buckets, set for the table or by rules per partition, and one file group per
bucket. No file is read to find a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lakehouse.core.index.hash.bucket import NO_UUID, bucket_file_id, bucket_of
from lakehouse.core.index.hash.resizes import PendingResize
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.errors import UserError
from lakehouse.model.files import FileSlice
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, NUM_BUCKETS, BucketRules


@dataclass(frozen=True, slots=True)
class BucketIndex:
    """Assigns each record to the file group of its bucket.

    The setup needs `buckets`. With `fixed_ids` concurrent writers that create the group of a bucket choose the same id.
    """

    setup: IndexSetup

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return no look-ups, because the task of a bucket finds the matches in its single base file itself."""
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
        """Return one task per bucket that gets rows, even if its group is in `in_clustering`.

        Upserts and deletes are merged with the stored rows of the bucket; inserts are only added. On a merge-on-read
        table rows are appended to a log of the group, and no stored row is read. A new group begins with a base file,
        or with a log file if `new_in_logs` is set.

        Raises:
            UserError: A file group contradicts its partition's number of buckets.
        """
        buckets = self.setup.buckets
        if buckets is None:
            raise UserError(f"the bucket index needs {NUM_BUCKETS}, the number of file groups per partition")
        groups = _groups_by_bucket(slices, buckets)
        staged: dict[tuple[str, int], list[StagedEntry]] = {}
        for entry in entries:
            bucket = entry.bucket % buckets.of(entry.partition)
            staged.setdefault((entry.partition, bucket), []).append(entry)
        tasks = []
        for (partition, bucket), of_bucket in sorted(staged.items()):
            group = groups.get((partition, bucket))
            if group is not None:
                tasks.append(bucket_task(self.setup, partition, group.file_id, group, of_bucket))
            elif any(entry.upserts for entry in of_bucket):
                file_id = self._new_file_id(partition, bucket, new_uuid)
                tasks.append(bucket_task(self.setup, partition, file_id, None, of_bucket))
        return tuple(one for task in tasks for one in (task, *copies_for_resizes(self.setup, task)))

    def _new_file_id(self, partition: str, bucket: int, new_uuid: NewUuid) -> str:
        """Return the id of a new group.

        With `fixed_ids` it is the first id of the bucket that no overwrite has replaced.
        """
        if not self.setup.fixed_ids:
            return bucket_file_id(bucket, new_uuid())
        file_id, number = bucket_file_id(bucket, NO_UUID), 0
        while (partition, file_id) in self.setup.replaced:
            number += 1
            file_id = bucket_file_id(bucket, f"{NO_UUID[:-12]}{number:012d}")
        return file_id


def bucket_task(
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


def _groups_by_bucket(slices: Sequence[FileSlice], buckets: BucketRules) -> dict[tuple[str, int], FileSlice]:
    """Return the slices by (partition, bucket). Raises UserError if file groups contradict the bucket count."""
    groups: dict[tuple[str, int], FileSlice] = {}
    for file_slice in slices:
        bucket = bucket_of(file_slice.file_id)
        count = buckets.of(file_slice.partition)
        if bucket >= count or (file_slice.partition, bucket) in groups:
            raise UserError(
                f"file group {file_slice.file_id} of partition {file_slice.partition!r} does not fit {count} buckets; "
                f"{NUM_BUCKETS} and {EXPRESSIONS} must have the values with which the table was created"
            )
        groups[(file_slice.partition, bucket)] = file_slice
    return groups


def copies_for_resizes(setup: IndexSetup, task: GroupTask) -> list[GroupTask]:
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

    A delete without partition columns looks up its keys. Deleting a key in a group without this key is harmless.
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
