"""Custom merge functions for tests: a correct one and incorrect ones, named `tests.support.mergers:function`."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc


def add_up(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Sum column `n`, join column `v` and take the other columns from the newer row.

    If the rows have the delete flag, a negative sum is a delete.
    """
    total = pc.add(older.column("n"), newer.column("n"))
    names = [f.name for f in newer.schema]
    merged = newer.set_column(names.index("n"), "n", total)
    if "v" in names:
        both = pc.binary_join_element_wise(older.column("v"), newer.column("v"), "+")
        joined = pc.coalesce(both, newer.column("v"), older.column("v"))
        merged = merged.set_column(names.index("v"), "v", joined)
    if "_hoodie_is_deleted" in names:
        merged = merged.set_column(names.index("_hoodie_is_deleted"), "_hoodie_is_deleted", pc.less(total, 0))
    return merged


def drops_rows(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Return one row less."""
    return newer.slice(1)


def drops_column(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Return one column less."""
    return newer.drop_columns(["n"])


def changes_type(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Return a column with another type."""
    return newer.set_column(newer.schema.get_field_index("n"), "n", newer.column("n").cast(pa.float64()))


def changes_keys(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Return rows with other keys."""
    keys = pc.binary_join_element_wise(newer.column("_hoodie_record_key"), "x", "")
    return newer.set_column(newer.schema.get_field_index("_hoodie_record_key"), "_hoodie_record_key", keys)


def returns_rows(older: pa.Table, newer: pa.Table) -> list[dict[str, object]]:
    """Return a list instead of a table."""
    return list(newer.to_pylist())


def fails(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Raise an exception as a defect in a merge function does."""
    raise ZeroDivisionError("division by zero")
