"""Determines the file groups whose record keys an action changes (MDT-4).

new base file of a new file group        its keys are added next base file with inserts or deletes   its keys are
compared with the keys of the previous file log file with inserts or deletes         the keys of the slice are compared
with its keys before the log replaced file group                      its keys are removed, unless the action adds them
elsewhere updates in place, compaction, clean      nothing changes clustering the keys of the new files get their new
location; none is removed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC

from lakehouse.core.files.keys.changed_keys import ChangedGroup, KeyChange
from lakehouse.core.files.keys.secondary_keys import IndexedGroup
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.model.commit import COMPACTIONS, Operation, WriteStat
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import instant_moment


def written_groups(
    stats: Iterable[WriteStat],
    operation: str,
    instant_ms: int,
    stored: Callable[[], Iterable[FileSlice]] | None = None,
) -> list[ChangedGroup]:
    """Return the file groups whose keys the files of these write statistics change.

    `stored` returns the newest slices before the action, for tables where statistics name the logs of one base instant
    only: while a compaction is pending, older rows of the file group are in another slice.
    """
    if operation in COMPACTIONS:
        return []
    groups: dict[tuple[str, str], list[WriteStat]] = {}
    for stat in stats:
        if stat.path:
            groups.setdefault((stat.partition, stat.file_id), []).append(stat)
    changed = (_written_group(of_group, instant_ms) for of_group in groups.values())
    changed_groups = [group for group in changed if group is not None]
    if stored is None or not any(group.after is not None and group.after.logs for group in changed_groups):
        return changed_groups
    slices = {(s.partition, s.file_id): s for s in stored()}
    return [_above(group, slices.get((group.partition, group.file_id)), groups) for group in changed_groups]


def _above(
    group: ChangedGroup, before: FileSlice | None, stats: Mapping[tuple[str, str], Sequence[WriteStat]]
) -> ChangedGroup:
    """Return a group with log files, with its stored slice before them, or without one if the group is new."""
    if group.after is None or not group.after.logs:
        return group
    written = {_name(stat.path) for stat in stats[group.partition, group.file_id]}
    logs = tuple(log for log in group.after.logs if log.name in written)
    if before is None:
        return replace(group, before=None, after=replace(group.after, base=None, logs=logs))
    return replace(group, before=before, after=replace(before, logs=(*before.logs, *logs)))


def valued_groups(stats: Iterable[WriteStat], *, keeps: bool) -> list[IndexedGroup]:
    """Return the file groups of these write statistics with their slices before and after, for a secondary index.

    `keeps` means that other writers append to the same file groups concurrently.
    """
    groups: dict[tuple[str, str], list[WriteStat]] = {}
    for stat in stats:
        if stat.path:
            groups.setdefault((stat.partition, stat.file_id), []).append(stat)
    return [_valued_group(of_group, keeps=keeps) for of_group in groups.values()]


def removed_groups(slices: Iterable[FileSlice], operation: str) -> list[ChangedGroup]:
    """Return replaced file groups whose keys the action removes; `slices` are their newest slices."""
    if operation == Operation.CLUSTER:
        return []
    return [
        ChangedGroup(kind=KeyChange.REMOVED, partition=s.partition, file_id=s.file_id, instant_ms=0, before=s)
        for s in slices
    ]


def stored_groups(slices: Iterable[FileSlice], timezone: str) -> list[ChangedGroup]:
    """Return all file groups of a table as added groups, with the times of their slices, as input of a build."""
    return [
        ChangedGroup(
            kind=KeyChange.ADDED,
            partition=s.partition,
            file_id=s.file_id,
            instant_ms=instant_ms(s.base_instant, timezone),
            after=s,
        )
        for s in slices
    ]


def instant_ms(instant: str, timezone: str) -> int:
    """Return the time of an instant in milliseconds since 1970; `timezone` of the table is UTC or LOCAL."""
    moment, millis = instant_moment(instant), int(instant[14:17] or 999)
    moment = moment.replace(tzinfo=UTC) if timezone == "UTC" else moment.astimezone()
    return int(moment.timestamp()) * 1000 + millis


def _written_group(stats: Sequence[WriteStat], instant_ms: int) -> ChangedGroup | None:
    last = stats[-1]
    base = parse_base_file(_name(last.path), last.partition, last.size_bytes)
    group = ChangedGroup(kind=KeyChange.COMPARED, partition=last.partition, file_id=last.file_id, instant_ms=instant_ms)
    if base is None:
        changes = any(stat.num_deletes or stat.num_inserts or stat.revived for stat in stats)
        return _with_log_slices(group, stats) if changes else None
    after = FileSlice(partition=base.partition, file_id=base.file_id, base_instant=base.instant, base=base)
    previous = parse_base_file(last.prev_base_file or "", last.partition, 0)
    if previous is None:
        return replace(group, kind=KeyChange.ADDED, after=after)
    if not last.num_inserts and not last.num_deletes:
        return None
    before = replace(after, base_instant=previous.instant, base=previous)
    return replace(group, before=before, after=after)


def _with_log_slices(group: ChangedGroup, stats: Sequence[WriteStat]) -> ChangedGroup:
    """Return the group with its slice before and after the log files of `stats`."""
    last = max(stats, key=lambda stat: len(stat.log_files))
    base = parse_base_file(last.base_file, group.partition, 0)
    names = last.log_files or tuple(_name(stat.path) for stat in stats)
    logs = [log for name in names if (log := parse_log_file(name, group.partition, 0)) is not None]
    written = {_name(stat.path) for stat in stats}
    first = base.instant if base is not None else logs[0].instant
    after = FileSlice(partition=group.partition, file_id=group.file_id, base_instant=first, base=base, logs=tuple(logs))
    earlier = tuple(log for log in logs if log.name not in written)
    before = replace(after, logs=earlier) if base is not None or earlier else None
    return replace(group, before=before, after=after)


def _valued_group(stats: Sequence[WriteStat], *, keeps: bool) -> IndexedGroup:
    last = max(stats, key=lambda stat: len(stat.log_files))
    partition, file_id = last.partition, last.file_id
    base = parse_base_file(_name(last.path), partition, last.size_bytes)
    if base is not None:
        previous = parse_base_file(last.prev_base_file or "", partition, 0)
        after = FileSlice(partition=partition, file_id=file_id, base_instant=base.instant, base=base)
        if previous is None:
            return IndexedGroup(after=after)
        before = FileSlice(partition=partition, file_id=file_id, base_instant=previous.instant, base=previous)
        return IndexedGroup(before=before, after=after)
    base = parse_base_file(last.base_file, partition, 0)
    names = dict.fromkeys((*last.log_files, *(_name(stat.path) for stat in stats)))
    logs = [log for name in names if (log := parse_log_file(name, partition, 0)) is not None]
    logs.sort(key=lambda log: (log.instant, log.version, log.write_token))
    first = base.instant if base is not None else logs[0].instant
    written = {_name(stat.path) for stat in stats}
    after = FileSlice(partition=partition, file_id=file_id, base_instant=first, base=base, logs=tuple(logs))
    earlier = tuple(log for log in logs if log.name not in written)
    if base is None and not earlier:
        return IndexedGroup(after=after, keeps=keeps)
    return IndexedGroup(before=replace(after, logs=earlier), after=after, keeps=keeps)


def _name(path: str) -> str:
    return path.rpartition("/")[2]
