"""Check at the commit that the state on which a write is based is still valid.

A caller may derive its work from earlier commits (which files were ingested, up to which offset), long before it
commits. Meanwhile another run may have done the same work, or the earlier commit may have been rolled back. The write
would then store rows twice or omit some, so it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from lakehouse.core.operations.commit.results import Conflict
from lakehouse.core.operations.load.commits import archived_writes, writes_since
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.model.commit import REWRITES, CommitMetadata
from lakehouse.model.instant import Instant, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Precondition:
    """The state on which a caller based a write.

    The write ends with a Conflict if one of these conditions does not hold at the commit.

    Attributes:
        timeline: The timeline that the caller read. The other attributes concern later commits, which are not on it.
        marks: Extra metadata that no later commit may contain: values by key; None means any value.
        source: The commit from which the plan was read; it must not have been undone.
        reads: Function that returns how a later commit changed rows which the caller read, or None.
        untouched: Partitions into which no later commit may write rows; rewrites by table services are allowed.
        confirm: Function that is called after all rows were read and before the lock is taken. An error in it ends the
            write.
    """

    timeline: Timeline
    marks: Mapping[str, str | None]
    source: Instant | None = None
    untouched: frozenset[str] = frozenset()
    reads: Callable[[CommitMetadata], str | None] | None = None
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
        change = None if precondition.reads is None else precondition.reads(metadata)
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
