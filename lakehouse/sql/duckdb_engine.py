"""Queries by DuckDB over scans, in this process and without Spark.

DuckDB passes columns and filters to the scan and streams its rows. Views of a statement stay registered until the next
statement, because DuckDB reads a scan when the rows are fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import import_module
from typing import Any

import pyarrow as pa

from lakehouse.core.expressions.casts import cast_value
from lakehouse.core.rows.python_values import stored_cast
from lakehouse.core.table.dataset import DatasetScanner, TableDataset
from lakehouse.core.table.scan import TableScan
from lakehouse.errors import LakehouseError, UserError
from lakehouse.sql.engine import EngineError, Parameters, Target
from lakehouse.sql.tokens import SHELL, quoted

_BATCH_ROWS = 65_536
_UTC = ("UTC", "Etc/UTC", "GMT", "Z")


class DuckDbEngine:
    """A connection to DuckDB in memory."""

    dialect, mark, prunes, session = SHELL, '"', True, None

    def __init__(self) -> None:
        self._duckdb = _duckdb()
        self.connection = self._duckdb.connect(":memory:")
        # Queries must not read variables of this program, and timestamps are in UTC as everywhere in the package.
        self.connection.execute("SET python_enable_replacements = false")
        self.connection.execute("SET TimeZone = 'UTC'")
        self._views: list[str] = []
        self._open: _OpenResult | None = None
        #: Errors of the scans of the open statement: DuckDB reports them without their class.
        self._failures: list[LakehouseError] = []

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    @property
    def is_utc(self) -> bool:
        """Whether the connection reads timestamps without a zone as UTC, unless SET TimeZone changed that."""
        self._end_result()
        return str(self.connection.execute("SELECT current_setting('TimeZone')").fetchall()[0][0]) in _UTC

    def text_problem(self, text: str) -> str:
        """Return an empty string: no setting of DuckDB changes the quotes of a statement."""
        return ""

    def has_view(self, name: str) -> bool:
        """Return whether a table or view with this name exists in DuckDB."""
        self._end_result()
        query = (
            "SELECT count(*) FROM information_schema.tables WHERE lower(table_name) = lower(?) "
            "AND table_catalog IN ('memory', 'temp')"
        )
        return bool(self.connection.execute(query, [name]).fetchall()[0][0])

    def drop_view(self, name: str) -> None:
        """Drop a view of DuckDB with this name, if there is one; raise UserError for a table."""
        if not self.has_view(name):
            return
        try:
            self.connection.execute(f"DROP VIEW {quoted(name, self.mark)}")
        except self._duckdb.Error as error:
            raise UserError(f"{name} is a temporary table: DROP TABLE {quoted(name)} first") from error

    def has_relation(self, name: Sequence[str]) -> bool:
        """Return whether DuckDB has a table or view with this name."""
        self._end_result()
        try:
            self.connection.execute(f"SELECT * FROM {'.'.join(quoted(part, self.mark) for part in name)} LIMIT 0")
        except self._duckdb.Error:
            return False
        return True

    def namespaces(self) -> tuple[str, ...]:
        """Return no namespaces: the shell shows the namespaces in the catalog."""
        return ()

    def tables(self, namespace: str) -> tuple[str, ...]:
        """Return no tables."""
        return ()

    def has_namespace(self, namespace: str) -> bool:
        """Return False: DuckDB's own schemas are not shown."""
        return False

    def run(self, text: str, views: Mapping[str, TableScan | pa.Table], parameters: Parameters) -> pa.RecordBatchReader:
        """Run a statement and return its rows as a stream.

        Raises EngineError with DuckDB's message, or the error of a scan.

        The stream ends with the next statement, because DuckDB has one open result per connection.
        """
        self._end_result()
        for name in self._views:
            self.connection.unregister(name)
        self._views = list(views)
        failures = self._failures = []
        for name, rows in views.items():
            data = _WatchedDataset.of(rows, failures) if isinstance(rows, TableScan) else rows
            self.connection.register(name, data)
        try:
            relation = self.connection.sql(text, params=parameters.values or None)
            if relation is None:
                return _reader(pa.table({}))
            # Before 1.5, DuckDB has no method to_arrow_reader.
            read = getattr(relation, "to_arrow_reader", None) or relation.fetch_arrow_reader
            self._open = _OpenResult(read(_BATCH_ROWS))
        except self._duckdb.Error as error:
            raise _direct(error, failures, views) from error
        batches = _batches(self._open, self._duckdb.Error, failures, views)
        return pa.RecordBatchReader.from_batches(self._open.schema, batches)

    def _end_result(self) -> None:
        if self._open is not None:
            self._open.reader = None
        self._open = None

    def result(self, rows: pa.Table) -> pa.RecordBatchReader:
        """Return a table as a stream."""
        return _reader(rows)

    def schema(self, frame: pa.RecordBatchReader) -> pa.Schema:
        """Return the columns of a stream."""
        return frame.schema

    def conform(self, frame: pa.RecordBatchReader, targets: Sequence[Target]) -> pa.RecordBatchReader:
        """Return a stream with the columns and types of a table."""
        schema = pa.schema([target.field for target in targets])
        return pa.RecordBatchReader.from_batches(schema, _conformed(frame, targets, schema))

    def source(self, frame: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return the stream itself."""
        return frame

    def option(self, key: str) -> str | None:
        """DuckDB has no options of tables; SET of `hoodie.*` is kept by the session of the statements."""
        return None


class _OpenResult:
    """The open result of a connection; `reader` is None after the next statement has begun."""

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self.schema: pa.Schema = reader.schema
        self.reader: pa.RecordBatchReader | None = reader


class _WatchedDataset(TableDataset):
    """A dataset that keeps the errors of its reads."""

    @classmethod
    def of(cls, scan: TableScan, failures: list[LakehouseError]) -> _WatchedDataset:
        """Return the dataset of a scan, which appends its errors to a list."""
        dataset = cls(scan.to_pyarrow_dataset().read)
        dataset.failures = failures
        return dataset

    def scanner(self, *arguments: Any, **options: Any) -> _WatchedScanner:
        """Return a read that keeps its errors; see TableDataset."""
        scanner = super().scanner(*arguments, **options)
        values = {part.name: getattr(scanner, part.name) for part in fields(scanner)}
        return _WatchedScanner(**values, failures=self.failures)


@dataclass(frozen=True, kw_only=True)
class _WatchedScanner(DatasetScanner):
    failures: list[LakehouseError]

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        try:
            batches = super().to_batches()
        except LakehouseError as error:
            self.failures.append(error)
            raise
        return self._watched(batches)

    def _watched(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield from batches
        except LakehouseError as error:
            self.failures.append(error)
            raise


def _direct(error: Exception, failures: Sequence[LakehouseError], views: Collection[str]) -> LakehouseError:
    """Return the error of a scan, or DuckDB's error without the names of views, which the statement lacks."""
    if failures:
        return failures[0]
    message = str(error)
    if views:
        message = message.partition("\n\nLINE ")[0]
    return EngineError(f"DuckDB: {message}")


def _batches(
    result: _OpenResult, error_type: type[Exception], failures: Sequence[LakehouseError], views: Collection[str]
) -> Iterator[pa.RecordBatch]:
    while True:
        if result.reader is None:
            raise UserError("the rows of a statement must be read before the next statement begins")
        try:
            batch = result.reader.read_next_batch()
        except StopIteration:
            result.reader = None
            return
        except error_type as error:
            raise _direct(error, failures, views) from error
        yield batch


def _duckdb() -> Any:
    try:
        return import_module("duckdb")
    except ImportError:
        raise UserError("SQL without Spark needs DuckDB: pip install 'lakehouse-tables[sql]'") from None


def _reader(rows: pa.Table) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(rows.schema, iter(rows.to_batches()))


def _conformed(frame: pa.RecordBatchReader, targets: Sequence[Target], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in frame:
        columns = [_column(batch, target) for target in targets]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(batch: pa.RecordBatch, target: Target) -> pa.Array:
    kind = target.field.type
    if target.source is None:
        if target.constant is None:
            return pa.nulls(batch.num_rows, kind)
        values = pa.repeat(pa.scalar(target.constant, pa.string()), batch.num_rows)
    else:
        values = batch.column(target.source)
    if values.type == kind:
        return values
    try:
        # A text without a zone is a time in UTC, as in an assignment.
        is_moment = pa.types.is_string(values.type) and pa.types.is_timestamp(kind)
        return cast_value(values, kind) if is_moment else stored_cast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"column {target.field.name}: a value of type {values.type} cannot be stored as {kind} without loss: "
            f"{error}. Convert it in the query, for example with CAST"
        ) from error
