"""Rows of `COPY ... TO STDOUT (FORMAT binary)` as Arrow batches, decoded column by column.

    stream  "PGCOPY\\n\\377\\r\\n\\0" | int32 flags | int32 length of an extension | rows | int16 -1
    row     int16 number of fields | for each field: int32 length, -1 for NULL | value

Each length in a row determines the position of the next one, so finding rows would require reading all lengths one by
one. Therefore the first field of each row is a mark: eight random bytes, whose positions are the row starts. Fields are
then read for all rows together, adjacent fixed-width fields in one step. The last field of a row must end where the
next row begins.

Sources: "File Formats" on the page COPY of PostgreSQL's documentation; values are the output of the types' send
functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from lakehouse.core.format.unaligned import load
from lakehouse.errors import RetryableError
from lakehouse.platform.sources.databases.types import INTEGER_DIGITS, decimals
from lakehouse.platform.sources.pgoutput.columns import (
    BOOL,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    OID,
    TIMESTAMP,
    TIMESTAMPTZ,
    PgColumn,
    arrow_type,
)

Bytes: TypeAlias = NDArray[np.uint8]
I64: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

_SIGNATURE = b"PGCOPY\n\xff\r\n\0"
_HEAD_BYTES = len(_SIGNATURE) + 8
_END = b"\xff\xff"
#: A byte that valid UTF-8 never contains, and that is rare in integers, dates and lengths.
_RARE = 0xF7
_MARK_BYTES = 8
#: The number of fields, and the length before the mark; a length.
_BEFORE_MARK, _LENGTH = 6, 4
#: Days from 1970-01-01 to 2000-01-01, and the first and last day that Spark supports.
_EPOCH_DAYS, _FIRST_DAY, _LAST_DAY = 10_957, -719_162, 2_932_896
_DAY_US = 86_400_000_000
#: Numerics: size of the header, decimal digits per base-10,000 digit, and the maximum such digits for 18 decimal
#: digits.
_NUMERIC_HEAD, _BASE_DIGITS, _MOST_DIGITS = 8, 4, 6
_NEGATIVE, _NOT_FINITE = 0x4000, 0xC000
#: Powers of ten, and the maximum digit that may be multiplied by each.
_POWERS = 10 ** np.arange(INTEGER_DIGITS + 1, dtype=np.int64)
_LARGEST = _POWERS[::-1].copy()


class Values(NamedTuple):
    """The values of a variable-width column: the buffer, their positions and lengths, and a mask of non-NULL values."""

    data: Bytes
    places: I64
    sizes: I64
    valid: Flags


class CopyDecoder:
    """Decodes the stream of one query, whose first column is the mark; the others are `selected`.

    Args:
        columns: The columns of the batches.
        token: A random UUID, from which the mark is derived.

    Attributes:
        mark: The value of the first column, an int8.
        selected: The other columns in query order, fixed-width columns first.
    """

    def __init__(self, columns: Sequence[PgColumn], token: str) -> None:
        self._columns = tuple(columns)
        self._fixed = tuple(column for column in columns if column.oid in FIXED)
        self._others = tuple(column for column in columns if column.oid not in FIXED)
        self.selected = (*self._fixed, *self._others)
        random = bytes.fromhex(token.replace("-", ""))[: _MARK_BYTES - 1]
        self.mark = int.from_bytes(bytes([_RARE]) + random, "big", signed=True)
        self._head = (len(columns) + 1).to_bytes(2, "big") + _MARK_BYTES.to_bytes(_LENGTH, "big")
        # Fields of a row that ends with NULL are read as if they had values.
        self._padding = bytes(16 * len(columns) + _NUMERIC_HEAD + 2 * _MOST_DIGITS)
        self._rest = b""
        self._begun = False

    def rows(self, pieces: Sequence[bytes], *, is_end: bool) -> pa.RecordBatch | None:
        """Return the rows in the next pieces of the stream; before its end, the last row waits for the next piece.

        Raises:
            RetryableError: The bytes are not rows of these columns.
        """
        data = b"".join((self._rest, *pieces, self._padding))
        at, end = 0, len(data) - len(self._padding)
        if not self._begun:
            if end < _HEAD_BYTES and not is_end:
                self._rest = data[:end]
                return None
            at = _head_of(data)
            self._begun = True
        buffer = np.frombuffer(data, np.uint8)
        if is_end:
            end -= len(_END)
            if end < at or data[end : end + len(_END)] != _END:
                raise _broken("it has no end")
        bounds = self._starts(buffer, at, end)
        if (bounds[0] if len(bounds) else end) != at and (is_end or len(bounds)):
            raise _broken("it does not begin with a row")
        if is_end:
            bounds, self._rest = np.append(bounds, end), b""
        else:
            self._rest = data[int(bounds[-1]) if len(bounds) else at : end]
        return self._decoded(buffer, bounds[:-1], bounds[1:]) if len(bounds) > 1 else None

    def _starts(self, buffer: Bytes, at: int, end: int) -> I64:
        """Return the positions of the rows."""
        places = np.flatnonzero(buffer[at:end] == _RARE) + at
        places = places[(places >= at + _BEFORE_MARK) & (places + _MARK_BYTES <= end)]
        places = places[load(buffer, places, ">i8") == self.mark] - _BEFORE_MARK
        head = np.frombuffer(self._head, np.dtype([("fields", ">u2"), ("length", ">i4")]))
        starts: I64 = places[load(buffer, places, head.dtype) == head[0]]
        return starts

    def _decoded(self, buffer: Bytes, starts: I64, ends: I64) -> pa.RecordBatch:
        """Return the rows between positions."""
        arrays: list[pa.Array] = []
        at = starts + (_BEFORE_MARK + _MARK_BYTES)
        while len(arrays) < len(self._fixed):
            fixed, at = _fixed_arrays(buffer, at, self._fixed[len(arrays) :])
            arrays += fixed
            _check(at, ends, self._fixed[len(arrays) - 1])
        for column in self._others:
            sizes = load(buffer, at, ">i4").astype(np.int64)
            valid = sizes >= 0
            places = at + _LENGTH
            at = places + np.maximum(sizes, 0)
            if (sizes < -1).any():
                raise _broken(f"a value of {column.name!r} has a wrong length")
            _check(at, ends, column)
            decode = _number if is_number(column) else _text
            arrays.append(decode(column, Values(buffer, places, sizes, valid)))
        if (at != ends).any():
            raise _broken("a row has bytes behind its last field")
        rows = pa.RecordBatch.from_arrays(arrays, names=[column.name for column in self.selected])
        return rows.select([column.name for column in self._columns])


def is_number(column: PgColumn) -> bool:
    """Return whether a column is a numeric whose digits fit an integer, so that its binary value is decoded."""
    return column.digits is not None and column.digits[0] <= INTEGER_DIGITS


def _head_of(data: bytes) -> int:
    """Return the length of the header; raise RetryableError if the header is wrong."""
    if not data.startswith(_SIGNATURE) or any(data[len(_SIGNATURE) : _HEAD_BYTES]):
        raise _broken("it has another header")
    return _HEAD_BYTES


def _check(at: I64, ends: I64, column: PgColumn) -> None:
    if (at > ends).any():
        raise _broken(f"a row ends within {column.name!r}")


def _broken(why: str) -> RetryableError:
    return RetryableError(f"the rows that the server copies are damaged: {why}; run again")


def _fixed_arrays(buffer: Bytes, at: I64, columns: tuple[PgColumn, ...]) -> tuple[list[pa.Array], I64]:
    """Return fixed-width columns up to the first one with a NULL, and the offset of the fields after them."""
    kind = _fields_of(tuple(FIXED[column.oid][0] for column in columns))
    items, arrays, passed = load(buffer, at, kind), list[pa.Array](), 0
    for number, column in enumerate(columns):
        values, sizes = items[f"value{number}"], items[f"size{number}"]
        width = values.dtype.itemsize
        valid = sizes == width
        has_all = bool(valid.all())
        if not has_all and (sizes[~valid] != -1).any():
            raise _broken(f"a value of {column.name!r} has not {width} bytes")
        arrays.append(FIXED[column.oid][1](column, values.astype(values.dtype.newbyteorder("=")), valid))
        if not has_all:
            return arrays, at + (passed + _LENGTH) + width * valid
        passed += _LENGTH + width
    return arrays, at + passed


@lru_cache(maxsize=256)
def _fields_of(values: tuple[str, ...]) -> np.dtype[Any]:
    """Return the NumPy type for adjacent fields with these value types."""
    fields: list[tuple[str, str]] = []
    for number, value in enumerate(values):
        fields += [(f"size{number}", ">i4"), (f"value{number}", value)]
    return np.dtype(fields)


def _bitmap(valid: Flags) -> pa.Buffer | None:
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


def _plain(column: PgColumn, values: NDArray[Any], valid: Flags) -> pa.Array:
    if not valid.all():
        values = np.where(valid, values, values.dtype.type(0))
    return pa.Array.from_buffers(arrow_type(column), len(values), [_bitmap(valid), pa.py_buffer(values)])


def _boolean(column: PgColumn, values: NDArray[Any], valid: Flags) -> pa.Array:
    bits = np.packbits((values != 0) & valid, bitorder="little")
    return pa.Array.from_buffers(pa.bool_(), len(values), [_bitmap(valid), pa.py_buffer(bits)])


def _date(column: PgColumn, values: NDArray[Any], valid: Flags) -> pa.Array:
    first, last = _FIRST_DAY - _EPOCH_DAYS, _LAST_DAY - _EPOCH_DAYS
    valid = valid & (values >= first) & (values <= last)
    return _plain(column, np.where(valid, values, 0) + np.int32(_EPOCH_DAYS), valid)


def _timestamp(column: PgColumn, values: NDArray[Any], valid: Flags) -> pa.Array:
    first, end = ((day - _EPOCH_DAYS) * _DAY_US for day in (_FIRST_DAY, _LAST_DAY + 1))
    valid = valid & (values >= first) & (values < end)
    return _plain(column, np.where(valid, values, 0) + np.int64(_EPOCH_DAYS * _DAY_US), valid)


#: Per fixed-width type: the NumPy type of its values, and the conversion to an Arrow array.
FIXED: Mapping[int, tuple[str, Callable[[PgColumn, NDArray[Any], Flags], pa.Array]]] = {
    BOOL: ("u1", _boolean),
    INT2: (">i2", _plain),
    INT4: (">i4", _plain),
    INT8: (">i8", _plain),
    OID: (">i8", _plain),
    FLOAT4: (">f4", _plain),
    FLOAT8: (">f8", _plain),
    DATE: (">i4", _date),
    TIMESTAMP: (">i8", _timestamp),
    TIMESTAMPTZ: (">i8", _timestamp),
}


def _number(column: PgColumn, field: Values) -> pa.Array:
    """Return numerics: int16 number of digits, weight of the first digit, sign, scale, and base-10,000 digits."""
    kind = np.dtype([("count", ">u2"), ("weight", ">i2"), ("sign", ">u2"), ("scale", ">u2")])
    head = load(field.data, field.places, kind)
    signs, counts = head["sign"].astype(np.uint16), head["count"].astype(np.int64)
    valid = field.valid & (signs & _NOT_FINITE != _NOT_FINITE)
    counts[~valid] = 0
    digits, most = column.digits, int(counts.max(initial=0))
    if most > _MOST_DIGITS or (field.sizes[valid] != _NUMERIC_HEAD + 2 * counts[valid]).any():
        raise _broken(f"a value of {column.name!r} has a wrong length")
    assert digits is not None, "numerics without declared digits are read as texts"
    values = np.zeros(len(counts), np.int64)
    if most:
        stored = load(field.data, field.places + _NUMERIC_HEAD, f"V{2 * most}").view(">u2").reshape(-1, most)
        parts = [np.where(counts > number, stored[:, number], 0).astype(np.int64) for number in range(most)]
        values = _sums(parts, head["weight"], digits[1])
        values[counts == 0] = 0
        if (values < 0).any():
            raise _broken(f"a value of {column.name!r} has more digits than its type")
    np.negative(values, out=values, where=signs == _NEGATIVE)
    plain = pa.Array.from_buffers(pa.int64(), len(values), [_bitmap(valid), pa.py_buffer(values)])
    return decimals(plain, arrow_type(column))


def _sums(digits: Sequence[I64], weights: NDArray[np.int16], scale: int) -> I64:
    """Combine base-10,000 digits to integers; -1 for a value with too many digits.

    Args:
        digits: The first digit of each value, the second one and so on.
        weights: The power of 10,000 of each value's first digit.
        scale: The number of decimal digits after the point.
    """
    sums = np.full(len(weights), -1, np.int64)
    # The value of the first digit is at least one and at most the maximum integer.
    least, most = -((scale + _BASE_DIGITS - 1) // _BASE_DIGITS), (INTEGER_DIGITS - scale) // _BASE_DIGITS
    # Few values of a batch differ in their weights, so each is a constant for the rows that have it.
    for weight in range(max(int(weights.min()), least), min(int(weights.max()), most) + 1):
        rows = weights == weight
        totals, is_wrong = np.zeros(len(weights), np.int64), np.zeros(len(weights), np.bool_)
        for number, digit in enumerate(digits):
            power = _BASE_DIGITS * (weight - number) + scale
            if power <= -_BASE_DIGITS or power > INTEGER_DIGITS:
                is_wrong |= digit > 0
            elif power < 0:
                # The last digit may have zeros behind the scale.
                totals += digit // _POWERS[-power]
            else:
                is_wrong |= digit > _LARGEST[power]
                totals += digit * _POWERS[power]
        np.copyto(sums, np.where(is_wrong, -1, totals), where=rows)
    return sums


def _text(column: PgColumn, field: Values) -> pa.Array:
    """Return strings, bytes, or decimals that are read as strings."""
    kind, encoded = arrow_type(column), _taken(field)
    if kind == encoded.type:
        return encoded
    text = encoded.cast(pa.string())
    return text if kind == text.type else text.cast(kind)


def _taken(field: Values) -> pa.Array:
    """Return the bytes of values. The bytes between two values become separate items, which are dropped."""
    count = len(field.places)
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = field.places, field.places + np.maximum(field.sizes, 0)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(field.data)]
    items = pa.Array.from_buffers(pa.binary(), 2 * count - 1, buffers)
    taken = items.take(pa.array(np.arange(0, 2 * count - 1, 2)))
    if field.valid.all():
        return taken
    return pa.Array.from_buffers(pa.binary(), count, [_bitmap(field.valid), *taken.buffers()[1:]])
