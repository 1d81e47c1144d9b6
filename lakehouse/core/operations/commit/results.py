"""The results of operations. "Nothing to do" and a lost conflict are values, not errors."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.planning.tombstones import LATE_ROWS_KEY
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.drift import ColumnDrift, decode_drift
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The records, files and bytes of a completed operation; `rows` counts records written to files."""

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The write is committed at `instant.completed`, after `conflicts` attempts that lost a conflict."""

    instant: Instant
    metadata: CommitMetadata
    conflicts: int = 0

    @property
    def rows(self) -> int:
        """Rows inserted, updated or deleted."""
        return sum(s.num_inserts + s.num_updates + s.num_deletes for s in self.metadata.stats)

    @property
    def totals(self) -> Totals:
        """The sums of the write statistics of the commit."""
        stats = self.metadata.stats
        return Totals(
            rows=sum(stat.num_writes for stat in stats),
            inserts=sum(stat.num_inserts for stat in stats),
            updates=sum(stat.num_updates for stat in stats),
            deletes=sum(stat.num_deletes for stat in stats),
            files=len(stats),
            bytes=sum(stat.size_bytes for stat in stats),
        )

    @property
    def drift(self) -> tuple[ColumnDrift, ...]:
        """The differences between the columns of the batch and those of the table, with affected rows."""
        return decode_drift(self.metadata.extra)

    @property
    def late_rows_dropped(self) -> int:
        """The number of rows that were dropped because they are older than a tombstone of their key."""
        return int(self.metadata.extra.get(LATE_ROWS_KEY, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    """Nothing was committed, and the operation left no files behind.

    `code` is the reason for programs, `reason` a text for people. See `Committed` for `late_rows_dropped`.
    """

    code: NothingToDoReason
    reason: str
    late_rows_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Nothing was committed: `winner` committed first, or it is active and early conflict detection found it.

    `tries` is the number of attempts that lost. `final` means that the same rows would lose again, so the caller has to
    plan the write again.
    """

    winner: Instant
    reason: str
    tries: int = 1
    final: bool = False
