"""Detect logs to which writes copied rows for a bucket resize that was dropped later (MDT-12.5).

The copies are deleted with the plan of the resize, but the commits of the writes still list them. The time of the plan
is on no timeline. After the archive has passed this time, it looks like the time of an archived write. The file group
of the copy shows the difference: a completed resize created its base file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from lakehouse.core.format.file_names import instant_of
from lakehouse.core.state.file_system_view import DataFile, Group
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Instant, Timeline


def is_undone_copy(write: Instant, stat: WriteStat, times: Collection[str], groups: Collection[Group]) -> bool:
    """Return whether a file in a commit is a copy for a dropped resize.

    Args:
        write: The completed write.
        stat: The file.
        times: The requested times of the writes on the timeline.
        groups: The file groups with files on storage.
    """
    name = stat.path.rpartition("/")[2]
    if not name.startswith(".") or (stat.partition, stat.file_id) in groups:
        return False
    named_after = instant_of(name)
    return named_after is not None and named_after != write.requested and named_after not in times


def without_undone_copies(
    commits: Iterable[tuple[Instant, CommitMetadata]], timeline: Timeline, listing: Iterable[DataFile]
) -> list[tuple[Instant, CommitMetadata]]:
    """Return the commits without the copies for dropped resizes; do not call it for tables with names of version 6."""
    times = {instant.requested for instant in timeline}
    groups = {(file.partition, file.file_id) for file in listing}

    def is_undone(write: Instant, stat: WriteStat) -> bool:
        return is_undone_copy(write, stat, times, groups)

    return [
        (write, replace(metadata, stats=tuple(stat for stat in metadata.stats if not is_undone(write, stat))))
        for write, metadata in commits
    ]
