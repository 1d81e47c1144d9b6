"""Convert ordering values of deletes between Arrow columns and Hudi's wrapper records (DATA-4.4).

    column                        written as        also read
    int8, int16, int32            Int               -
    int64                         Long              -
    float32, float64, bool        Float, Double, Boolean
    string                        String            -
    timestamp                     Long: the number in the column's unit, as in Hudi 1.2         TimestampMicros
    decimal                       Decimal: rescaled to 15 fractional digits
    date32                        Int: days                                     Date, LocalDate
    binary                        -                 Bytes

Dates are written as Int because Hudi on Spark represents a date as an integer and cannot compare it with the Date
wrapper. A value with a wrapper that is not in the table's line is treated as no ordering value, because Hudi can only
compare values of one Java class.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from lakehouse.core.format.avro.varints import U8, Window, encode_varints
from lakehouse.core.format.log.delete_entries import I64, LOCAL_DATE, Cursor, Entries, Flags, Wrapper
from lakehouse.core.format.spread import spread
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError

_DECIMAL_SCALE = 15
_DECIMAL_PRECISION = 30
_DECIMAL_BYTES = 16
#: Microseconds in each unit of a timestamp.
MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}

_PLAIN = {
    pa.int8(): Wrapper.INT,
    pa.int16(): Wrapper.INT,
    pa.int32(): Wrapper.INT,
    pa.date32(): Wrapper.INT,
    pa.int64(): Wrapper.LONG,
    pa.float32(): Wrapper.FLOAT,
    pa.float64(): Wrapper.DOUBLE,
    pa.bool_(): Wrapper.BOOLEAN,
    pa.string(): Wrapper.STRING,
}


def written_as(kind: pa.DataType) -> Wrapper:
    """Return the wrapper for values of type `kind`; UnsupportedError if Hudi cannot order deletes by this type."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pat.is_timestamp(kind) and kind.unit in MICROS:
        return Wrapper.LONG
    is_decimal = pat.is_decimal128(kind) and kind.scale <= _DECIMAL_SCALE
    if is_decimal and kind.precision - kind.scale <= _DECIMAL_PRECISION - _DECIMAL_SCALE:
        return Wrapper.DECIMAL
    raise UnsupportedError(f"a column of type {kind} cannot be the ordering column of deletes", type=str(kind))


def ordering_columns(
    window: Window, entries: Entries, kinds: tuple[pa.DataType, ...], stop: int
) -> tuple[Flags, tuple[pa.Array, ...]]:
    """Return the ordering values of all entries as one array per ordering column.

    Args:
        window: The content of the delete block.
        entries: The entries of the block.
        kinds: The types of the table's ordering columns.
        stop: The end of the content in the window.

    Returns:
        Flags of the entries that have no ordering value or one that cannot be compared with the columns, and the
        arrays. An array has one item per entry, null if its flag is set.
    """
    has_value = np.zeros(len(entries.start), bool)
    if len(kinds) == 1:
        items = [(entries.wrapper, entries.value)]
        is_zero = (entries.wrapper == Wrapper.INT) & (window.bytes_at(entries.value) == 0)
        has_value = _fits(entries.wrapper, kinds[0]) & ~is_zero
    elif kinds:
        has_value = entries.wrapper == Wrapper.ARRAY
        fits, items = Cursor(window, entries.value[has_value], stop).array_items(len(kinds))
        for (wrapper, _), kind in zip(items, kinds, strict=True):
            fits &= _fits(np.where(wrapper == LOCAL_DATE, Wrapper.DATE, wrapper), kind)
        items = [(_placed(wrapper, has_value), _placed(value, has_value)) for wrapper, value in items]
        has_value[has_value] = fits
    else:
        items = []
    columns = []
    for (wrapper, position), kind in zip(items, kinds, strict=True):
        values = _decode(window, wrapper[has_value], position[has_value], kind)
        columns.append(spread(values, has_value, nullable=True))
    return ~has_value, tuple(columns)


