"""Names and ranges of keys in SQL. A bound is the text of each key column, as the server wrote it.

Comparisons of texts follow the collation of the column, so only the server can compare keys with bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from lakehouse.errors import CorruptTableError
from lakehouse.platform.sources.databases.server import Chunk
from lakehouse.platform.sources.pgoutput.columns import BYTEA, PgColumn


def quoted(name: str) -> str:
    """Return a name as SQL quotes it."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """Return `schema.table` as SQL quotes it."""
    schema, _, table = name.partition(".")
    return f"{quoted(schema)}.{quoted(table)}"


def quoted_text(text: str) -> str:
    """Return a text as a literal of SQL, whose type follows from its use."""
    return "'" + text.replace("'", "''") + "'"


def as_text(name: str) -> str:
    """Return the expression of the text of a column as the server prints it.

    A cast to text would add to an inet and cut spaces of a char(n), and a row of nulls is null by `is null`.
    """
    return f"case when num_nonnulls({quoted(name)}) = 1 then format('%s', {quoted(name)}) end"


def condition(key: Sequence[str], chunk: Chunk) -> str:
    """Return the condition of the rows of a chunk; an empty text for all rows."""
    parts = []
    if chunk.after is not None:
        parts.append(f"{_row(key)} > {_bound(key, chunk.after)}")
    if chunk.upto is not None:
        parts.append(f"{_row(key)} <= {_bound(key, chunk.upto)}")
    return " and ".join(parts)


def listed(columns: Sequence[PgColumn], keys: Sequence[tuple[str, ...]]) -> str:
    """Return the condition of the rows with these keys, whose texts are those of stored values."""
    # Keys of bytes are stored as hexadecimal digits.
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
