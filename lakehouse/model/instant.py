"""Instants, their states, and the timeline (TL-3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from operator import attrgetter

from lakehouse.errors import CorruptTableError
from lakehouse.model.display import Readable, Shown, count_text, sentence


class Action(StrEnum):
    """The action of an instant, as it is spelled in file names."""

    COMMIT = "commit"
    DELTACOMMIT = "deltacommit"
    REPLACECOMMIT = "replacecommit"
    CLUSTERING = "clustering"
    COMPACTION = "compaction"
    LOGCOMPACTION = "logcompaction"
    CLEAN = "clean"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    RESTORE = "restore"
    INDEXING = "indexing"

    @property
    def completed_as(self) -> Action:
        """The action in the name of the completed file: a completed compaction is a commit."""
        return _COMPLETED_AS.get(self, self)


_COMPLETED_AS = {
    Action.COMPACTION: Action.COMMIT,
    Action.LOGCOMPACTION: Action.DELTACOMMIT,
    Action.CLUSTERING: Action.REPLACECOMMIT,
}

_REQUESTED = attrgetter("requested")

#: Number of newest instants in the representation of a timeline.
_SHOWN_INSTANTS = 10
#: The instants of Hudi's bootstrap: the first has the skeleton files, the second the copied partitions.
METADATA_BOOTSTRAP, FULL_BOOTSTRAP = "00000000000001", "00000000000002"

#: Actions of completed instants that change the data that readers see.
WRITE_ACTIONS = frozenset({Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT})


class State(IntEnum):
    """The state of an instant, in the order of its files."""

    REQUESTED = 0
    INFLIGHT = 1
    COMPLETED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Instant(Readable):
    """An action on the timeline, identified by (requested, action); times are 17 digits in the table's time zone."""

    requested: str
    action: Action
    state: State
    completed: str | None = None

    @property
    def key(self) -> tuple[str, Action]:
        """The identity: the requested time and the action of the completed file."""
        return self.requested, self.action.completed_as

    @property
    def is_completed(self) -> bool:
        """Whether the instant is completed, so that readers see it."""
        return self.state is State.COMPLETED

    @property
    def completion(self) -> str:
        """The completion time; the requested time for an instant without completion time (version 6)."""
        return self.completed or self.requested

    def _shown(self) -> Shown:
        state = self.state.name.lower()
        facts = {"action": self.action, "requested": self.requested, "state": state, "completed": self.completed}
        return Shown(f"{self.action} {self.requested}: {sentence(state, self.completed or '')}", facts)


