"""Lower and upper bounds of columns, typed and in the form of metadata records (MDT-2, MDT-14).

A record stores a bound in a *wrapper*, which depends on the column type and on the index version. A table can contain
bounds for many columns. It stores a bound in four parts; at most one of the last three has a value:

    wrapper   number of the wrapper in the union, 0 for no bound
    number    Boolean, Int, Long, Date, TimeMicros, TimestampMicros, LocalDate
    real      Float, Double
    data      Bytes, String, Decimal
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from lakehouse.core.format.metadata.schema import WRAPPERS
from lakehouse.core.format.spread import spread

(BOOLEAN, INT, LONG, FLOAT, DOUBLE, BYTES, STRING, DATE, DECIMAL, TIME_MICROS, TIMESTAMP_MICROS, LOCAL_DATE) = range(
    1, len(WRAPPERS) + 1
)
NUMBERS = (BOOLEAN, INT, LONG, DATE, TIME_MICROS, TIMESTAMP_MICROS, LOCAL_DATE)
REALS = (FLOAT, DOUBLE)
DATA = (BYTES, STRING, DECIMAL)
PARTS = pa.schema([("wrapper", pa.int8()), ("number", pa.int64()), ("real", pa.float64()), ("data", pa.binary())])

#: Ordinals of the logical types in records of version V2.
NULL_TYPE = 1
_WHOLE_TYPES, _BYTES_TYPE, _DECIMAL_TYPE, _DATE_TYPE = (3, 4), 8, 10, 12
#: The scale of all decimals in V1 records.
V1_SCALE = 15
_TIMESTAMPS = {"ms": (15, 18), "us": (16, 19), "ns": (17, 20)}
#: Days since 1970-01-01 of 0000-01-01 and 9999-12-31. Dates between them have the same order as their strings.
_FOUR_DIGIT_YEARS = (-719528, 2932896)
#: The last string of a whole number, and a string that sorts after every floating-point number.
_GREATEST_WHOLE, _GREATEST_REAL = 19 * "9", "NaN"


def value_type(kind: pa.DataType) -> tuple[int, str | None] | None:
    """Return the ordinal of a column's logical type and its additional info, None for types without statistics."""
    if pat.is_decimal128(kind):
        return _DECIMAL_TYPE, f"{kind.precision},{kind.scale}"
    if pat.is_timestamp(kind):
        ordinals = _TIMESTAMPS.get(kind.unit)
        return None if ordinals is None else (ordinals[0 if kind.tz else 1], None)
    for ordinal, is_kind in (
        (2, pat.is_boolean),
        (4, pat.is_int64),
        (3, pat.is_signed_integer),
        (5, pat.is_float32),
        (6, pat.is_float64),
        (7, lambda k: pat.is_string(k) or pat.is_large_string(k)),
        (8, lambda k: pat.is_binary(k) or pat.is_large_binary(k)),
        (9, pat.is_fixed_size_binary),
        (12, pat.is_date32),
        (13, pat.is_time32),
        (14, pat.is_time64),
    ):
        if is_kind(kind):
            return ordinal, None
    return None


def has_statistics(kind: pa.DataType, version: str) -> bool:
    """Return whether columns of a type have statistics in an index of version "V1" or "V2"."""
    if value_type(kind) is None or version == "V2":
        return value_type(kind) is not None
    if pat.is_decimal128(kind):
        return bool(kind.scale <= V1_SCALE and kind.precision - kind.scale <= V1_SCALE)
    return not (pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind))


def bound_parts(values: pa.Array, version: str) -> pa.Table:
    """Convert bounds of one column to `PARTS`; null means no bound. The type must have statistics in this version."""
    kind = values.type
    wrapper, part, array = _wrapped(values, kind, version)
    wrappers = np.where(np.asarray(values.is_valid()), wrapper, 0).astype(np.int8)
    columns = [pa.array(wrappers)]
    for field in list(PARTS)[1:]:
        columns.append(array.cast(field.type) if field.name == part else pa.nulls(len(values), field.type))
    return pa.table(columns, schema=PARTS)


def wrapper_of(kind: pa.DataType, version: str) -> int:
    """Return the number of the wrapper for bounds with a type; the type must have statistics in this version."""
    return _wrapped(pa.nulls(0, kind), kind, version)[0]


