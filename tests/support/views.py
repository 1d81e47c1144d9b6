"""Export tables, and read their Iceberg and Delta views with pyiceberg and deltalake."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.platform.export.difference import difference_of_listing
from lakehouse.platform.export.export import ExportedView, run_export
from lakehouse.platform.export.formats import VIEW_FORMATS
from lakehouse.spec.options.export import ExportPolicy

FORMATS = tuple(VIEW_FORMATS)


def export(
    table: Table, name: str, *, force: bool = False, policy: ExportPolicy | None = None
) -> ExportedView | NothingToDo:
    """Export the newest state of a table."""
    return run_export(table.services.table.refresh(), VIEW_FORMATS[name], policy or ExportPolicy(), force=force)


def exported_paths(table: Table, name: str) -> list[str]:
    """Return the paths of the files in the newest version of a view, relative to the table."""
    env = table.services.table.env
    view = VIEW_FORMATS[name]
    return sorted(view.paths(env, view.load(env)).to_pylist())


def read_view(location: str, name: str, *, where: str = "") -> pa.Table:
    """Return the rows of a view at a local path; `where` is a condition of Iceberg."""
    if name == "delta":
        return DeltaTable(location).to_pyarrow_table()
    scan = StaticTable.from_metadata(location).scan(**({"row_filter": where} if where else {}))
    return scan.to_arrow()


def rows_of(rows: pa.Table) -> list[str]:
    """Return rows in a form that can be compared; the order of rows and columns does not matter."""
    return sorted(repr(sorted(row.items())) for row in rows.to_pylist())


def check_view(table: Table, name: str) -> None:
    """Assert that readers of a view get the rows of the table, and that it names exactly its newest base files."""
    loaded = table.services.table.refresh()
    difference = difference_of_listing(loaded, pa.array(exported_paths(table, name), pa.string()))
    assert difference.is_empty, (name, difference.added_paths, difference.removed)
    if not len(loaded.timeline.writes()):
        assert not exported_paths(table, name)
        return
    expected = table.scan(read_optimized=table.config.is_merge_on_read).to_arrow()
    view = read_view(table.services.table.env.storage.root, name)
    assert sorted(view.column_names) == sorted(expected.column_names)
    same = view.select(expected.column_names).cast(expected.schema)
    assert rows_of(same) == rows_of(expected), name


def view_files(storage: Storage) -> dict[str, list[str]]:
    """Return the names of the files of both views."""
    return {folder: storage.list_names(folder) for folder in ("metadata", "_delta_log")}


def partition_values(location: str) -> list[dict[str, Any]]:
    """Return the partition values of the files in an Iceberg view."""
    values: list[dict[str, Any]] = StaticTable.from_metadata(location).inspect.files().column("partition").to_pylist()
    return values
