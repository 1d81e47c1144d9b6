"""Values of rows that are read from a table, for printing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa


def rows_of_batch(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch; a date or time that Python cannot hold (year 0, year 58058) is text."""
    columns = [_values(batch.column(name)) for name in batch.schema.names]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (OverflowError, ValueError):
        return [_value(scalar) for scalar in column]


def _value(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_struct(kind):
            return {name: _value(part) for name, part in scalar.items()}
        if pa.types.is_map(kind):
            entries = scalar.values
            return list(zip(_values(entries.field(0)), _values(entries.field(1)), strict=True))
        if not pa.types.is_temporal(kind):
            return _values(scalar.values)
    unit: Any = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    text = str(np.datetime64(scalar.value, unit)).replace("T", " ")
    return f"{text}+00:00" if pa.types.is_timestamp(kind) and kind.tz else text