def encode_values(ordering: pa.Array) -> pa.Array:
    """Return the encoded bytes of each value, without the number of its wrapper.

    A struct has the values of several ordering columns. Raises UserError for nulls.
    """
    kind = ordering.type
    if pat.is_struct(kind):
        return _encode_tuples(ordering)
    wrapper = written_as(kind)
    if ordering.null_count:
        raise UserError(
            f"{ordering.null_count} of {len(ordering)} deletes have no ordering value; write them in a separate block"
        )
    if wrapper in (Wrapper.INT, Wrapper.LONG):
        return varints(_integers(ordering))
    if wrapper is Wrapper.STRING:
        text = ordering.cast(pa.binary())
        return joined(varints(pc.binary_length(text).to_numpy().astype(np.int64)), text)
    if wrapper is Wrapper.DECIMAL:
        return _encode_decimals(ordering)
    if wrapper is Wrapper.BOOLEAN:
        return _of_width(np.asarray(ordering.cast(pa.uint8())), 1)
    dtype = "<f4" if wrapper is Wrapper.FLOAT else "<f8"
    data = ordering.to_numpy(zero_copy_only=False).astype(dtype).view(np.uint8)
    return _of_width(data, np.dtype(dtype).itemsize)


def varints(values: I64) -> pa.Array:
    """Return each integer encoded as an Avro varint."""
    data, sizes = encode_varints(values)
    return _binaries(data, sizes)


def joined(*pieces: pa.Array | pa.Scalar) -> pa.Array:
    """Return the concatenation of binary values, row by row."""
    return pc.binary_join_element_wise(*pieces, b"")


def texts(window: Window, begin: I64, length: I64) -> pa.Array:
    """Return the strings at ascending positions, null where the length is -1; CorruptTableError if one is not UTF-8."""
    try:
        return _slices(window, begin, length).cast(pa.string())
    except pa.ArrowInvalid as error:
        raise CorruptTableError(f"a delete block has a string that is not UTF-8: {error}") from error


def _fits(wrapper: I64, kind: pa.DataType) -> Flags:
    """Return flags of the wrappers whose values can be compared with a column of type `kind`."""
    fits: Flags = wrapper == (Wrapper.BYTES if pat.is_binary(kind) else written_as(kind))
    if kind == pa.date32():
        fits |= wrapper == Wrapper.DATE
    elif pat.is_timestamp(kind):
        fits |= wrapper == Wrapper.TIMESTAMP_MICROS
    return fits


def _placed(values: I64, at: Flags) -> I64:
    placed = np.zeros(len(at), np.int64)
    placed[at] = values
    return placed


