"""Create, find and delete the auxiliary files of writes: staged rows, markers, heartbeats, leftover files.

    .hoodie/.staging/<instant>/...    .hoodie/.temp/<instant>/<markers>    .hoodie/.heartbeat/<instant>

A write cleans up after it is committed or rolled back. If it crashes before that, the next write cleans up for it.

# Markers

The plan determines the file groups, and the file names in each task's first try. So one object contains the markers of
all first tries. Later tries of a task, and shards of bulk_insert, create their own markers
(`lakehouse.core.files.stage.markers`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from lakehouse.core.files.stage.markers import (
    MarkerBatch,
    attempt_markers,
    create_marker,
    is_marker_type,
    marker_directory,
    read_listed_markers,
    read_markers,
)
from lakehouse.core.format.file_names import MARKERS_TYPE, instant_of, marked_file, write_token_of
from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.metadata.read.table import FILES
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.named_logs import deletable_strays, is_named_by_slice, is_own_log, keeps_logs
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.tombstones import TOMBSTONES, forgotten_at
from lakehouse.core.state.data_files import file_paths
from lakehouse.core.state.file_system_view import first_write
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.core.timeline.expiry import is_active
from lakehouse.core.timeline.file_deletions import (
    check_action,
    check_data_files,
    check_instant,
    delete_data_files,
    delete_leftovers,
)
from lakehouse.core.timeline.heartbeat import active_writes, heartbeat_path
from lakehouse.errors import CorruptTableError, LakehouseError
from lakehouse.model.commit import RollbackPlan, WriteStat
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.options.write import WritePolicy

logger = logging.getLogger(__name__)

_LEFT_IN = (".staging", ".temp", ".heartbeat")
_LOCKS = ".locks"
#: Timeline actions of pending and completed bucket resizes.
_RESIZES = (Action.CLUSTERING, Action.REPLACECOMMIT)
_PARTITION_METADATA = "hoodie_partition_metadata"
#: Expired tombstone files are kept for this time, because a writer that found one earlier may still read it.
_TOMBSTONE_GRACE_MS = 3_600_000


def marked_files(table: LoadedTable, requested: str) -> dict[str, str]:
    """Return, for each marker of the write `requested`, the data file that it stands for. The data file need not exist.

    A marker in an object with other markers is named `<object>/<marker>`.
    """
    marked = {}
    for path, names in read_markers(table.env.storage, requested).items():
        for name in names:
            marked[path if path.endswith(name) else f"{path}/{name}"] = marked_file(name)
    return marked


def clean_up(table: LoadedTable, requested: str, *, markers: Iterable[str] | None = None, staged: bool = True) -> None:
    """Delete the staged rows, markers and heartbeat of a write that is committed or rolled back.

    Args:
        table: The loaded table.
        requested: The requested time of the write.
        markers: Paths of its marker objects; None lists them.
        staged: Whether rows may be staged; False saves a listing.
    """
    storage = table.env.storage
    check_instant(storage, requested, "a cleanup")
    if staged:
        delete_leftovers(storage, [file.path for file in storage.list(f".hoodie/.staging/{requested}")])
    if markers is None:
        markers = [file.path for file in storage.list(marker_directory(requested))]
    # Delete the object with the marker type last, because Hudi ignores all markers without it. The same request deletes
    # the heartbeat. If only some objects are deleted, the next write deletes the rest.
    delete_leftovers(storage, [*sorted(markers, key=is_marker_type), heartbeat_path(requested)])


def _written(stats: Iterable[WriteStat]) -> set[str]:
    """Return the paths of the files in `stats`, including change logs."""
    return {path for stat in stats for path in (stat.path, *stat.cdc_files)}


def delete_files(table: LoadedTable, requested: str, files: Sequence[str]) -> None:
    """Delete data files of a failed write, and unfinished files under temporary names in the same partitions.

    Raises CorruptTableError, and deletes nothing, if `files` contains other paths than data files of this write.
    """
    storage = table.env.storage
    delete_data_files(storage, files, _source(requested), written_by=_instants_in_names(table, requested, files))
    for partition in sorted({file.rpartition("/")[0] for file in files}):
        listed, _ = storage.list_dir(partition)
        unfinished = [
            file.path
            for file in listed
            if is_temporary(file.name) and (f"_{requested}" in file.name or _PARTITION_METADATA in file.name)
        ]
        delete_data_files(storage, unfinished, f"a listing of {partition!r}", unfinished=True)


def check_rollback(table: LoadedTable, plan: RollbackPlan) -> None:
    """Raise CorruptTableError if a rollback plan contains other paths than data files of the write that it undoes."""
    check_action(table.env.storage, plan.action, "a rollback plan")
    check_files_of_write(table, plan.target, [path for request in plan.requests for path in request.files])


def check_files_of_write(table: LoadedTable, requested: str, files: Sequence[str]) -> None:
    """Raise CorruptTableError unless these are names of data files that the write `requested` creates."""
    check_instant(table.env.storage, requested, "a rollback plan")
    written_by = _instants_in_names(table, requested, files)
    check_data_files(table.env.storage, files, _source(requested), written_by=written_by)


def _instants_in_names(table: LoadedTable, requested: str, files: Iterable[str]) -> list[str]:
    """Return the instants that the file names of a write may contain: its own first, then earlier resizes.

    A write may copy rows to log files that are named after a pending bucket resize (MDT-12.5). The resize may be
    completed or undone by now. In version 6 log files are named after their slice, and tokens show whose they are.
    """
    if keeps_logs(table):
        own = {
            instant_of(f.rpartition("/")[2])
            for f in files
            if is_named_by_slice(f, requested) and is_own_log(f, requested)
        }
        return [requested, *sorted(instant for instant in own if instant is not None)]
    resizes = set()
    for instant in {instant_of(file.rpartition("/")[2]) for file in files} - {None, requested}:
        assert instant is not None, "the set has no None"
        current = table.timeline.find(instant)
        is_undone = current is None and instant >= first_write(table.timeline)
        if instant < requested and (is_undone or (current is not None and current.action in _RESIZES)):
            resizes.add(instant)
    return [requested, *sorted(resizes)]


def _source(requested: str) -> str:
    return f"the rollback plan, or a marker, of {requested}"


def markers_of_single_tries(
    requested: str, stats: Iterable[WriteStat], created: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return the marker objects of a write whose tasks ran once, in this process; sends no request.

    Then `stats` name all files. `created` are the marker objects of the caller; the name of each other object follows
    from the token of the task that created it.
    """
    marked = {marked_file(name) for names in created.values() for name in names}
    tokens = {write_token_of(path) for path in _written(stats) - marked}
    return [*created, *sorted(attempt_markers(requested, token) for token in tokens if token is not None)]


