"""The index protocol: how a write finds the file groups of its rows. One test suite holds implementations equal.

lookups   which base files to ask for which staged keys (none, where the key itself tells its group)
groups    with the answers, one task per file group that changes
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from lakehouse.core.index.bucket import NO_UUID, bucket_file_id, bucket_of
from lakehouse.core.planning.write import (
    GroupTask,
    Sizing,
    StagedEntry,
    TagResult,
    TagTask,
    plan_buckets,
    plan_groups,
    plan_tags,
)
from lakehouse.model.files import FileSlice
from lakehouse.spec.bucket_rules import BucketRules

NewId = Callable[[], str]
Entries = Sequence[StagedEntry]
Slices = Sequence[FileSlice]
Tags = Sequence[TagResult]
Groups = frozenset[tuple[str, str]]


class Index(Protocol):
    """Where the rows of a batch belong; pure, so the same batch and table give the same tasks."""

    def lookups(
        self, entries: Entries, slices: Slices, *, parallelism: int, deep: Groups = frozenset()
    ) -> tuple[TagTask, ...]:
        """Return the look-ups that have to run before `groups` can tell; of groups in `deep` logs must be read too."""
        ...

    def groups(
        self, entries: Entries, slices: Slices, tags: Tags, *, held: frozenset[tuple[str, str]], new_uuid: NewId
    ) -> tuple[GroupTask, ...]:
        """Return one task per file group that changes; groups in `held` take no rows that have a choice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleIndex:
    """Keys are looked for in the base files of their partition, or of all partitions (`global_keys`)."""

    sizing: Sizing
    looks_up: bool
    global_keys: bool = False
    appends: bool = False

    def lookups(
        self, entries: Entries, slices: Slices, *, parallelism: int, deep: Groups = frozenset()
    ) -> tuple[TagTask, ...]:
        """Return look-ups in the files that may hold the keys; none for rows that are only added."""
        if not self.looks_up:
            return ()
        return plan_tags(entries, slices, global_keys=self.global_keys, parallelism=parallelism, deep=deep)

    def groups(
        self, entries: Entries, slices: Slices, tags: Tags, *, held: frozenset[tuple[str, str]], new_uuid: NewId
    ) -> tuple[GroupTask, ...]:
        """Rewrite the files that were hit, or append to their logs; let inserts fill small files, then new groups."""
        free = [s for s in slices if (s.partition, s.file_id) not in held]
        return plan_groups(entries, free, tags, self.sizing, lambda: f"{new_uuid()}-0", appends=self.appends)


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketIndex:
    """The hash of a key names its file group, so nothing is looked up and nothing depends on the table's size.

    With `fixed_ids` the bucket alone makes the id of a new group: writers that begin it at the same time agree. Groups
    that were `replaced` keep their ids, so a new one in such a bucket gets the next.
    """

    buckets: BucketRules
    looks_up: bool
    appends: bool = False
    new_in_logs: bool = False
    fixed_ids: bool = False
    replaced: Groups = frozenset()

    def lookups(
        self, entries: Entries, slices: Slices, *, parallelism: int, deep: Groups = frozenset()
    ) -> tuple[TagTask, ...]:
        """Return nothing: the task of a bucket finds the matches in its one file itself."""
        return ()

    def groups(
        self, entries: Entries, slices: Slices, tags: Tags, *, held: frozenset[tuple[str, str]], new_uuid: NewId
    ) -> tuple[GroupTask, ...]:
        """Return one task per bucket that gets rows; a row has no choice of bucket, so `held` changes nothing."""
        tasks = plan_buckets(
            entries,
            slices,
            self.buckets,
            lambda bucket: bucket_file_id(bucket, NO_UUID if self.fixed_ids else new_uuid()),
            looks_up=self.looks_up,
            appends=self.appends,
            new_in_logs=self.new_in_logs,
        )
        return tuple(self._visible(task) if task.is_new and self.fixed_ids else task for task in tasks)

    def _visible(self, task: GroupTask) -> GroupTask:
        """Return the task with an id that no overwrite hid: what is written to a hidden group nobody reads."""
        number = 0
        while (task.partition, task.file_id) in self.replaced:
            number += 1
            task = replace(task, file_id=bucket_file_id(bucket_of(task.file_id), f"{NO_UUID[:-12]}{number:012d}"))
        return task
