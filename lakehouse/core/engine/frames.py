"""Arrow data that the local engine reads, and the kinds of rows that the write methods of a table take."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from lakehouse.errors import UserError

ARROW_FRAMES = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)
#: The kinds of rows that `core.table.input_rows` converts to Arrow data, and Spark's own.
ACCEPTED = (
    "a list or iterator of dicts, dataclasses or pydantic models, a pandas or Polars frame, a DuckDB relation, a "
    "scan, a pyarrow Table, RecordBatch, RecordBatchReader or Dataset, an iterator of record batches, another object "
    "with __arrow_c_stream__, or a Spark DataFrame"
)


def require_arrow(frame: Any) -> None:
    """Raise UserError with the accepted kinds if the rows are not Arrow data."""
    if not isinstance(frame, ARROW_FRAMES):
        raise UserError(f"rows are of type {type(frame).__name__}; give {ACCEPTED}", argument="rows")