def delete_unreported(
    table: LoadedTable,
    requested: str,
    stats: Iterable[WriteStat],
    *,
    ours: Callable[[str], bool] | None = None,
    created: Mapping[str, tuple[str, ...]] | None = None,
) -> list[str]:
    """Delete files that have a marker but no entry in `stats`, such as files of a retried task; call before the commit.

    Args:
        table: The loaded table.
        requested: The requested time of the write.
        stats: The stats that the commit will contain.
        ours: Returns whether this process wrote a path, for instants under which several processes may write; None for
            other instants.
        created: The marker objects that the caller created, with the markers in them; they are not read again.

    Returns:
        The marker objects that are no longer needed.
    """
    written = _written(stats)
    # A task that has ended has reported all its files. Its other marked files were never created.
    ended = {write_token_of(path) for path in written}
    done, stray = [], []
    listed = [file.path for file in table.env.storage.list(marker_directory(requested))]
    if ours is None:
        created = {**(created or {}), **_of_ended_attempts(listed, requested, created or {}, ended)}
        ours = _any_path
    for marker, names in read_listed_markers(table.env.storage, requested, listed, created).items():
        files = [marked_file(name) for name in names]
        stray += [path for path in files if path not in written and ours(path) and write_token_of(path) not in ended]
        if all(ours(path) for path in files):
            done.append(marker)
    delete_files(table, requested, deletable_strays(table, requested, stray))
    return done


def _any_path(_: str) -> bool:
    return True


def _of_ended_attempts(
    listed: Sequence[str], requested: str, created: Mapping[str, tuple[str, ...]], ended: Collection[str | None]
) -> dict[str, tuple[str, ...]]:
    """Return the marker objects of ended attempts, without reading the markers in them.

    Object names are hashes, so two attempts may compete for a name. If `listed` contains an unexpected name, all
    objects are read.
    """
    expected = {attempt_markers(requested, token) for token in ended if token is not None}
    if any(path not in expected and path not in created for path in listed):
        return {}
    return {path: () for path in listed if path in expected}


