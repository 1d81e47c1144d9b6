"""TableScan: a read of a table that is planned and executed when the caller requests rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakehouse.core.engine.adapters import session_adapter
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.cdc import ChangeScan
from lakehouse.core.operations.read.pinned_read import PinnedRead
from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import ScanRequest
from lakehouse.core.operations.read.row_count import count_rows, with_least_columns
from lakehouse.core.operations.read.scan import Scan, with_stored_schemas
from lakehouse.core.planning.scan import ScanExplanation
from lakehouse.core.table.arguments import checks_arguments
from lakehouse.core.table.describe import shown_scan
from lakehouse.errors import UserError
from lakehouse.model.display import Readable, Shown

if TYPE_CHECKING:
    from lakehouse.core.table.dataset import TableDataset


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

    def to_batches(self, *, threads: int | None = None, ordered: bool = True) -> Iterator[pa.RecordBatch]:
        """Yield the rows as record batches; a table that is larger than the memory budget is streamed.

        Args:
            threads: The number of threads that read files. By default as many as Arrow uses
                (`pyarrow.set_cpu_count`), eight for an object store, and one for few rows. One thread reads changes.
            ordered: Yield the rows in the order of the files, always the same for a version of the table. The logs of
                a file change rows in batches: the changed rows of a batch come first. Otherwise the batches come in the
                order in which they were read, which needs less memory and waiting.
        """
        scan = self.plan()
        return scan.batches(threads=threads, ordered=ordered) if isinstance(scan, Scan) else scan.batches()

    def to_arrow(self, *, threads: int | None = None) -> pa.Table:
        """Return all rows as one Arrow table, in the order of the files; `threads` as in `to_batches`."""
        scan = self.plan()
        batches = scan.batches(threads=threads) if isinstance(scan, Scan) else scan.batches()
        return pa.Table.from_batches(batches, scan.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the rows as a stream of Arrow's C interface.

        With it `pyarrow.table(scan)`, `polars.from_arrow(scan)`, `duckdb.from_arrow(scan)`, pandas, nanoarrow and the
        write methods of another table take a scan. The rows are streamed, and each use reads them again.
        """
        scan = self.plan()
        reader = pa.RecordBatchReader.from_batches(scan.schema, scan.batches())
        return reader.__arrow_c_stream__(requested_schema)

    def to_pandas(self, *, threads: int | None = None) -> Any:
        """Return all rows as a `pandas.DataFrame`; `threads` as in `to_batches`.

        Raises UserError if pandas is not installed.
        """
        try:
            import_module("pandas")
        except ImportError as error:
            raise UserError(f"to_pandas() needs pandas ({error}): pip install pandas") from error
        return self.to_arrow(threads=threads).to_pandas()

    def to_duckdb(self, connection: Any = None, name: str | None = None) -> Any:
        """Return the rows as a relation of DuckDB, which reads them when a query runs.

        Columns and filters of a query reach the scan, as for `to_pyarrow_dataset`, and the relation reads one version
        of the table. The rows are streamed.

            orders = table.scan().to_duckdb(name="orders")
            duckdb.sql("SELECT city, sum(amount) FROM orders WHERE day >= '2026-01-01' GROUP BY city")

        Args:
            connection: A connection of DuckDB; by default the connection of `duckdb.sql`.
            name: The name of a view of the connection on these rows, for queries in SQL.

        Raises:
            UserError: DuckDB is not installed, or the table lacks a column of the scan.
        """
        module = import_module("lakehouse.core.table.duckdb_relation")
        return module.duckdb_relation(self, connection, name)

    def to_pyarrow_dataset(self) -> TableDataset:
        """Return the rows as a `pyarrow.dataset.Dataset`, which DuckDB, Polars and others read lazily.

        Columns and filters of a query reach the scan: files are pruned, and only these columns are read. The dataset
        can be used several times. It reads the version that the table had when the scan was made; once a clean has
        removed files of this version, a use raises CleanedHistoryError.

            orders = table.scan().to_pyarrow_dataset()
            duckdb.sql("SELECT city, sum(amount) FROM orders WHERE day >= '2026-01-01' GROUP BY city")

        For Polars use `to_polars`: its own function for datasets has the rules of Arrow for NaN and nulls.

        Raises:
            UserError: The table lacks a column of the scan.
        """
        # Importing pyarrow.dataset takes longer than a small read.
        module = import_module("lakehouse.core.table.dataset")
        dataset: TableDataset = module.TableDataset(PinnedRead.of(self.table, self.request))
        return dataset

    def to_dataset(self) -> TableDataset:
        """Return the result of `to_pyarrow_dataset`."""
        return self.to_pyarrow_dataset()

    def to_polars(self) -> Any:
        """Return the rows as a `polars.LazyFrame`, which Polars reads when a query is collected.

        Columns and filters of a query reach the scan, as for `to_pyarrow_dataset`, and the frame reads one version of
        the table. Raises UserError if Polars is not installed, or for a column that the table lacks.
        """
        module = import_module("lakehouse.core.table.polars_frame")
        return module.polars_frame(self.to_pyarrow_dataset())

    def to_spark(self, spark: Any) -> Any:
        """Return the rows as a DataFrame of the session `spark`.

        Spark's own Parquet reader reads slices without log files, and the unchanged rows of large base files with few
        log entries. Changed rows, other slices with log files and changes are read by Arrow in Spark's Python workers.
        Raises UserError if `spark` is not a Spark session.
        """
        adapter = session_adapter(spark)
        scan = self.plan()
        if isinstance(scan, Scan):
            scan = with_stored_schemas(self.table, scan)
        return adapter.scan_to_frame(spark, scan)

    def count(self) -> int:
        """Return the number of rows.

        Without a condition only the footers of files without logs are read. Otherwise the columns of the condition
        and the keys of log rows are read.
        """
        scan = self.plan()
        if isinstance(scan, Scan):
            return count_rows(with_least_columns(scan))
        return sum(batch.num_rows for batch in scan.batches())

    def _shown(self) -> Shown:
        return shown_scan(self.table, self.request)