@dataclass(frozen=True, slots=True)
class Timeline(Readable):
    """The instants of one load, each in its last state, ordered by requested time; immutable."""

    instants: tuple[Instant, ...] = ()

    def __post_init__(self) -> None:
        ordered = sorted(self.instants, key=_REQUESTED)
        if len(set(map(_REQUESTED, ordered))) < len(ordered):
            ordered.sort(key=lambda i: i.key)
        object.__setattr__(self, "instants", tuple(ordered))

    @classmethod
    def _in_order(cls, instants: Iterable[Instant]) -> Timeline:
        """Return a timeline of instants that are ordered already, without sorting them again."""
        timeline = object.__new__(cls)
        object.__setattr__(timeline, "instants", tuple(instants))
        return timeline

    def __iter__(self) -> Iterator[Instant]:
        return iter(self.instants)

    def __len__(self) -> int:
        return len(self.instants)

    # parameters: the columns of a filter, each optional
    def where(
        self,
        *,
        action: Action | Collection[Action] | None = None,
        state: State | None = None,
        pending: bool | None = None,
        requested_up_to: str | None = None,
        completed_after: str | None = None,
        completed_up_to: str | None = None,
    ) -> Timeline:
        """Return the instants that fulfil all given conditions; bounds are inclusive, except `completed_after`."""
        instants: Iterable[Instant] = self.instants
        if action is not None:
            actions = {action} if isinstance(action, Action) else action
            instants = [i for i in instants if i.action in actions]
        if state is not None:
            instants = [i for i in instants if i.state is state]
        if pending is not None:
            instants = [i for i in instants if pending != i.is_completed]
        if requested_up_to is not None:
            instants = [i for i in instants if i.requested <= requested_up_to]
        if completed_after is not None or completed_up_to is not None:
            instants = _completed_within(instants, completed_after, completed_up_to)
        return Timeline._in_order(instants)

    def writes(self) -> Timeline:
        """Return the completed instants that changed data."""
        return self.where(action=WRITE_ACTIONS, state=State.COMPLETED)

    def by_completion(self) -> tuple[Instant, ...]:
        """Return the completed instants, ordered by completion time."""
        return tuple(sorted((i for i in self.instants if i.is_completed), key=lambda i: (i.completion, i.requested)))

    def find(self, requested: str) -> Instant | None:
        """Return the instant with this requested time; savepoints, which have the time of their commit, are ignored."""
        for instant in self.instants:
            if instant.requested == requested and instant.action is not Action.SAVEPOINT:
                return instant
        return None

    def current(self, instant: Instant) -> Instant | None:
        """Return the instant with the same identity in its current state, or None if it is not on the timeline."""
        key = instant.key
        # Times usually differ, so they are compared first.
        return next((other for other in self.instants if other.requested == key[0] and other.key == key), None)

    def savepoints(self) -> frozenset[str]:
        """Return the requested times of the commits with a savepoint."""
        return frozenset(i.requested for i in self.where(action=Action.SAVEPOINT, state=State.COMPLETED))

    def pending_restore(self) -> Instant | None:
        """Return the pending restore, or None if there is none."""
        return next(iter(self.where(action=Action.RESTORE, pending=True)), None)

    def latest_time(self) -> str:
        """Return the latest requested or completion time on the timeline; empty if it has no instants."""
        return max((t for i in self.instants for t in (i.requested, i.completed or "")), default="")

    def transition(self, instant: Instant, state: State, completed: str | None = None) -> Timeline:
        """Return the timeline after `instant` moved to `state`.

        Raises CorruptTableError if the order is not requested -> inflight -> completed, or a time does not increase.
        """
        current = self.current(instant)
        before = -1 if current is None else int(current.state)
        if int(state) != before + 1:
            raise CorruptTableError(
                f"instant {instant.requested}.{instant.action} cannot go from {before} to {state!r}"
            )
        if state is State.COMPLETED and not (completed and completed > instant.requested):
            raise CorruptTableError(
                f"instant {instant.requested} cannot complete at {completed}: not after its request"
            )
        action = instant.action.completed_as if state is State.COMPLETED else instant.action
        moved = replace(instant, state=state, completed=completed, action=action)
        key = instant.key
        rest = tuple(i for i in self.instants if i.requested != key[0] or i.key != key)
        return Timeline((*rest, moved))

    def _shown(self) -> Shown:
        completed = sum(instant.is_completed for instant in self.instants)
        pending = len(self.instants) - completed
        span = f"from {self.instants[0].requested} to {self.instants[-1].requested}" if self.instants else ""
        line = sentence(
            f"timeline of {count_text(len(self.instants), 'instant')}", f"{pending:,} pending" if pending else "", span
        )
        rows = [
            {"action": i.action, "requested": i.requested, "state": i.state.name.lower(), "completed": i.completed}
            for i in reversed(self.instants[-_SHOWN_INSTANTS:])
        ]
        return Shown(line, {"completed": completed, "pending": pending}, rows)


def instant_moment(time: str) -> datetime:
    """Return an instant time, without milliseconds, as a datetime in the time zone of the table.

    The instants of a bootstrap are no times; Hudi takes them as the beginning of 1970.

    Raises CorruptTableError if the digits are not a time.
    """
    if time[:14] in (METADATA_BOOTSTRAP, FULL_BOOTSTRAP):
        return datetime(1970, 1, 1)
    try:
        return datetime.strptime(time[:14], "%Y%m%d%H%M%S")
    except ValueError:
        raise CorruptTableError(
            f"{time!r} is not an instant time, so the order of the writes on the timeline is unknown. Find the files "
            "of this instant in .hoodie/timeline, and the program that wrote them; if they belong to no write, move "
            "them away",
            instant=time,
        ) from None


def shifted_instant(time: str, milliseconds: int) -> str:
    """Return the instant time that is later by some milliseconds; raises CorruptTableError as `instant_moment` does."""
    padded = f"{time:0<17}"
    moment = instant_moment(padded) + timedelta(milliseconds=int(padded[14:17]) + milliseconds)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"


def _completed_within(instants: Iterable[Instant], after: str | None, up_to: str | None) -> list[Instant]:
    completed = [i for i in instants if i.is_completed]
    if after is not None:
        completed = [i for i in completed if i.completion > after]
    return completed if up_to is None else [i for i in completed if i.completion <= up_to]
