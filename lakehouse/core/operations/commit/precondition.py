"""Check at the commit that the state on which a write is based is still valid.

A caller may derive its work from earlier commits (which files were ingested, up to which offset), long before it
commits. Meanwhile another run may have done the same work, or the earlier commit may have been rolled back. The write
would then store rows twice or omit some, so it is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import archived_writes, writes_since
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.conflict import COLUMNS_KEY
from lakehouse.model.commit import REWRITES, CommitMetadata
from lakehouse.model.instant import Instant, Timeline


@dataclass(slots=True, kw_only=True)
class ReadRows:
    """The rows on which a statement such as UPDATE or MERGE is based; filled while the statement reads them.

    Attributes:
        groups: The file groups (partition, file id) that were read; None means all.
        columns: The columns that were read or that the write provides.
        inserted: The partitions into which the statement inserts rows that were not stored; None means all.
    """

    groups: frozenset[tuple[str, str]] | None = frozenset()
    columns: frozenset[str] = frozenset()
    inserted: set[str] | None = field(default_factory=set)

    def conflict(self, metadata: CommitMetadata) -> str | None:
        """Return how a later commit changed the rows, or None."""
        if metadata.operation in REWRITES:
            return None
        provided = metadata.extra.get(COLUMNS_KEY)
        is_disjoint = provided is not None and self.columns.isdisjoint(json.loads(provided))
        for stat in metadata.stats:
            group = (stat.partition, stat.file_id)
            if (self.groups is None or group in self.groups) and not is_disjoint:
                return f"changed file group {stat.file_id} of partition {stat.partition!r}, which this write read"
            if stat.num_inserts and (self.inserted is None or stat.partition in self.inserted):
                return f"inserted rows into partition {stat.partition!r}, into which this write inserts rows"
        replaced = {(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids}
        if replaced and (self.groups is None or not replaced.isdisjoint(self.groups)):
            return "replaced file groups that this write read"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """The state on which a caller based a write.

    The write ends with a Conflict if one of these conditions does not hold at the commit.

    Attributes:
        timeline: The timeline that the caller read. The other attributes concern later commits, which are not on it.
        marks: Extra metadata that no later commit may contain: values by key; None means any value.
        source: The commit from which the plan was read; it must not have been undone.
        reads: The rows that the caller read, if the write is based on them.
        untouched: Partitions into which no later commit may write rows; rewrites by table services are allowed.
        confirm: Function that is called after all rows were read and before the lock is taken. An error in it ends the
            write.
    """

    timeline: Timeline
    marks: Mapping[str, str | None]
    source: Instant | None = None
    untouched: frozenset[str] = frozenset()
    reads: ReadRows | None = None
    confirm: Callable[[], None] | None = None


def precondition_conflict(precondition: Precondition, table: LoadedTable, timeline: Timeline) -> Conflict | None:
    """Return the conflict if `precondition` does not hold on `timeline`, otherwise None; call under the lock."""
    since = writes_since(table, precondition.timeline, timeline)
    for instant, metadata in table.store.commits(since):
        mark = _mark_in(precondition, metadata)
        if mark is not None:
            reason = f"{instant.requested} committed {mark} after this write was planned"
            return Conflict(winner=instant, reason=reason, final=True)
        touched = precondition.untouched & {stat.partition for stat in metadata.stats}
        if touched and metadata.operation not in REWRITES:
            reason = f"{instant.requested} wrote to {min(touched)!r} after this write was planned"
            return Conflict(winner=instant, reason=reason, final=True)
        change = None if precondition.reads is None else precondition.reads.conflict(metadata)
        if change is not None:
            return Conflict(winner=instant, reason=f"{instant.requested} {change}", final=True)
    if precondition.source is not None:
        source = precondition.source.requested
        current = timeline.find(source)
        gone = current is None and not archived_writes(
            replace(table, timeline=timeline), requested_from=source, requested_up_to=source
        )
        if gone or (current is not None and not current.is_completed):
            reason = f"{precondition.source.requested}, from which this write was planned, was undone meanwhile"
            return Conflict(winner=precondition.source, reason=reason, final=True)
    return None


def _mark_in(precondition: Precondition, metadata: CommitMetadata) -> str | None:
    for key, value in precondition.marks.items():
        carried = metadata.extra.get(key)
        if carried is not None and value in (None, carried):
            return key if value is None else f"{key} = {value}"
    return None
