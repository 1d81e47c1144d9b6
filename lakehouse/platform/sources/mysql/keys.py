"""Key ranges in SQL. A bound is one literal per key column, printed by the server itself.

String comparisons follow the column's collation, so only the server can compare keys with bounds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lakehouse.errors import CorruptTableError
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.databases.server import Chunk

_NUMBERS = ("tinyint", "smallint", "mediumint", "int", "bigint", "year", "decimal")
INTEGERS = _NUMBERS[:5]
_TEXTS = ("char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_BYTES = ("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob")
_QUOTED = ("date", "datetime", "timestamp", "time", "uuid", "inet4", "inet6")
#: Bounds are stored in commits, so they are checked before they become part of a statement.
_LITERAL = re.compile(r"-?[0-9]+(\.[0-9]+)?|(_utf8mb4 )?X'[0-9A-F]*'|'[0-9A-Fa-f :.\-]*'")


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def quoted_table(name: str) -> str:
    """Quote `database.table` for SQL."""
    database, _, table = name.partition(".")
    return f"{quoted(database)}.{quoted(table)}"


def literal(column: SourceColumn) -> str | None:
    """Return the SQL expression for a key column's literal; None if its keys have no ranges."""
    name = quoted(column.name)
    if column.type in _NUMBERS:
        return f"cast({name} as char)"
    if column.type in _TEXTS:
        return f"concat('_utf8mb4 X''', hex(convert({name} using utf8mb4)), '''')"
    if column.type in _BYTES:
        return f"concat('X''', hex({name}), '''')"
    if column.type in _QUOTED:
        return f"concat('''', cast({name} as char), '''')"
    return None


def condition(key: Sequence[str], chunk: Chunk) -> str:
    """Return the SQL condition for a chunk's rows; an empty string for all rows."""
    parts = []
    if chunk.after is not None:
        parts.append(_bound(key, chunk.after, ">", ">"))
    if chunk.upto is not None:
        parts.append(_bound(key, chunk.upto, "<", "<="))
    return " and ".join(parts)


def _bound(key: Sequence[str], bound: tuple[str, ...], sign: str, last: str) -> str:
    """Return the comparison of a key with a bound, in the order of its columns.

    Servers do not use an index for `(a, b) > (x, y)`. They use the index for the first part of this condition.
    """
    if len(bound) != len(key) or not all(_LITERAL.fullmatch(text) for text in bound):
        raise CorruptTableError(f"the bound {bound} of the checkpoint is not one of the key {', '.join(key)}")
    names = [quoted(name) for name in key]
    if len(names) == 1:
        return f"{names[0]} {last} {bound[0]}"
    cases = []
    for number in range(len(names)):
        equal = [f"{name} = {text}" for name, text in zip(names[:number], bound[:number], strict=True)]
        compared = last if number == len(names) - 1 else sign
        cases.append("(" + " and ".join([*equal, f"{names[number]} {compared} {bound[number]}"]) + ")")
    return f"({names[0]} {sign}= {bound[0]} and ({' or '.join(cases)}))"
