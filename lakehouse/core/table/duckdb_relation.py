"""A scan as a relation of DuckDB.

DuckDB's own Parquet reader reads the files whose rows it returns exactly (`read.plain_files`), with late
materialisation and all its threads. The rows of all other slices are streamed by a dataset, and added by UNION ALL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakehouse.core.operations.read.plain_files import divided
from lakehouse.core.operations.read.scan import Scan
from lakehouse.errors import UserError

if TYPE_CHECKING:
    from lakehouse.core.table.scan import TableScan


def duckdb_relation(scan: TableScan, connection: Any, name: str | None) -> Any:
    """Return a scan as a relation of a connection, and create a view of this name; see `TableScan.to_duckdb`."""
    try:
        duckdb = import_module("duckdb")
    except ImportError as error:
        raise UserError(f"to_duckdb() needs duckdb ({error}): pip install duckdb") from error
    connection = duckdb.default_connection() if connection is None else connection
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        raise UserError(
            f"connection is of type {type(connection).__name__}; give a connection of DuckDB, such as duckdb.connect()",
            argument="connection",
        )
    relation = _relation(scan, connection)
    if name is None:
        return relation
    # A temporary view: a stored view would outlive the rows.
    connection.register(name, relation)
    return connection.table(name)


def _relation(scan: TableScan, connection: Any) -> Any:
    dataset = scan.to_pyarrow_dataset()
    whole = connection.from_arrow(dataset)
    planned = dataset.read.plan(dataset.schema.names)
    if not isinstance(planned, Scan):
        return whole
    parts = divided(planned)
    if not parts.paths:
        return whole
    files = connection.read_parquet(list(parts.paths), hive_partitioning=False)
    if not set(dataset.schema.names) <= set(files.columns):
        return whole
    files = files.select(*map(_quoted, dataset.schema.names))
    if files.types != whole.types:
        return whole
    return files if parts.rest is None else files.union(connection.from_arrow(dataset.without(parts.ids)))


def _quoted(name: str) -> str:
    """Return a column name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'
