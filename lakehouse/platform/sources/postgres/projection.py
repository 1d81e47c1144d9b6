"""Expressions that copy each type of PostgreSQL as `copied` decodes it."""

from __future__ import annotations

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
)
from lakehouse.platform.sources.postgres.copied import is_number
from lakehouse.platform.sources.postgres.keys import as_text, quoted

_AS_THEY_ARE = (
    BOOL,
    INT2,
    INT4,
    INT8,
    FLOAT4,
    FLOAT8,
    BYTEA,
    TEXT,
    VARCHAR,
    BPCHAR,
    DATE,
    TIMESTAMP,
    TIMESTAMPTZ,
)


def projected(column: PgColumn) -> str:
    """Return the expression that reads a column."""
    name = quoted(column.name)
    if column.oid in _AS_THEY_ARE or is_number(column):
        return name
    if column.oid == OID:
        return f"{name}::int8"
    if column.digits is not None:
        # More digits than an integer has.
        return f"nullif({name}, 'NaN')::text"
    return as_text(column.name)
