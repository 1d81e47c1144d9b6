"""Read columns by dotted name, and convert values to the strings that Hudi uses in keys and partition paths (DATA-2.2).

The string is the result of Java's `toString`. If Arrow prints the same string, its cast is used. If Java differs, only
the distinct values that differ are formatted one by one.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.nanoseconds import is_nanos, to_micros
from lakehouse.errors import UserError, nearest

Rows: TypeAlias = pa.RecordBatch | pa.Table
Column: TypeAlias = pa.Array | pa.ChunkedArray

# Range in which Java and Arrow both print floating-point numbers without an exponent.
_PLAIN_FROM, _PLAIN_TO = 1e-3, 1e7
# Days since 1970-01-01 of 0000-01-01 and 9999-12-31. Java and Arrow print dates between them alike.
_FOUR_DIGIT_YEARS = (-719528, 2932896)


def column(data: Rows, dotted: str) -> Column:
    """Return the column at `dotted` (`a.b.c` descends into structs); a null struct gives a null value.

    Raises UserError that contains the missing step and a similar existing name.
    """
    steps = dotted.split(".")
    _require(steps[0], data.schema.names, dotted)
    values = data.column(steps[0])
    for step in steps[1:]:
        fields = [field.name for field in values.type] if pa.types.is_struct(values.type) else []
        _require(step, fields, dotted)
        values = pc.struct_field(values, step)
    return values


def flat(values: Column) -> pa.Array:
    """Return the values as one array."""
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def plain(values: Column) -> Column:
    """Return the values without dictionary encoding."""
    return values.cast(values.type.value_type) if pa.types.is_dictionary(values.type) else values


def value_text(values: Column, *, name: str, consistent_timestamps: bool = False) -> Column:
    """Return the values as the strings that Hudi uses in keys; nulls stay null.

    Timestamps become epoch numbers in Hudi's unit: microseconds, or milliseconds for `timestamp[ms]` and
    `timestamp[s]`, which Hudi calls timestamp-millis. With `consistent_timestamps` they become
    `java.sql.Timestamp.toString` in UTC. Raises UserError that names column `name` for types without a valid string.
    """
    values = plain(values)
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_floating(kind):
        return _float_text(values)
    if pa.types.is_date(kind):
        return _date_text(values)
    if pa.types.is_timestamp(kind):
        return _timestamp_text(values, consistent_timestamps)
    if _prints_like_java(kind):
        return values.cast(pa.string())
    raise UserError(
        f"column {name!r} of type {kind} cannot be part of a key or a partition path; "
        "use a string, number, boolean, date, timestamp or decimal column",
        column=name,
        type=str(kind),
    )


def epoch_numbers(values: Column) -> Column:
    """Return a timestamp column as int64 in Hudi's unit: milliseconds for `[ms]` and `[s]`, otherwise microseconds."""
    unit = "ms" if values.type.unit in ("s", "ms") else "us"
    kind = pa.timestamp(unit, values.type.tz)
    if is_nanos(values.type):
        # The same conversion as when the column is written to a table.
        values = to_micros(flat(values), kind)
    return values.cast(kind).cast(pa.int64())


def _require(step: str, names: list[str], dotted: str) -> None:
    if step not in names:
        part = "" if step == dotted else f" (part of {dotted!r})"
        columns = ", ".join(names[:20]) or "none"
        raise UserError(
            f"there is no column {step!r}{part} in the data.{nearest(step, names)} Columns: {columns}", column=dotted
        )


def _prints_like_java(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_decimal(kind)
        or types.is_large_string(kind)
        or types.is_string_view(kind)
        or types.is_null(kind)
    )


def _float_text(values: Column) -> pa.Array:
    numbers = flat(values.cast(pa.float32()) if pa.types.is_float16(values.type) else values)
    text = numbers.cast(pa.string())
    size = pc.abs(numbers)
    is_plain = pc.and_(pc.greater_equal(size, _PLAIN_FROM), pc.less(size, _PLAIN_TO))
    text = pc.if_else(pc.match_substring(text, "."), text, pc.binary_join_element_wise(text, ".0", ""))
    other = pc.fill_null(pc.invert(is_plain), False)
    if not pc.any(other).as_py():
        return text
    # Distinct by bits, because 0.0 equals -0.0 but is printed differently.
    rest = numbers.filter(other).to_numpy(zero_copy_only=False)
    bits, inverse = np.unique(rest.view(np.int32 if rest.dtype == np.float32 else np.int64), return_inverse=True)
    printed = pa.array([_java_float(number) for number in bits.view(rest.dtype)], pa.string())
    return pc.replace_with_mask(text, other, printed.take(pa.array(inverse)))


def _java_float(number: Any) -> str:
    """Return a float as Java prints it outside [1e-3, 1e7), without superfluous digits (Java 19+)."""
    if np.isnan(number):
        return "NaN"
    if np.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    if number == 0:
        return "-0.0" if np.signbit(number) else "0.0"
    text = np.format_float_scientific(number, unique=True, trim="-")
    # Java prints at least two digits: 4.9E-324 although one digit would identify the number.
    mantissa, exponent = (text if "." in text else f"{float(number):.1e}").split("e")
    return f"{mantissa}E{int(exponent)}"


def _date_text(values: Column) -> Column:
    dates = values.cast(pa.date32())
    text = dates.cast(pa.string())
    late = pc.greater(dates.cast(pa.int32()), _FOUR_DIGIT_YEARS[1])
    if not pc.any(late).as_py():
        return text
    # java.time prints years above 9999 with a plus sign.
    return pc.if_else(late, pc.binary_join_element_wise("+", text, ""), text)


def _timestamp_text(values: Column, consistent: bool) -> Column:
    if not consistent:
        return epoch_numbers(values).cast(pa.string())
    # Fractions lose trailing zeros but keep one digit: `2023-04-01 12:01:00.0`.
    text = values.cast(pa.timestamp("ns" if values.type.unit == "ns" else "us")).cast(pa.string())
    return pc.replace_substring_regex(text, r"(\.\d+?)0+$", r"\1")
