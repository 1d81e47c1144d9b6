"""The metadata table instants that are visible to a reader of one data table version (MDT-5.1).

A reader has loaded the data timeline before the metadata timeline, so the metadata table may contain newer actions.
They are invisible like the actions that are pending on the data timeline: their record locations and partition
statistics describe rows that this reader does not see.
"""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.metadata.place import FIRST_BUILD, INIT_PREFIX, TIME_DIGITS
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, Timeline

#: Actions of the data table that always have a delta commit of the same time in the metadata table.
_RECORDED = frozenset({*WRITE_ACTIONS, Action.CLEAN})


@dataclass(frozen=True, slots=True)
class Validity:
    """The visible instants of a metadata table.

    Attributes:
        completions: Requested time -> completion time of the metadata table's completed instants.
        pending: Requested times of the data table's pending instants.
        completed: Requested times of the data table's completed instants.
        written: Completed instants that wrote data; each has a log file in the partition `files`.
        compactions: Requested times of the metadata table's completed compactions.
        newest: The newest requested time of the data table.
        oldest: The oldest requested time of the active metadata timeline; older instants are archived.
    """

    completions: dict[str, str]
    pending: frozenset[str]
    completed: frozenset[str]
    written: frozenset[str]
    compactions: tuple[str, ...]
    newest: str
    oldest: str

    def is_valid(self, instant: str) -> bool:
        """Return whether readers use the blocks of an instant."""
        if instant.startswith(INIT_PREFIX) or instant in self.completed:
            return True
        # The remaining instants are archived on the data timeline, or belong to the metadata table itself. In version 6
        # the latter have the time of an action and a suffix.
        is_known = instant in self.completions or instant < self.oldest
        return is_known and instant not in self.pending and instant[:TIME_DIGITS] <= self.newest

    def is_archived(self, instant: str) -> bool:
        """Return whether an instant is older than the active metadata timeline."""
        return instant not in self.completions and instant < self.oldest

    def first_invisible(self) -> str:
        """Return the completion time of the first completed instant that is not valid; "~" if all are valid.

        A base file of a later compaction contains its records.
        """
        hidden = [completion for instant, completion in self.completions.items() if not self.is_valid(instant)]
        return min(hidden, default="~")


def validity(metadata: Timeline, data: Timeline) -> Validity:
    """Return the visible instants of a metadata table with these timelines."""
    return Validity(
        completions={i.requested: i.completion for i in metadata if i.is_completed},
        pending=frozenset(i.requested for i in data if not i.is_completed),
        completed=frozenset(i.requested for i in data if i.is_completed),
        written=frozenset(i.requested for i in data.writes()),
        compactions=tuple(i.requested for i in metadata if i.is_completed and i.action is Action.COMMIT),
        newest=max((i.requested for i in data), default=""),
        oldest=min((i.requested for i in metadata), default=""),
    )


def missing_instants(metadata: Timeline, data: Timeline) -> list[Instant]:
    """Return the completed actions of the data table that the metadata table failed to record.

    Actions that completed before the metadata table was built are part of its first files. If the instants of the build
    are archived, the actions before the oldest delta commit may be archived as well.
    """
    deltas = [i for i in metadata if i.is_completed and i.action is Action.DELTACOMMIT]
    recorded = {i.requested for i in deltas}
    built = [i for i in deltas if is_build(i)]
    oldest = "" if built else min(recorded, default="~")
    since = min((_end_of_build(i) for i in built), default="")
    return [
        i
        for i in data
        if i.is_completed
        and i.action in _RECORDED
        and i.requested not in recorded
        and i.requested > oldest
        and i.completion > since
    ]


def stale_instants(timeline: Timeline, data: Timeline) -> list[str]:
    """Return the pending delta commits whose action another process rolled back before they were created.

    A process that loses the lock removes its own delta commits, unless it is killed.
    """
    pending = timeline.where(action=Action.DELTACOMMIT, pending=True)
    return [instant.requested for instant in pending if not is_build(instant) and data.find(instant.requested) is None]


def is_build(instant: Instant) -> bool:
    """Return whether a delta commit of the metadata table built a partition."""
    return instant.requested.startswith(INIT_PREFIX) or instant.requested[TIME_DIGITS:] >= f"{FIRST_BUILD:03d}"


def _end_of_build(instant: Instant) -> str:
    """Return the completion time up to which a build includes the instants of the data table.

    In version 6 there are no completion times; the time of a build begins with the newest instant that it contains.
    """
    return instant.completed or ("" if instant.requested.startswith(INIT_PREFIX) else instant.requested[:TIME_DIGITS])
