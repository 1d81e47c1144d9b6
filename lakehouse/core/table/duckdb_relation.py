"""A scan as a relation of DuckDB."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    dataset = scan.to_pyarrow_dataset()
    if name is None:
        return connection.from_arrow(dataset)
    connection.register(name, dataset)
    return connection.table(name)
