"""Merge versions of a record by column groups (`model.column_groups`).

The columns of a group come from the version with the highest ordering value of the group; null is lowest, and the later
version wins a tie. Columns outside of all groups come from the later version. The result does not depend on the order
in which the versions of different groups arrive, and `merge(merge(a, b), c)` equals `merge(a, merge(b, c))`.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

from lakehouse.core.rows.ordering import at_least, comparable
from lakehouse.errors import UserError
from lakehouse.model.column_groups import ColumnGroups


def merge_groups(older: pa.Table, newer: pa.Table, groups: ColumnGroups) -> pa.Table:
    """Return one version for each pair of aligned rows.

    Args:
        older: The older versions.
        newer: The newer versions, with the same columns. Columns that a partial row lacks contain the older values.
        groups: The groups. A group is ignored if its ordering column is not among the columns.
    """
    size = newer.num_rows
    for group in groups:
        name = group.ordering
        if name not in newer.column_names:
            continue
        wins = at_least([comparable(name, newer.column(name))], [comparable(name, older.column(name))], size)
        if wins.all():
            continue
        source = pa.array(np.arange(size) + np.where(wins, 0, size))
        for place, field in enumerate(newer.schema):
            if field.name in group.names:
                both = pa.chunked_array([*newer.column(place).chunks, *older.column(field.name).chunks], field.type)
                newer = newer.set_column(place, field, both.take(source))
    return newer


def check_groups(columns: Collection[str], groups: ColumnGroups) -> None:
    """Raise UserError if a batch contains a column of a group, but not the ordering column of the group."""
    for group in groups:
        present = [name for name in group.columns if name in columns]
        if present and group.ordering not in columns:
            raise UserError(
                f"column {present[0]!r} belongs to the column group that {group.ordering!r} orders, and the rows have "
                f"no column {group.ordering!r}. Add it, so that older values do not replace newer ones",
                column=group.ordering,
            )
