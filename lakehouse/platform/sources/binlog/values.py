"""Convert raw values to Arrow arrays, one column at a time."""

from __future__ import annotations

import re
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.errors import CorruptLogError
from lakehouse.platform.sources.binlog import charsets
from lakehouse.platform.sources.binlog.columns import DATES, SourceColumn, arrow_type
from lakehouse.platform.sources.binlog.json_text import json_text
from lakehouse.platform.sources.binlog.row_code import RawColumns
from lakehouse.platform.sources.binlog.table_map import DIGIT_BYTES

Raw = NDArray[np.uint8]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
#: Size of the SRID before a geometry's WKB in bytes.
_SRID_BYTES = 4
_ZEROS = re.compile("0+")
_INT_DIGITS = 18


@dataclass(slots=True)
class Converter:
    """Converts raw values to arrays.

    Attributes:
        zero_dates: `null`, or `text` for dates and times as strings.
        zeros: Per column, the number of invalid dates, which became null.
    """

    zero_dates: str = "null"
    zeros: dict[str, int] = field(default_factory=dict)

    def arrays(self, image: RawColumns) -> dict[int, pa.Array]:
        """Return an array per wanted column, by its index in the table.

        Raises CorruptLogError for values that are invalid for their type.
        """
        rows = len(image.nulls)
        bitmaps = np.frombuffer(b"".join(image.nulls), np.uint8).reshape(rows, image.null_bytes)
        arrays: dict[int, pa.Array] = {}
        for group, slices in zip(image.groups, image.slices, strict=True):
            widths = [image.wires[n].width for n in group]
            data = b"".join(slices)
            if len(data) != rows * sum(widths):
                raise CorruptLogError(
                    f"rows have {len(data):,} bytes of fixed columns instead of {rows * sum(widths):,}"
                )
            table = np.frombuffer(data, np.uint8).reshape(rows, sum(widths))
            first = 0
            for n, width in zip(group, widths, strict=True):
                nulls = (bitmaps[:, n >> 3] >> (n & 7) & 1).astype(bool)
                column = image.wires[n].column
                raw = np.ascontiguousarray(table[:, first : first + width])
                arrays[image.columns[n]] = self._array(column, raw, nulls)
                first += width
        for n, values in image.values.items():
            column = image.wires[n].column
            arrays[image.columns[n]] = self._array(column, values, None)
        return arrays

    def _array(self, column: SourceColumn, raw: Raw | list[bytes | None], nulls: Mask | None) -> pa.Array:
        try:
            if isinstance(raw, list):
                return _varying(column, raw)
            assert nulls is not None, "fixed columns have a mask of nulls"
            return self._fixed(column, raw, nulls)
        except CorruptLogError as error:
            raise CorruptLogError(f"column {column.name!r} ({column.type}): {error.message}") from error
        except (ValueError, IndexError, zlib.error) as error:
            raise CorruptLogError(f"column {column.name!r} has a value that is no {column.type}: {error}") from error

    def _fixed(self, column: SourceColumn, raw: Raw, nulls: Mask) -> pa.Array:
        """Return the array of a fixed-size column."""
        kind = arrow_type(column, zero_dates=self.zero_dates)
        match column.type:
            case "decimal":
                return _decimals(column, raw, nulls)
            case "date" | "datetime" | "timestamp":
                return self._dates(column, kind, raw, nulls)
            case "time":
                return _times(column, raw, nulls)
            case "float" | "double":
                return pa.array(raw.view("<f4" if column.type == "float" else "<f8").reshape(-1), kind, mask=nulls)
            case "year":
                years = raw[:, 0].astype(np.int16)
                return pa.array(np.where(years == 0, 0, years + 1900).astype(np.int16), kind, mask=nulls)
            case "bit" if kind == pa.bool_():
                return pa.array(raw[:, 0] != 0, kind, mask=nulls)
            case "bit":
                return _binary(raw, nulls)
            case "enum":
                return _enum(column, _little(raw), nulls)
            case "set":
                return _set(column, _little(raw), nulls)
        return pa.array(_integers(column, raw, kind.to_pandas_dtype()), kind, mask=nulls)

    def _dates(self, column: SourceColumn, kind: pa.DataType, raw: Raw, nulls: Mask) -> pa.Array:
        if column.type == "timestamp":
            seconds = _big(raw[:, :4])
            fraction = _microseconds(column.scale, raw[:, 4:])
            bad = (seconds == 0) & (fraction == 0)
            values = seconds * _SECOND_US + fraction
            parts = _civil(seconds // 86_400)
            clock = seconds % 86_400
            fields: tuple[I64, ...] = (*parts, clock // 3600, clock // 60 % 60, clock % 60, fraction)
            if self.zero_dates == "text":
                fields = tuple(np.where(bad, 0, one) for one in fields)
        else:
            fields = _date_fields(column, raw)
            year, month, day, hour, minute, second, fraction = fields
            bad = (month < 1) | (month > 12) | (day < 1)
            bad |= day > _days_of_month(year, np.clip(month, 1, 12))
            if ((hour > 23) | (minute > 59) | (second > 59) | (fraction >= _SECOND_US))[~nulls].any():
                raise CorruptLogError("a value has a time that no day has")
            values = _days(year, np.clip(month, 1, 12), np.maximum(day, 1))
            if column.type != "date":
                values = values * _DAY_US + (hour * 3600 + minute * 60 + second) * _SECOND_US + fraction
        if pa.types.is_string(kind):
            return _date_text(column, fields, nulls)
        zeros = int((bad & ~nulls).sum())
        if zeros:
            self.zeros[column.name] = self.zeros.get(column.name, 0) + zeros
        values = np.where(nulls | bad, 0, values)
        physical = pa.array(values.astype(np.int32) if column.type == "date" else values, mask=nulls | bad)
        return physical.view(kind)


def _little(raw: Raw) -> I64:
    """Return unsigned little-endian numbers of up to 8 bytes."""
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, : raw.shape[1]] = raw
    numbers: I64 = wide.view("<i8").reshape(-1)
    return numbers


def _big(raw: Raw) -> I64:
    """Return unsigned big-endian numbers of up to 7 bytes; 0 for no bytes."""
    wide = np.zeros((len(raw), 8), np.uint8)
    if raw.shape[1]:
        wide[:, 8 - raw.shape[1] :] = raw
    numbers: I64 = wide.view(">i8").reshape(-1).astype(np.int64)
    return numbers


def _integers(column: SourceColumn, raw: Raw, kind: Any) -> NDArray[Any]:
    if raw.shape[1] == 3:
        values = _little(raw)
        if not column.unsigned:
            values = values - ((values >> 23) << 24)
        return values.astype(kind)
    numbers: NDArray[Any] = raw.view(np.dtype(kind).newbyteorder("<")).reshape(-1)
    return numbers.astype(kind, copy=False)


def _microseconds(scale: int, raw: Raw) -> I64:
    """Return fractional seconds in microseconds."""
    microseconds: I64 = _big(raw) * 10 ** (6 - (scale + 1) // 2 * 2)
    return microseconds


def _date_fields(column: SourceColumn, raw: Raw) -> tuple[I64, ...]:
    """Return year, month, day, hour, minute, second, microsecond."""
    if column.type == "date":
        packed = _little(raw)
        none = np.zeros_like(packed)
        return packed >> 9, packed >> 5 & 15, packed & 31, none, none, none, none
    packed = _big(raw[:, :5]) - (1 << 39)
    if (packed < 0).any() and (packed[packed < 0] != -(1 << 39)).any():
        raise CorruptLogError("a value is before the year 0")
    packed = np.where(packed < 0, 0, packed)
    months = packed >> 22
    date = (months // 13, months % 13, packed >> 17 & 31)
    return (*date, packed >> 12 & 31, packed >> 6 & 63, packed & 63, _microseconds(column.scale, raw[:, 5:]))


def _days(year: I64, month: I64, day: I64) -> I64:
    """Convert Gregorian dates to days since 1970-01-01."""
    shifted = year - (month <= 2)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + np.where(month > 2, -3, 9)) + 2) // 5 + day - 1
    days: I64 = era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468
    return days


def _civil(days: I64) -> tuple[I64, I64, I64]:
    """Convert days since 1970-01-01 to year, month and day."""
    shifted = days + 719_468
    era = shifted // 146_097
    of_era = shifted - era * 146_097
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted_month = (5 * of_year + 2) // 153
    day = of_year - (153 * shifted_month + 2) // 5 + 1
    month = shifted_month + np.where(shifted_month < 10, 3, -9)
    return year_of_era + era * 400 + (month <= 2), month, day


_MONTH_DAYS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31])


