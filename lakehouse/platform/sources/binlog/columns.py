"""Columns of MySQL and MariaDB tables, and the Arrow type per SQL type.

`TYPES` is the only type mapping: for the log, snapshot chunks and table creation. Values are exact:

    integers              int8 to int64, unsigned ones uint8 to uint64; `tinyint(1)` is an integer
    decimal(p, s)         decimal128(p, s), or decimal256(p, s) for more than 38 digits
    float, double         float32, float64: the stored value; the server prints fewer digits
    bit(n)                boolean for bit(1), else big-endian binary
    date                  date32
    datetime, timestamp   timestamp[us], timestamp[us, UTC]
    time                  string as the server prints it, such as `-01:02:03.000004`, because it exceeds a day
    year                  int16; the year 0 is 0
    strings, any charset  string; so are enum, set, json, uuid, inet4 and inet6
    bytes                 binary; `binary(n)` has all n bytes
    geometry              binary in the well-known format (WKB), without the SRID

An invalid date, such as `0000-00-00` or `2026-02-00`, is null; readers count these values. With `zero_dates="text"`,
all dates and times are strings as the server prints them, timestamps in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehouse.errors import UnsupportedError

_MOST_DIGITS = 38


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceColumn:
    """A table column.

    Attributes:
        name: The name.
        type: The type, as in `information_schema.columns.data_type`: `int`, `varchar`, `datetime`.
        unsigned: Whether a number has no sign.
        precision: Total digits of a decimal, or the width of a bit column.
        scale: Fractional digits of a decimal, or of a time's seconds.
        length: The bytes of `binary(n)`.
        charset: The character set of a string.
        values: The values of an enum or set, in order.
        compressed: Whether MariaDB stores the column compressed.
    """

    name: str
    type: str
    unsigned: bool = False
    precision: int = 0
    scale: int = 0
    length: int = 0
    charset: str = ""
    values: tuple[str, ...] = ()
    compressed: bool = False


def _decimal(column: SourceColumn) -> pa.DataType:
    make = pa.decimal128 if column.precision <= _MOST_DIGITS else pa.decimal256
    return make(column.precision, column.scale)


def _integer(signed: pa.DataType, unsigned: pa.DataType) -> Callable[[SourceColumn], pa.DataType]:
    return lambda column: unsigned if column.unsigned else signed


def _always(kind: pa.DataType) -> Callable[[SourceColumn], pa.DataType]:
    return lambda column: kind


_TEXT, _BYTES = _always(pa.string()), _always(pa.binary())
_TEXT_TYPES = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
GEOMETRIES = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
    "geomcollection",
)
DATES = ("date", "datetime", "timestamp")
#: The Arrow type per column type.
TYPES: Mapping[str, Callable[[SourceColumn], pa.DataType]] = {
    "tinyint": _integer(pa.int8(), pa.uint8()),
    "smallint": _integer(pa.int16(), pa.uint16()),
    "mediumint": _integer(pa.int32(), pa.uint32()),
    "int": _integer(pa.int32(), pa.uint32()),
    "bigint": _integer(pa.int64(), pa.uint64()),
    "decimal": _decimal,
    "float": _always(pa.float32()),
    "double": _always(pa.float64()),
    "bit": lambda column: pa.bool_() if column.precision == 1 else pa.binary(),
    "year": _always(pa.int16()),
    "date": _always(pa.date32()),
    "datetime": _always(pa.timestamp("us")),
    "timestamp": _always(pa.timestamp("us", "UTC")),
    "time": _TEXT,
    **dict.fromkeys(_TEXT_TYPES, _TEXT),
    **dict.fromkeys(("enum", "set", "json", "uuid", "inet4", "inet6"), _TEXT),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), _BYTES),
    **dict.fromkeys(GEOMETRIES, _BYTES),
}


def arrow_type(column: SourceColumn, *, zero_dates: str = "null") -> pa.DataType:
    """Return the Arrow type of a column.

    Args:
        column: The column.
        zero_dates: `null`, or `text` for dates and times as strings.

    Raises UnsupportedError for a type that is not in `TYPES`.
    """
    if zero_dates == "text" and column.type in DATES:
        return pa.string()
    rule = TYPES.get(column.type)
    if rule is None:
        raise UnsupportedError(
            f"column {column.name!r} has the type {column.type!r}, which is not supported",
            column=column.name,
        )
    return rule(column)


def arrow_schema(columns: tuple[SourceColumn, ...], *, zero_dates: str = "null") -> pa.Schema:
    """Return the Arrow schema of columns (see `arrow_type`)."""
    return pa.schema([pa.field(column.name, arrow_type(column, zero_dates=zero_dates)) for column in columns])


_QUOTED = re.compile(r"'((?:[^'\\]|''|\\.)*)'")
_LENGTH = re.compile(r"\((\d+)\)")
_ESCAPE = re.compile(r"\\(.)|''", re.DOTALL)


def catalog_column(row: Mapping[str, Any]) -> SourceColumn:
    """Return the column that a row of `information_schema.columns` describes.

    Args:
        row: The row, with these names in lower or upper case: column_name, data_type, column_type, numeric_precision,
            numeric_scale, datetime_precision, character_set_name.
    """
    given = {name.lower(): value for name, value in row.items()}
    kind, text = str(given["data_type"]).lower(), str(given["column_type"])
    length = _LENGTH.search(text)
    is_list = kind in ("enum", "set")
    return SourceColumn(
        name=str(given["column_name"]),
        type=kind,
        unsigned="unsigned" in text.lower() and not is_list,
        precision=int(given["numeric_precision"] or 0) if kind in ("decimal", "bit") else 0,
        scale=int((given["numeric_scale"] if kind == "decimal" else given["datetime_precision"]) or 0)
        if kind in ("decimal", "datetime", "timestamp", "time")
        else 0,
        length=int(length[1]) if kind == "binary" and length else 0,
        charset=str(given["character_set_name"] or ""),
        values=tuple(_unescaped(match[1]) for match in _QUOTED.finditer(text)) if is_list else (),
        compressed=not is_list and "COMPRESSED" in text,
    )


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: match[1] or "'", text)
