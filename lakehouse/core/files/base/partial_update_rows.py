"""Decide which partial rows may be written to a log as they are, and complete the others with stored values (DATA-5.3).

A block with IS_PARTIAL contains only the columns that the rows provide; readers take the other columns from the stored
rows. In two cases readers of Hudi 1.2 fail or return wrong rows, so rows are then written with all columns:

    no stored row     the reader assigns the values of the block to wrong columns
    a delete column   whether a row is a delete is read at the position that the column has in the whole table
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.log.log_reader import KEY, OPERATION, SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import GroupTask
from lakehouse.core.rows.absent_columns import lacked
from lakehouse.core.rows.casting import cast_columns
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.model.files import FileSlice


@dataclass(slots=True)
class Nulled:
    """Counts new rows by the columns that they do not provide, which are null in these rows."""

    rows: dict[str, int] = field(default_factory=dict)

    def add(self, context: WriteContext, rows: pa.Table) -> None:
        """Count rows whose keys are not stored."""
        if context.incoming.provided_columns is not None and rows.num_rows:
            for name in set(context.schema.names).difference(context.incoming.provided_columns):
                self.rows[name] = self.rows.get(name, 0) + rows.num_rows
        for name, lacking in lacked(rows, context.incoming.lacks):
            self.rows[name] = self.rows.get(name, 0) + int(np.count_nonzero(lacking))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialRows:
    """Splits the incoming rows of one file group into complete and partial rows.

    Attributes:
        read: The settings for reading the slice.
        file_slice: The slice of the group; None if it is new.
        lacking: The data columns that the rows do not provide.
        all_stored: Whether each key is known to be stored.
        completes: Whether all rows are written with all columns, with the stored values of `lacking`.
        context: The settings of the write.
        nulled: Counts the new rows.
    """

    read: SliceContext
    file_slice: FileSlice | None
    lacking: tuple[str, ...]
    all_stored: bool
    completes: bool
    context: WriteContext
    nulled: Nulled = field(default_factory=Nulled)

    def parted(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Return (complete, partial): rows to write with all columns, and rows to write with the provided columns."""
        if self.all_stored and not self.completes:
            return rows.slice(0, 0), rows
        wanted = [KEY, *(self.lacking if self.completes else ())]
        positions, stored = self._stored(
            rows.column(KEY), [column for column in self.read.table if column.name in wanted]
        )
        unknown = np.ones(rows.num_rows, bool)
        unknown[positions] = False
        self.nulled.add(self.context, rows.filter(pa.array(unknown)))
        if not self.completes:
            return rows.filter(pa.array(unknown)), rows.filter(pa.array(~unknown))
        masks = dict(lacked(rows, self.context.incoming.lacks))
        for name in self.lacking:
            lacking = masks.get(name) if self.context.incoming.lacks else np.ones(rows.num_rows, bool)
            if lacking is None:
                continue
            source = np.arange(rows.num_rows)
            source[positions] = np.where(lacking[positions], rows.num_rows + np.arange(len(positions)), positions)
            place, values = rows.schema.get_field_index(name), stored.column(name)
            both = pa.chunked_array([*rows.column(place).chunks, *values.chunks], values.type)
            rows = rows.set_column(place, stored.schema.field(name), both.take(pa.array(source)))
        return rows, rows.slice(0, 0)

    def _stored(self, keys: pa.ChunkedArray, fields: list[pa.Field]) -> tuple[np.ndarray, pa.Table]:
        """Return the positions of the stored keys, each once, and the stored row of each."""
        columns = pa.schema(fields)
        positions, pieces = [np.array([], np.int64)], [columns.empty_table()]
        if self.file_slice is not None:
            value_set = pa.concat_arrays([*keys.chunks, pa.array([], pa.string())])
            for _, rows in read_slice(self.read, self.file_slice, columns):
                indices = pc.index_in(rows.column(KEY), value_set=value_set)
                positions.append(indices.drop_null().to_numpy().astype(np.int64))
                pieces.append(cast_columns(rows.filter(indices.is_valid()), columns))
        # If a base file has a key twice, its first row is used.
        stored, first = np.unique(np.concatenate(positions), return_index=True)
        return stored, pa.concat_tables(pieces).take(pa.array(first))


def partial_rows(context: WriteContext, read: SliceContext, task: GroupTask) -> PartialRows | None:
    """Return how to split the rows of a task, or None if all rows are written to the log as they are.

    Rows that provide all columns need no completion. Rows of non-blocking writers are not completed either, because a
    completed row would overwrite columns that another writer changed in the meantime. Readers of Hudi return the
    correct values of such a row after compaction.
    """
    if not context.incoming.keeps or context.incoming.reads_no_rows:
        return None
    provided = context.incoming.provided_columns or ()
    lacking = {name for names in context.incoming.lacks for name in names} or set(context.schema.names).difference(
        provided
    )
    return PartialRows(
        read=read,
        file_slice=task.file_slice,
        lacking=tuple(name for name in context.schema.names if name in lacking),
        all_stored=task.matches_file is not None and task.all_stored,
        completes=completes_rows(context),
        context=context,
    )


def completes_rows(context: WriteContext) -> bool:
    """Return whether a partial update writes all columns of its rows, completed with the stored values."""
    if context.table_layout.names_logs_by_slice:
        # Hudi 0.15 cannot read blocks with partial rows.
        return context.incoming.keeps
    if context.incoming.lacks:
        return not context.incoming.reads_no_rows
    marks = {DELETED_COLUMN, OPERATION, context.rule.delete_field}
    partial = context.incoming.provided_columns is not None
    needs_all = context.incoming.completes or bool(marks & set(context.schema.names))
    return partial and not context.incoming.reads_no_rows and needs_all
