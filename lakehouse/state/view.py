"""Which files hold the rows of a table at an instant: a fold of (timeline, listing) (format: timeline.md 6).

A base file is visible if its instant completed, or lies before the first instant of the active timeline (archived).
Of a file group the newest visible base file counts; a group is hidden from the instant on that replaced it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The instant that hid a file group."""

    partition: str
    file_id: str
    instant: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleTimeline:
    """The part of a timeline a query may believe: completed writes up to a bound, and the archive boundary."""

    instants: Mapping[str, Instant]
    archived_before: str
    replaced: Mapping[tuple[str, str], Instant] = field(default_factory=dict)

    def shows(self, instant: str) -> bool:
        """Whether files of this requested time are visible."""
        return instant in self.instants or instant < self.archived_before


def visible_timeline(
    timeline: Timeline,
    replacements: Iterable[Replaced],
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
) -> VisibleTimeline:
    """Return what a query sees: completed writes with requested time <= `as_of` and completion <= `completed_up_to`."""
    completed = timeline.writes().where(requested_up_to=as_of, completed_up_to=completed_up_to)
    instants = {instant.requested: instant for instant in completed}
    replaced: dict[tuple[str, str], Instant] = {}
    for replacement in replacements:
        if replacement.instant.requested in instants:
            replaced[(replacement.partition, replacement.file_id)] = replacement.instant
    return VisibleTimeline(instants=instants, archived_before=_first_write(timeline), replaced=replaced)


def latest_slices(
    files: Iterable[BaseFile],
    visible: VisibleTimeline,
    *,
    named: Mapping[tuple[str, str, str], str] | None = None,
) -> tuple[FileSlice, ...]:
    """Return the newest visible slice of every file group not replaced, ordered by partition and file id.

    `named` settles duplicates of a task that ran twice: (partition, file id, instant) -> the name its commit holds.
    """
    newest: dict[tuple[str, str], BaseFile] = {}
    for file in files:
        group = (file.partition, file.file_id)
        if group in visible.replaced or not visible.shows(file.instant):
            continue
        if named and named.get((*group, file.instant), file.name) != file.name:
            continue
        current = newest.get(group)
        if current is None or (file.instant, file.write_token) > (current.instant, current.write_token):
            newest[group] = file
    return tuple(
        FileSlice(partition=file.partition, file_id=file.file_id, base_instant=file.instant, base=file)
        for _, file in sorted(newest.items())
    )


def duplicates(files: Iterable[BaseFile]) -> frozenset[str]:
    """Return the instants of which some file group has more than one base file: their commits must say which counts."""
    seen: dict[tuple[str, str, str], int] = {}
    for file in files:
        key = (file.partition, file.file_id, file.instant)
        seen[key] = seen.get(key, 0) + 1
    return frozenset(instant for (_, _, instant), count in seen.items() if count > 1)


def replacements(commits: Iterable[tuple[Instant, CommitMetadata]]) -> tuple[Replaced, ...]:
    """Return the groups that replacecommits hid, in the order of the commits given."""
    return tuple(
        Replaced(partition=partition, file_id=file_id, instant=instant)
        for instant, metadata in commits
        if instant.action is Action.REPLACECOMMIT
        for partition, file_ids in metadata.replaced.items()
        for file_id in file_ids
    )


def _first_write(timeline: Timeline) -> str:
    # Savepointed commits may outlive their neighbours in the archive, so savepoints do not move the boundary; without
    # any write on the timeline nothing can be archived before it.
    writes = [i.requested for i in timeline if i.action in WRITE_ACTIONS or i.action is Action.COMPACTION]
    return min(writes, default="")
