"""Arrow data that the local engine reads, and how to convert other data to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import PathLike
from typing import Any

import pyarrow as pa

from lakehouse.errors import UserError

ARROW_FRAMES = (pa.Table, pa.RecordBatch, pa.RecordBatchReader)


def require_arrow(frame: Any) -> None:
    """Raise UserError with the way to convert the rows if they are not Arrow data."""
    if isinstance(frame, ARROW_FRAMES):
        return
    kind = type(frame).__name__
    raise UserError(
        f"expected a pyarrow Table, RecordBatch or RecordBatchReader, or a Spark DataFrame, not {kind}; "
        f"{_conversion(frame)}",
        argument="rows",
    )


def _conversion(frame: Any) -> str:
    package = type(frame).__module__.partition(".")[0]
    if frame is None:
        return "pass the rows to write"
    if isinstance(frame, Mapping):
        return "pass pyarrow.table(rows)"
    if isinstance(frame, list | tuple):
        if frame and all(isinstance(part, pa.RecordBatch) for part in frame):
            return "pass pyarrow.Table.from_batches(rows)"
        if all(isinstance(part, Mapping) for part in frame):
            return "pass pyarrow.Table.from_pylist(rows)"
        return "pass pyarrow.table({'column': [value, ...]})"
    if isinstance(frame, str | bytes | PathLike):
        return "read the file first, such as by pyarrow.csv.read_csv(path) or pyarrow.parquet.read_table(path)"
    if isinstance(frame, Iterator):
        return "pass pyarrow.RecordBatchReader.from_batches(schema, rows)"
    if package == "polars":
        return "pass frame.to_arrow()"
    if hasattr(frame, "to_records"):
        return "pass pyarrow.Table.from_pandas(frame)"
    return "convert it to a pyarrow Table"
