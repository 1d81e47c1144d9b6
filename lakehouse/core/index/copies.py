"""Copies of rows for pending resizes of buckets: tasks that write rows to the groups that will have them (MDT-12.5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakehouse.core.index.protocol import IndexSetup
from lakehouse.core.index.resizes import PendingResize
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry


def copies_for_resizes(setup: IndexSetup, task: GroupTask) -> list[GroupTask]:
    """Return the tasks that write the rows of `task` to the groups of pending resizes, as logs."""
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

    A delete without partition columns looks its keys up. Deleting a key in a group that does not have it is harmless.
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
