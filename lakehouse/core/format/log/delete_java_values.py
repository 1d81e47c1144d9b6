"""Decode ordering values of deletes that Kryo serialized as Java objects (DATA-4.4).

    Java                                             wrapper, see delete_values.py
    Integer, Long, Float, Double, Boolean, String    Int, Long, Float, Double, Boolean, String
    Avro's Utf8, Spark's UTF8String                  String
    BigDecimal                                       Decimal, of any scale
    LocalDate; java.sql.Date at midnight UTC         Date
    java.sql.Timestamp (milliseconds); Instant       TimestampMicros
    null                                             Null

As in `delete_values.py`, a value with another class than the column is treated as no ordering value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from lakehouse.core.format.log.delete_entries import Flags, Wrapper
from lakehouse.core.format.log.delete_values import MICROS, written_as
from lakehouse.core.format.log.kryo import KryoReader
from lakehouse.errors import CorruptTableError, UnsupportedError

#: A wrapper and its value. Dates are days, timestamps microseconds since 1970. An array is a tuple of such pairs.
Value: TypeAlias = tuple[Wrapper, Any]

#: The name of the class Utf8 if it is registered by number; its value is then an array of bytes.
UTF8 = "Utf8"
NULL: Value = (Wrapper.NULL, None)
NO_ORDERING: Value = (Wrapper.INT, 0)
_EPOCH = date(1970, 1, 1).toordinal()
_MILLIS_OF_DAY = 86_400_000
_NANOS = 1_000_000_000
#: Limits of a decimal. Columns of tables have lower limits.
_DECIMAL_BYTES = 32
_DECIMAL_SCALE = 76


def ordering_of_values(values: Sequence[Value], kinds: Sequence[pa.DataType]) -> tuple[Flags, tuple[pa.Array, ...]]:
    """Return the ordering values of all entries as one array for each type of `kinds`.

    The flags mark entries that have no ordering value or one that cannot be compared with the columns. An array has one
    item per entry, null if its flag is set. Raises UnsupportedError for an unsupported type of ordering column, if an
    entry has a value. Raises CorruptTableError for a value outside the range of its column's type.
    """
    rows: list[tuple[Value, ...] | None]
    if len(kinds) == 1:
        rows = [None if value in (NULL, NO_ORDERING) else (value,) for value in values]
    else:
        rows = [items if wrapper is Wrapper.ARRAY and len(items) == len(kinds) else None for wrapper, items in values]
    fitting = [_fitting(kind) for kind in kinds] if any(rows) else []
    rows = [
        row if row and all(value[0] in fits for value, fits in zip(row, fitting, strict=True)) else None for row in rows
    ]
    columns = [_column([None if row is None else row[i] for row in rows], kind) for i, kind in enumerate(kinds)]
    return np.array([row is None for row in rows], bool), tuple(columns)


def utf8_text(reader: KryoReader, data: bytes) -> str:
    """Return bytes decoded as UTF-8; CorruptTableError if they are not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise reader.corrupt(f"a text is not UTF-8: {error.reason}") from error


def _fitting(kind: pa.DataType) -> frozenset[Wrapper]:
    """Return the wrappers whose values can be compared with a column of type `kind`."""
    if pat.is_binary(kind):
        return frozenset()
    if pat.is_decimal(kind):
        return frozenset((Wrapper.DECIMAL,))
    plain = written_as(kind)
    if kind == pa.date32():
        return frozenset((plain, Wrapper.DATE))
    return frozenset((plain, Wrapper.TIMESTAMP_MICROS)) if pat.is_timestamp(kind) else frozenset((plain,))


def _column(values: list[Value | None], kind: pa.DataType) -> pa.Array:
    """Return the values as an array of type `kind`; None becomes null."""
    stored = pa.int64() if pat.is_timestamp(kind) else pa.int32() if kind == pa.date32() else kind
    per_unit = MICROS.get(kind.unit, 1) if pat.is_timestamp(kind) else 1
    plain = [
        None if value is None else value[1] // per_unit if value[0] is Wrapper.TIMESTAMP_MICROS else value[1]
        for value in values
    ]
    try:
        return pa.array(plain, stored).cast(kind)
    except (pa.ArrowInvalid, OverflowError) as error:
        raise CorruptTableError(f"a delete block has an ordering value that is not a valid {kind}: {error}") from error


def _utf8(reader: KryoReader) -> Value:
    return Wrapper.STRING, utf8_text(reader, reader.counted_bytes())


def _utf8_string(reader: KryoReader) -> Value:
    size = int.from_bytes(reader.take(4), signed=True)
    if size < 0:
        raise reader.corrupt(f"a text has {size} bytes")
    return Wrapper.STRING, utf8_text(reader, reader.take(size))


def _decimal(reader: KryoReader) -> Value:
    digits, scale = reader.counted_bytes(), reader.signed()
    if not 1 <= len(digits) <= _DECIMAL_BYTES or abs(scale) > _DECIMAL_SCALE:
        raise reader.corrupt(f"a decimal has {len(digits)} bytes and {scale} fractional digits")
    number = int.from_bytes(digits, signed=True)
    return Wrapper.DECIMAL, Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -scale))


def _local_date(reader: KryoReader) -> Value:
    at = reader.position
    year, month, day = reader.unsigned(), reader.byte(), reader.byte()
    try:
        return Wrapper.DATE, date(year, month, day).toordinal() - _EPOCH
    except (ValueError, OverflowError) as error:
        raise reader.corrupt(f"{year}-{month}-{day} is not a date", at) from error


def _sql_date(reader: KryoReader) -> Value:
    at = reader.position
    days, rest = divmod(reader.plain_long(), _MILLIS_OF_DAY)
    if rest:
        raise UnsupportedError(
            f"a delete block has a java.sql.Date at byte {at} that is not midnight UTC;"
            " its day depends on the unknown time zone of the writer",
            position=at,
        )
    return Wrapper.DATE, days


def _timestamp(reader: KryoReader) -> Value:
    return Wrapper.TIMESTAMP_MICROS, reader.plain_long() * 1_000


def _instant(reader: KryoReader) -> Value:
    seconds, nanos = reader.plain_long(), reader.unsigned()
    if nanos >= _NANOS:
        raise reader.corrupt(f"an instant has {nanos} nanoseconds; a second has fewer than {_NANOS}")
    return Wrapper.TIMESTAMP_MICROS, seconds * 1_000_000 + nanos // 1_000


#: Classes whose objects are not numbered in the stream: the wrapper of each and the method that reads its value.
PLAIN: dict[str, tuple[Wrapper, Callable[[KryoReader], Any]]] = {
    "int": (Wrapper.INT, KryoReader.signed),
    "long": (Wrapper.LONG, KryoReader.signed_long),
    "float": (Wrapper.FLOAT, KryoReader.float32),
    "double": (Wrapper.DOUBLE, KryoReader.float64),
    "boolean": (Wrapper.BOOLEAN, KryoReader.boolean),
}
#: Classes whose objects are numbered, and the function that reads such an object.
SHARED: dict[str, Callable[[KryoReader], Value]] = {
    UTF8: _utf8,
    "org.apache.spark.unsafe.types.UTF8String": _utf8_string,
    "java.math.BigDecimal": _decimal,
    "java.time.LocalDate": _local_date,
    "java.sql.Date": _sql_date,
    "java.sql.Timestamp": _timestamp,
    "java.time.Instant": _instant,
}