def find_rollback(table: LoadedTable, timeline: Timeline, requested: str) -> Instant | None:
    """Return the newest rollback of the write `requested`, pending or completed, or None.

    If a completed restore has deleted its rollbacks, the restore is returned.
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
    """Return the plan of a rollback, or None if its file is missing or empty."""
    data = table.store.read(rollback, State.REQUESTED)
    if not data:
        return None
    return table.config.layout.decode_rollback_plan(data, base_path=table.env.storage.root)


def clean_up_ended_writes(table: LoadedTable, policy: TransactionPolicy) -> tuple[str, ...]:
    """Clean up after writes that were committed or rolled back, but whose process crashed before its cleanup.

    Needs one listing if there is nothing to clean up. Returns the instants that were skipped because their markers
    contain paths that must not be deleted; these are logged as errors.

    The order of the reads matters: first the leftovers, then the heartbeats, then the timeline. A write creates them in
    the opposite order. So a write without heartbeat here has expired, and one without instant was rolled back.
    """
    storage = table.env.storage
    listed, directories = storage.list_dir(".hoodie")
    if _LOCKS in directories:
        listed = listed + storage.list_dir(f".hoodie/{_LOCKS}")[0]
    delete_leftovers(storage, [f.path for f in listed if is_temporary(f.name) and _is_abandoned(table, policy, f)])
    # Timeline files are created under the lock. A temporary file that is older than the lock's lease is therefore
    # abandoned.
    now_ms = table.env.clock.now_ms()
    abandoned = [file.path for file in table.store.unfinished if now_ms > file.modified_ms + policy.lock.lease_ms]
    delete_leftovers(storage, abandoned)
    left: set[str] = set()
    unfinished: list[str] = []
    for directory in _LEFT_IN:
        if directory in directories:
            files, names = storage.list_dir(f".hoodie/{directory}")
            unfinished += [file.path for file in files if is_temporary(file.name)]
            left |= {name for name in (*names, *(file.name for file in files)) if name.isascii() and name.isdigit()}
    if not left and not unfinished:
        return ()
    active = active_writes(table.env, policy)
    delete_leftovers(storage, [path for path in unfinished if not any(instant in path for instant in active)])
    timeline, refused = table.store.load(), list[str]()
    for requested in sorted(left - active):
        instant = timeline.find(requested)
        if instant is not None and not instant.is_completed:
            continue
        undoing = find_rollback(table, timeline, requested) if instant is None else None
        if undoing is not None and not undoing.is_completed:
            # The executor of the rollback, or the next one, does this. It may record the logs that stay (see
            # `without_recorded_logs`) after they were read here.
            continue
        try:
            _delete_stray_files(table, timeline, requested, undoing)
        except CorruptTableError as error:
            # Only cleanups read the markers of an ended write. They are kept, so that an operator can inspect them.
            logger.error("%s: %s is not cleaned up: %s", storage.root, requested, error)
            refused.append(requested)
            continue
        table.store.remove_unfinished(requested)
        clean_up(table, requested)
        logger.info("%s: cleaned up after %s, whose writer had crashed", storage.root, requested)
    return tuple(refused)


def _is_abandoned(table: LoadedTable, policy: TransactionPolicy, file: FileInfo) -> bool:
    """Return whether the process that creates this unfinished file (usually of a lock) is no longer active."""
    now_ms = table.env.clock.now_ms()
    try:
        data = table.env.storage.get(file.path)
    except NotFoundError:
        return False
    return not is_active(table.env, data, now_ms=now_ms, expires_ms=file.modified_ms + policy.lock.lease_ms)


def _delete_stray_files(table: LoadedTable, timeline: Timeline, requested: str, undoing: Instant | None) -> None:
    """Delete the files of an ended write that no commit lists; `undoing` is the completed action that undid it.

    These are files of retried tasks, or of tasks that continued after a rollback. If the instant is missing because it
    is archived, its files are valid. They are not valid if there is a rollback, or if the archive has not reached the
    time of the instant, because the instant was then deleted.
    """
    instant = timeline.find(requested)
    named: set[str] = set()
    if instant is None:
        if undoing is not None:
            # The rollback deleted all markers, even for files that were written after it.
            left = list_data_files(table, change_logs=True)
            delete_files(table, requested, [file.path for file in left if file.instant == requested])
        elif not first_write(timeline) or requested < first_write(timeline):
            return
    elif instant.action in WRITE_ACTIONS:
        named = _written(table.store.commit(instant).stats)
    else:
        return
    marked = deletable_strays(table, requested, marked_files(table, requested).values())
    if instant is None:
        marked = without_recorded_logs(table, requested, marked)
    delete_files(table, requested, [path for path in marked if path not in named])


def without_recorded_logs(table: LoadedTable, requested: str, paths: list[str]) -> list[str]:
    """Return the paths without the logs of a write that was rolled back by command blocks, if they are recorded.

    The rollback recorded in the metadata table that these log files stay, so readers would miss them.
    """
    logs = [path for path in paths if is_named_by_slice(path, requested)]
    if not logs or not keeps_logs(table):
        return paths
    now = table.refresh()
    if not now.config.metadata_partitions:
        return paths
    partitions = sorted({path.rpartition("/")[0] for path in logs})
    listing = from_metadata(now, FILES, lambda metadata: metadata.listing(partitions))
    recorded = set(logs) if listing is None else set(file_paths(listing).to_pylist())
    return [path for path in paths if path not in recorded or path not in logs]


def delete_expired_tombstones(table: LoadedTable) -> int:
    """Delete the tombstone files whose tombstones have all expired, and return their number.

    Files that no commit lists are deleted, too.
    """
    storage, now_ms = table.env.storage, table.env.clock.now_ms()
    until = {name: forgotten_at(name) for name in storage.list_names(TOMBSTONES)}
    expired = [
        f"{TOMBSTONES}/{name}" for name, at in until.items() if at is not None and at + _TOMBSTONE_GRACE_MS < now_ms
    ]
    delete_leftovers(storage, expired)
    return len(expired)


#: Name of an object in the marker folder of a write that lost a conflict. Other writes then ignore its markers.
ABANDONED = "GIVEN_UP"
_WRITERS = 8


class WriteMarkers:
    """The markers of one write.

    Attributes:
        known: The marker objects that the driver created, with the names of the markers in each.
        left: The marker objects to delete when the write ends; the caller sets it.
    """

    def __init__(self, table: LoadedTable, requested: str, policy: WritePolicy) -> None:
        self.known: dict[str, tuple[str, ...]] = {}
        self.left: list[str] = []
        self._storage, self._requested, self._policy = table.env.storage, requested, policy

    def begin(self) -> None:
        """Store the marker type. Call this before the first marker is created."""
        if not self._policy.marks_each_file:
            path = f"{marker_directory(self._requested)}/{MARKERS_TYPE}"
            # All processes write the same content.
            self._storage.put(path, self._policy.markers_type.encode())
            self.known[path] = ()

    def requests(self, names: Sequence[str] = ()) -> list[Callable[[], None]]:
        """Return the requests that store the marker type and the markers of all first tries, in any order.

        All of them must succeed before the first data file is created. With one marker file for each data file, the
        tasks create the markers.
        """
        if self._policy.marks_each_file:
            return []
        return [self.begin, *([partial(self._write_batch, names)] if names else [])]

    def _write_batch(self, names: Sequence[str]) -> None:
        batch = MarkerBatch(self._storage, self._requested, 0)
        batch.write(names)
        assert batch.path is not None
        self.known[batch.path] = tuple(names)

    def announce(self, names: Sequence[str], *, each: bool = False) -> None:
        """Create the markers of all first tries.

        With one marker file for each data file, the tasks create them, unless `each` is set.
        """
        for request in self.requests(names):
            request()
        storage = self._storage
        if self._policy.marks_each_file and each:
            with ThreadPoolExecutor(_WRITERS) as pool:
                list(pool.map(lambda name: create_marker(storage, self._requested, name), names))
            self.known |= {f"{marker_directory(self._requested)}/{name}": (name,) for name in names}

    def withdraw(self) -> None:
        """Delete the announced markers of tasks that did not run or wrote no file."""
        # Delete the object with the marker type last: without it, Hudi would ignore the other markers.
        delete_leftovers(self._storage, [*reversed(self.known)])
        self.known = {}

    def give_up(self) -> None:
        """Record that the write lost a conflict, so that other writes do not abort because of its markers."""
        if self.known:
            path = f"{marker_directory(self._requested)}/{ABANDONED}"
            try:
                self._storage.put(path, b"")
            except LakehouseError as error:
                logger.warning("%s: the markers of %s stay valid: %s", self._storage.root, self._requested, error)
