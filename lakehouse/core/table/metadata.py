"""The metadata table of one table: `table.metadata.show()`, `.validate()` and `.rebuild()`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.metadata.rebuild import Rebuilt, rebuild_metadata
from lakehouse.core.operations.metadata.show import show_metadata
from lakehouse.core.operations.metadata.validate import validate_metadata
from lakehouse.core.table.arguments import checks_arguments
from lakehouse.core.table.describe import shown_service
from lakehouse.model.display import Readable, Shown
from lakehouse.model.metadata_report import MetadataReport, MetadataSummary
from lakehouse.spec.options.policies import Policies


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableMetadata(Readable):
    """The metadata table of one table: file listings, statistics and indexes."""

    table: LoadedTable
    policies: Policies

    def show(self) -> MetadataSummary:
        """Return the partitions with their sizes and use by readers, and the newest compaction; reads no records."""
        return show_metadata(self.table)

    def validate(self, *, spark: Any = None) -> MetadataReport:
        """Compare the metadata table with a listing of storage, footers and rows; nothing is written.

        The report counts missing, surplus and different records per partition. Raises RetryableError if
        writers change the table during each of several comparisons.
        """
        engine = session_engine(spark, self.policies.write.memory_budget_bytes)
        return validate_metadata(self.table, self.policies, engine)

    def rebuild(self, *, spark: Any = None) -> Rebuilt:
        """Drop the metadata table, if there is one, and build it again from a listing of the table.

        The new metadata table has the previous partitions and the partitions that the options declare. During the
        rebuild writers wait before they commit, and readers list storage. With `spark` its executors read rows,
        otherwise threads of this process.
        """
        engine = session_engine(spark, self.policies.write.memory_budget_bytes)
        return rebuild_metadata(self.table, self.policies, engine)

    def _shown(self) -> Shown:
        return shown_service(self.table, "metadata table", ("show()", "validate()", "rebuild()"))
