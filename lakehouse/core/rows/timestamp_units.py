"""Derives the timestamp type of a TIMESTAMP partition column from the type of the column.

Hudi reads a date as its number of days, and a timestamp as its number of milliseconds or microseconds, in the unit that
`hoodie.keygen.timebased.timestamp.type` names. Another unit puts every row into 1970, or after the year 9999.

    date                     SCALAR with the unit days
    timestamp in us          EPOCHMICROSECONDS; new tables store all timestamps so
    timestamp in ms          EPOCHMILLISECONDS, in tables of Hudi
    string                   DATE_STRING, with the input formats
    number                   a unit that the user declares; EPOCHMILLISECONDS is the default
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.model.keys import BY_COLUMN, KeyConfig, TimestampFormat

_UNITS = {"UNIX_TIMESTAMP": "seconds", "EPOCHMILLISECONDS": "milliseconds", "EPOCHMICROSECONDS": "microseconds"}
_STRING_TYPES = ("DATE_STRING", "MIXED")


def resolved_format(timestamp: TimestampFormat, kind: pa.DataType) -> TimestampFormat:
    """Return the format with the timestamp type for a column with the type `kind`, unless the format declares one."""
    if timestamp.type != BY_COLUMN:
        return timestamp
    if _is_string(kind):
        return replace(timestamp, type="DATE_STRING")
    unit = _unit_of_column(kind)
    if unit == "days":
        return replace(timestamp, type="SCALAR", scalar_unit=unit)
    return replace(timestamp, type="EPOCHMICROSECONDS" if unit == "microseconds" else "EPOCHMILLISECONDS")


def check_unit(timestamp: TimestampFormat, kind: pa.DataType, *, name: str, consistent_timestamps: bool) -> None:
    """Raise UserError if values of column `name` with type `kind` are not numbers in the unit of the format.

    With `consistent_timestamps` timestamps are read as instants, independent of the unit.
    """
    if _is_string(kind):
        if timestamp.type not in _STRING_TYPES or not timestamp.input_formats:
            raise UserError(
                f"partition column {name!r} is a string, but timestamp type {timestamp.type or '(by the column)'} with "
                f"{len(timestamp.input_formats)} input formats cannot parse strings. Declare the formats of the "
                "strings: timestamp type DATE_STRING and input_formats, such as [yyyy-MM-dd]",
                column=name,
            )
        return
    wanted = _unit_of_column(kind)
    if wanted is None or (consistent_timestamps and pa.types.is_timestamp(kind)):
        return
    declared = _UNITS.get(timestamp.type, timestamp.scalar_unit.lower())
    if timestamp.type == "DATE_STRING" or declared != wanted:
        right = resolved_format(replace(timestamp, type=BY_COLUMN), kind)
        unit = f" with scalar_unit {right.scalar_unit}" if right.type == "SCALAR" else ""
        raise UserError(
            f"partition column {name!r} is of type {kind}, a number of {wanted} since 1970, but timestamp type "
            f"{timestamp.type}{f' with scalar_unit {declared}' if timestamp.type == 'SCALAR' else ''} does not read "
            f"{wanted}: all rows would be in wrong partitions, such as 1970-01-01. Use timestamp type {right.type}"
            f"{unit}; in a table spec leave timestamp_type out, then the type of the column decides",
            column=name,
        )


def check_first_units(keys: KeyConfig, columns: pa.Schema) -> None:
    """Raise UserError for a TIMESTAMP partition column that the first rows of a table have with another unit.

    A table with rows is not checked, because its writers must continue with the same unit.
    """
    for name, kind in zip(keys.partition_fields, keys.partition_types, strict=False):
        if kind == "TIMESTAMP" and keys.timestamp is not None and name in columns.names:
            check_unit(
                keys.timestamp,
                columns.field(name).type,
                name=name,
                consistent_timestamps=keys.consistent_timestamps,
            )


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _unit_of_column(kind: pa.DataType) -> str | None:
    """Return the unit in which Hudi reads a date or a timestamp as a number; None for other types."""
    if pa.types.is_date(kind):
        return "days"
    if pa.types.is_timestamp(kind):
        return "milliseconds" if kind.unit in ("s", "ms") else "microseconds"
    return None
