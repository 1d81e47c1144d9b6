"""What an operation answers. These are values: nothing to do and a lost race are ordinary ends."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.planning.tombstones import LATE_ROWS_KEY
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.drift import ColumnDrift, decode_drift
from lakehouse.model.instant import Instant


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
    """The write is true since `instant.completed`; before, it lost to others and was tried again `conflicts` times."""

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
        """The columns in which the batch differed from the table, and the rows that this concerned."""
        return decode_drift(self.metadata.extra)

    @property
    def late_rows_dropped(self) -> int:
        """Rows of the batch that were older than a remembered delete of their key, and were left out."""
        return int(self.metadata.extra.get(LATE_ROWS_KEY, 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo:
    """Nothing was committed, and nothing is left of the try; see `Committed` for `late_rows_dropped`."""

    reason: str
    late_rows_dropped: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Another writer, that of `winner`, committed first, or is at work on what we want to write and we gave way early.

    Nothing of ours is visible. `tries` is how often we lost. `final`: the same rows would lose again, so the caller has
    to decide anew what to write.
    """

    winner: Instant
    reason: str
    tries: int = 1
    final: bool = False
