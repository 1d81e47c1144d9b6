"""How a newer version of a record meets the older one (format: data.md 5.2), decided for whole columns at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.model.merge import MergeRule, require_runnable
from lakehouse.rows.order import at_least, ordering_columns, without_ordering

DELETED_COLUMN = "_hoodie_is_deleted"
OPERATION_COLUMN = "_hoodie_operation"


def delete_flags(rows: pa.Table | pa.RecordBatch) -> np.ndarray | None:
    """Return a mask of the rows that are deletes by `_hoodie_is_deleted`, or None if the column is absent."""
    if DELETED_COLUMN not in rows.schema.names:
        return None
    flags = pc.fill_null(pc.cast(rows.column(DELETED_COLUMN), pa.bool_()), False)
    return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=bool)


def says_deleted(rows: pa.Table, rule: MergeRule, table: pa.Schema) -> np.ndarray:
    """Return a mask of the data rows that say they are deletes (format: data.md 1).

    By `_hoodie_is_deleted`, where the schema of the table has it; by the table's own delete marker; by the operation
    D or -U.
    """
    deleted = np.zeros(rows.num_rows, dtype=bool)
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
    """Return the mask of the incoming rows that beat the stored row beside them.

    Row i of `stored` and of `incoming` meet; both have the ordering columns that `rule` compares, in one type. Ties go
    to the incoming row; null is lowest. A delete without ordering value (null, or the integer 0 that stands for it)
    always wins. Raises UnsupportedError for a rule that cannot be run here.
    """
    require_runnable(rule)
    if not rule.compared:
        return np.ones(incoming.num_rows, dtype=bool)
    wins = at_least(ordering_columns(incoming, rule), ordering_columns(stored, rule), incoming.num_rows)
    return wins if deletes is None else wins | (deletes & without_ordering(incoming, rule))


def _mask(flags: pa.Array | pa.ChunkedArray) -> np.ndarray:
    return np.asarray(pc.fill_null(flags, False).to_numpy(zero_copy_only=False), dtype=bool)
