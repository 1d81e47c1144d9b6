"""The types in which database values are stored: Arrow types that Spark and the table format support.

Record keys are strings, so a binary key column is stored as hexadecimal digits, as the server's `HEX()` prints it.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_MOST_DIGITS = 38
_UNSIGNED_DIGITS = 20
_HEX = np.frombuffer(b"".join(f"{byte:02X}".encode() for byte in range(256)), dtype=np.uint16)


#: The maximum decimal precision that fits an int64.
INTEGER_DIGITS = 18


def decimals(digits: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert int64 values to decimals with the same digits: 1250 becomes 12.50."""
    values = np.asarray(digits.fill_null(0) if digits.null_count else digits)
    words = np.empty((len(values), 2), dtype=np.int64)
    words[:, 0], words[:, 1] = values, values >> 63
    made = pa.Array.from_buffers(pa.decimal128(kind.precision, kind.scale), len(values), [None, pa.py_buffer(words)])
    if digits.null_count == 0:
        return made
    return pc.if_else(digits.is_valid(), made, pa.scalar(None, made.type))


def stored_type(kind: pa.DataType) -> pa.DataType:
    """Return the type in which values of an Arrow type are stored without loss."""
    if pa.types.is_dictionary(kind):
        return stored_type(kind.value_type)
    if pa.types.is_uint64(kind):
        return pa.decimal128(_UNSIGNED_DIGITS, 0)
    if pa.types.is_uint32(kind):
        return pa.int64()
    if pa.types.is_integer(kind) and kind.bit_width <= 16:
        return pa.int32()
    if pa.types.is_decimal(kind):
        return pa.decimal128(kind.precision, kind.scale) if kind.precision <= _MOST_DIGITS else pa.string()
    if pa.types.is_large_string(kind) or pa.types.is_null(kind) or pa.types.is_time(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    return kind


def stored_schema(schema: pa.Schema, key: Collection[str]) -> pa.Schema:
    """Convert columns to their stored types; `key` contains the key column names."""
    types = [(column.name, stored_type(column.type)) for column in schema]
    return pa.schema([(name, pa.string() if name in key and kind == pa.binary() else kind) for name, kind in types])


def stored(rows: pa.Table, key: Collection[str]) -> pa.Table:
    """Convert rows to their stored types."""
    schema = stored_schema(rows.schema, key)
    columns = [
        column if column.type == field.type else _cast(column, field.type)
        for column, field in zip(rows.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def unreadable(stored: pa.Schema, wanted: pa.Schema) -> frozenset[str]:
    """Return the columns with stored values that do not fit the wanted type."""
    kinds = {column.name: column.type for column in stored}
    return frozenset(
        column.name for column in wanted if column.name in kinds and not _reads_as(kinds[column.name], column.type)
    )


def _reads_as(kind: pa.DataType, wanted: pa.DataType) -> bool:
    if kind == wanted or wanted == pa.string():
        return True
    if pa.types.is_decimal(wanted):
        whole = wanted.precision - wanted.scale
        if pa.types.is_decimal(kind):
            return bool(kind.scale <= wanted.scale and kind.precision - kind.scale <= whole)
        return bool(pa.types.is_integer(kind) and whole >= _UNSIGNED_DIGITS)
    numbers = (pa.types.is_integer, pa.types.is_floating)
    return any(is_one(kind) and is_one(wanted) and kind.bit_width <= wanted.bit_width for is_one in numbers)


def hexadecimal(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return bytes as hexadecimal digits."""
    return pa.chunked_array([_hexadecimal(chunk) for chunk in column.chunks], pa.string())


def _hexadecimal(column: pa.Array) -> pa.Array:
    # A copy has no offset and no bytes that belong to other rows.
    plain = pa.concat_arrays([column.cast(pa.binary())])
    offsets = np.frombuffer(plain.buffers()[1], dtype=np.int32, count=len(plain) + 1)
    data = plain.buffers()[2]
    digits = _HEX[np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]]] if data is not None else b""
    ends = pa.py_buffer((offsets - offsets[0]) * np.int32(2))
    validity = pc.is_valid(plain)
    text = pa.StringArray.from_buffers(len(plain), ends, pa.py_buffer(digits))
    return text if plain.null_count == 0 else pc.if_else(validity, text, pa.scalar(None, pa.string()))


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type):
        return _cast(column.cast(column.type.value_type), kind)
    if kind == pa.string() and (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        return hexadecimal(column)
    return column if column.type == kind else pc.cast(column, kind)
