"""File system view: file slices of a table at an instant, from the timeline and a listing (TL-6).

A file is visible if its instant completed, or if it is older than the first instant of the active timeline (archived).
Readers use the newest slice of a file group: the newest visible base file and the visible log files after it.

    instants       b1 ......... P ...... P's completion     P: a compaction
    log A   [request  complete]                             merged by P: completed before P was requested
    log B       [request      .   complete]                 not merged by P: belongs to the slice of P

In timeline layout 2 a log file belongs to a slice by its completion time. A pending compaction therefore changes
nothing: its base file does not exist yet, and all log files stay in the slice of the existing base file. In layout 1
the name of a log file contains the instant of its base file. Log files that are named after a pending compaction
contain later writes. They are also read in the slice of the existing base file. A replaced file group is hidden from
the instant that replaced it.

A table that Hudi upgraded from version 6 has layout 2 and keeps its log files with their names (V6-12.5). A log file is
named after its slice if the instant in its name belongs to a base file of its group, or to a compaction that is not
completed for the query. A delta commit of version 8 never has such an instant. The rules of layout 1 apply to these
log files: the name decides the slice, and each block has its own instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline

DataFile = BaseFile | LogFile
#: (partition, file id).
Group = tuple[str, str]
#: Names of the files in a commit, by (partition, file id, instant of the commit).
Named = Mapping[tuple[str, str, str], frozenset[str]]

# Pending table services bound the archive like writes, so no instant after them is archived.
_HOLDS_BACK_ARCHIVE = WRITE_ACTIONS | {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A file group that was replaced, and the instant that replaced it."""

    partition: str
    file_id: str
    instant: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleTimeline:
    """The part of a timeline that a query uses: completed writes up to a bound, and the archive boundary.

    Attributes:
        instants: Completed writes of the active timeline, by requested time.
        archived_before: Instants requested before this time and not in `instants` are archived.
        archived: Completion times of archived instants, by requested time. For an archived instant that is missing
            here the requested time is used (see `unplaced`).
        replaced: Replaced file groups and the instants that replaced them.
        up_to: Upper bound of the requested times of archived instants.
        compacting: Requested times of compactions that are not completed for the query. Log files with version-6 names
            contain them.
    """

    instants: Mapping[str, Instant]
    archived_before: str
    archived: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[Group, Instant] = field(default_factory=dict)
    up_to: str | None = None
    compacting: frozenset[str] = frozenset()

    def shows(self, instant: str) -> bool:
        """Whether files of this requested time are visible."""
        if instant in self.instants:
            return True
        return instant < self.archived_before and (self.up_to is None or instant <= self.up_to)

    def completion(self, instant: str) -> str:
        """Return the completion time of a visible instant."""
        active = self.instants.get(instant)
        return self.archived.get(instant, instant) if active is None else active.completion


def visible_timeline(
    timeline: Timeline,
    replacements: Iterable[Replaced],
    *,
    as_of: str | None = None,
    completed_up_to: str | None = None,
) -> VisibleTimeline:
    """Return the timeline for a query: writes requested up to `as_of` and completed up to `completed_up_to`."""
    completed = timeline.writes().where(requested_up_to=as_of, completed_up_to=completed_up_to)
    instants = {instant.requested: instant for instant in completed}
    replaced: dict[Group, Instant] = {}
    for replacement in replacements:
        if replacement.instant.requested in instants:
            replaced[(replacement.partition, replacement.file_id)] = replacement.instant
    up_to = min((bound for bound in (as_of, completed_up_to) if bound is not None), default=None)
    compacting = [*timeline.where(action=Action.COMPACTION, pending=True, requested_up_to=up_to)]
    if completed_up_to is not None:
        # Every commit of a merge-on-read table is a compaction; other tables have no log files.
        commits = timeline.where(action=Action.COMMIT, requested_up_to=up_to)
        compacting += [commit for commit in commits if commit.completion > completed_up_to]
    return VisibleTimeline(
        instants=instants,
        archived_before=first_write(timeline),
        replaced=replaced,
        up_to=up_to,
        compacting=frozenset(instant.requested for instant in compacting),
    )


def latest_slices(
    files: Iterable[DataFile], visible: VisibleTimeline, *, layout: TableLayout, named: Named | None = None
) -> tuple[FileSlice, ...]:
    """Return the newest slice of every file group that is not replaced, ordered by partition and file id.

    Args:
        files: Data files of a listing.
        visible: The timeline that the query uses.
        layout: Layout of the timeline, 1 or 2.
        named: File names in commits, which exclude duplicates of tasks that ran twice. For an instant and group in it,
            only these files are read.

    Returns:
        The slices. `FileSlice.logs` are in the order that `all_slices` describes.
    """
    groups = all_slices(files, visible, layout=layout, named=named)
    return tuple(slices[0] for group, slices in groups.items() if group not in visible.replaced)


def all_slices(
    files: Iterable[DataFile], visible: VisibleTimeline, *, layout: TableLayout, named: Named | None = None
) -> dict[Group, tuple[FileSlice, ...]]:
    """Return all slices of all groups, newest first, ordered by group, with replaced groups (see `visible.replaced`).

    A visible data file is in exactly one slice; other files are in none.

    Log files of a slice are ordered by (instant in the name, version, write token, suffix), as in Hudi. In Hudi 1.2
    `HoodieLogFile.LogFileComparator`, which `FileSlice` and `InputSplit` use, ignores completion times, even if two
    writers completed in another order than they requested.
    """
    listed = tuple(files)
    names = _SliceNames(listed, layout, visible.compacting)
    bases: dict[Group, dict[str, BaseFile]] = {}
    logs: dict[Group, list[LogFile]] = {}
    for file in listed:
        group = (file.partition, file.file_id)
        if not _counts(file, visible, names, named):
            continue
        if isinstance(file, LogFile):
            logs.setdefault(group, []).append(file)
            continue
        other_attempt = bases.setdefault(group, {}).get(file.instant)
        if other_attempt is None or file.write_token > other_attempt.write_token:
            bases[group][file.instant] = file
    return {
        group: _sliced(group, bases.get(group, {}), logs.get(group, []), visible, names)
        for group in sorted(bases.keys() | logs.keys())
    }