def _days_of_month(year: I64, month: I64) -> I64:
    is_leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0))
    days: I64 = _MONTH_DAYS[month - 1] + (is_leap & (month == 2))
    return days


def _digits(values: I64, width: int) -> Raw:
    """Return numbers as ASCII digits with leading zeros."""
    powers = 10 ** np.arange(width - 1, -1, -1, dtype=np.int64)
    return (values[:, None] // powers % 10 + ord("0")).astype(np.uint8)


def _texts(parts: Sequence[Raw], mask: Mask | None, nulls: Mask) -> pa.Array:
    """Return strings from columns of ASCII characters; `kept` masks the characters that belong to each string."""
    table = np.concatenate(parts, axis=1) if parts else np.zeros((len(nulls), 0), np.uint8)
    if mask is None:
        mask = np.ones(table.shape, bool)
    mask = mask & ~nulls[:, None]
    offsets = np.zeros(len(table) + 1, np.int32)
    np.cumsum(mask.sum(axis=1), out=offsets[1:])
    validity = pa.array(~nulls).buffers()[1] if nulls.any() else None
    buffers = [validity, pa.py_buffer(offsets.tobytes()), pa.py_buffer(table[mask].tobytes())]
    return pa.Array.from_buffers(pa.string(), len(table), buffers)


def _binary(raw: Raw, nulls: Mask) -> pa.Array:
    return _texts([raw], None, nulls).view(pa.binary())


def _mark(text: str, rows: int) -> Raw:
    return np.full((rows, 1), ord(text), np.uint8)


def _date_text(column: SourceColumn, fields: tuple[I64, ...], nulls: Mask) -> pa.Array:
    year, month, day, hour, minute, second, fraction = fields
    n = len(nulls)
    parts = [_digits(year, 4), _mark("-", n), _digits(month, 2), _mark("-", n), _digits(day, 2)]
    if column.type in DATES[1:]:
        clock = [_mark(" ", n), _digits(hour, 2), _mark(":", n), _digits(minute, 2), _mark(":", n), _digits(second, 2)]
        parts += clock
        if column.scale:
            parts += [_mark(".", n), _digits(fraction, 6)[:, : column.scale]]
    return _texts(parts, None, nulls)


def _times(column: SourceColumn, raw: Raw, nulls: Mask) -> pa.Array:
    bits = (raw.shape[1] - 3) * 8
    packed = _big(raw) - (1 << (23 + bits))
    # Null values contain zeros.
    packed = np.where(nulls, 0, packed)
    is_negative, size = packed < 0, np.abs(packed)
    clock = size >> bits
    fraction = (size & ((1 << bits) - 1)) * 10 ** (6 - (column.scale + 1) // 2 * 2)
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    if ((hour > 838) | (minute > 59) | (second > 59) | (fraction >= _SECOND_US)).any():
        raise CorruptLogError("a value is not a time between -838:59:59 and 838:59:59")
    n = len(raw)
    parts = [_mark("-", n), _digits(hour, 3), _mark(":", n), _digits(minute, 2), _mark(":", n), _digits(second, 2)]
    if column.scale:
        parts += [_mark(".", n), _digits(fraction, 6)[:, : column.scale]]
    mask = np.ones((n, sum(part.shape[1] for part in parts)), bool)
    mask[:, 0] = is_negative
    mask[:, 1] = hour > 99
    return _texts(parts, mask, nulls)


def _decimals(column: SourceColumn, raw: Raw, nulls: Mask) -> pa.Array:
    """Groups of up to nine digits, big-endian; a negative number is the complement, zero has the top bit."""
    whole = column.precision - column.scale
    digits = [whole % 9] * bool(whole % 9) + [9] * (whole // 9)
    digits += [9] * (column.scale // 9) + [column.scale % 9] * bool(column.scale % 9)
    is_negative = (raw[:, 0] < 0x80) & ~nulls
    plain = raw ^ np.where(is_negative, 0xFF, 0).astype(np.uint8)[:, None]
    plain[:, 0] ^= 0x80
    plain[nulls] = 0
    groups, place = [], 0
    for count in digits:
        group = _big(plain[:, place : place + DIGIT_BYTES[count]])
        if (group >= 10**count).any():
            raise CorruptLogError(f"a group of {count} digits of a decimal is {int(group.max())}")
        groups.append(group)
        place += DIGIT_BYTES[count]
    kind = arrow_type(column)
    if column.precision <= _INT_DIGITS:
        value = np.zeros(len(raw), np.int64)
        for group, count in zip(groups, digits, strict=True):
            value = value * 10**count + group
        value = np.where(is_negative, -value, value)
        limbs = np.stack([value, value >> 63], axis=1)
    else:
        limbs = _limbs(groups, digits, is_negative, kind.bit_width // 32)
    validity = pa.array(~nulls).buffers()[1] if nulls.any() else None
    return pa.Array.from_buffers(kind, len(raw), [validity, pa.py_buffer(np.ascontiguousarray(limbs).tobytes())])


def _limbs(groups: Sequence[I64], digits: Sequence[int], is_negative: Mask, count: int) -> NDArray[np.uint32]:
    """Convert digit groups to two's complement numbers in 32-bit limbs, little-endian."""
    limbs = np.zeros((count, len(is_negative)), np.uint64)
    for group, size in zip(groups, digits, strict=True):
        carry = group.astype(np.uint64)
        for number in range(count):
            carry += limbs[number] * np.uint64(10**size)
            limbs[number] = carry & np.uint64(0xFFFFFFFF)
            carry >>= np.uint64(32)
    carry = is_negative.astype(np.uint64)
    for number in range(count):
        one = np.where(is_negative, limbs[number] ^ np.uint64(0xFFFFFFFF), limbs[number]) + carry
        limbs[number] = one & np.uint64(0xFFFFFFFF)
        carry = one >> np.uint64(32)
    return limbs.T.astype(np.uint32)


def _enum(column: SourceColumn, numbers: I64, nulls: Mask) -> pa.Array:
    # An invalid value is 0 and printed as an empty string.
    values = pa.array(["", *column.values], pa.string())
    if (numbers > len(column.values)).any():
        raise CorruptLogError(f"value {int(numbers.max())} of an enum of {len(column.values)}")
    return values.take(pa.array(numbers, mask=nulls))


def _set(column: SourceColumn, numbers: I64, nulls: Mask) -> pa.Array:
    if len(column.values) < 63 and (numbers >> len(column.values)).any():
        raise CorruptLogError(f"value {int(numbers.max())} of a set of {len(column.values)}")
    distinct, places = np.unique(numbers, return_inverse=True)
    texts = [",".join(v for bit, v in enumerate(column.values) if number >> bit & 1) for number in distinct.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(places.reshape(-1), mask=nulls))


def _varying(column: SourceColumn, values: list[bytes | None]) -> pa.Array:
    """Return the array of a variable-size column."""
    if column.compressed:
        values = [value if value is None else _decompressed(value) for value in values]
    match column.type:
        case "json":
            return pa.array([value if value is None else json_text(value) for value in values], pa.string())
        case "uuid" | "inet4" | "inet6":
            return pa.array([value if value is None else _address(column, value) for value in values], pa.string())
        case "geometry":
            if any(value is not None and len(value) < _SRID_BYTES for value in values):
                raise CorruptLogError("a geometry has no SRID")
            return pa.array([value if value is None else value[_SRID_BYTES:] for value in values], pa.binary())
        case "binary":
            # The log omits trailing zeros.
            longest = max((len(value) for value in values if value is not None), default=0)
            if longest > column.length:
                raise CorruptLogError(f"a value has {longest} bytes, the column {column.length}")
            size = column.length
            return pa.array([value if value is None else value.ljust(size, b"\0") for value in values], pa.binary())
    array = pa.array(values, pa.binary())
    return array if arrow_type(column) == pa.binary() else _text(column, array)


def _text(column: SourceColumn, encoded: pa.Array) -> pa.Array:
    if column.charset in charsets.UTF8 and column.charset != "ascii":
        return encoded.cast(pa.string())
    if charsets.is_ascii_based(column.charset) and _is_ascii(encoded):
        return encoded.view(pa.string())
    distinct = pc.dictionary_encode(encoded)
    texts = [charsets.decode(value, column.charset) for value in distinct.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(distinct.indices, pa.array(texts, pa.string())).cast(pa.string())


def _is_ascii(encoded: pa.Array) -> bool:
    data = encoded.buffers()[2]
    return data is None or not (np.frombuffer(data, np.uint8) & 0x80).any()


def _address(column: SourceColumn, value: bytes) -> str:
    padded = value.ljust(column.length, b"\0")
    if column.type == "uuid":
        return str(uuid.UUID(bytes=padded))
    if column.type == "inet4":
        return ".".join(map(str, padded))
    return _inet6(padded)


def _inet6(value: bytes) -> str:
    """Return an IPv6 address as MariaDB prints it: even a single zero group is omitted; IPv4 parts are dotted."""
    groups = [int.from_bytes(value[n : n + 2], "big") for n in range(0, 16, 2)]
    runs = [match.span() for match in _ZEROS.finditer("".join("0" if not group else "x" for group in groups))]
    first, end = max(runs, key=lambda run: run[1] - run[0], default=(8, 8))
    texts = [f"{group:x}" for group in groups]
    if first == 0 and (end == 6 or (end == 5 and groups[5] == 0xFFFF)):
        texts[6:] = [".".join(map(str, value[12:]))]
    if first == 8:
        return ":".join(texts)
    return f"{':'.join(texts[:first])}::{':'.join(texts[end:])}"


def _decompressed(value: bytes) -> bytes:
    """Decompress a MariaDB column value: a byte with the size of the length, the length, zlib data."""
    if not value or value[0] == 0:
        return value[1:]
    head = value[0]
    size_bytes = head & 0x07
    if head & 0xF0 != 0x80:
        raise CorruptLogError(f"a compressed value begins with 0x{head:02x}; its algorithm is not known")
    size = int.from_bytes(value[1 : 1 + size_bytes], "big")
    content = zlib.decompress(value[1 + size_bytes :], -zlib.MAX_WBITS if head & 0x08 else zlib.MAX_WBITS)
    if len(content) != size:
        raise CorruptLogError(f"a compressed value has {len(content)} bytes; it says {size}")
    return content
