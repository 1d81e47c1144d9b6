"""Complete copies of the newest version of a table, from Python: plain Parquet files, or another table."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.platform.export.hudi_copy import TableCopy, export_hudi
from lakehouse.platform.export.parquet_snapshot import ParquetSnapshot, export_parquet


def export_to_parquet(
    table: Table, target: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> ParquetSnapshot:
    """Write the newest version of a table to plain Parquet files, as `lakehouse export parquet`.

    A repeated call continues an export that did not end. The export is complete when it has the file `_SUCCESS`.

    Example: `lakehouse.export_to_parquet(table, "/data/orders_export").rows`.

    Args:
        table: The table.
        target: URL or path of an empty folder, outside of the table.
        storage_options: Options of the target's storage, such as credentials.

    Returns:
        Location, instant, files, rows, bytes and partitions of the export.

    Raises:
        UserError: The table has no writes, or the target has other files.
        MissingFileError: A clean removed files of the version since an interrupted export began.
    """
    policies = table.services.policies
    return export_parquet(table.refresh(), policies, open_storage(fspath(target), dict(storage_options or {})))


def copy_table(
    table: Table, target: str | PathLike[str], *, storage_options: Mapping[str, str] | None = None
) -> TableCopy:
    """Copy the newest version of a table into a new table with the same settings, as `lakehouse export hudi`.

    The history is not copied. A repeated call continues a copy that did not end; the new table is visible when it is
    complete.

    Args:
        table: The table.
        target: URL or path of the new table, outside of the table.
        storage_options: Options of the target's storage, such as credentials.

    Returns:
        Location and instant of the copy, and the rows that this call copied.

    Raises:
        UserError: The table has no writes, or there is a table or a copy of another version at the target.
        ConflictError: Another process makes the copy at the same time.
    """
    return export_hudi(table.refresh(), Env(storage=open_storage(fspath(target), dict(storage_options or {}))))
