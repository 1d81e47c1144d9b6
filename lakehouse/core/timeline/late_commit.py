"""Resolve a late commit: its writer lost the lock between its last check and the creation of the completed file.

    writer A   check: held   ...suspended for longer than the lease...   create   confirm: lost
    writer B                 acquires the lock, loads the timeline, commits

B did not see the commit of A. If the storage can compare the lock in the same step, A's create is refused
(`Storage.create_guarded`). Otherwise the file exists, and A determines its state before it reports an outcome:

    no other process held the lock since           the commit is valid: the next holder of the lock sees it
    others held it and completed nothing           the commit is valid once A holds the lock again
    the instant was rolled back or completed       RetryableError; the completed file is deleted
    another instant completed                      CommitStateUnknownError names it: either may hide rows of the other
    the lock or the timeline cannot be reached     CommitStateUnknownError

This does not cover requested files, nor the files that a rollback or an archive deletes from the timeline: the lock is
only checked before those steps.

A process that crashes between the create and this check leaves the late commit. Only a lease that is longer than any
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
    """A completed instant, the timeline of its conflict check, and its pending files at that time."""

    instant: Instant
    before: Timeline
    pending: frozenset[Instant]


class Store(Protocol):
    """The functions of the timeline store that this module uses."""

    def load(self) -> Timeline: ...
    def pending_files(self, instant: Instant) -> list[Instant]: ...
    def completions(self, instant: Instant) -> list[Instant]: ...
    def rollback_target(self, rollback: Instant) -> str | None: ...
    def withdraw(self, instant: Instant) -> None: ...


def confirm(store: Store, commit: LateCommit, lock: TableLock) -> None:
    """Return if the commit is valid. Otherwise raise RetryableError or CommitStateUnknownError (module docstring)."""
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
        raise _unknown(commit, failure, f"later changes by other writers are not known: {error}") from error
    if undone:
        raise RetryableError(
            f"instant {requested}: the table lock was lost before the commit, and {undone}; the commit was withdrawn. "
            "Run the operation again",
            instant=requested,
        ) from failure
    if others:
        raise _unknown(commit, failure, f"{', '.join(others)} committed in between") from failure


def _undone(store: Store, commit: LateCommit, now: Timeline) -> str:
    """Return how another process rolled the instant back or completed it, or an empty string."""
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
    """Return the instants that completed after the conflict check, or that were requested without seeing the commit."""
    ours, completed_before = commit.instant, _completed(commit.before)
    return sorted(
        f"{instant.requested} ({instant.action})"
        for instant in now.instants
        if instant.key != ours.key
        and (
            (instant.is_completed and instant.key not in completed_before)
            or (instant.requested >= ours.completion and commit.before.find(instant.requested) is None)
        )
    )


def _completed(timeline: Timeline) -> frozenset[tuple[str, Action]]:
    completed: Iterable[Instant] = timeline.where(state=State.COMPLETED)
    return frozenset(instant.key for instant in completed)


def _unknown(commit: LateCommit, failure: LakehouseError, reason: str) -> CommitStateUnknownError:
    requested = commit.instant.requested
    return CommitStateUnknownError(
        f"instant {requested} was committed after the table lock was lost ({failure}), and {reason}: rows of either "
        "may be hidden. Compare the commits. To undo this one, roll it back. Then run the missing operation again",
        instant=requested,
    )
