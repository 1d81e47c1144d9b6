"""TableScan: a read of a table that is planned and executed when the caller requests rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehouse.core.engine.adapters import session_adapter
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import ScanRequest
from lakehouse.core.operations.read.scan import Scan, with_stored_schemas
from lakehouse.core.planning.scan import ScanExplanation
from lakehouse.core.table.arguments import checks_arguments
from lakehouse.core.table.describe import shown_scan
from lakehouse.errors import UserError
from lakehouse.model.display import Readable, Shown


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableScan(Readable):
    """A read that is not executed yet; its result is record batches, an Arrow table or a Spark DataFrame."""

    table: LoadedTable
    request: ScanRequest

    def plan(self) -> Scan | ChangeScan:
        """Return the planned read; no data file is opened."""
        return plan_read(self.table, self.request)

    def explain(self) -> ScanExplanation:
        """Plan the read, and return the number of partitions, files and bytes left after each step, with reasons.

        No data file is opened. `print` shows the steps as lines, a notebook shows a table.

        Raises:
            UserError: The scan reads changes, which are planned from commits and not from files.
        """
        planned = self.plan()
        if not isinstance(planned, Scan):
            raise UserError("explain() describes reads of rows; a read of changes is planned from its commits")
        return planned.explain()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches."""
        return self.plan().batches()

    def to_arrow(self) -> pa.Table:
        """Return all rows as one Arrow table."""
        scan = self.plan()
        return pa.Table.from_batches(scan.batches(), scan.schema)

    def to_spark(self, spark: Any) -> Any:
        """Return the rows as a DataFrame of the session `spark`.

        Spark's own Parquet reader reads slices without log files. Slices with log files and changes are read by Arrow
        in Spark's Python workers. Raises UserError if `spark` is not a Spark session.
        """
        adapter = session_adapter(spark)
        scan = self.plan()
        if isinstance(scan, Scan):
            scan = with_stored_schemas(self.table, scan)
        return adapter.scan_to_frame(spark, scan)

    def count(self) -> int:
        """Return the number of rows; all rows are read."""
        return sum(batch.num_rows for batch in self.to_batches())

    def _shown(self) -> Shown:
        return shown_scan(self.table, self.request)
