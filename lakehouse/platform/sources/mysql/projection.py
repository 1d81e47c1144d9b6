"""SQL expressions that read each MySQL and MariaDB type exactly through connectorx, with the log's values."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.platform.sources.binlog.columns import DATES, TYPES, SourceColumn
from lakehouse.platform.sources.databases.types import INTEGER_DIGITS, decimals
from lakehouse.platform.sources.mysql.keys import quoted

#: Decimals with at most `INTEGER_DIGITS` digits are read as integers; the server sends all others as strings.
#: connectorx would give each decimal 10 digits after the point.
_AS_TEXT = ("time", "json", "uuid", "inet4", "inet6")
#: Character sets that can contain unpaired surrogates, which are invalid UTF-8. In UTF-16 they become question marks.
_WITH_HALVES = ("ucs2", "utf32")
_GEOMETRIES = tuple(
    name for name in TYPES if name.endswith(("geometry", "point", "linestring", "polygon", "collection"))
)


def projected(column: SourceColumn) -> str:
    """Return the SQL expression that reads a column."""
    name = quoted(column.name)
    if column.type in _AS_TEXT:
        return f"cast({name} as char)"
    if column.charset in _WITH_HALVES and not column.values:
        return f"convert({name} using utf16)"
    if column.type == "decimal":
        is_short = column.precision <= INTEGER_DIGITS
        return f"cast({name} * 1{'0' * column.scale} as signed)" if is_short else f"cast({name} as char)"
    if column.type in DATES:
        # Invalid dates are null in the log, too; the client cannot read them.
        return f"if(dayofmonth({name}) between 1 and dayofmonth(last_day({name})), {name}, null)"
    if column.type == "bit" and column.precision == 1:
        return f"{name} + 0"
    if column.type in _GEOMETRIES:
        # The first four bytes are the SRID. ST_AsWKB would swap the axes of some coordinate systems.
        return f"unhex(substr(hex({name}), 9))"
    return name


def read_by_client(column: SourceColumn) -> str:
    """Return the SQL expression that reads a column through PyMySQL, which supports decimals but rounds floats."""
    name = quoted(column.name)
    if column.type == "float":
        return f"{name} + 0e0"
    return name if column.type == "decimal" else projected(column)


def arranged(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Convert rows from connectorx to the columns of a schema."""
    columns = [_cast(rows.column(place), field.type) for place, field in enumerate(schema)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_decimal(kind) and pa.types.is_integer(column.type):
        return decimals(column.cast(pa.int64()), kind)
    if pa.types.is_boolean(kind):
        return pc.not_equal(column, 0)
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type):
        plain = column.cast(pa.timestamp("us"))
        # The session is in UTC.
        return plain if kind.tz is None else plain.view(pa.int64()).view(kind)
    if pa.types.is_floating(kind) and pa.types.is_floating(column.type):
        return column.cast(kind, safe=False)
    return column.cast(kind)
