"""Plan a read of change data: where the changes of each commit in each file group are found (DATA-6).

    case               commit wrote     changes
    AS_IS              change log       entries of the change log; missing images are read from the slices
    BASE_FILE_INSERT   first base file  all rows of the file, as inserts
    BASE_FILE_DELETE   empty base file  all rows of the slice before, as deletes
    LOG_FILE           log files        rows with keys of the logs that differ between the slices before and after
    BASE_FILE_COMPARE  next base file   rows that differ between the slices before and after (there is no change log)
    REPLACE_COMMIT     no file          all rows of the slice before, as deletes

The slice before a commit contains exactly the commits that completed earlier.

Within a commit, deletes come before inserts and updates. A key can be deleted in one file group and inserted in another
one, by an overwrite or by a move between partitions, and a replay by key would otherwise lose its row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from itertools import groupby

from lakehouse.core.format.file_names import parse_cdc_file
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.state.file_system_view import DataFile, Group, all_slices, visible_timeline
from lakehouse.errors import CleanedHistoryError
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.files import FileSlice, LogFile
from lakehouse.model.instant import Instant, Timeline

#: Operations, as spelled in commit metadata, that rewrite rows without changing them.
UNCHANGING = frozenset({Operation.COMPACT, Operation.LOG_COMPACT, Operation.CLUSTER, "INDEX", "BUCKET_RESCALE"})


class ChangeCase(StrEnum):
    """Where the changes of one commit in one file group are found; BASE_FILE_COMPARE does not exist in Hudi."""

    AS_IS = "AS_IS"
    BASE_FILE_INSERT = "BASE_FILE_INSERT"
    BASE_FILE_DELETE = "BASE_FILE_DELETE"
    BASE_FILE_COMPARE = "BASE_FILE_COMPARE"
    LOG_FILE = "LOG_FILE"
    REPLACE_COMMIT = "REPLACE_COMMIT"


class ChangePart(Enum):
    """The changes of a file group that a read returns."""

    ALL = "all"
    DELETES = "deletes"
    UPSERTS = "upserts"

    @property
    def has_deletes(self) -> bool:
        """Whether deletes are returned."""
        return self is not ChangePart.UPSERTS

    @property
    def has_upserts(self) -> bool:
        """Whether inserts and updates are returned."""
        return self is not ChangePart.DELETES


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupChange:
    """The changes of one commit in one file group.

    Attributes:
        instant: Requested time of the commit.
        before: The slice before the commit; None if there is none or its files were cleaned.
        after: The slice after the commit; None if there is none or its files were cleaned.
        logs: Log files of the commit.
        change_logs: Change logs (`.cdc` files) of the commit.
        may_delete: Whether the commit counts deletes in this file group.
        may_upsert: Whether the commit may contain inserts or updates in this file group.
        part: The changes that a read returns.
    """

    instant: str
    partition: str
    file_id: str
    case: ChangeCase
    before: FileSlice | None = None
    after: FileSlice | None = None
    logs: tuple[LogFile, ...] = ()
    change_logs: tuple[LogFile, ...] = ()
    may_delete: bool = True
    may_upsert: bool = True
    part: ChangePart = ChangePart.ALL

    @property
    def bytes(self) -> int:
        """The size of the change logs in bytes; without them the size of the slices before and after."""
        if self.change_logs:
            return sum(log.size_bytes for log in self.change_logs)
        return sum(side.bytes for side in (self.before, self.after) if side is not None)


def plan_changes(
    commits: Sequence[tuple[Instant, CommitMetadata]],
    slices: Mapping[Group, Sequence[FileSlice]],
    timeline: Timeline,
    *,
    layout: TableLayout,
    cleaned_paths: Collection[str] = (),
) -> tuple[FileGroupChange, ...]:
    """Return the changes of commits, ordered by commit and file group; `in_order` orders them for a replay.

    Args:
        commits: The commits with their metadata.
        slices: All slices of the file groups, of files that any query may see.
        timeline: The timeline, archived commits included.
        layout: Layout of the timeline, 1 or 2.
        cleaned_paths: Paths of files in `slices` that cleans deleted.

    Raises:
        CleanedHistoryError: The changes of a commit, which the message names, cannot be read: files were cleaned.
    """
    changes = []
    for instant, metadata in commits:
        if metadata.operation in UNCHANGING:
            continue
        states = _States(instant, slices, timeline, layout, cleaned_paths)
        stats: dict[Group, list[WriteStat]] = {}
        for stat in (stat for stat in metadata.stats if stat.path):
            stats.setdefault((stat.partition, stat.file_id), []).append(stat)
        of_commit = [_written(states, group, of_group) for group, of_group in stats.items()]
        of_commit += [_replaced(states, (path, name)) for path, names in metadata.replaced.items() for name in names]
        changes += sorted(of_commit, key=lambda change: (change.partition, change.file_id))
    return tuple(changes)


def in_order(changes: Iterable[FileGroupChange], *, rows_delete: bool) -> tuple[FileGroupChange, ...]:
    """Sort changes for a replay by key: within each commit, all deletes precede inserts and updates.

    A file group with both kinds of changes is returned twice, once per kind.

    Args:
        changes: Changes as `plan_changes` returns them; changes of one commit are adjacent.
        rows_delete: Whether data rows of a log can be deletes. The statistics of a commit do not count these.
    """
    ordered: list[FileGroupChange] = []
    for _, of_commit in groupby(changes, key=lambda change: change.instant):
        upserts: list[FileGroupChange] = []
        for change in of_commit:
            if (change.may_delete and change.may_upsert) or (rows_delete and change.logs):
                ordered.append(replace(change, part=ChangePart.DELETES))
                upserts.append(replace(change, part=ChangePart.UPSERTS))
            elif change.may_delete:
                ordered.append(change)
            else:
                upserts.append(change)
        ordered += upserts
    return tuple(ordered)


class _States:
    """The file groups directly before and after the completion of an instant."""

    def __init__(
        self,
        instant: Instant,
        slices: Mapping[Group, Sequence[FileSlice]],
        timeline: Timeline,
        layout: TableLayout,
        cleaned_paths: Collection[str],
    ) -> None:
        self.instant, self._slices, self._layout, self._cleaned_paths = (
            instant,
            slices,
            layout,
            frozenset(cleaned_paths),
        )
        completion = instant.completion
        # No instant completes between these two times. Times of equal length sort correctly as strings.
        just_before = str(int(completion) - 1).zfill(len(completion))
        self._before = visible_timeline(timeline, (), completed_up_to=just_before)
        self._after = visible_timeline(timeline, (), completed_up_to=completion)

    def around(self, group: Group) -> tuple[FileSlice | None, FileSlice | None, bool]:
        """Return the slices before and after (None if absent or cleaned), and whether one of them was cleaned."""
        files = tuple(_files(self._slices.get(group, ())))
        slices_by_view = [
            all_slices(files, view, layout=self._layout).get(group, ()) for view in (self._before, self._after)
        ]
        newest = [slices[0] if slices else None for slices in slices_by_view]
        before, after = (s if s is None or self._cleaned_paths.isdisjoint(slice_paths(s)) else None for s in newest)
        return before, after, [before, after] != newest


def _files(slices: Iterable[FileSlice]) -> Iterable[DataFile]:
    for file_slice in slices:
        if file_slice.base is not None:
            yield file_slice.base
        yield from file_slice.logs


@dataclass(frozen=True, slots=True, kw_only=True)
class _CommitFiles:
    """The files that one commit wrote to one file group; `has_all` is whether none of them was cleaned."""

    logs: tuple[LogFile, ...]
    change_logs: tuple[LogFile, ...]
    has_base: bool
    has_all: bool


def _commit_files(partition: str, after: FileSlice | None, stats: Sequence[WriteStat]) -> _CommitFiles:
    names = {stat.path.rpartition("/")[2] for stat in stats}
    logs = () if after is None else tuple(log for log in after.logs if log.name in names)
    has_base = after is not None and after.base is not None and after.base.name in names
    return _CommitFiles(
        logs=logs,
        change_logs=_change_logs(partition, stats),
        has_base=has_base,
        has_all=len(logs) + has_base == len(names),
    )


def _written(states: _States, group: Group, stats: Sequence[WriteStat]) -> FileGroupChange:
    partition, file_id = group
    before, after, was_cleaned = states.around(group)
    files = _commit_files(partition, after, stats)
    precedes = before is not None and _follows(before, stats)
    is_first = before is None and stats[0].prev_commit is None
    if files.change_logs and not files.logs:
        case = ChangeCase.AS_IS
    elif not files.has_all or was_cleaned or (files.has_base and not is_first and not precedes):
        raise _cleaned(states.instant.requested, group)
    elif not files.has_base:
        case = ChangeCase.LOG_FILE
    elif is_first:
        case = ChangeCase.BASE_FILE_INSERT
    else:
        case = ChangeCase.BASE_FILE_COMPARE if files.logs or _has_rows(stats) else ChangeCase.BASE_FILE_DELETE
    return FileGroupChange(
        instant=states.instant.requested,
        partition=partition,
        file_id=file_id,
        case=case,
        before=before if precedes else None,
        after=after if files.has_all else None,
        logs=files.logs,
        change_logs=files.change_logs,
        may_delete=case is ChangeCase.BASE_FILE_DELETE or any(stat.num_deletes for stat in stats),
        may_upsert=case is not ChangeCase.BASE_FILE_DELETE and not _only_deletes(stats),
    )


def _has_rows(stats: Iterable[WriteStat]) -> bool:
    return any(stat.num_writes for stat in stats)


def _change_logs(partition: str, stats: Iterable[WriteStat]) -> tuple[LogFile, ...]:
    """Return the change logs that a commit wrote to one file group, oldest first."""
    parsed = [
        parse_cdc_file(path.rpartition("/")[2], partition, size)
        for stat in stats
        for path, size in stat.cdc_files.items()
    ]
    return tuple(sorted((log for log in parsed if log is not None), key=lambda log: (log.version, log.write_token)))


def _only_deletes(stats: Iterable[WriteStat]) -> bool:
    return all(stat.num_deletes and not stat.num_inserts and not stat.num_updates for stat in stats)


def _follows(before: FileSlice, stats: Sequence[WriteStat]) -> bool:
    """Return whether the new base file was written from this slice, instead of a newer slice that was cleaned later."""
    previous = {stat.prev_commit for stat in stats if stat.prev_base_file}
    return before.base is None or previous <= {before.base.instant}


def _replaced(states: _States, group: Group) -> FileGroupChange:
    before, _, _ = states.around(group)
    if before is None:
        raise _cleaned(states.instant.requested, group)
    partition, file_id = group
    return FileGroupChange(
        instant=states.instant.requested,
        partition=partition,
        file_id=file_id,
        case=ChangeCase.REPLACE_COMMIT,
        before=before,
        may_upsert=False,
    )


def _cleaned(instant: str, group: Group) -> CleanedHistoryError:
    partition, file_id = group
    return CleanedHistoryError(
        f"the changes of {instant} in file group {file_id} of partition {partition!r} cannot be read: files "
        "from before or after it were cleaned. Begin after that commit, or let the cleaner retain more of them",
        instant=instant,
    )
