"""Finds the commits that completed in a range, including archived ones.

On tables without completion times a range ends before the oldest pending write (see `load.settled`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from lakehouse.core.operations.load.commits import with_archived_writes
from lakehouse.core.operations.load.settled import hole, last_settled, require_settled, settled
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import EARLIEST, Changes, Incremental, instant_text, range_bound
from lakehouse.model.instant import Instant

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
