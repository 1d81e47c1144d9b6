"""Decide which version of a record wins, and which rows are deletes, for whole columns (DATA-5.2)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.rows.absent_columns import LACKS, marked_deleted
from lakehouse.core.rows.ordering import at_least, ordering_columns, without_ordering
from lakehouse.errors import UserError
from lakehouse.model.merge import MergeRule, require_runnable

DELETED_COLUMN = "_hoodie_is_deleted"
OPERATION_COLUMN = "_hoodie_operation"
#: Columns that mark a row of a batch as a delete. A batch without them has no deletes.
ROW_MARKS = frozenset({DELETED_COLUMN, OPERATION_COLUMN})


def delete_flags(rows: pa.Table | pa.RecordBatch) -> np.ndarray | None:
    """Return the mask of rows that are deletes by `_hoodie_is_deleted`; None if the column is absent or not boolean.

    As in Hudi only the boolean true marks a delete, not a string or a number. Writes refuse such columns
    (`check_delete_column`).
    """
    if DELETED_COLUMN not in rows.schema.names or not _is_boolean(rows.schema.field(DELETED_COLUMN).type):
        return None
    flags = pc.fill_null(rows.column(DELETED_COLUMN), False)
    return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=bool)


def check_delete_column(schema: pa.Schema) -> None:
    """Raise UserError if the column `_hoodie_is_deleted` of a batch is not boolean: its deletes would become rows."""
    kind = schema.field(DELETED_COLUMN).type if DELETED_COLUMN in schema.names else pa.bool_()
    stored = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (_is_boolean(stored) or pa.types.is_null(stored)):
        raise UserError(
            f"column {DELETED_COLUMN!r} is {kind}, and must be boolean: engines treat a row as a delete only if it "
            "is the boolean true, so rows with text or numbers would stay in the table. Cast it, in a spec by "
            f"`ingest.select: ['* except ({DELETED_COLUMN})', 'boolean({DELETED_COLUMN}) as {DELETED_COLUMN}']`, or "
            "rename it",
            column=DELETED_COLUMN,
            type=str(kind),
        )


def row_marks(table: pa.Schema) -> frozenset[str]:
    """Return the `ROW_MARKS` that are columns of a table; `_hoodie_is_deleted` is one only if it is boolean.

    These columns describe the rows of a batch. A row without them is no delete, whatever the stored row has there, so a
    batch without them is not a partial update.
    """
    return frozenset(f.name for f in table if f.name in ROW_MARKS and (f.name != DELETED_COLUMN or _is_boolean(f.type)))


def with_delete_flags(rows: pa.Table, table: pa.Schema) -> pa.Table:
    """Return rows of a batch with the column `_hoodie_is_deleted` if `table` has it; false where it is missing.

    Null becomes false only if the table requires a value; it marks no delete either.
    """
    if DELETED_COLUMN not in table.names or not _is_boolean(table.field(DELETED_COLUMN).type):
        return rows
    if DELETED_COLUMN not in rows.column_names:
        return rows.append_column(DELETED_COLUMN, pa.repeat(False, rows.num_rows))
    if table.field(DELETED_COLUMN).nullable or not rows.column(DELETED_COLUMN).null_count:
        return rows
    flags = pc.fill_null(rows.column(DELETED_COLUMN).cast(pa.bool_()), False)
    return rows.set_column(rows.schema.get_field_index(DELETED_COLUMN), DELETED_COLUMN, flags)


def _is_boolean(kind: pa.DataType) -> bool:
    return bool(pa.types.is_boolean(kind))


def says_deleted(rows: pa.Table, rule: MergeRule, table: pa.Schema) -> np.ndarray:
    """Return the mask of data rows that are flagged as deletes (DATA-1).

    A row is a delete by `_hoodie_is_deleted` if `table` has that column, by the delete marker of the table, by the
    operation D or -U, or by the control column of its batch.
    """
    deleted = marked_deleted(rows) if LACKS in rows.column_names else np.zeros(rows.num_rows, dtype=bool)
    if DELETED_COLUMN in table.names:
        flags = delete_flags(rows)
        deleted = deleted if flags is None else deleted | flags
    if rule.delete_field and rule.delete_field in rows.column_names:
        said = pc.equal(rows.column(rule.delete_field).cast(pa.string()), rule.delete_marker)
        deleted = deleted | _mask(said)
    if OPERATION_COLUMN in rows.column_names:
        said = pc.is_in(rows.column(OPERATION_COLUMN).cast(pa.string()), value_set=pa.array(["D", "-U"]))
        deleted = deleted | _mask(said)
    return deleted


def incoming_wins(rule: MergeRule, stored: pa.Table, incoming: pa.Table, deletes: np.ndarray | None) -> np.ndarray:
    """Return the mask of incoming rows that win over the stored row at the same position.

    Both tables have the ordering columns that `rule` compares, with the same types. The incoming row wins ties; null is
    lower than all values. A delete without ordering value (null, or the integer 0 that represents it) always wins.
    Raises UnsupportedError for a rule that is not supported.
    """
    require_runnable(rule)
    if not rule.compared:
        return np.ones(incoming.num_rows, dtype=bool)
    wins = at_least(ordering_columns(incoming, rule), ordering_columns(stored, rule), incoming.num_rows)
    return wins if deletes is None else wins | (deletes & without_ordering(incoming, rule))


def _mask(flags: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), dtype=bool)
