"""What writes leave beside the table, and taking it away.

    .hoodie/.staging/<instant>/...    .hoodie/.temp/<instant>/<data file>.marker.<kind>    .hoodie/.heartbeat/<instant>

A write tidies up after itself once it is committed or undone. One that died in between is over, but not tidy: the
next write sweeps up after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from lakehouse.format.names import marker_name, parse_marker
from lakehouse.format.restore import decode_restore_plan
from lakehouse.format.rollback import decode_rollback_plan
from lakehouse.model.commit import RollbackPlan, WriteStat
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.operations.load import LoadedTable
from lakehouse.spec.options import TransactionPolicy
from lakehouse.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.txn.heartbeat import living_writes, remove_heartbeat
from lakehouse.txn.ownership import is_alive

logger = logging.getLogger(__name__)

_LEFT_IN = (".staging", ".temp", ".heartbeat")
_LOCKS = ".locks"
_PARTITION_METADATA = "hoodie_partition_metadata"


def marked_files(table: LoadedTable, requested: str) -> dict[str, str]:
    """Return marker -> data file, existing or not, of the markers that the write requested at this time made.

    Writers of Hudi with a timeline server put the names of many markers into few files, MARKERS0 and so on.
    """
    prefix = f".hoodie/.temp/{requested}/"
    marked = {}
    for file in table.env.storage.list(prefix.rstrip("/")):
        name = file.path.removeprefix(prefix)
        lists_markers = name.startswith("MARKERS") and name.removeprefix("MARKERS").isdigit()
        lines = table.env.storage.get(file.path).decode().splitlines() if lists_markers else [name]
        for line in lines:
            marker = parse_marker(line)
            if marker is not None:
                marked[f"{file.path}/{line}" if lists_markers else file.path] = marker[0]
    return marked


def markers_of(requested: str, stats: Iterable[WriteStat]) -> list[str]:
    """Return the markers of the files that a write reported."""
    return [f".hoodie/.temp/{requested}/{marker_name(path, kind)}" for stat in stats for path, kind in _marked(stat)]


def tidy(table: LoadedTable, requested: str, *, markers: Iterable[str] | None = None, staged: bool = True) -> None:
    """Delete what a finished or undone write no longer needs: staged rows, markers, heartbeat.

    Callers who know the markers, or that nothing was staged, save the listing.
    """
    storage = table.env.storage
    if staged:
        storage.delete_many([file.path for file in storage.list(f".hoodie/.staging/{requested}")])
    if markers is None:
        markers = [file.path for file in storage.list(f".hoodie/.temp/{requested}")]
    storage.delete_many(markers)
    remove_heartbeat(table.env, requested)


def _marked(stat: WriteStat) -> list[tuple[str, Literal["CREATE", "MERGE"]]]:
    """Return the files that a stat reports, change logs included, and the kinds of their markers."""
    kind: Literal["CREATE", "MERGE"] = "MERGE" if stat.prev_base_file else "CREATE"
    return [(stat.path, kind), *((path, "CREATE") for path in stat.cdc_files)]


def delete_files(table: LoadedTable, requested: str, files: Sequence[str]) -> None:
    """Delete data files of a dead write, and what a killed process left of them under temporary names."""
    storage = table.env.storage
    storage.delete_many(files)
    for partition in sorted({file.rpartition("/")[0] for file in files}):
        found, _ = storage.list_dir(partition)
        unfinished = [file for file in found if is_temporary(file.name)]
        storage.delete_many([f.path for f in unfinished if f"_{requested}" in f.name or _PARTITION_METADATA in f.name])


def delete_unreported(
    table: LoadedTable, requested: str, stats: Iterable[WriteStat], *, ours: Callable[[str], bool] = lambda _: True
) -> None:
    """Delete files of attempts that did not make it into the stats, before any reader could take them for ours.

    Where several processes may write under one instant, `ours` tells the paths that this one wrote.
    """
    written = {path for stat in stats for path, _ in _marked(stat)}
    marked = marked_files(table, requested)
    stray = {marker: path for marker, path in marked.items() if path not in written and ours(path)}
    delete_files(table, requested, list(stray.values()))
    table.env.storage.delete_many(stray)


def rollback_of(table: LoadedTable, timeline: Timeline, requested: str) -> Instant | None:
    """Return the newest rollback of the write `requested`, finished or not; it is younger than what it undoes.

    A restore that is finished has removed its rollbacks; it is returned instead.
    """
    for restore in reversed(tuple(timeline.where(action=Action.RESTORE, state=State.COMPLETED))):
        if restore.requested > requested:
            data = table.store.read(restore, State.REQUESTED)
            if data and requested in {undone for undone, _ in decode_restore_plan(data).instants}:
                return restore
    for rollback in reversed(tuple(timeline.where(action=Action.ROLLBACK))):
        if rollback.requested > requested:
            plan = stored_plan(table, rollback)
            if plan is not None and plan.target == requested:
                return rollback
    return None


def stored_plan(table: LoadedTable, rollback: Instant) -> RollbackPlan | None:
    """Return the plan of a rollback, or None if its file is gone or empty."""
    data = table.store.read(rollback, State.REQUESTED)
    if not data:
        return None
    return decode_rollback_plan(data, base_path=table.env.storage.root, table_version=table.config.version)


def sweep(table: LoadedTable, policy: TransactionPolicy) -> None:
    """Tidy up after dead writes that are committed or rolled back already; one listing if there is nothing to do.

    What is left is listed before the signs of life, and those before the timeline. A write makes them in the opposite
    order, so one that looks dead here is dead, and one that looks unknown was rolled back.
    """
    storage = table.env.storage
    found, directories = storage.list_dir(".hoodie")
    if _LOCKS in directories:
        found = found + storage.list_dir(f".hoodie/{_LOCKS}")[0]
    storage.delete_many([file.path for file in found if is_temporary(file.name) and _is_dead(table, policy, file)])
    # Files of the timeline are made under the lock, so one that is older than its lease is of a dead process.
    now_ms = table.env.clock.now_ms()
    aged = [file.path for file in table.store.unfinished if now_ms > file.modified_ms + policy.lock_lease_ms]
    storage.delete_many(aged)
    left: set[str] = set()
    unfinished: list[str] = []
    for directory in _LEFT_IN:
        if directory in directories:
            files, names = storage.list_dir(f".hoodie/{directory}")
            unfinished += [file.path for file in files if is_temporary(file.name)]
            left |= {name for name in (*names, *(file.name for file in files)) if name.isdigit()}
    if not left and not unfinished:
        return
    living = living_writes(table.env, policy)
    storage.delete_many([path for path in unfinished if not any(instant in path for instant in living)])
    timeline = table.store.load()
    for requested in sorted(left - living):
        instant = timeline.find(requested)
        if instant is not None and not instant.is_completed:
            continue
        _delete_stray_files(table, timeline, requested)
        table.store.remove_unfinished(requested)
        tidy(table, requested)
        logger.info("%s: tidied up after %s, whose writer died", storage.root, requested)


def _is_dead(table: LoadedTable, policy: TransactionPolicy, file: FileInfo) -> bool:
    """Return whether nobody is about to give this unfinished file (a lock, as a rule) its name."""
    try:
        data = table.env.storage.get(file.path)
    except NotFoundError:
        return False
    return not is_alive(table.env, data, expires_ms=file.modified_ms + policy.lock_lease_ms)


def _delete_stray_files(table: LoadedTable, timeline: Timeline, requested: str) -> None:
    """Delete what a write that is over marked and no commit names: files of repeated tasks, or of a late awakening.

    An instant that is not on the timeline may be archived as well, and then its files count: only a rollback proves
    that they do not.
    """
    instant = timeline.find(requested)
    named: set[str] = set()
    if instant is None:
        if rollback_of(table, timeline, requested) is None:
            return
    elif instant.action in WRITE_ACTIONS:
        named = {path for stat in table.store.commit(instant).stats for path, _ in _marked(stat)}
    else:
        return
    marked = marked_files(table, requested).values()
    delete_files(table, requested, [path for path in marked if path not in named])