def unplaced(files: Iterable[DataFile], visible: VisibleTimeline, *, layout: TableLayout) -> frozenset[str]:
    """Return the archived instants whose completion time decides to which slice a log file belongs.

    Their log files were requested before a base file of the same group and may have been completed after it.
    """
    listed = tuple(files)
    names = _SliceNames(listed, layout, visible.compacting)
    newest: dict[Group, str] = {}
    logs: list[LogFile] = []
    for file in listed:
        if isinstance(file, BaseFile):
            group = (file.partition, file.file_id)
            newest[group] = max(file.instant, newest.get(group, ""))
        elif file.instant not in visible.instants and visible.shows(file.instant) and not names.decide(file):
            logs.append(file)
    return frozenset(log.instant for log in logs if log.instant < newest.get((log.partition, log.file_id), ""))


def read_optimized(slices: Iterable[FileSlice]) -> tuple[FileSlice, ...]:
    """Return the slices that have a base file, without their log files."""
    return tuple(replace(file_slice, logs=()) for file_slice in slices if file_slice.base is not None)


def duplicates(files: Iterable[DataFile], *, layout: TableLayout) -> frozenset[str]:
    """Return the instants at which several attempts of a task wrote to one file group.

    The commits of these instants decide which files are read. Attempts have different write tokens; the files that one
    attempt rolled over to have the same one. Log files that are named after their slice are the files of several
    commits, so Hudi and this package read all of them.
    """
    listed = tuple(files)
    names = _SliceNames(listed, layout)
    tokens: dict[tuple[str, str, str], str] = {}
    several = set()
    for file in listed:
        if isinstance(file, LogFile) and names.decide(file):
            continue
        if tokens.setdefault((file.partition, file.file_id, file.instant), file.write_token) != file.write_token:
            several.add(file.instant)
    return frozenset(several)


def replacements(commits: Iterable[tuple[Instant, CommitMetadata]]) -> tuple[Replaced, ...]:
    """Return the file groups that replacecommits replaced, in the order of `commits`."""
    return tuple(
        Replaced(partition=partition, file_id=file_id, instant=instant)
        for instant, metadata in commits
        if instant.action is Action.REPLACECOMMIT
        for partition, file_ids in metadata.replaced.items()
        for file_id in file_ids
    )


class _SliceNames:
    """Finds the log files that are named after their slice; see the module docstring."""

    def __init__(
        self, files: Iterable[DataFile], layout: TableLayout, compacting: frozenset[str] = frozenset()
    ) -> None:
        self._all = not layout.has_completion_times
        self._compacting = compacting
        self._bases = {(f.partition, f.file_id, f.instant) for f in files if isinstance(f, BaseFile)}

    def decide(self, log: LogFile) -> bool:
        """Return whether the name of a log file decides its slice."""
        group = (log.partition, log.file_id, log.instant)
        return self._all or log.instant in self._compacting or group in self._bases


def _counts(file: DataFile, visible: VisibleTimeline, names: _SliceNames, named: Named | None) -> bool:
    """Whether a query reads this file."""
    if isinstance(file, LogFile):
        if file.suffix:
            return False
        if names.decide(file):
            # Each block has its own instant. The name contains the instant of a completed or pending base file.
            return visible.shows(file.instant) or file.instant in visible.compacting
    if not visible.shows(file.instant):
        return False
    committed = named.get((file.partition, file.file_id, file.instant)) if named else None
    return committed is None or file.name in committed


def _sliced(
    group: Group, bases: Mapping[str, BaseFile], logs: Iterable[LogFile], visible: VisibleTimeline, names: _SliceNames
) -> tuple[FileSlice, ...]:
    """Return the slices of one group, newest first.

    A log file belongs to the newest base file that does not already include its rows.
    """
    starts = sorted(bases, reverse=True)
    over: dict[str, list[LogFile]] = {}
    for log in sorted(logs, key=_order):
        position = log.instant if names.decide(log) else visible.completion(log.instant)
        start = next((start for start in starts if start <= position), "")
        over.setdefault(start, []).append(log)
    partition, file_id = group
    slices = [
        FileSlice(
            partition=partition,
            file_id=file_id,
            base_instant=start,
            base=bases[start],
            logs=tuple(over.get(start, ())),
        )
        for start in starts
    ]
    if before := over.get(""):
        first = before[0].instant
        slices.append(FileSlice(partition=partition, file_id=file_id, base_instant=first, logs=tuple(before)))
    return tuple(slices)


def _order(log: LogFile) -> tuple[str, int, str, str]:
    return log.instant, log.version, log.write_token, log.suffix


def first_write(timeline: Timeline) -> str:
    """Return the requested time before which writes count as archived if they are not on the timeline."""
    # A savepointed commit stays on the timeline when its neighbours are archived, so it marks the end of the archive
    # only if all commits are savepointed. If the timeline contains no write, no write is archived.
    times = {i.requested for i in timeline if i.action in _HOLDS_BACK_ARCHIVE}
    rest = times - timeline.savepoints()
    return min(rest) if rest else max(times, default="")
