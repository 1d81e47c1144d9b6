"""What a write was planned on, and whether that still holds when it commits.

A caller that reads from commits what is left to do (which files were ingested, up to which offset) decides long before
it commits. Between the two another run may have done the same, or the commit it went by may have been undone: then what
it is about to write is no longer what is left, and would be there twice, or not at all.
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
    """What a caller knew when it decided what to write: the commits of `timeline`, and `source` among them.

    The write loses to a commit completed since that carries one of `marks` in its extra metadata (key -> value, None
    for any value), and if `source`, the commit that the decision was read from, was undone. It loses to a commit that
    brought rows into one of the `untouched` partitions, too; rewrites of rows as they are do not count.
    `confirm` is called when all rows were read, shortly before the lock of the commit is taken; what it raises ends the
    write.
    """

    timeline: Timeline
    marks: Mapping[str, str | None]
    source: Instant | None = None
    untouched: frozenset[str] = frozenset()
    confirm: Callable[[], None] | None = None


def precondition_conflict(precondition: Precondition, table: LoadedTable, timeline: Timeline) -> Conflict | None:
    """Return what refutes a precondition on `timeline`, None if it holds; call under the lock, before the commit."""
    since = writes_since(table, precondition.timeline, timeline)
    for instant, metadata in table.store.commits(since):
        mark = _mark_in(precondition, metadata)
        if mark is not None:
            reason = f"{instant.requested} carries {mark} since this write was planned"
            return Conflict(winner=instant, reason=reason, final=True)
        touched = precondition.untouched & {stat.partition for stat in metadata.stats}
        if touched and metadata.operation not in REWRITES:
            reason = f"{instant.requested} wrote to {min(touched)!r} since this write was planned"
            return Conflict(winner=instant, reason=reason, final=True)
    if precondition.source is not None:
        source = precondition.source.requested
        current = timeline.find(source)
        gone = current is None and not archived_writes(
            replace(table, timeline=timeline), requested_from=source, requested_up_to=source
        )
        if gone or (current is not None and not current.is_completed):
            reason = f"{precondition.source.requested}, by which this write was planned, was undone since"
            return Conflict(winner=precondition.source, reason=reason, final=True)
    return None


def _mark_in(precondition: Precondition, metadata: CommitMetadata) -> str | None:
    for key, value in precondition.marks.items():
        carried = metadata.extra.get(key)
        if carried is not None and value in (None, carried):
            return key if value is None else f"{key} = {value}"
    return None
