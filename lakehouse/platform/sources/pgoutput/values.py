"""Convert values, as the server prints them, to Arrow arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import CorruptLogError, UserError
from lakehouse.platform.sources.pgoutput.columns import (
    BOOL,
    BYTEA,
    DATE,
    NUMERIC,
    TIMESTAMP,
    TIMESTAMPTZ,
    PgColumn,
    arrow_type,
)

_ASCII_END = 128
_DATE_LENGTH, _YEAR_LENGTH, _ZONE_LENGTH = 10, 4, 3
_NIBBLES = np.full(256, 0xFF, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def converted(texts: pa.Array, column: PgColumn) -> pa.Array:
    """Return the values of a column; raise UserError or CorruptLogError for a string that is invalid for its type."""
    try:
        plain = _strings(texts)
    except pa.ArrowInvalid as error:
        raise UserError(
            f"column {column.name!r} has bytes that are not UTF-8: the database has the encoding SQL_ASCII. Correct "
            "the values, or leave the table out",
            column=column.name,
        ) from error
    kind = arrow_type(column)
    try:
        return _RULES.get(column.oid, pc.cast)(plain, kind)
    except pa.ArrowInvalid as error:
        raise CorruptLogError(
            f"column {column.name!r} of type {column.oid} has a value that is none: {error}"
        ) from error


def _strings(texts: pa.Array) -> pa.Array:
    """Return bytes as strings; raise ArrowInvalid if they are not UTF-8. Bytes below 128 are, in any order."""
    buffers = texts.buffers()
    if buffers[2] is not None and int(np.frombuffer(buffers[2], np.uint8).max(initial=0)) < _ASCII_END:
        return pa.Array.from_buffers(pa.string(), len(texts), buffers, texts.null_count, texts.offset)
    return texts.cast(pa.string())


def _boolean(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.equal(texts, "t")


def _decimal(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return texts
    return pc.cast(_without(texts, pc.equal(texts, "NaN")), kind)


def _date(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.cast(_without(texts, pc.not_equal(pc.binary_length(texts), _DATE_LENGTH)), kind)


def _timestamp(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    is_outside = pc.or_(
        pc.not_equal(pc.utf8_slice_codeunits(texts, _YEAR_LENGTH, _YEAR_LENGTH + 1), "-"), pc.ends_with(texts, "BC")
    )
    plain = _without(texts, is_outside)
    if kind.tz is None:
        return pc.cast(plain, kind)
    # The session is in UTC, so the zone is always +00.
    return pc.cast(pc.utf8_slice_codeunits(plain, 0, -_ZONE_LENGTH), pa.timestamp("us")).view(pa.int64()).view(kind)


def _bytes(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    digits = pc.utf8_slice_codeunits(texts, 2)
    # A copy has no offset and no bytes that belong to other rows.
    plain = pa.concat_arrays([digits])
    offsets = np.frombuffer(plain.buffers()[1], np.int32, len(plain) + 1) if len(plain) else np.zeros(1, np.int32)
    data = plain.buffers()[2]
    nibbles = _NIBBLES[np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]] if data is not None else _NIBBLES[:0]
    if len(nibbles) % 2 or (nibbles == 0xFF).any():
        raise pa.ArrowInvalid("bytes are not hexadecimal digits")
    joined = np.ascontiguousarray(nibbles[0::2] << 4 | nibbles[1::2])
    ends = pa.py_buffer(((offsets - offsets[0]) // 2).astype(np.int32))
    values = pa.Array.from_buffers(kind, len(plain), [None, ends, pa.py_buffer(joined)])
    return values if plain.null_count == 0 else pc.if_else(pc.is_valid(plain), values, pa.scalar(None, kind))


def _without(texts: pa.Array, mask: pa.Array) -> pa.Array:
    return pc.if_else(pc.fill_null(mask, False), pa.scalar(None, pa.string()), texts)


_RULES: dict[int, Callable[[pa.Array, pa.DataType], pa.Array]] = {
    BOOL: _boolean,
    NUMERIC: _decimal,
    BYTEA: _bytes,
    DATE: _date,
    TIMESTAMP: _timestamp,
    TIMESTAMPTZ: _timestamp,
}