def _wrapped(values: pa.Array, kind: pa.DataType, version: str) -> tuple[int, str, pa.Array]:
    """Return the wrapper of a type, the part that stores its values, and the values for this part."""
    if pat.is_boolean(kind):
        return BOOLEAN, "number", values.cast(pa.int8())
    if pat.is_int64(kind):
        return LONG, "number", values
    if pat.is_signed_integer(kind):
        return INT, "number", values
    if pat.is_floating(kind):
        return (DOUBLE if pat.is_float64(kind) else FLOAT), "real", values
    if pat.is_string(kind) or pat.is_large_string(kind):
        return STRING, "data", values.cast(pa.string())
    if pat.is_date32(kind):
        return (INT if version == "V2" else DATE), "number", values.view(pa.int32())
    if pat.is_time32(kind):
        return INT, "number", values.view(pa.int32())
    if pat.is_time64(kind) or pat.is_timestamp(kind):
        return LONG, "number", values.view(pa.int64())
    if pat.is_decimal128(kind):
        if version == "V2":
            return BYTES, "data", decimal_bytes(values)
        return DECIMAL, "data", decimal_bytes(values.cast(pa.decimal128(2 * V1_SCALE, V1_SCALE)))
    return BYTES, "data", values


def typed_bounds(
    parts: dict[str, pa.Array], infos: pa.Array | None, kind: pa.DataType, *, ordinals: pa.Array, upper: bool
) -> pa.Array:
    """Convert bounds to values with the type of their column.

    The result is null if there is no bound or it has another type.

    Args:
        parts: The columns of `PARTS`.
        infos: Additional info for the value types: precision and scale of decimals in version V2.
        kind: The type of the column in the table. It may be wider than it was when the bounds were written.
        ordinals: The ordinals of the value types in version V2; null in V1.
        upper: Whether these are upper bounds. String bounds of numbers are wider than the values as strings.
    """
    wrappers = np.asarray(parts["wrapper"])
    if pat.is_boolean(kind):
        return _masked(parts["number"].cast(pa.bool_()), wrappers == BOOLEAN)
    if pat.is_signed_integer(kind):
        return _cast(_masked(parts["number"], np.isin(wrappers, (INT, LONG))), kind)
    if pat.is_floating(kind):
        reals = _cast(_masked(parts["real"], np.isin(wrappers, REALS)), kind)
        # Convert in one step, like rows: two roundings may give a different number.
        whole = _masked(parts["number"], np.isin(wrappers, (INT, LONG))).cast(kind, safe=False)
        return pc.coalesce(reals, whole)
    if pat.is_string(kind) or pat.is_large_string(kind):
        return _cast(_texts(parts, np.asarray(ordinals.fill_null(0)), upper=upper), kind)
    if pat.is_date32(kind):
        return _cast(_masked(parts["number"], np.isin(wrappers, (INT, DATE, LOCAL_DATE))), pa.int32()).view(kind)
    if pat.is_time(kind):
        return _times(parts["number"], wrappers, kind)
    if pat.is_timestamp(kind):
        return _timestamps(parts["number"], wrappers, kind)
    if pat.is_decimal128(kind):
        return _decimals(parts["data"], wrappers, infos, kind)
    if pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_fixed_size_binary(kind):
        return _cast(_masked(parts["data"], np.isin(wrappers, (BYTES, STRING))), kind)
    return pa.nulls(len(wrappers), kind)


def _texts(parts: dict[str, pa.Array], ordinals: Any, *, upper: bool) -> pa.Array:
    """Return bounds of a string column, including bounds of its former numbers or dates; `ordinals` are 0 in V1.

    Numbers and their strings sort differently, so bounds of numbers become strings that no number exceeds.
    """
    wrappers, numbers = np.asarray(parts["wrapper"]), parts["number"]
    is_text = (wrappers == STRING) | ((wrappers == BYTES) & (ordinals == _BYTES_TYPE))
    texts = _cast(_masked(parts["data"], is_text), pa.string())
    is_date = np.isin(wrappers, (DATE, LOCAL_DATE)) | ((wrappers == INT) & (ordinals == _DATE_TYPE))
    if is_date.any():
        days = _masked(numbers, is_date & _between(numbers, *_FOUR_DIGIT_YEARS))
        texts = pc.coalesce(texts, days.cast(pa.int32()).view(pa.date32()).cast(pa.string()))
    is_whole = np.isin(wrappers, (INT, LONG)) & np.isin(ordinals, (0, *_WHOLE_TYPES))
    if is_whole.any():
        least, greatest = ("-" + _GREATEST_WHOLE, _GREATEST_WHOLE) if upper else ("-", "0")
        covering = pc.if_else(pc.less(numbers, 0), pa.scalar(least), pa.scalar(greatest))
        texts = pc.coalesce(texts, _masked(covering, is_whole))
    is_real = np.isin(wrappers, REALS)
    if is_real.any():
        # Strings of floating-point numbers begin with a digit, a minus, "Infinity" or "NaN".
        covering = pc.if_else(pc.greater(parts["real"], 0), pa.scalar("0"), pa.scalar("-"))
        texts = pc.coalesce(texts, _masked(pa.repeat(_GREATEST_REAL, len(wrappers)) if upper else covering, is_real))
    return texts


def _between(numbers: pa.Array, low: int, high: int) -> Any:
    flags = pc.and_(pc.greater_equal(numbers, low), pc.less_equal(numbers, high)).fill_null(False)
    return flags.to_numpy(zero_copy_only=False)


