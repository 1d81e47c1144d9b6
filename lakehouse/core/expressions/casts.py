"""Convert values as CAST of Spark does in its ANSI mode: a value that does not fit is an error that names it."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.values import TIMESTAMP, Datum, decimal_of, is_number, plain
from lakehouse.core.rows.result_values import NoValuesError, to_days, to_times
from lakehouse.errors import UserError

#: The types of a cast by their names.
TYPES = {
    "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "BYTE": pa.int8(), "SMALLINT": pa.int16(), "SHORT": pa.int16(),
    "INT": pa.int32(), "INTEGER": pa.int32(), "BIGINT": pa.int64(), "LONG": pa.int64(), "FLOAT": pa.float32(),
    "REAL": pa.float32(), "DOUBLE": pa.float64(), "STRING": pa.string(), "VARCHAR": pa.string(), "TEXT": pa.string(),
    "DATE": pa.date32(), "TIMESTAMP": TIMESTAMP, "TIMESTAMP_LTZ": TIMESTAMP, "TIMESTAMP_NTZ": pa.timestamp("us"),
    "BINARY": pa.binary(), "DECIMAL": pa.decimal128(10, 0),
}  # fmt: skip
_DECIMAL = re.compile(r"DECIMAL\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\)")
_BLANKS = " \t\r\n\f\v"
_TRUE, _FALSE = ("t", "true", "y", "yes", "1"), ("f", "false", "n", "no", "0")


def type_named(text: str) -> pa.DataType:
    """Return the type of a CAST; raise UserError for a type that cannot be a result."""
    match = _DECIMAL.fullmatch(text)
    if match:
        precision, scale = int(match[1]), int(match[2] or 0)
        if 1 <= precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
    kind = TYPES.get(text)
    if kind is None:
        raise UserError(f"CAST to {text} is not supported; types: {', '.join(sorted(TYPES))}, DECIMAL(p, s)")
    return kind


def cast_value(value: Datum, kind: pa.DataType) -> Datum:
    """Convert a value to a type.

    Raises:
        UserError: A value does not fit, or no conversion between the types exists.
    """
    source = plain(value.type)
    value = value if source == value.type else value.cast(source)
    if source == kind:
        return value
    if pa.types.is_null(source):
        return pa.scalar(None, kind) if isinstance(value, pa.Scalar) else pa.nulls(len(value), kind)
    if isinstance(value, pa.Scalar):
        return cast_value(pa.array([value], source), kind)[0]
    try:
        converted = _converted(value, source, kind)
    except pa.ArrowInvalid as error:
        raise UserError(f"CAST to {kind}: {error}") from None
    if converted is None:
        raise UserError(f"CAST from {source} to {kind} is not supported")
    return converted


def _converted(value: pa.Array, source: pa.DataType, kind: pa.DataType) -> pa.Array | None:
    if pa.types.is_string(source):
        return _from_string(value, kind)
    if pa.types.is_string(kind):
        return _to_string(value, source)
    if pa.types.is_boolean(source):
        return value.cast(pa.int32()).cast(kind) if is_number(kind) else None
    if pa.types.is_boolean(kind):
        return pc.not_equal(value, pa.scalar(0, pa.int32()).cast(source)) if is_number(source) else None
    if is_number(source) and is_number(kind):
        return _number(value, source, kind)
    if pa.types.is_date(source) and pa.types.is_timestamp(kind):
        return value.cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_timestamp(source) and pa.types.is_date(kind):
        return to_days(value.cast(pa.timestamp("us", source.tz)), None)
    if pa.types.is_timestamp(source) and pa.types.is_timestamp(kind):
        return value.cast(kind)
    return value.cast(kind) if pa.types.is_binary(source) and pa.types.is_binary(kind) else None


def _number(value: pa.Array, source: pa.DataType, kind: pa.DataType) -> pa.Array:
    if pa.types.is_integer(kind):
        # Spark cuts off a fraction.
        return (value if pa.types.is_integer(source) else pc.trunc(value)).cast(kind)
    if pa.types.is_decimal(kind):
        exact = value if pa.types.is_floating(source) else value.cast(decimal_of(source))
        if pa.types.is_decimal(exact.type) and exact.type.scale > kind.scale:
            exact = pc.round(exact, ndigits=kind.scale, round_mode="half_towards_infinity")
        return exact.cast(kind)
    return value.cast(kind, safe=False)


def _from_string(value: pa.Array, kind: pa.DataType) -> pa.Array | None:
    trimmed = pc.utf8_trim(value, characters=_BLANKS)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        try:
            parsed = to_days(value, None) if pa.types.is_date(kind) else to_times(value, None).cast(kind)
        except NoValuesError as error:
            raise UserError(
                f"CAST to {kind}: {error}. Write the time in UTC without a zone, or a literal such as "
                "TIMESTAMP '2026-01-31 10:00:00+02:00'"
            ) from None
        return _complete(value, parsed, kind)
    if pa.types.is_boolean(kind):
        lower = pc.utf8_lower(trimmed)
        true = pc.is_in(lower, value_set=pa.array(_TRUE))
        is_known = pc.or_(true, pc.is_in(lower, value_set=pa.array(_FALSE)))
        return _complete(value, pc.if_else(is_known, true, pa.scalar(None, pa.bool_())), kind)
    if pa.types.is_binary(kind):
        return value.cast(kind)
    return trimmed.cast(kind) if is_number(kind) else None


def _complete(value: pa.Array, parsed: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return parsed strings; raise UserError with the first string that is no value of the type."""
    if parsed.null_count > value.null_count:
        wrong = value.filter(pc.and_(pc.is_valid(value), pc.is_null(parsed)))
        raise UserError(f"CAST: {wrong[0].as_py()!r} is not a value of type {kind}; TRY_CAST gives null instead")
    return parsed


def _to_string(value: pa.Array, source: pa.DataType) -> pa.Array | None:
    if pa.types.is_floating(source):
        raise UserError("CAST of a float to STRING is not supported, because engines print floats differently")
    if pa.types.is_timestamp(source):
        texts = value.cast(pa.timestamp("us")).cast(pa.string())
        return pc.replace_substring_regex(texts, r"\.?0*$", "") if len(texts) and _has_fraction(texts) else texts
    return value.cast(pa.string())


def _has_fraction(texts: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring(texts, ".")).as_py())


def try_cast_value(value: Datum, kind: pa.DataType) -> Datum:
    """Convert a value to a type; a value that does not fit becomes null."""
    try:
        return cast_value(value, kind)
    except UserError:
        if isinstance(value, pa.Scalar):
            return pa.scalar(None, kind)
    encoded = value.dictionary_encode()
    # The loop is over distinct values, and only if one of them does not fit.
    distinct = [try_cast_value(item, kind) for item in encoded.dictionary]
    return pa.array(distinct, kind).take(encoded.indices)
