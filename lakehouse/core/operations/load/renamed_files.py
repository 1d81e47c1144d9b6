"""Refuse to give files to other readers if the files have earlier names or types of columns."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow.compute as pc

from lakehouse.core.operations.load.schema import declared_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.schema_history import Converts, keeps_statistics
from lakehouse.core.rows.stored_names import evolved_columns, is_renamed_in
from lakehouse.errors import UnsupportedError


def reads_by_name(table: LoadedTable, converts: Converts) -> Callable[[str], bool] | None:
    """Return a function of an instant: whether its files have the present names of columns, and types that fit.

    Args:
        table: The loaded table.
        converts: Whether readers convert values from a stored type to the present one.

    Returns None if all files of the table have them.
    """
    declared = declared_schema(table)
    if declared is None or declared.history is None:
        return None
    schema, retyped = declared.schema, declared.history.retyped(converts)
    if not retyped and not evolved_columns(schema):
        return None
    return lambda instant: int(instant or 0) >= retyped and not is_renamed_in(schema, instant)


def require_present_names(table: LoadedTable, purpose: str, converts: Converts = keeps_statistics) -> None:
    """Raise UnsupportedError if a file of the newest version has other names or types for its columns than the table.

    Args:
        table: The loaded table. Only one whose columns were renamed, retyped or dropped is listed.
        purpose: What the files are for, the beginning of the message.
        converts: Whether the readers convert values from a stored type to the present one: by default integers to
            longer integers, floats to doubles, and decimals.
    """
    is_read = reads_by_name(table, converts)
    if is_read is None:
        return
    for instant in pc.unique(load_slices(table).files.column("instant")).to_pylist():
        if not is_read(instant):
            raise UnsupportedError(
                f"{table.env.storage.root}: {purpose} needs files that have the present names and types of all "
                f"columns, but the files of {instant} were written before a column was renamed, retyped, or dropped "
                "and added again. Rewrite them first: run a clustering with force and with sort columns that the table "
                "is not sorted by yet (hoodie.clustering.plan.strategy.sort.columns), or, if the rows fit into memory, "
                "table.insert_overwrite_table(table.scan().to_arrow())",
                instant=instant,
            )
