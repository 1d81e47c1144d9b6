"""What going back takes: which instants, newest first, and whether the files of that time are still there.

    b1 ...... T ....... d3 ...... P ...... now          restore to T
                        undone <- undone

A write stays if it completed no later than the target did. On a merge-on-read table a compaction stays if it was
requested before the target, for it holds nothing that the target does not, and so does its plan; Hudi 1.2 draws the
line alike (`RestoreInstantComparatorFactory`), and each side's savepoints keep what the other's restore needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.state.file_system_view import DataFile, Group, latest_slices, replacements, visible_timeline
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline

Commits = Sequence[tuple[Instant, CommitMetadata]]

#: Plans that are carried out later: rolling them back leaves the plan.
SERVICE_ACTIONS = frozenset({Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})
#: What can be rolled back at all.
UNDOABLE_ACTIONS = WRITE_ACTIONS | SERVICE_ACTIONS
_COMPACTIONS = (Action.COMMIT, Action.COMPACTION)


def instants_to_roll_back(timeline: Timeline, target: Instant, *, merge_on_read: bool) -> tuple[Instant, ...]:
    """Return what a restore to the completed write `target` undoes: what is pending, then the newest completed first.

    Pending clustering goes before all else, as Hudi has it: it holds groups that the writes after it touched.
    """

    def stays(instant: Instant) -> bool:
        if merge_on_read and instant.action in _COMPACTIONS:
            return instant.requested <= target.requested
        return instant.is_completed and instant.completion <= target.completion

    undone = [i for i in timeline if i.action in UNDOABLE_ACTIONS and not stays(i)]
    pending = sorted((i for i in undone if not i.is_completed), key=_pending_order, reverse=True)
    return (*pending, *reversed(Timeline(tuple(undone)).by_completion()))


def without(timeline: Timeline, undone: Iterable[Instant]) -> Timeline:
    """Return the timeline as it is when these instants are gone."""
    gone = {instant.key for instant in undone}
    return Timeline(tuple(instant for instant in timeline if instant.key not in gone))


def slices_after(timeline: Timeline, kept: Commits, found: Iterable[DataFile], *, layout: int) -> tuple[FileSlice, ...]:
    """Return the newest slices by the commits `kept` of a timeline, made of the files found and of those they name."""
    files = {file.path: file for _, metadata in kept for stat in metadata.stats for file in _files(stat)}
    files.update({file.path: file for file in found})
    names: dict[tuple[str, str, str], set[str]] = {}
    for instant, metadata in kept:
        for stat in metadata.stats:
            group = (stat.partition, stat.file_id, instant.requested)
            names.setdefault(group, set()).add(stat.path.rpartition("/")[2])
    visible = visible_timeline(timeline, replacements(kept))
    settled = {group: frozenset(listed) for group, listed in names.items()}
    return latest_slices(files.values(), visible, layout=layout, named=settled)


def missing_files(
    timeline: Timeline, kept: Commits, undone: Commits, found: Sequence[DataFile], *, layout: int
) -> tuple[str, ...]:
    """Return paths that a reader needs when `undone` are gone and that are not among the files found.

    Commits that are archived cannot be asked which files they wrote; of those, files are known by the undone writes
    that took their place, and of groups that were replaced since, the file id is returned.
    """
    visible = visible_timeline(timeline, replacements(kept))
    before = [base for _, metadata in undone for stat in metadata.stats if (base := _previous(stat)) is not None]
    known = [*found, *(base for base in before if visible.shows(base.instant))]
    slices = slices_after(timeline, kept, known, layout=layout)
    present = {file.path for file in found}
    missing = {path for s in slices for path in slice_paths(s) if path not in present}
    groups: set[Group] = {(s.partition, s.file_id) for s in slices}
    born = {(stat.partition, stat.file_id) for _, metadata in undone for stat in metadata.stats}
    for replaced in replacements(undone):
        group = (replaced.partition, replaced.file_id)
        if group not in groups and group not in born and group not in visible.replaced:
            missing.add("/".join(group).lstrip("/"))
    return tuple(sorted(missing))


def slice_paths(file_slice: FileSlice) -> tuple[str, ...]:
    """Return the paths of the files of a slice, the base file first."""
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
