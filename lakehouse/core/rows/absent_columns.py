"""Track rows of one batch that provide different columns, because their files have different columns.

The batch has one additional control column of bits:

    __lacks   int64    bit i is set if the row lacks the columns of group i; null counts as 0. Bit 62 is set if the row
                       is a delete, which adds no column to the table, unlike `_hoodie_is_deleted`

Columns that are absent in the same rows form one group, so a batch from files with k different sets of columns has few
groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UserError

LACKS = "__lacks"
_MOST_GROUPS = 62
#: The bits of a row that is a delete.
DELETE_BIT = 1 << _MOST_GROUPS

#: The columns of each group, by the number of its bit.
Groups = tuple[frozenset[str], ...]


def grouped(lacking: Sequence[frozenset[str]]) -> tuple[Groups, tuple[int, ...]]:
    """Return the groups of columns, and the bits for each set of absent columns."""
    patterns: dict[tuple[bool, ...], set[str]] = {}
    for name in sorted({name for names in lacking for name in names}):
        patterns.setdefault(tuple(name in names for names in lacking), set()).add(name)
    if len(patterns) > _MOST_GROUPS:
        raise UserError(
            f"the files of this run lack {len(patterns)} different sets of columns, and a run allows at most "
            f"{_MOST_GROUPS}; ingest fewer files at a time, or set lakehouse.schema.missing.column=null"
        )
    groups = tuple(frozenset(names) for names in patterns.values())
    bits = tuple(
        sum(1 << bit for bit, pattern in enumerate(patterns) if pattern[number]) for number in range(len(lacking))
    )
    return groups, bits


def bits_of(rows: pa.Table) -> np.ndarray:
    """Return the bits of the rows; zeros if the batch has no control column."""
    if LACKS not in rows.column_names:
        return np.zeros(rows.num_rows, np.int64)
    return np.asarray(pc.fill_null(rows.column(LACKS), 0).to_numpy(), dtype=np.int64)


def marked_deleted(rows: pa.Table) -> np.ndarray:
    """Return the mask of rows whose control column marks them as deletes."""
    marked: np.ndarray = (bits_of(rows) & DELETE_BIT) != 0
    return marked


def lacking_columns(groups: Groups, bits: int) -> frozenset[str]:
    """Return the columns that rows with these bits lack."""
    return frozenset(name for bit, names in enumerate(groups) if bits >> bit & 1 for name in names)


def bits_without(groups: Groups, columns: frozenset[str] | None) -> int:
    """Return the bits of rows that provide `columns`; None for all columns."""
    absent = (bit for bit, names in enumerate(groups) if names and columns is not None and not names & columns)
    return sum(1 << bit for bit in absent)


def lacked(rows: pa.Table, groups: Groups) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each column that some rows lack, and the mask of those rows."""
    bits = bits_of(rows)
    for bit, names in enumerate(groups):
        mask = (bits >> bit & 1).astype(bool)
        if mask.any():
            for name in sorted(names):
                yield name, mask
