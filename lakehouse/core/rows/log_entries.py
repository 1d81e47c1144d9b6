"""Log entries: the records and deletes of log files as one table, from log readers to merges (DATA-5.2).

    requested columns of the table (also meta columns; always `_hoodie_record_key`; null if a row does not provide one)
    __kind     int8    RECORD, DELETED_RECORD (a data row flagged as a delete), DELETE (an entry of a delete block)
    __default  bool    a delete without ordering value (null, or the int 0 that represents it); or, if a custom merger
                       merges records, a record that follows a delete and replaces all older versions
    __columns  int32   the columns that the row provides: an index into a `ColumnSets`; 0 = all

Rows are in processing order: a later row is newer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.rows.ordering import without_ordering
from lakehouse.core.rows.record_merge import says_deleted
from lakehouse.model.merge import MergeRule

KEY = META_COLUMNS[2]
KIND, DEFAULT, COLUMNS = "__kind", "__default", "__columns"
RECORD, DELETED_RECORD, DELETE = 0, 1, 2
CONTROL = pa.schema([(KIND, pa.int8()), (DEFAULT, pa.bool_()), (COLUMNS, pa.int32())])


@dataclass(slots=True)
class ColumnSets:
    """Numbered sets of column names that partial rows provide; number 0 means all columns."""

    sets: list[frozenset[str] | None] = field(default_factory=lambda: [None])

    def number(self, names: frozenset[str] | None) -> int:
        """Return the number of a set; a new set gets the next number."""
        if names not in self.sets:
            self.sets.append(names)
        return self.sets.index(names)

    def union(self, first: int, second: int) -> int:
        """Return the number of the union set."""
        one, other = self.sets[first], self.sets[second]
        return self.number(None if one is None or other is None else one | other)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The control columns of entries, as NumPy arrays of one length."""

    kind: np.ndarray
    default: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, entries: pa.Table) -> Control:
        """Return the control columns of `entries`."""
        kind, default, columns = (entries.column(n).to_numpy() for n in (KIND, DEFAULT, COLUMNS))
        return cls(kind=kind, default=default.astype(bool), columns=columns)

    @classmethod
    def of_records(cls, rows: int) -> Control:
        """Return the control columns of `rows` complete records, such as rows from a base file."""
        return cls(kind=np.zeros(rows, np.int8), default=np.zeros(rows, bool), columns=np.zeros(rows, np.int32))

    def take(self, rows: np.ndarray) -> Control:
        """Return the control columns of the entries at positions `rows`."""
        return Control(kind=self.kind[rows], default=self.default[rows], columns=self.columns[rows])


def record_entries(rows: pa.Table, rule: MergeRule, columns: int | np.ndarray = 0, *, table: pa.Schema) -> pa.Table:
    """Return the entries for the rows of a data block: `rows` with the control columns.

    A row is a delete by `_hoodie_is_deleted` if `table` has that column, by the delete marker of the table, or by
    `_hoodie_operation` D or -U.

    Args:
        rows: The rows of the block.
        rule: How versions of a record are merged.
        columns: The number of the column set that all rows provide, or one number per row.
        table: The schema of the table.
    """
    deleted = says_deleted(rows, rule, table)
    default = deleted & without_ordering(rows, rule) if deleted.any() else deleted
    kind = np.where(deleted, DELETED_RECORD, RECORD)
    return with_control(
        rows,
        Control(kind=kind, default=default, columns=np.broadcast_to(np.asarray(columns, np.int32), (rows.num_rows,))),
    )


def delete_entries(
    keys: pa.Array, ordering: Sequence[pa.Array], default: np.ndarray, schema: pa.Schema, rule: MergeRule
) -> pa.Table:
    """Return the entries of a delete block, in `schema` with the control columns.

    Args:
        keys: The record keys, as strings.
        ordering: The ordering columns of `rule`, in order; empty if the block was read without them.
        default: The mask of deletes without ordering value.
        schema: The columns of data rows. Columns other than key and ordering columns are null.
        rule: How versions of a record are merged.
    """
    values = dict(zip(rule.compared, ordering, strict=True)) if ordering else {}
    columns = []
    for column in (column for column in schema if column.name not in CONTROL.names):
        if column.name == KEY:
            columns.append(keys.cast(column.type))
        elif column.name in values:
            columns.append(values[column.name].cast(column.type))
        else:
            columns.append(pa.nulls(len(keys), column.type))
    rows = pa.table(columns, schema=without_control(schema))
    count = len(keys)
    control = Control(kind=np.full(count, DELETE), default=np.asarray(default, bool), columns=np.zeros(count, np.int32))
    return with_control(rows, control)


def with_control(rows: pa.Table, control: Control) -> pa.Table:
    """Return `rows` with the control columns appended."""
    for column, values in zip(CONTROL, (control.kind, control.default, control.columns), strict=True):
        rows = rows.append_column(column, pa.array(values, column.type))
    return rows


def without_control(schema: pa.Schema) -> pa.Schema:
    """Return `schema` without the control columns."""
    return pa.schema([column for column in schema if column.name not in CONTROL.names])
