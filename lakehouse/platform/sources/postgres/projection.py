"""Expressions that read each type of PostgreSQL through ADBC as the log has its values."""

from __future__ import annotations

import pyarrow as pa

from lakehouse.platform.sources.databases.types import INTEGER_DIGITS, decimals
from lakehouse.platform.sources.pgoutput.columns import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    OID,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    PgColumn,
    arrow_type,
)
from lakehouse.platform.sources.postgres.keys import as_text, quoted

_AS_THEY_ARE = (BOOL, INT2, INT4, INT8, FLOAT4, FLOAT8, BYTEA, TEXT, VARCHAR, BPCHAR)
_DATES = {
    DATE: ("0001-01-01", "9999-12-31"),
    TIMESTAMP: ("0001-01-01", "9999-12-31 23:59:59.999999"),
    TIMESTAMPTZ: ("0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"),
}


def projected(column: PgColumn) -> str:
    """Return the expression that reads a column."""
    name = quoted(column.name)
    if column.oid in _AS_THEY_ARE:
        return name
    if column.oid == OID:
        return f"{name}::int8"
    if column.oid in _DATES:
        # The client cannot read other dates; the decoder of the log makes them null, too.
        first, last = _DATES[column.oid]
        return f"case when {name} between '{first}' and '{last}' then {name} end"
    if column.digits is not None:
        number = f"nullif({name}, 'NaN')"
        # The client makes texts of decimals, which takes longer than all that is done with an integer.
        return f"({number} * 1{'0' * column.digits[1]})::int8" if column.digits[0] <= INTEGER_DIGITS else number
    return as_text(column.name)


def arranged(rows: pa.RecordBatch, columns: tuple[PgColumn, ...]) -> pa.RecordBatch:
    """Return rows as ADBC read them with these columns."""
    arrays = [_cast(rows.column(place), arrow_type(column)) for place, column in enumerate(columns)]
    return pa.RecordBatch.from_arrays(arrays, names=[column.name for column in columns])


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    plain = column.storage if isinstance(column.type, pa.BaseExtensionType) else column
    if pa.types.is_decimal(kind) and plain.type == pa.int64():
        return decimals(plain, kind)
    return plain if plain.type == kind else plain.cast(kind)
