"""Columns of PostgreSQL tables, and the Arrow type per SQL type.

`TYPES` is the only type mapping: for the log, snapshot chunks and table creation:

    boolean, integers          bool, int16 to int64; oid is int64
    real, double precision     float32, float64
    numeric(p, s)              decimal128(p, s) up to 38 digits; NaN is null
    numeric                    string with all digits, including NaN and Infinity
    bytea                      binary
    date                       date32
    timestamp, timestamptz     timestamp[us], timestamp[us, UTC]
    all others                 string as the server prints it: string types, time, interval, uuid, json, money, enums,
                               arrays, ranges, composite types and extension types

A domain has its base type. Dates and timestamps before the year 1 or after 9999, and `infinity`, are
null, because Spark's types do not have them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pyarrow as pa

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID = 16, 17, 20, 21, 23, 25, 26
FLOAT4, FLOAT8, BPCHAR, VARCHAR = 700, 701, 1042, 1043
DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC = 1082, 1114, 1184, 1700
_MOST_DIGITS = 38
#: Number that the server adds to the encoded precision and scale in the type modifier of a `numeric(p, s)`.
_MODIFIER = 4
_SCALE_SIGN, _SCALES = 1 << 10, 1 << 11


@dataclass(frozen=True, slots=True, kw_only=True)
class PgColumn:
    """A table column.

    Attributes:
        name: The name.
        oid: The OID of its type; for a domain, of its base type.
        modifier: The type modifier, such as the digits of a numeric; -1 for none.
    """

    name: str
    oid: int
    modifier: int = -1

    @property
    def digits(self) -> tuple[int, int] | None:
        """Precision and scale of the Arrow decimal for a numeric; None if it is stored as a string."""
        if self.oid != NUMERIC or self.modifier < _MODIFIER:
            return None
        declared = self.modifier - _MODIFIER
        precision, scale = declared >> 16 & 0xFFFF, declared & (_SCALES - 1)
        scale = (scale ^ _SCALE_SIGN) - _SCALE_SIGN
        # numeric(3, -2) has five digits before the decimal point, and numeric(3, 5) five after it.
        precision, scale = max(precision - min(scale, 0), scale), max(scale, 0)
        return (precision, scale) if precision <= _MOST_DIGITS else None


def _numeric(column: PgColumn) -> pa.DataType:
    digits = column.digits
    return pa.string() if digits is None else pa.decimal128(*digits)


def _always(kind: pa.DataType) -> Callable[[PgColumn], pa.DataType]:
    return lambda column: kind


#: The Arrow type per type that is not stored as a string.
TYPES: Mapping[int, Callable[[PgColumn], pa.DataType]] = {
    BOOL: _always(pa.bool_()),
    INT2: _always(pa.int16()),
    INT4: _always(pa.int32()),
    INT8: _always(pa.int64()),
    OID: _always(pa.int64()),
    FLOAT4: _always(pa.float32()),
    FLOAT8: _always(pa.float64()),
    NUMERIC: _numeric,
    BYTEA: _always(pa.binary()),
    DATE: _always(pa.date32()),
    TIMESTAMP: _always(pa.timestamp("us")),
    TIMESTAMPTZ: _always(pa.timestamp("us", "UTC")),
}
_TEXT = _always(pa.string())


def arrow_type(column: PgColumn) -> pa.DataType:
    """Return the Arrow type of a column."""
    return TYPES.get(column.oid, _TEXT)(column)


def arrow_schema(columns: tuple[PgColumn, ...]) -> pa.Schema:
    """Return the Arrow schema of columns."""
    return pa.schema([pa.field(column.name, arrow_type(column)) for column in columns])
