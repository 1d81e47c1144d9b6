"""Refuse to give files to readers that find columns by name, if the names in the files are not those of the table."""

from __future__ import annotations

import pyarrow.compute as pc

from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.rows.stored_names import evolved_columns, is_renamed_in
from lakehouse.errors import UnsupportedError


def require_present_names(table: LoadedTable, purpose: str) -> None:
    """Raise UnsupportedError if a file of the newest version has other names for its columns than the table.

    Args:
        table: The loaded table. Only one whose columns were renamed or dropped is listed.
        purpose: What the files are for, the beginning of the message.
    """
    schema = table_schema(table)
    if schema is None or not evolved_columns(schema):
        return
    for instant in pc.unique(load_slices(table).files.column("instant")).to_pylist():
        if is_renamed_in(schema, instant):
            raise UnsupportedError(
                f"{table.env.storage.root}: {purpose} needs files that have the present names of all columns, but the "
                f"files of {instant} were written before a column was renamed, or dropped and added again. Rewrite "
                "them first: run a clustering with force and with sort columns that the table is not sorted by yet "
                "(hoodie.clustering.plan.strategy.sort.columns), or, if the rows fit into memory, "
                "table.insert_overwrite_table(table.scan().to_arrow())",
                instant=instant,
            )
