"""Plans several reads of one version of a table, with other columns and conditions each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.bounded_query import BoundedQuery, query_schema, with_bound
from lakehouse.core.operations.read.cdc import ChangeScan, plan_change_read
from lakehouse.core.operations.read.plain_files import without
from lakehouse.core.operations.read.queries import Changes, ScanRequest
from lakehouse.core.operations.read.scan import Scan, plan_row_read
from lakehouse.core.planning.predicate import check_columns, parse_predicate
from lakehouse.core.planning.scan import chosen_columns
from lakehouse.core.state.file_system_view import Group
from lakehouse.errors import CleanedHistoryError, UserError
from lakehouse.model.predicate import And, Predicate


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedRead:
    """A request on the version that a table had at one time.

    Attributes:
        table: The table as it was loaded at that time.
        request: The columns, the condition and the limits of all reads.
        bounded: The query with its bound.
        schema: The columns of the result.
        table_schema: All columns of the table, meta columns first; None for a read of changes.
        excluded: The partitions and file ids of file groups that other readers read.
    """

    table: LoadedTable
    request: ScanRequest
    bounded: BoundedQuery
    schema: pa.Schema
    table_schema: pa.Schema | None
    excluded: frozenset[Group] = frozenset()

    @classmethod
    def of(cls, table: LoadedTable, request: ScanRequest) -> PinnedRead:
        """Return a request on the version of a loaded table; no file is listed.

        Raises:
            UserError: The table lacks a column of the request, or no commit contains the event time of its version.
        """
        bounded = with_bound(table, request.query)
        if isinstance(bounded.query, Changes):
            schema = plan_change_read(table, bounded.query, request).schema
            return cls(table=table, request=request, bounded=bounded, schema=schema, table_schema=None)
        stored = query_schema(table, bounded.query)
        full = with_meta_fields(stored if stored is not None else pa.schema([]))
        where = parse_predicate(request.where) if isinstance(request.where, str) else request.where
        if where is not None:
            check_columns(where, full)
        request = replace(request, where=where)
        schema = chosen_columns(full, request.columns)
        return cls(table=table, request=request, bounded=bounded, schema=schema, table_schema=full)

    def plan(self, columns: Sequence[str], where: Predicate | None = None) -> Scan | ChangeScan:
        """Plan a read; no data file is opened.

        The timeline is loaded again: after a later write the read has a bound, and its files may have been cleaned.

        Args:
            columns: The columns of the result. A read of changes returns all its columns.
            where: A further condition on rows, for a read of rows only.

        Raises:
            CleanedHistoryError: A clean removed files of this version.
            UserError: A later write changed the type of a column, or a restore removed this version.
        """
        table = self.table.refresh()
        self._require_version(table)
        query = self.bounded.on(table)
        try:
            if isinstance(query, Changes):
                return plan_change_read(table, query, self.request)
            assert not isinstance(self.bounded.bounded, Changes)
            request = replace(self.request, columns=tuple(columns), where=_both(self.request.where, where))
            scan = plan_row_read(table, query, request, reloaded_query=self.bounded.bounded)
        except CleanedHistoryError as error:
            raise CleanedHistoryError(
                f"{error}. The dataset reads the version that the table had when it was scanned: call scan() again to "
                "read the newest version",
                **error.facts,
            ) from error
        for field in scan.schema:
            if field.type != self.schema.field(field.name).type:
                raise UserError(
                    f"column {field.name!r} has type {field.type}, but had {self.schema.field(field.name).type} when "
                    "the dataset was made: call scan() again",
                    column=field.name,
                )
        return without(scan, self.excluded) if self.excluded else scan

    def _require_version(self, table: LoadedTable) -> None:
        """Raise UserError if a restore removed the newest write of the version; older writes may be archived."""
        newest = self.bounded.newest
        if self.bounded.query == self.bounded.bounded:
            return
        completions = {instant.completion for instant in table.timeline.writes()}
        had_writes = any(instant.completion == newest for instant in self.table.timeline.writes())
        if had_writes and newest not in completions and newest >= min(completions, default=""):
            raise UserError(
                f"{table.env.storage.root}: the table was restored to a version before the version of this dataset, "
                f"whose last write completed at {newest}. Call scan() again to read the newest version"
            )


def _both(first: str | Predicate | None, second: Predicate | None) -> str | Predicate | None:
    if first is None or second is None:
        return first if second is None else second
    assert not isinstance(first, str), "the condition of the request is parsed"
    return And((first, second))
