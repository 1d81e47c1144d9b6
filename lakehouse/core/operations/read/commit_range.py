"""Finds the commits that completed in a range, including archived ones."""

from __future__ import annotations

from lakehouse.core.operations.load.commits import with_archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import EARLIEST, instant_text, range_bound
from lakehouse.model.instant import Instant


def commits_in_range(table: LoadedTable, begin: str | None, end: str | None) -> tuple[Instant, ...]:
    """Return the writes that completed in (begin, end], in order of completion; without `begin` only the last one."""
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
