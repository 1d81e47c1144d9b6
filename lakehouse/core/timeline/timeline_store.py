"""Read the timeline, choose instant times, and create the three files of every action (TL-3).

<t>.<action>.requested  ->  <t>.inflight  ->  <t>_<c>.<action>

Each file is created if absent. The last one is the commit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.timeline.archive_log import DEFAULT_FOLDER
from lakehouse.core.format.timeline.commit_files import COMMIT_FILES, decode_files, files_of
from lakehouse.core.format.timeline.commit_metadata import decode_commit, decode_requested_replace, decode_summary
from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.core.timeline.archived_log import ArchivedLog
from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.core.timeline.late_commit import LateCommit, confirm
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.core.timeline.version_marks import VersionMark, check_marks, refuse_during_change
from lakehouse.errors import CommitStateUnknownError, CorruptTableError, LakehouseError, RetryableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline, instant_moment

if TYPE_CHECKING:
    from lakehouse.core.planning.schema_history import SchemaHistory

T = TypeVar("T")

_READERS = 8
#: Number of archived writes that are decoded at a time, and maximum characters of their extra metadata in the cache.
_EXTRAS_AT_ONCE, _EXTRAS_KEPT = 64, 32 * 1024 * 1024
#: Maximum size of commit metadata that is decoded in advance, because later operations may need it.
_REMEMBERED_BYTES = 1024 * 1024
#: Schema of the files of several commits.
FILES_OF_COMMITS = COMMIT_FILES.append(pa.field("instant", pa.string()))
#: Actions that are allowed while a restore is pending.
_UNDOING = (Action.ROLLBACK, Action.RESTORE)


class TimelineStore:
    """The timeline of one table on storage. Completed commits never change, so their metadata is read once."""

    def __init__(self, env: Env, config: TableConfig) -> None:
        self._env, self._config = env, config
        self._directory = config.layout.timeline_folder(config.timeline_path)
        self._commits: dict[str, CommitMetadata] = {}
        # Caches for large commits: their metadata without write statistics, and their files as columns.
        self._summaries: dict[str, CommitMetadata] = {}
        self._files: dict[str, pa.Table] = {}
        self._archived: set[str] = set()
        #: The schema histories of a table with column ids, by their newest version.
        self.schema_histories: dict[int, SchemaHistory] = {}
        self._extras: dict[tuple[str, str], str] = {}
        self._extras_size = 0
        # The instants of the last listing by file name, because the next listing usually contains the same names, and
        # the timeline of that listing. Both are replaced together, because threads share a store.
        self._listed: tuple[dict[str, Instant | None], Timeline] = ({}, Timeline())
        #: The archived timeline.
        self.archived_timeline = _archived_timeline(env, config, self._directory)
        #: Temporary files of the timeline in the last listing. They belong to an active process or remain from a killed
        #: one.
        self.unfinished: tuple[FileInfo, ...] = ()
        # The mark for an unfinished change of the table version in the last listing.
        self._change: VersionMark | None = None

    def load(self) -> Timeline:
        """Load the current timeline from storage, with one listing.

        Raises VersionChangedError if the table version was changed since the table was loaded.
        """
        names = self._env.storage.list_names(self._directory)
        self._change = check_marks(self._env.storage, names, self._config.layout)
        self.unfinished = ()
        if any(is_temporary(name) for name in names if name[0] == "."):
            files, _ = self._env.storage.list_dir(self._directory)
            self.unfinished = tuple(file for file in files if is_temporary(file.name))
        listed, timeline = self._listed
        new = {name: parse_instant(name) for name in names if name not in listed}
        if new and not self._config.layout.has_clustering_action:
            new = self._with_clusterings(new, names)
        if len(listed) + len(new) > len(names):
            # Files were deleted, for example by an archive or a rollback.
            self._forget_files(listed.keys() - set(names))
            parsed = {name: listed[name] if name in listed else new[name] for name in names}
            timeline = _furthest(Timeline(), parsed.values())
            self._listed = parsed, timeline
        elif new:
            timeline = _furthest(timeline, new.values())
            self._listed = {**listed, **new}, timeline
        return timeline

    def _forget_files(self, names: Iterable[str]) -> None:
        """Drop cached metadata of deleted files: without completion times, a later commit can have the same name."""
        if not self._config.layout.has_completion_times:
            for path in (f"{self._directory}/{name}" for name in names):
                self._commits.pop(path, None)
                self._summaries.pop(path, None)
                self._files.pop(path, None)

    def _with_clusterings(self, new: dict[str, Instant | None], names: Collection[str]) -> dict[str, Instant | None]:
        """Return new instants; a pending replacecommit with a clustering plan gets the action CLUSTERING."""
        result = dict(new)
        for name, instant in new.items():
            if instant is None or instant.is_completed or instant.action is not Action.REPLACECOMMIT:
                continue
            completed = replace(instant, state=State.COMPLETED)
            if self._config.layout.instant_name(completed) in names:
                continue
            plan = self.read(instant, State.REQUESTED)
            with suppress(CorruptTableError):
                if plan and decode_requested_replace(plan):
                    result[name] = replace(instant, action=Action.CLUSTERING)
        return result

    def commits(self, instants: Iterable[Instant]) -> list[tuple[Instant, CommitMetadata]]:
        """Return completed instants with their metadata, in the order of `instants`."""
        wanted = list(instants)
        missing = [instant for instant in wanted if self.path_of(instant) not in self._commits]
        if len(missing) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(self._fetch, [instant for instant in missing if instant.requested not in self._archived]))
            self._fetch_archived([instant for instant in missing if self.path_of(instant) not in self._commits])
        return [(instant, self.commit(instant)) for instant in wanted]

    def known_commits(self, instants: Iterable[Instant]) -> list[tuple[Instant, CommitMetadata]]:
        """Return the completed instants whose metadata is cached, with the metadata; sends no request."""
        pairs = ((instant, self._commits.get(self.path_of(instant))) for instant in instants)
        return [(instant, metadata) for instant, metadata in pairs if metadata is not None]

    def commit(self, instant: Instant) -> CommitMetadata:
        """Return the metadata of a completed commit, deltacommit or replacecommit, which may be archived.

        Raises RetryableError if it was rolled back after the timeline was loaded.
        """
        path = self.path_of(instant)
        if path not in self._commits and not self._fetch(instant):
            self._fetch_archived([instant])
            if path not in self._commits:
                raise RetryableError(
                    f"{self._env.storage.root}: {instant.requested} was rolled back or archived in between; run again",
                    instant=instant.requested,
                )
        return self._commits[path]

    def extra(self, instant: Instant) -> Mapping[str, str]:
        """Return the extra metadata of a completed write, which may be archived. Raises the errors of `commit`."""
        return self.summary(instant).extra

    def summary(self, instant: Instant) -> CommitMetadata:
        """Return the metadata of a completed write, which may be archived. Raises the errors of `commit`.

        The write statistics of a large commit are not decoded; `files` returns them as columns.
        """
        path = self.path_of(instant)
        cached = self._commits.get(path, self._summaries.get(path))
        if cached is not None:
            return cached
        try:
            data = self._env.storage.get(path)
        except NotFoundError:
            return self.commit(instant)
        if len(data) <= _REMEMBERED_BYTES:
            self._decode(path, data)
            return self._commits[path]
        decoded = self._summaries[path] = self._named(path, partial(decode_summary, data))
        return decoded

    def summaries(self, instants: Iterable[Instant]) -> list[tuple[Instant, CommitMetadata]]:
        """Return completed instants with `summary`, in the order of `instants`."""
        wanted = list(instants)
        return list(zip(wanted, self._each(self.summary, wanted), strict=True))

    def files(self, instants: Iterable[Instant]) -> pa.Table:
        """Return the files that completed writes wrote as `COMMIT_FILES`, with the additional column `instant`.

        Large commits are not decoded to objects. Raises the errors of `commit`.
        """
        wanted = list(instants)
        tables = [
            written.append_column("instant", pa.repeat(pa.scalar(instant.requested), written.num_rows))
            for instant, written in zip(wanted, self._each(self._files_of, wanted), strict=True)
        ]
        return pa.concat_tables(tables) if tables else FILES_OF_COMMITS.empty_table()

    def _files_of(self, instant: Instant) -> pa.Table:
        path = self.path_of(instant)
        if path in self._files:
            return self._files[path]
        if path not in self._commits:
            data = b""
            with suppress(NotFoundError):
                data = self._env.storage.get(path)
            if len(data) > _REMEMBERED_BYTES:
                files = self._files[path] = self._named(path, partial(decode_files, data))
                self._summaries[path] = self._named(path, partial(decode_summary, data))
                return files
            if data:
                self._decode(path, data)
        return files_of(self.commit(instant).stats)

    def _each(self, read: Callable[[Instant], T], instants: Sequence[Instant]) -> list[T]:
        """Return the result of `read` for each instant; requests for several of them are concurrent."""
        missing = [i for i in instants if self.path_of(i) not in self._commits and i.requested not in self._archived]
        if len(missing) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(read, missing))
        self._fetch_archived(
            [i for i in instants if i.requested in self._archived and self.path_of(i) not in self._commits]
        )
        return [read(instant) for instant in instants]

    def known_extra(self, instant: Instant) -> Mapping[str, str] | None:
        """Return the extra metadata of a completed write if it is cached, otherwise None."""
        path = self.path_of(instant)
        cached = self._commits.get(path, self._summaries.get(path))
        return None if cached is None else cached.extra

    def remember(self, instant: Instant, data: bytes) -> None:
        """Cache the metadata of this process's commit, so that its next operation need not read it."""
        if len(data) <= _REMEMBERED_BYTES:
            self._commits[self.path_of(instant)] = decode_commit(data)

    def _fetch(self, instant: Instant) -> bool:
        """Read the metadata of a commit; return False if it is no longer on the active timeline."""
        path = self.path_of(instant)
        try:
            data = self._env.storage.get(path)
        except NotFoundError:
            return False
        self._decode(path, data)
        return True

    def _decode(self, path: str, data: bytes) -> None:
        self._commits[path] = self._named(path, partial(decode_commit, data))

    def _named(self, path: str, decode: Callable[[], T]) -> T:
        """Return the result of `decode`, and add the file name to its errors."""
        try:
            return decode()
        except CorruptTableError as error:
            raise CorruptTableError(f"{self._env.storage.root}/{path}: {error.message}", **error.facts) from error

    def _fetch_archived(self, instants: Iterable[Instant]) -> None:
        wanted = {instant.requested: instant for instant in instants}
        for requested, action in self.archived_timeline.actions(wanted).items():
            if action.metadata and action.instant.key == wanted[requested].key:
                self._commits[self.path_of(wanted[requested])] = decode_commit(action.metadata)

    def archived(
        self, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
    ) -> Timeline:
        """Return the archived writes within these bounds; the upper bound is inclusive. Only their times are read."""
        instants = self.archived_timeline.instants(
            requested_from=requested_from, requested_up_to=requested_up_to, completed_after=completed_after
        )
        writes = Timeline(tuple(instants)).writes()
        self._archived.update(instant.requested for instant in writes)
        return writes

    def archived_commits(
        self, instants: Sequence[Instant], containing: str = ""
    ) -> list[tuple[Instant, CommitMetadata]]:
        """Return the archived writes whose metadata contains the string `containing`, in the order of `instants`.

        They are read again by each call, because an archive may be too large to cache.
        """
        held = self.archived_timeline.actions((instant.requested for instant in instants), containing.encode())
        pairs = [(instant, held.get(instant.requested)) for instant in instants]
        return [(instant, decode_commit(action.metadata)) for instant, action in pairs if action and action.metadata]

    def archived_extras(self, requested: Iterable[str], key: str) -> dict[str, str]:
        """Return the value of `key` in the extra metadata of archived writes, by requested time.

        Writes without the key are skipped.

        Values are cached up to a size, because readers need the same ones repeatedly.
        """
        wanted = list(requested)
        missing = [time for time in wanted if (key, time) not in self._extras]
        extras: dict[str, str] = {}
        for start in range(0, len(missing), _EXTRAS_AT_ONCE):
            times = missing[start : start + _EXTRAS_AT_ONCE]
            held = self.archived_timeline.actions(times, key.encode())
            values = {
                time: decode_summary(action.metadata).extra.get(key, "")
                for time, action in held.items()
                if action.metadata and action.instant.key[1] in WRITE_ACTIONS
            }
            extras |= values
            self._keep_extras(key, {time: values.get(time, "") for time in times})
        extras |= {time: self._extras[(key, time)] for time in wanted if (key, time) in self._extras}
        return {time: value for time, value in extras.items() if value}

    def _keep_extras(self, key: str, values: Mapping[str, str]) -> None:
        size = sum(len(value) for value in values.values())
        if self._extras_size + size <= _EXTRAS_KEPT:
            self._extras_size += size
            self._extras.update(((key, time), value) for time, value in values.items())

    def archived_actions(self, action: Action, after: str) -> list[ArchivedAction]:
        """Return the archived actions of one kind that were requested after a time, with their metadata."""
        instants = [
            i
            for i in self.archived_timeline.instants(requested_from=after)
            if i.action is action and i.requested > after
        ]
        return list(self.archived_timeline.actions(instant.requested for instant in instants).values())

    def pending_files(self, instant: Instant) -> list[Instant]:
        """Return the pending states of an instant that have a file as of the last load, in order."""
        requested, key = instant.requested, instant.key
        files = [i for i in self._listed[0].values() if i is not None and i.requested == requested and i.key == key]
        return sorted((file for file in files if not file.is_completed), key=lambda file: file.state)

    def planned_actions(self) -> dict[tuple[str, Action], Action]:
        """Return the plan's action for each compaction, log compaction and clustering, as of the last load.

        The keys are identities of instants (`Instant.key`). A completed plan keeps its pending files until it is
        archived, so its action is known without a read of its metadata.
        """
        listed = (i for i in self._listed[0].values() if i is not None and not i.is_completed)
        return {i.key: i.action for i in listed if i.action is not i.action.completed_as}

    def remove_archived(self, instants: Iterable[Instant], check: Callable[[], None]) -> None:
        """Delete the files of archived completed instants, the oldest first; call under the lock.

        Pending files are deleted first: without its completed file, an action with pending files would look pending.
        Completed files are deleted one by one, so that no reader gets an older instant without a newer one.
        """
        self.refuse_during_change()
        gone = sorted(instants, key=lambda instant: instant.requested)
        check()
        pending = [state for instant in gone for state in self.pending_files(instant)]
        self._env.storage.delete_many([self.path_of(state) for state in pending])
        for instant in gone:
            check()
            self._env.storage.delete(self.path_of(instant))

    def read(self, instant: Instant, state: State) -> bytes | None:
        """Return the content of an instant's file in one state, or None if it does not exist."""
        try:
            return self._env.storage.get(self.path_of(replace(instant, state=state)))
        except NotFoundError:
            return None

    def new_instant_time(self, timeline: Timeline) -> str:
        """Return an instant time greater than all on the timeline.

        Call under the lock, and create the file of the instant before releasing it.
        """
        now = self.time_text(self._env.clock.now_ms())
        latest = timeline.latest_time()[:17]
        return now if now > latest else _next(latest)

    def time_text(self, now_ms: int) -> str:
        """Return a time in UTC milliseconds as the timeline writes it: 17 digits in the time zone of the table."""
        moment = datetime.fromtimestamp(now_ms / 1000, UTC)
        if self._config.timezone != "UTC":
            moment = moment.astimezone()
        return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"

    def refuse_during_change(self) -> None:
        """Raise RetryableError if the last listing contains an unfinished change of the table version."""
        refuse_during_change(self._env.storage, self._change, self._config.layout)

    def refuse_during_restore(self, timeline: Timeline) -> None:
        """Raise RetryableError that names the pending restore, if there is one: only the restore may continue."""
        restore = timeline.pending_restore()
        if restore is None:
            return
        plan = self.read(restore, State.REQUESTED)
        target = decode_restore_plan(plan).target if plan else None
        root = self._env.storage.root
        raise RetryableError(
            f"{root}: the restore {restore.requested} to {target} is not finished; wait for it, or if it failed, "
            f"finish it with `lakehouse restore run --table {root} --to {target}`",
            instant=restore.requested,
            target=target,
        )

    def request(
        self, timeline: Timeline, action: Action, data: bytes, announce: Callable[[str], None] = lambda _: None
    ) -> Instant:
        """Create the requested file of a new instant, and return the instant.

        `announce` is called with the instant time before the file is created. Raises RetryableError while a restore is
        pending, unless the action is a rollback or a restore.
        """
        self.refuse_during_change()
        if action not in _UNDOING:
            self.refuse_during_restore(timeline)
        while True:
            instant = Instant(requested=self.new_instant_time(timeline), action=action, state=State.REQUESTED)
            announce(instant.requested)
            if self._create(instant, data):
                return instant
            # A process that does not hold this lock used the time. Continue with a greater time.
            timeline = Timeline((*timeline.instants, instant))

    def begin(self, requested: str, action: Action, data: bytes = b"") -> Instant:
        """Create the requested file of an instant whose time is given, if absent; return the instant.

        Instants of the metadata table have the times of the actions that they record.
        """
        instant = Instant(requested=requested, action=action, state=State.REQUESTED)
        self._create(instant, data)
        return instant

    def start(self, instant: Instant, data: bytes) -> Instant:
        """Create the inflight file, and return the instant in that state."""
        inflight = replace(instant, state=State.INFLIGHT)
        self._create(inflight, data)
        return inflight

    # parameters: an instant, the state that it was checked against, and its content
    def complete(
        self, instant: Instant, timeline: Timeline, data: bytes, lock: TableLock, *, after: str = ""
    ) -> Instant:
        """Create the completed file, which commits the action. Call under `lock`, right after its check.

        If the storage supports it, the file is created in one atomic step with the check of the lock. Otherwise the
        lock is checked again afterwards (`late_commit`). The completion time is greater than `after`.

        Raises RetryableError if the instant was rolled back in between or the lock was lost before. Raises
        CommitStateUnknownError if the reply was lost and reading back did not resolve it, or if the lock was lost and
        other writers committed in between.
        """
        self.refuse_during_change()
        if instant.action not in _UNDOING:
            self.refuse_during_restore(timeline)
        current = timeline.current(instant)
        if current is None or current.is_completed:
            state = "completed by another executor" if current else "rolled back by another writer"
            raise RetryableError(
                f"instant {instant.requested} was {state}; run the operation again", instant=instant.requested
            )
        completion = max(self.new_instant_time(timeline), _next(after) if after else "")
        moved = timeline.transition(instant, State.COMPLETED, completion).current(instant)
        assert moved is not None
        if not self._config.layout.has_completion_times:
            # The name of the file contains no completion time, so the instant has none when it is loaded again.
            moved = replace(moved, completed=None)
        pending = frozenset(self.pending_files(moved))
        is_guarded = True

        def create(path: str) -> bool:
            nonlocal is_guarded
            made = lock.create(path, data)
            if made is None:
                is_guarded = False
                # A completed commit names files that only this write created, so its bytes are unique.
                return self._env.storage.create(path, data, unique=True)
            return made

        if not self._create(moved, data, create):
            raise CommitStateUnknownError(f"{self.path_of(moved)} exists already; inspect the timeline before acting")
        if not is_guarded:
            confirm(self, LateCommit(instant=moved, before=timeline, pending=pending), lock)
        return moved

    def rollback_target(self, rollback: Instant) -> str | None:
        """Return the instant that a rollback rolls back, or None if its plan is missing or empty."""
        data = self.read(rollback, State.REQUESTED)
        if not data:
            return None
        return self._config.layout.decode_rollback_plan(data, base_path=self._env.storage.root).target

    def withdraw(self, instant: Instant) -> None:
        """Delete the completed file of an instant that was rolled back before it completed; call under the lock."""
        self._env.storage.delete_many([self.path_of(instant)])

    def completions(self, instant: Instant) -> list[Instant]:
        """Return one instant per completed file of it in the last load. Several exist only after a lost lock."""
        listed = self._listed[0].values()
        return [other for other in listed if other and other.key == instant.key and other.is_completed]

    def remove_pending(self, instant: Instant) -> None:
        """Delete the inflight and requested files of an instant that was rolled back, the inflight first."""
        self.refuse_during_change()
        states = (State.INFLIGHT,) if instant.action is Action.SAVEPOINT else (State.INFLIGHT, State.REQUESTED)
        for state in states:
            self._env.storage.delete_many([self.path_of(replace(instant, state=state))])

    def revert(self, instant: Instant, action: Action, *, check: Callable[[], None] = lambda: None) -> Instant:
        """Make a completed instant pending again, as `action`. Its commit is no longer visible afterwards.

        A commit may have been a compaction, so the action of the pending file can differ. Call under the lock, which
        `check` verifies right before the completed file is deleted.
        """
        self.refuse_during_change()
        inflight = replace(instant, state=State.INFLIGHT, action=action, completed=None)
        # Without a pending file, later cleanup would not find the data files of the instant.
        self._create(inflight, b"")
        check()
        self._env.storage.delete_many([self.path_of(instant)])
        return inflight

    def delete_inflight(self, instant: Instant) -> None:
        """Delete the inflight file of a plan that an executor started; the plan stays."""
        self._env.storage.delete_many([self.path_of(replace(instant, state=State.INFLIGHT))])

    def remove(self, instant: Instant) -> None:
        """Delete all files of an instant without data files, such as a rollback or a savepoint."""
        self.refuse_during_change()
        if instant.is_completed:
            self._env.storage.delete_many([self.path_of(instant)])
        self.remove_pending(instant)

    def remove_unfinished(self, requested: str) -> None:
        """Delete the temporary files that a killed process left for this instant."""
        files, _ = self._env.storage.list_dir(self._directory)
        unfinished = [file.path for file in files if is_temporary(file.name) and file.name.startswith(f".{requested}")]
        self._env.storage.delete_many(unfinished)

    def _create(self, instant: Instant, data: bytes, create: Callable[[str], bool] | None = None) -> bool:
        path = self.path_of(instant)
        try:
            return self._env.storage.create(path, data) if create is None else create(path)
        except (RetryableError, CommitStateUnknownError) as error:
            return self._settle(instant, data, error)

    def _settle(self, instant: Instant, data: bytes, lost: LakehouseError) -> bool:
        """Return whether `instant` was created although the reply was lost; raise if its file does not exist."""
        try:
            content = self.read(instant, instant.state)
        except LakehouseError as error:
            if instant.is_completed:
                raise CommitStateUnknownError(
                    f"{self.path_of(instant)} may or may not exist: {lost}. Inspect the timeline before acting."
                ) from error
            raise
        if content is None:
            raise lost
        # The time of a pending instant was chosen under the lock, so an existing file is the one just written.
        return content == data or not instant.is_completed

    def modification_times(self) -> dict[str, int]:
        """Return the modification times of the files on the timeline, in UTC milliseconds, by path."""
        files, _ = self._env.storage.list_dir(self._directory)
        return {file.path: file.modified_ms for file in files}

    def stored_action(self, instant: Instant) -> str:
        """Return the action in the name of an instant's file in its state."""
        if instant.is_completed:
            return str(instant.action.completed_as)
        return self._config.layout.stored_action(str(instant.action))

    def path_of(self, instant: Instant) -> str:
        """Return the path of an instant's file in its state."""
        return f"{self._directory}/{self._config.layout.instant_name(instant)}"


