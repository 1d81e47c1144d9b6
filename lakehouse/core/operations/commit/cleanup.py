"""What writes leave beside the table, and taking it away.

    .hoodie/.staging/<instant>/...    .hoodie/.temp/<instant>/<markers>    .hoodie/.heartbeat/<instant>

A write tidies up after itself once it is committed or undone. One that died in between is over, but not tidy: the
next write sweeps up after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from lakehouse.core.files.markers import is_marker_type, marker_directory, read_markers
from lakehouse.core.format.file_names import marked_file, write_token_of
from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.format.timeline.rollback import decode_rollback_plan
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.core.timeline.expiry import is_active
from lakehouse.core.timeline.file_deletions import (
    check_action,
    check_data_files,
    check_instant,
    delete_data_files,
    delete_leftovers,
)
from lakehouse.core.timeline.heartbeat import active_writes, remove_heartbeat
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import RollbackPlan, WriteStat
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

_LEFT_IN = (".staging", ".temp", ".heartbeat")
_LOCKS = ".locks"
_PARTITION_METADATA = "hoodie_partition_metadata"


def marked_files(table: LoadedTable, requested: str) -> dict[str, str]:
    """Return marker -> data file, existing or not, of the markers that the write requested at this time made.

    A marker that stands in one object with others is named by both, `<object>/<marker>`.
    """
    marked = {}
    for path, names in read_markers(table.env.storage, requested).items():
        for name in names:
            marked[path if path.endswith(name) else f"{path}/{name}"] = marked_file(name)
    return marked


def clean_up(table: LoadedTable, requested: str, *, markers: Iterable[str] | None = None, staged: bool = True) -> None:
    """Delete what a finished or undone write no longer needs: staged rows, markers, heartbeat.

    Callers who know the markers, or that nothing was staged, save the listing.
    """
    storage = table.env.storage
    check_instant(storage, requested, "what is undone")
    if staged:
        delete_leftovers(storage, [file.path for file in storage.list(f".hoodie/.staging/{requested}")])
    if markers is None:
        markers = [file.path for file in storage.list(marker_directory(requested))]
    # Without the type Hudi would overlook the markers beside it.
    delete_leftovers(storage, sorted(markers, key=is_marker_type))
    remove_heartbeat(table.env, requested)


def _written(stats: Iterable[WriteStat]) -> set[str]:
    """Return the files that stats report, change logs included."""
    return {path for stat in stats for path in (stat.path, *stat.cdc_files)}


def delete_files(table: LoadedTable, requested: str, files: Sequence[str]) -> None:
    """Delete data files of a dead write, and what a killed process left of them under temporary names.

    Raises CorruptTableError, and deletes none, if markers or the plan name anything else than files of this write.
    """
    storage = table.env.storage
    delete_data_files(storage, files, _source(requested), written_by=requested)
    for partition in sorted({file.rpartition("/")[0] for file in files}):
        found, _ = storage.list_dir(partition)
        unfinished = [
            file.path
            for file in found
            if is_temporary(file.name) and (f"_{requested}" in file.name or _PARTITION_METADATA in file.name)
        ]
        delete_data_files(storage, unfinished, f"a listing of {partition!r}", unfinished=True)


def check_rollback(table: LoadedTable, plan: RollbackPlan) -> None:
    """Raise CorruptTableError if a rollback would delete anything else than files of the write that it undoes."""
    check_action(table.env.storage, plan.action, "a rollback plan")
    check_files_of_write(table, plan.target, [path for request in plan.requests for path in request.files])


def check_files_of_write(table: LoadedTable, requested: str, files: Sequence[str]) -> None:
    """Raise CorruptTableError unless these are the names of data files of the write `requested`."""
    check_instant(table.env.storage, requested, "a rollback plan")
    check_data_files(table.env.storage, files, _source(requested), written_by=requested)


def _source(requested: str) -> str:
    return f"the rollback plan, or a marker, of {requested}"


def delete_unreported(
    table: LoadedTable,
    requested: str,
    stats: Iterable[WriteStat],
    *,
    ours: Callable[[str], bool] = lambda _: True,
    known: Mapping[str, tuple[str, ...]] | None = None,
) -> list[str]:
    """Delete files of attempts that did not make it into the stats, before any reader could take them for ours.

    Return the marker objects that nobody needs any more. Where several processes may write under one instant, `ours`
    tells the paths that this one wrote; `known` are objects whose markers the caller knows.
    """
    written = _written(stats)
    # An attempt that came to its end reported all it made: what else it named was never made.
    ended = {write_token_of(path) for path in written}
    done, stray = [], []
    for marker, names in read_markers(table.env.storage, requested, known).items():
        files = [marked_file(name) for name in names]
        stray += [path for path in files if path not in written and ours(path) and write_token_of(path) not in ended]
        if all(ours(path) for path in files):
            done.append(marker)
    delete_files(table, requested, stray)
    return done


def find_rollback(table: LoadedTable, timeline: Timeline, requested: str) -> Instant | None:
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
            plan = read_rollback_plan(table, rollback)
            if plan is not None and plan.target == requested:
                return rollback
    return None


def read_rollback_plan(table: LoadedTable, rollback: Instant) -> RollbackPlan | None:
    """Return the plan of a rollback, or None if its file is gone or empty."""
    data = table.store.read(rollback, State.REQUESTED)
    if not data:
        return None
    return decode_rollback_plan(data, base_path=table.env.storage.root, table_version=table.config.version)


def clean_up_ended_writes(table: LoadedTable, policy: TransactionPolicy) -> tuple[str, ...]:
    """Tidy up after dead writes that are committed or rolled back already; one listing if there is nothing to do.

    Returns the instants that are left because their markers name what must not be deleted; they are logged as well.

    What is left is listed before the signs of life, and those before the timeline. A write makes them in the opposite
    order, so one that looks dead here is dead, and one that looks unknown was rolled back.
    """
    storage = table.env.storage
    found, directories = storage.list_dir(".hoodie")
    if _LOCKS in directories:
        found = found + storage.list_dir(f".hoodie/{_LOCKS}")[0]
    delete_leftovers(storage, [f.path for f in found if is_temporary(f.name) and _is_dead(table, policy, f)])
    # Files of the timeline are made under the lock, so one that is older than its lease is of a dead process.
    now_ms = table.env.clock.now_ms()
    aged = [file.path for file in table.store.unfinished if now_ms > file.modified_ms + policy.lock.lease_ms]
    delete_leftovers(storage, aged)
    left: set[str] = set()
    unfinished: list[str] = []
    for directory in _LEFT_IN:
        if directory in directories:
            files, names = storage.list_dir(f".hoodie/{directory}")
            unfinished += [file.path for file in files if is_temporary(file.name)]
            left |= {name for name in (*names, *(file.name for file in files)) if name.isascii() and name.isdigit()}
    if not left and not unfinished:
        return ()
    living = active_writes(table.env, policy)
    delete_leftovers(storage, [path for path in unfinished if not any(instant in path for instant in living)])
    timeline, refused = table.store.load(), list[str]()
    for requested in sorted(left - living):
        instant = timeline.find(requested)
        if instant is not None and not instant.is_completed:
            continue
        try:
            _delete_stray_files(table, timeline, requested)
        except CorruptTableError as error:
            # The write is over, and its markers are only looked at by sweeps: they stay for a person to look at.
            logger.error("%s: %s is not tidied up: %s", storage.root, requested, error)
            refused.append(requested)
            continue
        table.store.remove_unfinished(requested)
        clean_up(table, requested)
        logger.info("%s: tidied up after %s, whose writer died", storage.root, requested)
    return tuple(refused)


def _is_dead(table: LoadedTable, policy: TransactionPolicy, file: FileInfo) -> bool:
    """Return whether nobody is about to give this unfinished file (a lock, as a rule) its name."""
    try:
        data = table.env.storage.get(file.path)
    except NotFoundError:
        return False
    return not is_active(table.env, data, expires_ms=file.modified_ms + policy.lock.lease_ms)


def _delete_stray_files(table: LoadedTable, timeline: Timeline, requested: str) -> None:
    """Delete what a write that is over marked and no commit names: files of repeated tasks, or of a late awakening.

    An instant that is not on the timeline may be archived as well, and then its files count: only a rollback proves
    that they do not.
    """
    instant = timeline.find(requested)
    named: set[str] = set()
    if instant is None:
        if find_rollback(table, timeline, requested) is None:
            return
        # The rollback took the markers of what was still being written.
        left = list_data_files(table, change_logs=True)
        delete_files(table, requested, [file.path for file in left if file.instant == requested])
    elif instant.action in WRITE_ACTIONS:
        named = _written(table.store.commit(instant).stats)
    else:
        return
    marked = marked_files(table, requested).values()
    delete_files(table, requested, [path for path in marked if path not in named])
