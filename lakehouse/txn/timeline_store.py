"""The timeline's pen: reading instants, drawing times, and the three files of every action (format: timeline.md 3).

<t>.<action>.requested  ->  <t>.inflight  ->  <t>_<c>.<action>
each made by create-if-absent; the last one is the commit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError
from lakehouse.format.metadata import decode_commit
from lakehouse.format.names import instant_name, parse_instant
from lakehouse.format.restore import decode_restore_plan
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.state.table_config import TableConfig
from lakehouse.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.txn.env import Env

_READERS = 8
#: What may happen while a restore is pending.
_UNDOING = (Action.ROLLBACK, Action.RESTORE)


class TimelineStore:
    """The timeline of one table on storage. Completed commits never change, so their metadata is read once."""

    def __init__(self, env: Env, config: TableConfig) -> None:
        self._env, self._config = env, config
        self._directory = ".hoodie" if config.layout == 1 else f".hoodie/{config.timeline_path}"
        self._commits: dict[str, CommitMetadata] = {}
        #: Files of the timeline that had no name yet when it was loaded last: of somebody at work, or killed at it.
        self.unfinished: tuple[FileInfo, ...] = ()

    def load(self) -> Timeline:
        """Return the timeline as it is on storage: one listing."""
        furthest: dict[tuple[str, Action], Instant] = {}
        files, _ = self._env.storage.list_dir(self._directory)
        self.unfinished = tuple(file for file in files if is_temporary(file.name))
        for file in files:
            instant = parse_instant(file.name)
            if instant is None:
                continue
            known = furthest.get(instant.key)
            if known is None or instant.state > known.state:
                furthest[instant.key] = instant
        return Timeline(tuple(furthest.values()))

    def commits(self, instants: Iterable[Instant]) -> list[tuple[Instant, CommitMetadata]]:
        """Return completed instants with their metadata, in the order given."""
        wanted = list(instants)
        missing = [instant for instant in wanted if self._path(instant) not in self._commits]
        if len(missing) > 1:
            with ThreadPoolExecutor(_READERS) as pool:
                list(pool.map(self.commit, missing))
        return [(instant, self.commit(instant)) for instant in wanted]

    def commit(self, instant: Instant) -> CommitMetadata:
        """Return the metadata of one completed commit, deltacommit or replacecommit.

        Raises RetryableError if it was rolled back, or archived, since its timeline was loaded.
        """
        path = self._path(instant)
        if path not in self._commits:
            try:
                data = self._env.storage.get(path)
            except NotFoundError as error:
                raise RetryableError(
                    f"{self._env.storage.root}: {instant.requested} was rolled back or archived meanwhile; run again",
                    instant=instant.requested,
                ) from error
            self._commits[path] = decode_commit(data)
        return self._commits[path]

    def read(self, instant: Instant, state: State) -> bytes | None:
        """Return the content of the file of one state, or None if it is absent."""
        try:
            return self._env.storage.get(self._path(replace(instant, state=state)))
        except NotFoundError:
            return None

    def draw(self, timeline: Timeline) -> str:
        """Return a time above everything on the timeline; call under the lock, create its file before releasing it."""
        now = self._text(self._env.clock.now_ms())
        latest = timeline.latest_time()[:17]
        return now if now > latest else _next(latest)

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
            instant = Instant(requested=self.draw(timeline), action=action, state=State.REQUESTED)
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

    def complete(self, instant: Instant, timeline: Timeline, data: bytes) -> Instant:
        """Create the completed file: after this line the action is true. Call under the lock.

        Raises RetryableError if the instant was rolled back meanwhile, CommitStateUnknownError if the reply was lost
        and reading back did not settle it.
        """
        if instant.action not in _UNDOING:
            self.refuse_during_restore(timeline)
        current = timeline.current(instant)
        if current is None or current.is_completed:
            state = "completed by somebody else" if current else "rolled back by another writer"
            raise RetryableError(
                f"instant {instant.requested} was {state}; run the operation again", instant=instant.requested
            )
        moved = timeline.transition(instant, State.COMPLETED, self.draw(timeline)).current(instant)
        assert moved is not None
        if not self._create(moved, data):
            raise CommitStateUnknownError(f"{self._path(moved)} exists already; look at the timeline before acting")
        return moved

    def remove_pending(self, instant: Instant) -> None:
        """Delete the inflight and requested files of an instant that was rolled back, the inflight first."""
        states = (State.INFLIGHT,) if instant.action is Action.SAVEPOINT else (State.INFLIGHT, State.REQUESTED)
        for state in states:
            self._env.storage.delete_many([self._path(replace(instant, state=state))])

    def revert(self, instant: Instant, action: Action) -> Instant:
        """Make a completed instant pending again, as an `action`; from this line on it is not true any more.

        A commit may have been a compaction, so the pending name is not that of the completed file. Call under the lock.
        """
        inflight = replace(instant, state=State.INFLIGHT, action=action, completed=None)
        # Without a pending file nobody would know any more that its data files belong to nothing.
        self._create(inflight, b"")
        self._env.storage.delete_many([self._path(instant)])
        return inflight

    def unstart(self, instant: Instant) -> None:
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

    def _create(self, instant: Instant, data: bytes) -> bool:
        path = self._path(instant)
        try:
            # A completed commit names files that nobody else wrote, so its bytes are ours alone.
            return self._env.storage.create(path, data, unique=instant.is_completed)
        except (RetryableError, CommitStateUnknownError) as error:
            return self._settle(instant, data, error)

    def _settle(self, instant: Instant, data: bytes, lost: LakehouseError) -> bool:
        """Return whether `instant` was created although the reply was lost; raise if its file is absent."""
        try:
            found = self.read(instant, instant.state)
        except LakehouseError as error:
            if instant.is_completed:
                raise CommitStateUnknownError(
                    f"{self._path(instant)} may or may not exist; look at the timeline before acting"
                ) from error
            raise
        if found is None:
            raise lost
        # The time of a pending instant was drawn under the lock, so a file that is there is the one just written.
        return found == data or not instant.is_completed

    def _path(self, instant: Instant) -> str:
        return f"{self._directory}/{instant_name(instant, layout=self._config.layout)}"

    def _text(self, now_ms: int) -> str:
        moment = datetime.fromtimestamp(now_ms / 1000, UTC)
        if self._config.timezone != "UTC":
            moment = moment.astimezone()
        return f"{moment:%Y%m%d%H%M%S}{now_ms % 1000:03d}"


def _next(time: str) -> str:
    moment = datetime.strptime(f"{time:0<17}"[:14], "%Y%m%d%H%M%S") + timedelta(
        milliseconds=int(f"{time:0<17}"[14:]) + 1
    )
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
