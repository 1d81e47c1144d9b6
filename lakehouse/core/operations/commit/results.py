"""The results of operations. "Nothing to do" and a lost conflict are values, not errors."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.core.planning.tombstones import LATE_ROWS_KEY
from lakehouse.model.commit import COMPACTIONS, CommitMetadata, Operation
from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text
from lakehouse.model.drift import ColumnDrift, decode_drift
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason

#: The number of duplicates that an insert dropped, in the extra metadata of its commit.
DROPPED_KEY = "lakehouse.insert.duplicates.dropped"
#: Maximum number of write statistics whose partitions the repr lists.
_SHOWN_STATS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals(Readable):
    """The records, files and bytes of a completed operation; `rows` counts records written to files."""

    rows: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    files: int = 0
    bytes: int = 0

    def _shown(self) -> Shown:
        changes = {"inserted": self.inserts, "updated": self.updates, "deleted": self.deletes}
        line = sentence(
            count_text(self.rows, "row"),
            *(f"{count:,} {verb}" for verb, count in changes.items() if count),
            count_text(self.files, "file"),
            size_text(self.bytes),
        )
        facts = {"rows": self.rows, **changes, "files": self.files, "size": size_text(self.bytes)}
        return Shown(f"totals: {line}", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Readable):
    """The write is committed at `instant.completed`, after `conflicts` attempts that lost a conflict.

    `dropped` contains a reason for each plan that a table service dropped before this commit. `left_out` contains the
    reasons why the service skipped parts of its plan. `ignored_updates` is the number of updates of a MERGE or UPDATE
    without effect, because the stored row has a greater ordering value.
    """

    instant: Instant
    metadata: CommitMetadata
    conflicts: int = 0
    dropped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    ignored_updates: int = 0

    @property
    def rows(self) -> int:
        """Rows inserted, updated or deleted."""
        return sum(s.num_inserts + s.num_updates + s.num_deletes for s in self.metadata.stats)

    @property
    def totals(self) -> Totals:
        """The sums of the commit's write statistics."""
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
        """The column differences between batch and table, with affected rows."""
        return decode_drift(self.metadata.extra)

    @property
    def late_rows_dropped(self) -> int:
        """The number of rows that were dropped because they are older than a tombstone with their key."""
        return int(self.metadata.extra.get(LATE_ROWS_KEY, 0))

    @property
    def duplicates_dropped(self) -> int:
        """The number of rows that an insert dropped because their key existed already."""
        return int(self.metadata.extra.get(DROPPED_KEY, 0))

    def _shown(self) -> Shown:
        kind, requested, metadata = _kind(self), self.instant.requested, self.metadata
        late = count_text(self.late_rows_dropped, "late row") if self.late_rows_dropped else ""
        dropped = self.duplicates_dropped
        lost = count_text(self.conflicts, "conflict") if self.conflicts else ""
        ignored = count_text(self.ignored_updates, "update") + " without effect" if self.ignored_updates else ""
        line = sentence(
            metadata.summary,
            f"{late} dropped" if late else "",
            f"{count_text(dropped, 'duplicate')} dropped" if dropped else "",
            ignored,
            f"after {lost}" if lost else "",
        )
        partitions = tuple(dict.fromkeys(stat.partition for stat in metadata.stats[:_SHOWN_STATS] if stat.partition))
        return Shown(
            f"{kind} {requested}: {line}",
            {
                "requested": requested,
                "completed": self.instant.completed,
                "operation": metadata.operation.lower().replace("_", " "),
                "changes": line,
                **({"partitions": partitions} if partitions else {}),
            },
        )


def _kind(committed: Committed) -> str:
    """Return the display name of the action. A completed compaction, for example, is a `commit` on the timeline."""
    operation = committed.metadata.operation
    if operation in COMPACTIONS:
        return "compaction" if operation == Operation.COMPACT else "log compaction"
    return "clustering" if operation == Operation.CLUSTER else "commit"


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToDo(Readable):
    """Nothing was committed, and the operation left no files behind.

    `code` is the reason for programs, `reason` a sentence for people. See `Committed` for the other fields.
    """

    code: NothingToDoReason
    reason: str
    late_rows_dropped: int = 0
    duplicates_dropped: int = 0
    dropped: tuple[str, ...] = ()
    ignored_updates: int = 0

    def _shown(self) -> Shown:
        counts = {"late_rows_dropped": self.late_rows_dropped, "duplicates_dropped": self.duplicates_dropped}
        facts = {"code": self.code, "reason": self.reason, **{name: rows for name, rows in counts.items() if rows}}
        return Shown(f"nothing to do: {self.reason}", facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict(Readable):
    """Nothing was committed: `winner` committed first, or it is active and early conflict detection found it.

    `tries` is the number of attempts that ended with a conflict. `final` means that a retry with the same rows would
    conflict again, so the caller must plan the write again.
    """

    winner: Instant
    reason: str
    tries: int = 1
    final: bool = False

    def _shown(self) -> Shown:
        winner = f"{self.winner.action} {self.winner.requested}"
        line = f"conflict with {winner}: {self.reason}, after {count_text(self.tries, 'try')}"
        return Shown(line, {"winner": winner, "reason": self.reason, "tries": self.tries, "final": self.final})
