"""Refuse to give files to other readers if the files have earlier names or types of columns."""

from __future__ import annotations

import pyarrow.compute as pc

from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.rows.stored_names import differs_in, evolved_columns
from lakehouse.errors import UnsupportedError


def require_present_names(table: LoadedTable, purpose: str) -> None:
    """Raise UnsupportedError if a file of the newest version has other names or types for its columns than the table.

    Args:
        table: The loaded table. Only one whose columns were renamed, retyped or dropped is listed.
        purpose: What the files are for, the beginning of the message.
    """
    schema = table_schema(table)
    if schema is None or not evolved_columns(schema):
        return
    for instant in pc.unique(load_slices(table).files.column("instant")).to_pylist():
        if differs_in(schema, instant):
            raise UnsupportedError(
                f"{table.env.storage.root}: {purpose} needs files that have the present names and types of all "
                f"columns, but the files of {instant} were written before a column was renamed, retyped, or dropped "
                "and added again. Rewrite them first: run a clustering with force and with sort columns that the table "
                "is not sorted by yet (hoodie.clustering.plan.strategy.sort.columns), or, if the rows fit into memory, "
                "table.insert_overwrite_table(table.scan().to_arrow())",
                instant=instant,
            )
