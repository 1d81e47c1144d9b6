"""The timeline's pen: reading instants, drawing times, and the three files of every action (TL-3).

<t>.<action>.requested  ->  <t>.inflight  ->  <t>_<c>.<action>
each made by create-if-absent; the last one is the commit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import instant_name, parse_instant
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.format.timeline.rollback import decode_rollback_plan
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.core.timeline.late_commit import LateCommit, confirm
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import CommitStateUnknownError, CorruptTableError, LakehouseError, RetryableError
from lakehouse.model.archive import ArchivedAction
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline

_READERS = 8
#: How many archived writes are decoded at a time, and how many characters of what they say are kept.
_EXTRAS_AT_ONCE, _EXTRAS_KEPT = 64, 32 * 1024 * 1024
#: What may happen while a restore is pending.
_UNDOING = (Action.ROLLBACK, Action.RESTORE)


class TimelineStore:
    """The timeline of one table on storage. Completed commits never change, so their metadata is read once."""

    def __init__(self, env: Env, config: TableConfig) -> None:
        self._env, self._config = env, config
        self._directory = ".hoodie" if config.layout == 1 else f".hoodie/{config.timeline_path}"
        self._commits: dict[str, CommitMetadata] = {}
        self._archived: set[str] = set()
        self._extras: dict[tuple[str, str], str] = {}
        self._extras_size = 0
        # What the names of the last listing stand for: the next one has most of them again.
        self._parsed: dict[str, Instant | None] = {}
        self._timeline = Timeline()
        history = config.raw.get("hoodie.timeline.history.path", "history")
        #: The archived timeline; that of layout 1 is not read.
        self.archived_timeline = (
            None if config.layout == 1 else ArchivedTimeline(env.storage, f"{self._directory}/{history}")
        )
        #: Files of the timeline that had no name yet when it was loaded last: of somebody at work, or killed at it.
        self.unfinished: tuple[FileInfo, ...] = ()

    def load(self) -> Timeline:
        """Return the timeline as it is on storage: one listing."""
        names = self._env.storage.list_names(self._directory)
        self.unfinished = ()
        if any(is_temporary(name) for name in names if name[0] == "."):
            files, _ = self._env.storage.list_dir(self._directory)
            self.unfinished = tuple(file for file in files if is_temporary(file.name))
        known = self._parsed
        parsed = {name: known[name] if name in known else parse_instant(name) for name in names}
        if parsed.keys() != known.keys():
            self._parsed, self._timeline = parsed, _furthest(parsed.values())
        return self._timeline

    def commits(self, instants: Iterable[Instant]) -> list[tuple[Instant, CommitMetadata]]:
        """Return completed instants with their metadata, in the order given."""
        wanted = list(instants)
        missing = [instant for instant in wanted if self._path(instant) not in self._commits]
        if len(missing) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(self._fetch, [instant for instant in missing if instant.requested not in self._archived]))
            self._fetch_archived([instant for instant in missing if self._path(instant) not in self._commits])
        return [(instant, self.commit(instant)) for instant in wanted]

    def known_commits(self, instants: Iterable[Instant]) -> list[tuple[Instant, CommitMetadata]]:
        """Return those of some completed instants whose metadata was read before; asks storage for nothing."""
        found = ((instant, self._commits.get(self._path(instant))) for instant in instants)
        return [(instant, metadata) for instant, metadata in found if metadata is not None]

    def commit(self, instant: Instant) -> CommitMetadata:
        """Return the metadata of one completed commit, deltacommit or replacecommit, archived ones included.

        Raises RetryableError if it was rolled back since its timeline was loaded.
        """
        path = self._path(instant)
        if path not in self._commits and not self._fetch(instant):
            self._fetch_archived([instant])
            if path not in self._commits:
                raise RetryableError(
                    f"{self._env.storage.root}: {instant.requested} was rolled back or archived meanwhile; run again",
                    instant=instant.requested,
                )
        return self._commits[path]

    def _fetch(self, instant: Instant) -> bool:
        """Read the metadata of a commit; False if it is not on the timeline any more."""
        path = self._path(instant)
        try:
            self._commits[path] = decode_commit(self._env.storage.get(path))
        except NotFoundError:
            return False
        except CorruptTableError as error:
            raise CorruptTableError(f"{self._env.storage.root}/{path}: {error.message}", **error.facts) from error
        return True

    def _fetch_archived(self, instants: Iterable[Instant]) -> None:
        wanted = {instant.requested: instant for instant in instants}
        if self.archived_timeline is None:
            return
        for requested, action in self.archived_timeline.actions(wanted).items():
            if action.metadata and action.instant.key == wanted[requested].key:
                self._commits[self._path(wanted[requested])] = decode_commit(action.metadata)

    def archived(
        self, *, requested_from: str = "", requested_up_to: str | None = None, completed_after: str = ""
    ) -> Timeline:
        """Return the archived writes within these bounds, the upper one inclusive; reads times alone, and lazily."""
        if self.archived_timeline is None:
            return Timeline()
        found = self.archived_timeline.instants(
            requested_from=requested_from, requested_up_to=requested_up_to, completed_after=completed_after
        )
        writes = Timeline(tuple(found)).writes()
        self._archived.update(instant.requested for instant in writes)
        return writes

    def archived_commits(
        self, instants: Sequence[Instant], containing: str = ""
    ) -> list[tuple[Instant, CommitMetadata]]:
        """Return archived writes with their metadata, in the order given, if it holds the text `containing`.

        They are read anew each time: an archive may be large.
        """
        if self.archived_timeline is None:
            return []
        held = self.archived_timeline.actions((instant.requested for instant in instants), containing.encode())
        pairs = [(instant, held.get(instant.requested)) for instant in instants]
        return [(instant, decode_commit(found.metadata)) for instant, found in pairs if found and found.metadata]

    def archived_extras(self, requested: Iterable[str], key: str) -> dict[str, str]:
        """Return the extra metadata `key` of archived writes by requested time; those without it are left out.

        Values that were read are kept, up to a bound of their size: readers ask for the same ones again and again.
        """
        wanted = list(requested)
        missing = [time for time in wanted if (key, time) not in self._extras]
        found: dict[str, str] = {}
        if self.archived_timeline is not None:
            for start in range(0, len(missing), _EXTRAS_AT_ONCE):
                asked = missing[start : start + _EXTRAS_AT_ONCE]
                held = self.archived_timeline.actions(asked, key.encode())
                values = {
                    time: decode_commit(action.metadata).extra.get(key, "")
                    for time, action in held.items()
                    if action.metadata and action.instant.key[1] in WRITE_ACTIONS
                }
                found |= values
                self._keep_extras(key, {time: values.get(time, "") for time in asked})
        found |= {time: self._extras[(key, time)] for time in wanted if (key, time) in self._extras}
        return {time: value for time, value in found.items() if value}

    def _keep_extras(self, key: str, values: Mapping[str, str]) -> None:
        size = sum(len(value) for value in values.values())
        if self._extras_size + size <= _EXTRAS_KEPT:
            self._extras_size += size
            self._extras.update(((key, time), value) for time, value in values.items())

    def archived_actions(self, action: Action, after: str) -> list[ArchivedAction]:
        """Return the archived actions of one kind that were requested after a time, with what they hold."""
        if self.archived_timeline is None:
            return []
        found = [
            i
            for i in self.archived_timeline.instants(requested_from=after)
            if i.action is action and i.requested > after
        ]
        return list(self.archived_timeline.actions(instant.requested for instant in found).values())

    def pending_files(self, instant: Instant) -> list[Instant]:
        """Return the states before completion that an instant has files of, as of the last load, in their order."""
        found = [known for known in self._parsed.values() if known is not None and known.key == instant.key]
        return sorted((known for known in found if not known.is_completed), key=lambda known: known.state)

    def remove_archived(self, instants: Iterable[Instant], check: Callable[[], None]) -> None:
        """Delete the files of completed instants that are in the archive, from the oldest on; call under the lock.

        Their pending files go first, or a completed action would look like a pending one. Then one completed file goes
        after the other, so that no reader finds an older instant where a younger one is gone.
        """
        gone = sorted(instants, key=lambda instant: instant.requested)
        check()
        self._env.storage.delete_many([self._path(state) for instant in gone for state in self.pending_files(instant)])
        for instant in gone:
            check()
            self._env.storage.delete(self._path(instant))

    def read(self, instant: Instant, state: State) -> bytes | None:
        """Return the content of the file of one state, or None if it is absent."""
        try:
            return self._env.storage.get(self._path(replace(instant, state=state)))
        except NotFoundError:
            return None

    def new_instant_time(self, timeline: Timeline) -> str:
        """Return a time above everything on the timeline; call under the lock, create its file before releasing it."""
        now = self.time_text(self._env.clock.now_ms())
        latest = timeline.latest_time()[:17]
        return now if now > latest else _next(latest)

    def time_text(self, now_ms: int) -> str:
        """Return a time, in UTC milliseconds, as the timeline spells it: 17 digits in the table's zone."""
        moment = datetime.fromtimestamp(now_ms / 1000, UTC)
        if self._config.timezone != "UTC":
            moment = moment.astimezone()
        return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"

    def refuse_during_restore(self, timeline: Timeline) -> None:
        """Raise RetryableError naming the restore that is pending, if there is one: only it may go on."""
        restore = timeline.pending_restore()
        if restore is None:
            return
        plan = self.read(restore, State.REQUESTED)
        target = decode_restore_plan(plan).target if plan else None
        root = self._env.storage.root
        raise RetryableError(
            f"{root}: the restore {restore.requested} to {target} is not finished; wait for it, or if it died finish "
            f"it with `lakehouse restore run --table {root} --to {target}`",
            instant=restore.requested,
            target=target,
        )

    def request(
        self, timeline: Timeline, action: Action, data: bytes, announce: Callable[[str], None] = lambda _: None
    ) -> Instant:
        """Create the requested file of a new instant under a fresh time; `announce` is told the time just before.

        Raises RetryableError while a restore is pending, unless the instant undoes something itself.
        """
        if action not in _UNDOING:
            self.refuse_during_restore(timeline)
        while True:
            instant = Instant(requested=self.new_instant_time(timeline), action=action, state=State.REQUESTED)
            announce(instant.requested)
            if self._create(instant, data):
                return instant
            # Somebody without our lock took the time: leave it to them and go on above it.
            timeline = Timeline((*timeline.instants, instant))

    def start(self, instant: Instant, data: bytes) -> Instant:
        """Create the inflight file."""
        inflight = replace(instant, state=State.INFLIGHT)
        self._create(inflight, data)
        return inflight

    def complete(self, instant: Instant, timeline: Timeline, data: bytes, lock: TableLock) -> Instant:
        """Create the completed file: after this line the action is true. Call under `lock`, right after its check.

        Where the store allows it, the file is created in one act with the proof that the lock is ours. Elsewhere the
        lock is checked again afterwards (see `txn.late_commit`).

        Raises RetryableError if the instant was rolled back meanwhile or the lock was lost before. Raises
        CommitStateUnknownError if the reply was lost and reading back did not settle it, or if the lock was lost and
        others committed meanwhile.
        """
        if instant.action not in _UNDOING:
            self.refuse_during_restore(timeline)
        current = timeline.current(instant)
        if current is None or current.is_completed:
            state = "completed by somebody else" if current else "rolled back by another writer"
            raise RetryableError(
                f"instant {instant.requested} was {state}; run the operation again", instant=instant.requested
            )
        moved = timeline.transition(instant, State.COMPLETED, self.new_instant_time(timeline)).current(instant)
        assert moved is not None
        pending = frozenset(self.pending_files(moved))
        is_guarded = True

        def create(path: str) -> bool:
            nonlocal is_guarded
            made = lock.create(path, data)
            if made is None:
                is_guarded = False
                # A completed commit names files that nobody else wrote, so its bytes are ours alone.
                return self._env.storage.create(path, data, unique=True)
            return made

        if not self._create(moved, data, create):
            raise CommitStateUnknownError(f"{self._path(moved)} exists already; look at the timeline before acting")
        if not is_guarded:
            confirm(self, LateCommit(instant=moved, before=timeline, pending=pending), lock)
        return moved

    def rollback_target(self, rollback: Instant) -> str | None:
        """Return the instant that a rollback takes back, or None if its plan is gone or empty."""
        data = self.read(rollback, State.REQUESTED)
        if not data:
            return None
        version = self._config.version
        return decode_rollback_plan(data, base_path=self._env.storage.root, table_version=version).target

    def withdraw(self, instant: Instant) -> None:
        """Delete the completed file of an instant that others undid before it was created; call under the lock."""
        self._env.storage.delete_many([self._path(instant)])

    def completions(self, instant: Instant) -> list[Instant]:
        """Return the completed files of an instant as of the last load: more than one after a lost lock."""
        return [known for known in self._parsed.values() if known and known.key == instant.key and known.is_completed]

    def remove_pending(self, instant: Instant) -> None:
        """Delete the inflight and requested files of an instant that was rolled back, the inflight first."""
        states = (State.INFLIGHT,) if instant.action is Action.SAVEPOINT else (State.INFLIGHT, State.REQUESTED)
        for state in states:
            self._env.storage.delete_many([self._path(replace(instant, state=state))])

    def revert(self, instant: Instant, action: Action, *, check: Callable[[], None] = lambda: None) -> Instant:
        """Make a completed instant pending again, as an `action`; from this line on it is not true any more.

        A commit may have been a compaction, so the pending name is not that of the completed file. Call under the lock,
        which `check` looks at right before the completed file is deleted.
        """
        inflight = replace(instant, state=State.INFLIGHT, action=action, completed=None)
        # Without a pending file nobody would know any more that its data files belong to nothing.
        self._create(inflight, b"")
        check()
        self._env.storage.delete_many([self._path(instant)])
        return inflight

    def delete_inflight(self, instant: Instant) -> None:
        """Delete the inflight file of a plan that somebody began to carry out; the plan stays."""
        self._env.storage.delete_many([self._path(replace(instant, state=State.INFLIGHT))])

    def remove(self, instant: Instant) -> None:
        """Delete all files of an instant that has no data: a rollback, a savepoint."""
        if instant.is_completed:
            self._env.storage.delete_many([self._path(instant)])
        self.remove_pending(instant)

    def remove_unfinished(self, requested: str) -> None:
        """Delete what a process killed in the middle of a file of this instant left under temporary names."""
        files, _ = self._env.storage.list_dir(self._directory)
        unfinished = [file.path for file in files if is_temporary(file.name) and file.name.startswith(f".{requested}")]
        self._env.storage.delete_many(unfinished)

    def _create(self, instant: Instant, data: bytes, create: Callable[[str], bool] | None = None) -> bool:
        path = self._path(instant)
        try:
            return self._env.storage.create(path, data) if create is None else create(path)
        except (RetryableError, CommitStateUnknownError) as error:
            return self._settle(instant, data, error)

    def _settle(self, instant: Instant, data: bytes, lost: LakehouseError) -> bool:
        """Return whether `instant` was created although the reply was lost; raise if its file is absent."""
        try:
            found = self.read(instant, instant.state)
        except LakehouseError as error:
            if instant.is_completed:
                raise CommitStateUnknownError(
                    f"{self._path(instant)} may or may not exist: {lost}. Look at the timeline before acting."
                ) from error
            raise
        if found is None:
            raise lost
        # The time of a pending instant was drawn under the lock, so a file that is there is the one just written.
        return found == data or not instant.is_completed

    def _path(self, instant: Instant) -> str:
        return f"{self._directory}/{instant_name(instant, layout=self._config.layout)}"


def _furthest(found: Iterable[Instant | None]) -> Timeline:
    """Return each instant in the furthest of the states that it has a file of."""
    furthest: dict[tuple[str, Action], Instant] = {}
    for instant in found:
        if instant is None:
            continue
        known = furthest.get(instant.key)
        if known is None or instant.state > known.state:
            furthest[instant.key] = instant
    return Timeline(tuple(furthest.values()))


def _next(time: str) -> str:
    moment = datetime.strptime(f"{time:0<17}"[:14], "%Y%m%d%H%M%S") + timedelta(
        milliseconds=int(f"{time:0<17}"[14:]) + 1
    )
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