def _decode(window: Window, wrapper: I64, position: I64, kind: pa.DataType) -> pa.Array:
    """Return the values at these positions as an array of type `kind`; all wrappers must fit the type."""
    if pat.is_floating(kind):
        return pa.array(window.at(position, f"<f{kind.bit_width // 8}"))
    if kind == pa.bool_():
        return pa.array(window.bytes_at(position) != 0)
    values, sizes = window.varints_at(position)
    if pat.is_string(kind):
        return texts(window, position + sizes, values)
    if pat.is_binary(kind):
        return _slices(window, position + sizes, values)
    if pat.is_decimal(kind):
        return _decode_decimals(window, position + sizes, values, kind)
    if pat.is_timestamp(kind):
        in_micros = wrapper == Wrapper.TIMESTAMP_MICROS
        values = np.where(in_micros, values // MICROS[kind.unit], values)
        return pa.array(values).cast(kind)
    try:
        narrow = pa.int32() if kind == pa.date32() else kind
        return pa.array(values).cast(narrow).cast(kind)
    except pa.ArrowInvalid as error:
        raise CorruptTableError(f"a delete block has an ordering value that is not a valid {kind}: {error}") from error


def _decode_decimals(window: Window, begin: I64, length: I64, kind: pa.DataType) -> pa.Array:
    """Return big-endian numbers of up to 16 bytes with scale 15 as decimals of type `kind`."""
    if len(length) and (length.min() < 1 or length.max() > _DECIMAL_BYTES):
        raise CorruptTableError(
            f"a delete block has decimals of {length.min()} to {length.max()} bytes; expected 1 to {_DECIMAL_BYTES}"
        )
    digits = window.at(begin + length - _DECIMAL_BYTES, f"V{_DECIMAL_BYTES}").view(np.uint8).reshape(-1, _DECIMAL_BYTES)
    signs = np.where(window.bytes_at(begin) >= 0x80, np.uint8(0xFF), np.uint8(0))
    is_digit = np.arange(_DECIMAL_BYTES) >= _DECIMAL_BYTES - length[:, None]
    little: U8 = np.ascontiguousarray(np.where(is_digit, digits, signs[:, None])[:, ::-1])
    stored = pa.decimal128(38, _DECIMAL_SCALE)
    try:
        return pa.Array.from_buffers(stored, len(length), [None, pa.py_buffer(little)]).cast(kind)
    except pa.ArrowInvalid as error:
        raise CorruptTableError(f"a delete block has an ordering value that is not a valid {kind}: {error}") from error


def _encode_tuples(ordering: pa.Array) -> pa.Array:
    pieces: list[pa.Array | pa.Scalar] = [bytes((1 << 1, ordering.type.num_fields << 1))]
    for values in ordering.flatten():
        pieces += [bytes((written_as(values.type) << 1,)), encode_values(values)]
    return joined(*pieces, bytes((0,)))


def _encode_decimals(ordering: pa.Array) -> pa.Array:
    stored = ordering.cast(pa.decimal128(38, _DECIMAL_SCALE))
    memory = np.frombuffer(stored.buffers()[1], np.uint8)
    big = memory[stored.offset * _DECIMAL_BYTES :][: len(stored) * _DECIMAL_BYTES].reshape(-1, _DECIMAL_BYTES)[:, ::-1]
    # Java omits leading bytes that only repeat the sign of the following byte.
    sign = np.where(big[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
    following = np.concatenate([big[:, 1:], sign], axis=1)
    is_spare = (big == sign) & ((following ^ sign) < 0x80)
    is_spare[:, -1] = False
    is_kept = ~np.logical_and.accumulate(is_spare, axis=1)
    sizes = is_kept.sum(axis=1, dtype=np.int64)
    return joined(varints(sizes), _binaries(big[is_kept], sizes))


def _integers(ordering: pa.Array) -> I64:
    kind = ordering.type
    if pat.is_timestamp(kind):
        ordering = ordering.cast(pa.int64())
    elif kind == pa.date32():
        ordering = ordering.cast(pa.int32())
    return np.asarray(ordering.to_numpy(zero_copy_only=False), np.int64)


def _of_width(data: U8, width: int) -> pa.Array:
    count = len(data) // width
    return pa.Array.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.binary())


def _binaries(data: U8, sizes: I64) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _slices(window: Window, begin: I64, length: I64) -> pa.Array:
    """Return the bytes at ascending positions without overlaps, null where the length is -1."""
    # Slices and the gaps before them form one array over the content; `take` then copies the slices without a loop.
    bounds = np.zeros(2 * len(begin) + 1, np.int32)
    bounds[1::2] = begin
    bounds[2::2] = begin + np.maximum(length, 0)
    data = pa.py_buffer(window.data)
    both = pa.Array.from_buffers(pa.binary(), 2 * len(begin), [None, pa.py_buffer(bounds), data])
    slices = both.take(pa.array(np.arange(1, 2 * len(begin), 2)))
    if len(length) and length.min() < 0:
        slices = pc.if_else(pa.array(length >= 0), slices, pa.scalar(None, pa.binary()))
    return slices
