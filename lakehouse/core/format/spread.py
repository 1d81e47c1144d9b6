"""Expand an array of values to the length of a mask; rows without a value become null.

Arrow's `take` also makes the fields of a null struct null, even fields that are not nullable, and Parquet cannot store
such a column. Here these fields are zero or empty. Buffers of bytes and items are shared, not copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray


def spread(values: Any, has_value: NDArray[np.bool_], *, nullable: bool) -> Any:
    """Return an array with the next item of `values` at each True in `has_value`, and null or an empty value elsewhere.

    Args:
        values: Arrow array with as many entries as `has_value` has True.
        has_value: Boolean array with one entry per row.
        nullable: Whether other rows are null; if False they are empty or zero.
    """
    is_valid = has_value if nullable else None
    if nullable and values.null_count:
        is_valid = has_value.copy()
        is_valid[has_value] = np.asarray(values.is_valid())
    kind = values.type
    if pat.is_struct(kind):
        fields = [spread(values.field(i), has_value, nullable=field.nullable) for i, field in enumerate(kind)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=_mask(is_valid))
    if pat.is_list(kind):
        offsets = pa.array(np.asarray(values.offsets)[_steps(has_value)])
        return pa.ListArray.from_arrays(offsets, values.values, type=kind, mask=_mask(is_valid))
    if pat.is_map(kind):
        offsets = pa.array(np.asarray(values.offsets)[_steps(has_value)])
        return pa.MapArray.from_arrays(offsets, values.keys, values.items, type=kind, mask=_mask(is_valid))
    validity = None if is_valid is None else pa.py_buffer(np.packbits(is_valid, bitorder="little"))
    buffers = [validity, *_spread_buffers(values, has_value)]
    return pa.Array.from_buffers(kind, len(has_value), buffers)


def _spread_buffers(values: Any, has_value: NDArray[np.bool_]) -> list[Any]:
    """Return the data buffers of the expanded array, for a type without children."""
    kind, memory = values.type, np.frombuffer(values.buffers()[1] or b"\0" * 8, np.uint8)
    begin, end = values.offset, values.offset + len(values)
    if pat.is_string(kind) or pat.is_binary(kind) or pat.is_large_binary(kind):
        dtype = np.int64 if pat.is_large_binary(kind) else np.int32
        return [pa.py_buffer(memory.view(dtype)[begin : end + 1][_steps(has_value)]), values.buffers()[2]]
    if pat.is_boolean(kind):
        bits = np.zeros(len(has_value), np.uint8)
        bits[has_value] = np.unpackbits(memory, bitorder="little")[begin:end]
        return [pa.py_buffer(np.packbits(bits, bitorder="little"))]
    width = kind.bit_width // 8
    spaced = np.zeros(len(has_value), f"V{width}")
    spaced[has_value] = memory[begin * width : end * width].view(f"V{width}")
    return [pa.py_buffer(spaced.view(np.uint8))]


def _steps(has_value: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return for each row, and for the end, the number of values before it."""
    steps = np.zeros(len(has_value) + 1, np.int64)
    np.cumsum(has_value, out=steps[1:])
    return steps


def _mask(is_valid: NDArray[np.bool_] | None) -> Any:
    return None if is_valid is None else pa.array(~is_valid)