def _archived_timeline(env: Env, config: TableConfig, directory: str) -> ArchivedTimeline | ArchivedLog:
    if config.layout.has_completion_times:
        history = config.raw.get("hoodie.timeline.history.path", "history")
        return ArchivedTimeline(env.storage, f"{directory}/{history}")
    folder = config.raw.get("hoodie.archivelog.folder", "") or DEFAULT_FOLDER
    return ArchivedLog(env.storage, directory, folder)


def _furthest(before: Timeline, new: Collection[Instant | None]) -> Timeline:
    """Add instants to a timeline. Each instant gets the latest state that has a file."""
    times = {instant.requested for instant in new if instant is not None}
    furthest: dict[tuple[str, Action], Instant] = {}
    for instant in (*(old for old in before if old.requested in times), *new):
        if instant is None:
            continue
        latest = furthest.get(instant.key)
        if (
            latest is None
            or instant.state > latest.state
            or (instant.state == latest.state and _is_first(instant, latest))
        ):
            furthest[instant.key] = instant
    return Timeline((*(old for old in before if old.requested not in times), *furthest.values()))


def _is_first(instant: Instant, other: Instant) -> bool:
    """Return whether an instant precedes another one in the same state, independent of the listing order."""
    return (instant.completion, instant.action) < (other.completion, other.action)


def _next(time: str) -> str:
    moment = instant_moment(f"{time:0<17}") + timedelta(milliseconds=int(f"{time:0<17}"[14:]) + 1)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
