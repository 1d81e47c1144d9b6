"""A commit whose writer lost the lock between its last check and the create of the completed file.

    writer A   check: ours   ...suspended for longer than the lease...   create   confirm: lost
    writer B                 takes the lock, loads the timeline, commits

B did not see the commit of A. Where the lock is a file of a store that can compare it, A's create is refused (see
`Storage.create_guarded`). Elsewhere the file exists, and A looks what happened before it says anything:

    no other process had the lock meanwhile    the commit counts: the next holder of the lock sees it
    others had it and completed nothing        it counts as well, once the lock is held again
    the instant was rolled back or completed   the completed file is deleted, RetryableError: its files are gone
    another instant completed                  CommitStateUnknownError names it: either may hide rows of the other
    the lock or the timeline is out of reach   CommitStateUnknownError

Files that are requested, and those that a rollback or an archive deletes from the timeline, are not covered: the lock
is checked before them and nothing more.

A process that dies between the create and this look leaves the late commit: only a lease that is longer than any
suspension excludes that.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError
from lakehouse.model.instant import Action, Instant, State, Timeline

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LateCommit:
    """A completed instant, the timeline on which it was decided, and the pending files that it had then."""

    instant: Instant
    before: Timeline
    pending: frozenset[Instant]


class Store(Protocol):
    """What of the timeline is needed here."""

    def load(self) -> Timeline: ...
    def pending_files(self, instant: Instant) -> list[Instant]: ...
    def completions(self, instant: Instant) -> list[Instant]: ...
    def rollback_target(self, rollback: Instant) -> str | None: ...
    def withdraw(self, instant: Instant) -> None: ...


def confirm(store: Store, commit: LateCommit, lock: TableLock) -> None:
    """Return if the commit counts; raise RetryableError or CommitStateUnknownError as the module tells."""
    try:
        lock.confirm()
        return
    except LakehouseError as error:
        failure = error
    requested = commit.instant.requested
    logger.warning("%s: %s was created, and the lock was lost: %s", lock.name, requested, failure)
    try:
        with lock.reacquire() as held:
            now = store.load()
            undone = _undone(store, commit, now)
            if undone:
                held.check()
                store.withdraw(commit.instant)
            others = _others(commit, now)
    except LakehouseError as error:
        raise _unknown(commit, failure, f"what others did meanwhile is not known: {error}") from error
    if undone:
        raise RetryableError(
            f"instant {requested}: the table lock was lost before the commit, and {undone}; the commit was withdrawn. "
            "Run the operation again",
            instant=requested,
        ) from failure
    if others:
        raise _unknown(commit, failure, f"{', '.join(others)} came in between") from failure


def _undone(store: Store, commit: LateCommit, now: Timeline) -> str:
    """Return how the instant was taken back before it was completed, or an empty text."""
    ours = commit.instant
    for rollback in now.where(action=Action.ROLLBACK):
        is_new = commit.before.find(rollback.requested) is None
        if is_new and store.rollback_target(rollback) == ours.requested:
            return f"{rollback.requested} rolled it back"
    if len(store.completions(ours)) > 1:
        return "another executor completed it"
    if commit.pending - frozenset(store.pending_files(ours)):
        return "its pending files were removed"
    return ""


def _others(commit: LateCommit, now: Timeline) -> list[str]:
    """Return instants that completed since the decision, or were requested as if the commit was not there."""
    ours, known = commit.instant, _completed(commit.before)
    return sorted(
        f"{instant.requested} ({instant.action})"
        for instant in now.instants
        if instant.key != ours.key
        and (
            (instant.is_completed and instant.key not in known)
            or (instant.requested >= ours.completion and commit.before.find(instant.requested) is None)
        )
    )


def _completed(timeline: Timeline) -> frozenset[tuple[str, Action]]:
    found: Iterable[Instant] = timeline.where(state=State.COMPLETED)
    return frozenset(instant.key for instant in found)


def _unknown(commit: LateCommit, failure: LakehouseError, reason: str) -> CommitStateUnknownError:
    requested = commit.instant.requested
    return CommitStateUnknownError(
        f"instant {requested} was committed after the table lock was lost ({failure}), and {reason}: rows of either "
        "may be hidden. Compare the commits; to undo this one, roll it back; then run what is missing again",
        instant=requested,
    )
