"""Checks before a commit: whether another commit that completed since the load prevents it.

Checks that only compare timelines and statistics run under the lock. A check that reads data files first names the
commits for which it has to; the files are then read without the lock, and all checks start again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.core.operations.commit.clustering_conflicts import groups_closed_by_clustering
from lakehouse.core.operations.commit.precondition import Precondition, precondition_conflict
from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.conflict import Strategy, WriteSummary, find_conflict, write_summary
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Action, Instant, Timeline

#: Commits that completed since the load, with their metadata.
Others = Sequence[tuple[Instant, CommitMetadata]]


class CommitCheck(Protocol):
    """One reason for which a write must not commit after others."""

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the conflict with one of `others`, or with a plan on `timeline`; runs under the lock."""
        ...

    def suspects(self, others: Others) -> Others:
        """Return the commits for which `compare` has to read data files; runs under the lock."""
        ...

    def compare(self, suspects: Others) -> Conflict | None:
        """Read data files and return the conflict with one of these commits; runs without the lock."""
        ...


@dataclass(frozen=True, slots=True)
class TimelineCheck:
    """A check that reads no data file: `find` returns its conflict."""

    find: Callable[[Others, Timeline], Conflict | None]

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the conflict that `find` returns."""
        return self.find(others, timeline)

    def suspects(self, others: Others) -> Others:
        """Return no commits."""
        return ()

    def compare(self, suspects: Others) -> Conflict | None:
        """Return no conflict."""
        return None


def precondition_check(table: LoadedTable, precondition: Precondition) -> TimelineCheck:
    """Return the check that the state on which a caller planned the write still holds."""
    return TimelineCheck(lambda _others, timeline: precondition_conflict(precondition, table, timeline))


@dataclass(frozen=True, slots=True, kw_only=True)
class FileGroupCheck:
    """Checks that no other commit, clean or clustering changed the file groups of this write.

    Attributes:
        table: The table as it was loaded for the write.
        instant: The requested time of the write.
        ours: The summary of the write.
        strategy: The conflict resolution strategy.
        shared_columns: Columns that every row provides: keys, partition, ordering.
        updates: The option for writes of file groups that a pending clustering holds: reject or give_way.
        copied: The resizes of buckets for which rows were copied, with their partitions; they are no conflicts.
    """

    table: LoadedTable
    instant: str
    ours: WriteSummary
    strategy: Strategy
    shared_columns: frozenset[str] = frozenset()
    updates: str = "give_way"
    copied: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def conflict(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the first conflict: with a clean, with a commit, with a pending clustering."""
        return self._with_clean(others, timeline) or self._with_commit(others) or self._with_clustering(timeline)

    def suspects(self, others: Others) -> Others:
        """Return no commits."""
        return ()

    def compare(self, suspects: Others) -> Conflict | None:
        """Return no conflict."""
        return None

    def _with_clean(self, others: Others, timeline: Timeline) -> Conflict | None:
        """Return the conflict with a clean that may have removed slices between the load and their listing.

        Such a file group would look empty. Cleans keep the slices that a pending write may read as of its instant. So
        this can only happen if another write completed between the load and our instant.
        """
        if not any(instant.completion < self.instant for instant, _ in others):
            return None
        seen = {clean.requested for clean in self.table.timeline.where(action=Action.CLEAN)}
        clean = next((c for c in timeline.where(action=Action.CLEAN) if c.requested not in seen), None)
        if clean is None:
            return None
        return Conflict(
            winner=clean, reason=f"{clean.requested} may have removed files that this write would have read"
        )

    def _with_commit(self, others: Others) -> Conflict | None:
        changes = [
            (instant, write_summary(other, shared_columns=self.shared_columns))
            for instant, other in others
            if instant.requested not in self.copied
        ]
        overlap = find_conflict(changes, self.ours, self.strategy)
        return None if overlap is None else Conflict(winner=overlap.winner, reason=overlap.reason)

    def _with_clustering(self, timeline: Timeline) -> Conflict | None:
        held = groups_closed_by_clustering(self.table, timeline, updates=self.updates)
        for group in sorted(self.ours.groups & frozenset(held)):
            if group[0] in self.copied.get(held[group], ()):
                continue
            planned = timeline.find(held[group])
            assert planned is not None
            return Conflict(
                winner=planned, reason=f"{planned.requested} is about to cluster file group {group[1]} of {group[0]!r}"
            )
        return None
