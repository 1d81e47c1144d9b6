"""Gives a query an upper bound, so that later commits do not change its result.

A DataFrame can be read many times. With one bound for all its queries, they return rows of the same version.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.commit_range import last_settled
from lakehouse.core.operations.read.event_time import event_time_bound
from lakehouse.core.operations.read.queries import (
    EARLIEST,
    SNAPSHOT,
    Changes,
    CompletedUpTo,
    EventTimeTravel,
    Incremental,
    Query,
    ReadOptimized,
    TimeTravel,
    Version,
    instant_text,
)
from lakehouse.core.operations.read.scan import version_schema

_BEFORE_FIRST_WRITE = "0" * 17


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundedQuery:
    """A query, and the same query with an upper bound.

    Attributes:
        query: The query without the bound.
        bounded: The query with the bound.
        newest: Completion time of the newest write when the bound was set.
    """

    query: Query
    bounded: Query
    newest: str

    def on(self, table: LoadedTable) -> Query:
        """Return the query to plan.

        If no write completed in between, it has no bound, because a bound excludes indexes.
        """
        return self.query if _newest(table) == self.newest else self.bounded


def with_bound(table: LoadedTable, query: Query) -> BoundedQuery:
    """Return a query with the newest write of the loaded table as its bound.

    The version for an event time is looked up here. A time-travel query already has a bound and is not changed. Raises
    the errors of `event_time_bound`.
    """
    newest = _newest(table)
    if isinstance(query, ReadOptimized):
        query = ReadOptimized(_looked_up(table, query.version))
        return BoundedQuery(query=query, bounded=ReadOptimized(_bounded_version(query.version, newest)), newest=newest)
    if isinstance(query, Incremental | Changes):
        return BoundedQuery(
            query=query, bounded=_bounded_range(query, last_settled(table) or _BEFORE_FIRST_WRITE), newest=newest
        )
    version = _looked_up(table, query)
    return BoundedQuery(query=version, bounded=_bounded_version(version, newest), newest=newest)


def _looked_up(table: LoadedTable, version: Version) -> Version:
    if isinstance(version, EventTimeTravel):
        return CompletedUpTo(event_time_bound(table, version.event_time))
    return version


def _bounded_version(version: Version, newest: str) -> Version:
    return version if isinstance(version, TimeTravel | CompletedUpTo) else CompletedUpTo(newest)


def _bounded_range(query: Incremental | Changes, newest: str) -> Query:
    if query.end is not None:
        return query
    if isinstance(query, Changes):
        return Changes(query.begin, newest)
    # A query without bounds reads all rows, including rows of commits that are not retained.
    return CompletedUpTo(newest) if query.begin == EARLIEST else Incremental(query.begin, newest)


def query_schema(table: LoadedTable, query: Query) -> pa.Schema | None:
    """Return the data columns of the version that a query of `with_bound` reads; None if nothing declares them."""
    version = query.version if isinstance(query, ReadOptimized) else query
    if isinstance(version, TimeTravel):
        return version_schema(table, TimeTravel(instant_text(version.instant)))
    return version_schema(table, version if isinstance(version, CompletedUpTo) else SNAPSHOT)


def _newest(table: LoadedTable) -> str:
    return max((instant.completion for instant in table.timeline.writes()), default=_BEFORE_FIRST_WRITE)
