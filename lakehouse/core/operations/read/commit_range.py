"""Finds the commits that completed in a range, including archived ones, and the end of a range that misses none.

Completion times are assigned in order, so a reader that continues after the newest one misses nothing. A table without
completion times orders its commits by requested time, in which they can complete in another order:

    writer A   requested 10:00 ......................... completed
    writer B   requested 10:01 .. completed
    reader                        reads up to 10:01      continues after 10:01: the rows of A are lost

So a range of changes ends before the oldest pending write. Hudi 0.15 fails there by default
(`hoodie.read.timeline.holes.resolution.policy`), or blocks in the same way. Pending compactions and clusterings add no
rows, and do not end a range.

A range that begins or ends after a pending write is refused. A writer that takes no lock for its requested time, as
Hudi 0.15 does, and whose clock is behind can still request an earlier time than commits that were read. Nothing in the
table shows that afterwards.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TypeVar

from lakehouse.core.operations.load.commits import with_archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import EARLIEST, Changes, Incremental, instant_text, range_bound
from lakehouse.errors import RetryableError
from lakehouse.model.instant import WRITE_ACTIONS, Instant, Timeline

logger = logging.getLogger(__name__)

Range = TypeVar("Range", Incremental, Changes)


def commits_in_range(table: LoadedTable, begin: str | None, end: str | None) -> tuple[Instant, ...]:
    """Return the writes that completed in (begin, end], in order of completion; without `begin` only the last one.

    Raises RetryableError if the table has no completion times and a bound is after a pending write.
    """
    _require_settled(table, begin, end)
    table = settled(table)
    return loaded_commits_in_range(with_archived_range(table, begin, end), begin, end)


def loaded_commits_in_range(table: LoadedTable, begin: str | None, end: str | None) -> tuple[Instant, ...]:
    """Return the commits of a range among those on the table's timeline; the archive is not read."""
    first, last = range_bound(begin), range_bound(end)
    writes = table.timeline.writes()
    completed = (writes if last is None else writes.where(completed_up_to=last)).by_completion()
    if first is None:
        return completed[-1:]
    if first == EARLIEST:
        return completed
    return tuple(instant for instant in completed if instant.completion > first)


def with_archived_range(table: LoadedTable, begin: str | None, end: str | None) -> LoadedTable:
    """Return the table with the archived writes of a range added to its timeline."""
    if begin is None and len(table.timeline.writes().where(completed_up_to=range_bound(end))):
        # The last commit of the range is on the timeline.
        return table
    return with_archived_writes(table, "" if begin is None or begin == EARLIEST else instant_text(begin))


def settled_range(table: LoadedTable, query: Range) -> Range:
    """Return the query, with an end if the table has no completion times and writes passed a pending one.

    Raises RetryableError if a bound is after a pending write.
    """
    _require_settled(table, query.begin, query.end)
    pending = hole(table)
    if not pending or query.end is not None:
        return query
    logger.info("%s: the range ends before the pending write %s", table.env.storage.root, pending)
    first = range_bound(query.begin)
    newest = last_settled(table)
    if newest is None or (first not in (None, EARLIEST) and newest < str(first)):
        # Nothing can be read yet. A range without a commit ends where it begins.
        newest = _just_before(pending) if first in (None, EARLIEST) else first
    return replace(query, end=newest)


def _require_settled(table: LoadedTable, begin: str | None, end: str | None) -> None:
    for name, bound in (("begin", range_bound(begin)), ("end", range_bound(end))):
        if bound not in (None, EARLIEST):
            require_settled(table, str(bound), name)


def _just_before(time: str) -> str:
    return str(int(time) - 1).zfill(len(time))


def oldest_pending_write(table: LoadedTable) -> Instant | None:
    """Return the pending write before which ranges of changes end; None if the table has completion times."""
    if table.config.layout.has_completion_times:
        return None
    # Of an instant with a plan the action is COMPACTION, LOGCOMPACTION or CLUSTERING.
    return next(iter(table.timeline.where(action=WRITE_ACTIONS, pending=True)), None)


def settled(table: LoadedTable) -> LoadedTable:
    """Return the table without the writes that completed before an earlier one did (see module docstring)."""
    pending = oldest_pending_write(table)
    if pending is None:
        return table
    passed = (i for i in table.timeline if not (i.action in WRITE_ACTIONS and i.is_completed and _follows(i, pending)))
    return replace(table, timeline=Timeline(tuple(passed)))


def last_settled(table: LoadedTable) -> str | None:
    """Return the completion time of the newest write that a reader of changes can pass; None if there is none."""
    return max((instant.completion for instant in settled(table).timeline.writes()), default=None)


def hole(table: LoadedTable) -> str:
    """Return the requested time of the pending write that completed writes passed, or an empty string."""
    pending = oldest_pending_write(table)
    if pending is None or not any(_follows(write, pending) for write in table.timeline.writes()):
        return ""
    return pending.requested


def require_settled(table: LoadedTable, bound: str, name: str) -> None:
    """Raise RetryableError if a pending write can still complete before the bound of a range; `name` is its name."""
    pending = oldest_pending_write(table)
    if pending is None or bound < pending.requested:
        return
    newest = last_settled(table)
    readable = "There is no commit before it" if newest is None else f"Read up to {newest}"
    raise RetryableError(
        f"{table.env.storage.root}: the write {pending.requested} is pending, and {name} {bound} is after it. Version "
        f"{table.config.version} has no completion times, so a read that continues there would miss the rows of this "
        f"write. {readable}, or wait until the write has completed. If its process has ended, roll it back with "
        "Table.rollback_failed() or `lakehouse rollback failed`",
        instant=pending.requested,
    )


def _follows(write: Instant, pending: Instant) -> bool:
    return write.requested >= pending.requested
