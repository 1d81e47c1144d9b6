"""Statistics of partitions, maintained by folding commits: the files that each commit adds to the newest slices.

    statistics as of completion C  +  commits completed after C, in that order  =  statistics as of the last of them

The result is equal to the file system view of a new listing (`file_system_view`), because a commit names its files,
their sizes and the file groups it replaced. Folding needs no listing, but it needs all commits since the last fold.
`commits_to_fold` returns None if some of them may be missing on the timeline, or if a folded commit was rolled back.
Then the statistics are rebuilt from a listing for archived commits and from the remaining commits.

Cleans have no effect, because they delete no file of a newest slice. Services that rewrite rows without changing them
(compaction, clustering) change files, but neither the age nor the last modification of a partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.state.file_system_view import VisibleTimeline, latest_slices, visible_timeline
from lakehouse.model.commit import COMPACTIONS, REWRITES, CommitMetadata, Operation, WriteStat
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.statistics import Group, PartitionLife, PartitionStatistics, TableStatistics, TrackedFile

_LAYOUT = 2


def commits_to_fold(
    statistics: TableStatistics, timeline: Timeline, *, whole: bool = False
) -> tuple[Instant, ...] | None:
    """Return the writes that `statistics` lacks, by completion time, or None if the statistics must be rebuilt.

    With `whole`, `timeline` also contains the archived writes, from the first one that `statistics` includes.
    """
    now = {instant.requested: instant.completion for instant in timeline.writes()}
    archived_before = visible_timeline(timeline, ()).archived_before
    if not archived_before or statistics.anchor < archived_before:
        # The timeline is empty, or commits that are not folded yet were archived.
        return () if not statistics.instants and not now and not statistics.files else None
    removed = [requested for requested, completed in statistics.instants.items() if now.get(requested) != completed]
    undone = timeline.where(action={Action.ROLLBACK, Action.RESTORE}, completed_after=statistics.latest)
    if any(whole or requested >= archived_before for requested in removed) or (removed and len(undone)):
        return None
    return timeline.writes().where(completed_after=statistics.folded_up_to).by_completion()


def fold(
    statistics: TableStatistics,
    commits: Sequence[tuple[Instant, CommitMetadata]],
    timeline: Timeline,
    *,
    complete: bool = True,
) -> TableStatistics:
    """Return the statistics after `commits`.

    Args:
        statistics: Statistics before the commits.
        commits: Commits by completion time, with their metadata.
        timeline: The timeline, which contains all commits.
        complete: Whether `statistics` has every file group. If it has, a compaction of an unknown group belongs to a
            replaced group, which stays hidden. If not, unknown groups are groups whose older files were cleaned, and
            `statistics` may have files of older slices.
    """
    files, lives = dict(statistics.files), dict(statistics.lives)
    groups: dict[str, set[Group]] = {}
    for group in files:
        groups.setdefault(group[0], set()).add(group)
    replaced: set[Group] = set()
    touched: set[Group] = set() if complete else set(files)
    for instant, metadata in commits:
        removed_groups = {(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids}
        replaced |= removed_groups
        for group in removed_groups:
            files.pop(group, None)
            groups.get(group[0], set()).discard(group)
        written: set[str] = set()
        for stat in metadata.stats:
            group = (stat.partition, stat.file_id)
            tracked = _tracked(stat, instant, metadata)
            if tracked is None or group in replaced or (complete and _is_unknown(metadata, group, files)):
                continue
            files[group] = (*files.get(group, ()), tracked)
            groups.setdefault(stat.partition, set()).add(group)
            touched.add(group)
            written.add(stat.partition)
        for partition in {*written, *metadata.replaced}:
            if not groups.get(partition):
                lives.pop(partition, None)
            elif partition in written:
                lives[partition] = _lived(lives.get(partition), instant, metadata)
    instants = {instant.requested: instant.completion for instant in timeline.writes()}
    return TableStatistics(
        files={**files, **_newest(files, touched)},
        lives=lives,
        instants=instants,
        folded_up_to=max((*instants.values(), statistics.folded_up_to)),
        anchor=_anchor(timeline),
        latest=timeline.latest_time(),
    )


def partition_statistics(statistics: TableStatistics) -> tuple[PartitionStatistics, ...]:
    """Return one entry per partition that has files, ordered by path."""
    sums: dict[str, tuple[int, int, int]] = {}
    for (partition, _), tracked in statistics.files.items():
        size, rows, count = sums.get(partition, (0, 0, 0))
        sums[partition] = (
            size + sum(t.file.size_bytes for t in tracked),
            rows + sum(t.rows for t in tracked),
            count + len(tracked),
        )
    return tuple(
        PartitionStatistics(
            partition=partition,
            created=statistics.lives[partition].created,
            modified=statistics.lives[partition].modified,
            size_bytes=size,
            rows=max(rows, 0),
            files=count,
        )
        for partition, (size, rows, count) in sorted(sums.items())
    )


def _lived(before: PartitionLife | None, instant: Instant, metadata: CommitMetadata) -> PartitionLife:
    if before is None:
        return PartitionLife(created=instant.requested, modified=instant.requested)
    # A concurrent writer may have started earlier and completed later.
    created = min(before.created, instant.requested)
    if metadata.operation in REWRITES:
        return replace(before, created=created)
    return PartitionLife(created=created, modified=max(before.modified, instant.requested))


def _is_unknown(metadata: CommitMetadata, group: Group, files: Mapping[Group, object]) -> bool:
    return metadata.operation in COMPACTIONS and group not in files


def _tracked(stat: WriteStat, instant: Instant, metadata: CommitMetadata) -> TrackedFile | None:
    name = stat.path.rpartition("/")[2]
    base = parse_base_file(name, stat.partition, stat.size_bytes)
    if base is not None:
        return TrackedFile(file=base, completed=instant.completion, rows=stat.num_writes)
    log = parse_log_file(name, stat.partition, stat.size_bytes)
    if log is None:
        return None
    # A log compaction merges log files whose rows are counted already.
    rows = 0 if metadata.operation == Operation.LOG_COMPACT else stat.num_inserts - stat.num_deletes
    return TrackedFile(file=log, completed=instant.completion, rows=rows)


def _newest(
    files: Mapping[Group, tuple[TrackedFile, ...]], groups: Iterable[Group]
) -> dict[Group, tuple[TrackedFile, ...]]:
    """Return the files of the newest slice of each group."""
    tracked = {t.file.path: t for group in groups for t in files.get(group, ())}
    instants = {
        t.file.instant: Instant(
            requested=t.file.instant, action=Action.COMMIT, state=State.COMPLETED, completed=t.completed
        )
        for t in tracked.values()
    }
    visible = VisibleTimeline(instants=instants, archived_before="")
    newest: dict[Group, tuple[TrackedFile, ...]] = {}
    for file_slice in latest_slices([t.file for t in tracked.values()], visible, layout=_LAYOUT):
        files_of_slice: list[BaseFile | LogFile] = [*([file_slice.base] if file_slice.base else []), *file_slice.logs]
        newest[(file_slice.partition, file_slice.file_id)] = tuple(tracked[file.path] for file in files_of_slice)
    return newest


def _anchor(timeline: Timeline) -> str:
    """Return a time. While no instant at or after it is archived, no commit that completes later is archived."""
    pending = [instant.requested for instant in timeline.where(pending=True)]
    newest = max((instant.requested for instant in timeline.writes()), default="")
    return min([newest, *pending])
