"""Key names and ranges in SQL. A bound is one string per key column, as the server printed it.

String comparisons follow the column's collation, so only the server can compare keys with bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakehouse.errors import CorruptTableError
from lakehouse.platform.sources.databases.server import Chunk
from lakehouse.platform.sources.pgoutput.columns import BYTEA, PgColumn


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Quote `schema.table` for SQL."""
    schema, _, table = name.partition(".")
    return f"{quoted(schema)}.{quoted(table)}"


def quoted_text(text: str) -> str:
    """Return a string as an SQL literal, whose type follows from its use."""
    return "'" + text.replace("'", "''") + "'"


def as_text(name: str) -> str:
    """Return an SQL expression for a column's value as the server prints it.

    A `::text` cast would change an inet and strip the spaces of a char(n), and `is null` is true for a row of nulls.
    """
    return f"case when num_nonnulls({quoted(name)}) = 1 then format('%s', {quoted(name)}) end"


def condition(key: Sequence[str], chunk: Chunk) -> str:
    """Return the SQL condition for a chunk's rows; an empty string for all rows."""
    parts = []
    if chunk.after is not None:
        parts.append(f"{_row(key)} > {_bound(key, chunk.after)}")
    if chunk.upto is not None:
        parts.append(f"{_row(key)} <= {_bound(key, chunk.upto)}")
    return " and ".join(parts)


def listed(columns: Sequence[PgColumn], keys: Sequence[tuple[str, ...]]) -> str:
    """Return the SQL condition for rows with these keys, given as strings of stored values."""
    # Binary keys are stored as hexadecimal digits.
    prefixes = ["\\x" if column.oid == BYTEA else "" for column in columns]
    rows = (", ".join(quoted_text(prefix + text) for prefix, text in zip(prefixes, key, strict=True)) for key in keys)
    names = _row(column.name for column in columns)
    return f"{names} in ({', '.join(f'({row})' for row in rows)})"


def _row(key: Iterable[str]) -> str:
    return f"({', '.join(quoted(name) for name in key)})"


def _bound(key: Sequence[str], bound: tuple[str, ...]) -> str:
    if len(bound) != len(key):
        raise CorruptTableError(f"the bound {bound} of the checkpoint is not one of the key {', '.join(key)}")
    return f"({', '.join(quoted_text(text) for text in bound)})"
