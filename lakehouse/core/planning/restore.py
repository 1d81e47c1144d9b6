"""Plan a restore: which instants are rolled back, newest first, and which files of the target are missing.

    b1 ...... T ....... d3 ...... P ...... now          restore to T
                        rolled back, newest first

A write stays if it completed no later than the target. On a merge-on-read table a compaction, completed or pending,
stays if it was requested before the target, because it contains no later rows. Hudi 1.2 has the same rule
(`RestoreInstantComparatorFactory`), and savepoints of both keep the files that a restore of the other needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.state.file_system_view import DataFile, Group, latest_slices, replacements, visible_timeline
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline

Commits = Sequence[tuple[Instant, CommitMetadata]]

#: Actions whose plan is kept by a rollback.
SERVICE_ACTIONS = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})
#: Actions that can be rolled back.
UNDOABLE_ACTIONS = WRITE_ACTIONS | SERVICE_ACTIONS
_COMPACTIONS = (Action.COMMIT, Action.COMPACTION)


def instants_to_roll_back(timeline: Timeline, target: Instant, *, merge_on_read: bool) -> tuple[Instant, ...]:
    """Return the instants that a restore to the completed write `target` rolls back, pending ones first, newest first.

    Pending clustering precedes all others, as in Hudi, because later writes may have changed its file groups.
    """

    def stays(instant: Instant) -> bool:
        if merge_on_read and instant.action in _COMPACTIONS:
            return instant.requested <= target.requested
        return instant.is_completed and instant.completion <= target.completion

    undone = [i for i in timeline if i.action in UNDOABLE_ACTIONS and not stays(i)]
    pending = sorted((i for i in undone if not i.is_completed), key=_pending_order, reverse=True)
    return (*pending, *reversed(Timeline(tuple(undone)).by_completion()))


def without(timeline: Timeline, undone: Iterable[Instant]) -> Timeline:
    """Return the timeline without the undone instants."""
    undone_keys = {instant.key for instant in undone}
    return Timeline(tuple(instant for instant in timeline if instant.key not in undone_keys))


def slices_after(
    timeline: Timeline, commits: Commits, listing: Iterable[DataFile], *, layout: TableLayout
) -> tuple[FileSlice, ...]:
    """Return the newest slices after `commits`, built from the listed files and from the files in the commits."""
    files = {file.path: file for _, metadata in commits for stat in metadata.stats for file in _files(stat)}
    files.update({file.path: file for file in listing})
    names: dict[tuple[str, str, str], set[str]] = {}
    for instant, metadata in commits:
        for stat in metadata.stats:
            group = (stat.partition, stat.file_id, instant.requested)
            names.setdefault(group, set()).add(stat.path.rpartition("/")[2])
    visible = visible_timeline(timeline, replacements(commits))
    settled = {group: frozenset(listed) for group, listed in names.items()}
    return latest_slices(files.values(), visible, layout=layout, named=settled)


def missing_files(
    timeline: Timeline, commits: Commits, undone: Commits, listing: Sequence[DataFile], *, layout: TableLayout
) -> tuple[str, ...]:
    """Return the paths of missing files that a reader needs after the rollback of `undone`.

    Files of archived commits can only be derived from the rolled-back writes that superseded them. If the files of a
    replaced file group are unknown, its partition and file id are returned.
    """
    visible = visible_timeline(timeline, replacements(commits))
    before = [base for _, metadata in undone for stat in metadata.stats if (base := _previous(stat)) is not None]
    expected_files = [*listing, *(base for base in before if visible.shows(base.instant))]
    slices = slices_after(timeline, commits, expected_files, layout=layout)
    present = {file.path for file in listing}
    missing = {path for s in slices for path in slice_paths(s) if path not in present}
    groups: set[Group] = {(s.partition, s.file_id) for s in slices}
    born = {(stat.partition, stat.file_id) for _, metadata in undone for stat in metadata.stats}
    for replaced in replacements(undone):
        group = (replaced.partition, replaced.file_id)
        if group not in groups and group not in born and group not in visible.replaced:
            missing.add("/".join(group).lstrip("/"))
    return tuple(sorted(missing))


def slice_paths(file_slice: FileSlice) -> tuple[str, ...]:
    """Return the file paths of a slice, the base file first."""
    logs = tuple(log.path for log in file_slice.logs)
    return logs if file_slice.base is None else (file_slice.base.path, *logs)


def _pending_order(instant: Instant) -> tuple[bool, str]:
    return instant.action is Action.CLUSTERING, instant.requested


def _files(stat: WriteStat) -> list[DataFile]:
    name = stat.path.rpartition("/")[2]
    file = parse_base_file(name, stat.partition, stat.size_bytes) or parse_log_file(
        name, stat.partition, stat.size_bytes
    )
    return [] if file is None else [file]


def _previous(stat: WriteStat) -> DataFile | None:
    if not stat.prev_base_file:
        return None
    return parse_base_file(stat.prev_base_file, stat.partition, 0)
