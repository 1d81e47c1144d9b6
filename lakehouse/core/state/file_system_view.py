"""Which files hold the rows of a table at an instant: a fold of (timeline, listing) (TL-6).

A file is visible if its instant completed, or lies before the first instant of the active timeline (archived).
Of a file group the newest slice counts: its newest visible base file, and the visible logs that came after it.

    instants       b1 ......... P ...... P's completion     P: a compaction
    log A   [request  complete]                             in P's base: completed before P was requested
    log B       [request      .   complete]                 not in it, so it belongs to the slice of P

A log is placed by its completion time (layout 2), so a compaction that is pending changes nothing: its base is not
there yet, and all logs stay over the base that is. In layout 1 a log is named after the base it is over; logs named
after a pending compaction hold what was written meanwhile and are read over the base that is there, too.
A group is hidden from the instant on that replaced it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from lakehouse.core.format.file_names import LAYOUT_V6
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline

DataFile = BaseFile | LogFile
#: (partition, file id).
Group = tuple[str, str]
#: (partition, file id, instant) -> the names of the files that this instant's commit lists for the group.
Named = Mapping[tuple[str, str, str], frozenset[str]]

# Pending table services stand on the timeline like writes, so nothing from their time on is archived.
_HOLDS_BACK_ARCHIVE = WRITE_ACTIONS | {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """The instant that hid a file group."""

    partition: str
    file_id: str
    instant: Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class VisibleTimeline:
    """The part of a timeline a query may believe: completed writes up to a bound, and the archive boundary.

    `up_to` bounds archived instants, which completed at the times in `archived`; of those that are not in it the
    completion is taken to be the request (see `unplaced`). `compacting` are the requested times of compactions that are
    pending: logs of layout 1 may bear them.
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
        """Return when a visible instant became true."""
        known = self.instants.get(instant)
        return self.archived.get(instant, instant) if known is None else known.completion


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
    replaced: dict[Group, Instant] = {}
    for replacement in replacements:
        if replacement.instant.requested in instants:
            replaced[(replacement.partition, replacement.file_id)] = replacement.instant
    up_to = min((bound for bound in (as_of, completed_up_to) if bound is not None), default=None)
    compacting = timeline.where(action=Action.COMPACTION, pending=True, requested_up_to=up_to)
    return VisibleTimeline(
        instants=instants,
        archived_before=first_write(timeline),
        replaced=replaced,
        up_to=up_to,
        compacting=frozenset(instant.requested for instant in compacting),
    )


def latest_slices(
    files: Iterable[DataFile], visible: VisibleTimeline, *, layout: int, named: Named | None = None
) -> tuple[FileSlice, ...]:
    """Return the newest slice of every file group not replaced, ordered by partition and file id.

    `layout` is the timeline's, 1 or 2. `named` settles duplicates of a task that ran twice: of an instant and group in
    it only the files named are read. `FileSlice.logs` are in the order of `all_slices`.
    """
    groups = all_slices(files, visible, layout=layout, named=named)
    return tuple(slices[0] for group, slices in groups.items() if group not in visible.replaced)


def all_slices(
    files: Iterable[DataFile], visible: VisibleTimeline, *, layout: int, named: Named | None = None
) -> dict[Group, tuple[FileSlice, ...]]:
    """Return every slice of every group, newest first, groups in order; replaced ones too: `visible.replaced` tells.

    Files of instants that are not visible are in no slice, every other data file is in exactly one.

    Logs of a slice are ordered by (instant in the name, version, write token, suffix). That is what Hudi does: in 1.2
    `HoodieLogFile.LogFileComparator`, by which `FileSlice` and `InputSplit` sort, never asks for completion times,
    even where the requests of two writers and their completions are in different orders.
    """
    bases: dict[Group, dict[str, BaseFile]] = {}
    logs: dict[Group, list[LogFile]] = {}
    for file in files:
        group = (file.partition, file.file_id)
        if not _counts(file, visible, layout, named):
            continue
        if isinstance(file, LogFile):
            logs.setdefault(group, []).append(file)
            continue
        known = bases.setdefault(group, {}).get(file.instant)
        if known is None or file.write_token > known.write_token:
            bases[group][file.instant] = file
    return {
        group: _sliced(group, bases.get(group, {}), logs.get(group, []), visible, layout)
        for group in sorted(bases.keys() | logs.keys())
    }


