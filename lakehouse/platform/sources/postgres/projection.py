"""Expressions that copy each type of PostgreSQL as `copied` decodes it."""

from __future__ import annotations

from lakehouse.platform.sources.pgoutput.columns import BPCHAR, BYTEA, OID, TEXT, VARCHAR, PgColumn
from lakehouse.platform.sources.postgres.copied import FIXED, is_number
from lakehouse.platform.sources.postgres.keys import as_text, quoted

_BYTES = (BYTEA, TEXT, VARCHAR, BPCHAR)


def projected(column: PgColumn) -> str:
    """Return the expression that reads a column."""
    name = quoted(column.name)
    if column.oid == OID:
        return f"{name}::int8"
    if column.oid in FIXED or column.oid in _BYTES or is_number(column):
        return name
    if column.digits is not None:
        # More digits than an integer has.
        return f"nullif({name}, 'NaN')::text"
    return as_text(column.name)