def decimal_bytes(values: pa.Array) -> pa.Array:
    """Return the unscaled values of decimals as big-endian two's complement numbers, as short as possible."""
    present = values.drop_null()
    data = np.frombuffer(present.buffers()[1] or b"", np.uint8)[
        present.offset * 16 : (present.offset + len(present)) * 16
    ]
    digits = data.reshape(-1, 16)[:, ::-1]
    signs = (digits.view(np.int8) >> 7).view(np.uint8)
    # A leading byte is redundant if it and the sign of the next byte are both 0 or both -1.
    redundant = (digits[:, :-1] == signs[:, 1:]) & (digits[:, :-1] == signs[:, :1])
    skipped = np.logical_and.accumulate(redundant, axis=1).sum(axis=1)
    is_used = np.arange(16) >= skipped[:, None]
    offsets = np.append(0, np.cumsum(16 - skipped)).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits[is_used]))]
    numbers = pa.Array.from_buffers(pa.binary(), len(present), buffers)
    return spread(numbers, np.asarray(values.is_valid()), nullable=True)


def decimals_of_bytes(data: pa.Array, scale: int) -> pa.Array:
    """Return decimals with 38 digits from big-endian unscaled values; null for more than 16 bytes."""
    lengths = np.asarray(pc.binary_length(data).fill_null(0)).astype(np.int64)
    is_valid = np.asarray(data.is_valid()) & (lengths > 0) & (lengths <= 16)
    present = data.filter(pa.array(is_valid))
    offsets = np.frombuffer(present.buffers()[1], np.int32)[present.offset : present.offset + len(present) + 1]
    raw = np.frombuffer(present.buffers()[2] or b"\0", np.uint8)
    at = offsets[1:, None].astype(np.int64) - 16 + np.arange(16)
    is_stored = at >= offsets[:-1, None]
    first = raw[np.minimum(offsets[:-1], len(raw) - 1)].view(np.int8)
    digits = np.where(is_stored, raw[np.maximum(at, 0)], ((first >> 7).view(np.uint8))[:, None]).astype(np.uint8)
    memory = pa.py_buffer(np.ascontiguousarray(digits[:, ::-1]))
    decimals = pa.Array.from_buffers(pa.decimal128(38, scale), len(present), [None, memory])
    return spread(decimals, is_valid, nullable=True)


def _decimals(data: pa.Array, wrappers: Any, infos: pa.Array | None, kind: pa.DataType) -> pa.Array:
    bounds = pa.nulls(len(data), kind)
    if (wrappers == DECIMAL).any() and kind.scale <= V1_SCALE:
        bounds = _cast(decimals_of_bytes(_masked(data, wrappers == DECIMAL), V1_SCALE), kind)
    if infos is None or not (wrappers == BYTES).any():
        return bounds
    # All rows of a column have the same scale unless the type of the column was changed.
    for info in pc.unique(infos.drop_null()).to_pylist():
        scale = _scale(info)
        if scale is None or scale > kind.scale:
            continue
        has_info = (wrappers == BYTES) & np.asarray(pc.equal(infos, info).fill_null(False))
        bounds = pc.coalesce(bounds, _cast(decimals_of_bytes(_masked(data, has_info), scale), kind))
    return bounds


def _scale(info: str) -> int | None:
    """Return the scale in "precision,scale"; None for another string."""
    _, comma, scale = info.partition(",")
    return int(scale) if comma and scale.isascii() and scale.isdigit() and int(scale) <= 38 else None


def _times(numbers: pa.Array, wrappers: Any, kind: pa.DataType) -> pa.Array:
    if pat.is_time32(kind):
        return _cast(_masked(numbers, wrappers == INT), pa.int32()).view(kind)
    micros = _masked(numbers, np.isin(wrappers, (LONG, TIME_MICROS)))
    return micros.view(kind) if kind.unit == "us" else pa.nulls(len(micros), kind)


def _timestamps(numbers: pa.Array, wrappers: Any, kind: pa.DataType) -> pa.Array:
    """Return timestamps from numbers in the unit of the column, or in microseconds in their own wrapper."""
    own = _masked(numbers, wrappers == LONG).view(pa.timestamp(kind.unit))
    if not (wrappers == TIMESTAMP_MICROS).any():
        return own.cast(kind)
    micros = _masked(numbers, wrappers == TIMESTAMP_MICROS).view(pa.timestamp("us"))
    return pc.coalesce(own, _cast(micros, pa.timestamp(kind.unit))).cast(kind)


def _masked(values: pa.Array, mask: Any) -> pa.Array:
    return values if mask.all() else pc.if_else(pa.array(mask), values, pa.scalar(None, values.type))


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast values to another type. If one value does not fit, all results are null."""
    if values.type == kind:
        return values
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return pa.nulls(len(values), kind)