def unplaced(files: Iterable[DataFile], visible: VisibleTimeline, *, layout: int) -> frozenset[str]:
    """Return the archived instants whose completion decides to which slice a log belongs.

    They are those of logs that were begun before a base file of their group and may have been completed after.
    """
    if layout == LAYOUT_V6:
        return frozenset()
    newest: dict[Group, str] = {}
    logs: list[LogFile] = []
    for file in files:
        if isinstance(file, BaseFile):
            group = (file.partition, file.file_id)
            newest[group] = max(file.instant, newest.get(group, ""))
        elif file.instant not in visible.instants and visible.shows(file.instant):
            logs.append(file)
    return frozenset(log.instant for log in logs if log.instant < newest.get((log.partition, log.file_id), ""))


def read_optimized(slices: Iterable[FileSlice]) -> tuple[FileSlice, ...]:
    """Return the slices that have a base file, without their logs."""
    return tuple(replace(file_slice, logs=()) for file_slice in slices if file_slice.base is not None)


def duplicates(files: Iterable[DataFile], *, layout: int) -> frozenset[str]:
    """Return the instants at which several tries of a task wrote to some group: their commits must say which counts.

    Tries differ by the write token; files that one try rolled over to share it. The logs of layout 1 say nothing of
    their instants, so there Hudi, too, reads them all.
    """
    tokens: dict[tuple[str, str, str], str] = {}
    several = set()
    for file in files:
        if isinstance(file, LogFile) and layout == LAYOUT_V6:
            continue
        if tokens.setdefault((file.partition, file.file_id, file.instant), file.write_token) != file.write_token:
            several.add(file.instant)
    return frozenset(several)


def replacements(commits: Iterable[tuple[Instant, CommitMetadata]]) -> tuple[Replaced, ...]:
    """Return the groups that replacecommits hid, in the order of the commits given."""
    return tuple(
        Replaced(partition=partition, file_id=file_id, instant=instant)
        for instant, metadata in commits
        if instant.action is Action.REPLACECOMMIT
        for partition, file_ids in metadata.replaced.items()
        for file_id in file_ids
    )


def _counts(file: DataFile, visible: VisibleTimeline, layout: int, named: Named | None) -> bool:
    """Whether a query reads this file at all."""
    if isinstance(file, LogFile):
        if file.suffix:
            return False
        if layout == LAYOUT_V6:
            # Whose blocks count is decided block by block; the name must be that of a base, of now or to come.
            return visible.shows(file.instant) or file.instant in visible.compacting
    if not visible.shows(file.instant):
        return False
    names = named.get((file.partition, file.file_id, file.instant)) if named else None
    return names is None or file.name in names


def _sliced(
    group: Group, bases: Mapping[str, BaseFile], logs: Iterable[LogFile], visible: VisibleTimeline, layout: int
) -> tuple[FileSlice, ...]:
    """Return the slices of one group, newest first: each log goes to the newest base that does not include it."""
    starts = sorted(bases, reverse=True)
    over: dict[str, list[LogFile]] = {}
    for log in sorted(logs, key=_order):
        position = log.instant if layout == LAYOUT_V6 else visible.completion(log.instant)
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
    """Return the requested time before which the writes that are not on the timeline are archived."""
    # A savepointed commit may outlive its neighbours in the archive, older and younger ones, so it does not tell where
    # the archive ends unless all are savepointed; without any write on the timeline nothing can be archived before it.
    times = {i.requested for i in timeline if i.action in _HOLDS_BACK_ARCHIVE}
    rest = times - timeline.savepoints()
    return min(rest) if rest else max(times, default="")
