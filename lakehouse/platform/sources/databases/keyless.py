"""Rows whose key is an empty string, which Hudi tables cannot store: they are bad records."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UserError
from lakehouse.platform.sources.dead_letters import DeadLetterBox, set_aside
from lakehouse.spark.bad_records import pin, rows_with_key, unpin
from lakehouse.spark.database_rows import keyless_rows
from lakehouse.spark.sources import Frame


def has_keyless(rows: pa.Table, key: Sequence[str]) -> bool:
    """Return whether a row has no key: each of its key columns is null or an empty string."""
    lacking: pa.ChunkedArray | None = None
    for name in key:
        column = rows.column(name)
        if not pa.types.is_string(column.type) and not column.null_count:
            return False
        empty = pc.is_null(column)
        if pa.types.is_string(column.type):
            empty = pc.or_(empty, pc.fill_null(pc.equal(column, ""), True))
        lacking = empty if lacking is None else pc.and_(lacking, empty)
    return lacking is not None and bool(pc.any(lacking).as_py())


# parameters: the rows, the definition of a key, and the limits in the spec
def without_keyless(
    rows: Frame, key: Sequence[str], source_table: str, box: DeadLetterBox, *, table: str, allowed: int
) -> tuple[Frame, int]:
    """Return the rows with a key, and the number of other rows, which become dead letters.

    Deletes without a key are dropped: no stored row has their key.

    Args:
        rows: Rows with the delete marker.
        key: The key columns.
        source_table: The source table, for the dead letters.
        box: The folder of the dead letters.
        table: The target table, for messages.
        allowed: The number of rows without a key that the spec allows.

    Raises UserError if there are more than `allowed`.
    """
    bad = pin(keyless_rows(rows, key, source_table))
    try:
        count = bad.count()
        set_aside(bad, count, table, box, allowed=allowed)
    except UserError as error:
        raise UserError(
            f"{error.message}. Set ingest.max_bad_records to leave such rows out of the table, or give them a key in "
            "the source",
            **error.facts,
        ) from error
    finally:
        unpin(bad)
    return rows_with_key(rows, key), count
