"""How an incoming row meets the stored one (format: data.md 5.2), decided for whole columns at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UnsupportedError
from lakehouse.model.merge import MergeMode

DELETED_COLUMN = "_hoodie_is_deleted"


def delete_flags(rows: pa.Table | pa.RecordBatch) -> np.ndarray | None:
    """Return a mask of the rows that are deletes by `_hoodie_is_deleted`, or None if the column is absent."""
    if DELETED_COLUMN not in rows.schema.names:
        return None
    flags = pc.fill_null(pc.cast(rows.column(DELETED_COLUMN), pa.bool_()), False)
    return np.asarray(flags.to_numpy(zero_copy_only=False), dtype=bool)


def incoming_wins(
    mode: MergeMode,
    stored: pa.Array | pa.ChunkedArray | None,
    incoming: pa.Array | pa.ChunkedArray | None,
    deletes: np.ndarray | None,
    rows: int,
) -> np.ndarray:
    """Return the mask of the incoming rows that beat the stored row beside them.

    `stored` and `incoming` are the ordering columns, aligned and of one type; ties go to the incoming row; null is
    lowest. A delete without ordering value (null, or the integer 0 that stands for it) always wins.
    """
    if mode is MergeMode.CUSTOM:
        raise UnsupportedError(
            "record merge mode CUSTOM cannot be applied; COMMIT_TIME_ORDERING and EVENT_TIME_ORDERING can"
        )
    if mode is MergeMode.COMMIT_TIME_ORDERING or stored is None or incoming is None:
        return np.ones(rows, dtype=bool)
    newer = pc.or_kleene(pc.fill_null(pc.greater_equal(incoming, stored), False), pc.is_null(stored))
    wins = np.asarray(newer.to_numpy(zero_copy_only=False), dtype=bool)
    return wins if deletes is None else wins | (deletes & _is_default(incoming))


def _is_default(ordering: pa.Array | pa.ChunkedArray) -> np.ndarray:
    default = pc.is_null(ordering)
    if pa.types.is_int32(ordering.type):
        default = pc.or_kleene(default, pc.fill_null(pc.equal(ordering, 0), False))
    return np.asarray(default.to_numpy(zero_copy_only=False), dtype=bool)
