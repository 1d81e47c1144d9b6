"""`table.inspection`: details of a table for display, such as on web pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.metadata.indexes import table_indexes
from lakehouse.core.operations.read.inspect import instant_detail, table_files, timeline_bars
from lakehouse.core.operations.read.timeline_rows import TimelineFilter, timeline_rows
from lakehouse.model.display import Readable, Shown
from lakehouse.spec.contracts.catalog import TimelineInstants
from lakehouse.spec.contracts.indexes import TableIndexes
from lakehouse.spec.contracts.inspection import InstantDetail, TableFiles, TimelineBars
from lakehouse.spec.options.policies import Policies


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInspection(Readable):
    """Timeline bars and rows, decoded instants, and pages of file groups, for one table."""

    refresh: Callable[[], LoadedTable]
    policies: Policies

    def bars(self, *, archived: bool = False) -> TimelineBars:
        """Return the instants on the active timeline, or in the archive, as columns."""
        loaded = self.refresh()
        instants = archived_writes(loaded) if archived else loaded.timeline
        return timeline_bars(loaded, instants, self.policies, archived=archived)

    def instants(self, wanted: TimelineFilter) -> TimelineInstants:
        """Return the newest instants that match a filter, with service, rows, files, bytes and writer of each."""
        return timeline_rows(self.refresh(), wanted)

    def instant(self, requested: str) -> InstantDetail:
        """Return one instant of the active timeline with its decoded plan or commit."""
        return instant_detail(self.refresh(), requested)

    def files(self, partition: str | None = None, *, offset: int = 0, limit: int = 100) -> TableFiles:
        """Return one page of the file groups, in descending size, and the histogram of base file sizes."""
        return table_files(self.refresh(), self.policies, partition, offset, limit)

    def indexes(self) -> TableIndexes:
        """Return the writer index and the indexes in the metadata table, with state and columns of each."""
        return table_indexes(self.refresh(), self.policies)

    def _shown(self) -> Shown:
        return Shown("inspection of a table: bars, instants, instant, files, indexes", {})
