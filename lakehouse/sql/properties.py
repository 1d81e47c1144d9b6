"""Lists of properties, columns and partition values in parentheses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakehouse.core.rows.partition_path import DEFAULT_PARTITION
from lakehouse.sql.statements import ColumnDef
from lakehouse.sql.tokens import Cursor, Token, cut, split_list

#: Words that end a type; sqlglot makes one token of PRIMARY KEY.
_AFTER_TYPE = ("NOT", "NULL", "COMMENT", "FIRST", "AFTER", "DEFAULT", "GENERATED", "PRIMARY KEY", "PRIMARY", "UNIQUE")


def pairs(cursor: Cursor) -> dict[str, str]:
    """Read `(key = value, ...)`; a key is a string or a name with dots, and `=` may be missing."""
    values: dict[str, str] = {}
    for item in split_list(cursor.text, cursor.group()):
        part = Cursor(cursor.text, item)
        key = part.value("the key of a property")
        part.accept("=")
        if key in values:
            raise part.error(f"the property {key} is given twice")
        values[key] = part.value(f"the value of {key}")
        part.end()
    return values


def partition_values(cursor: Cursor) -> dict[str, str | None]:
    """Read `(column = literal, column)`; a column without literal is a dynamic partition. NULL is refused."""
    values: dict[str, str | None] = {}
    for item in split_list(cursor.text, cursor.group()):
        part = Cursor(cursor.text, item)
        name = part.name("a partition column")
        value = None
        if part.accept("="):
            part.one_of("DATE", "TIMESTAMP")
            if part.sees("NULL"):
                raise part.error(
                    f"the partition column {name} needs a value, which is '{DEFAULT_PARTITION}' for the partition of "
                    "null in TRUNCATE and DROP PARTITION,"
                )
            value = part.value(f"the value of {name}")
        part.end()
        values[name] = value
    return values


def static_partition(cursor: Cursor) -> dict[str, str | None]:
    """Read `(column = literal, ...)`. A column without literal is refused, because it would mean all partitions."""
    values = partition_values(cursor)
    missing = next((name for name, value in values.items() if value is None), None)
    if missing is not None:
        raise cursor.error(f"the partition column {missing} needs a value: write PARTITION ({missing} = 'value')")
    return values


def names(cursor: Cursor, what: str = "a column") -> tuple[str, ...]:
    """Read `(name, name.field, ...)`."""
    return tuple(Cursor(cursor.text, item).column(what) for item in split_list(cursor.text, cursor.group()))


def column_definitions(text: str, tokens: Sequence[Token]) -> Iterator[ColumnDef]:
    """Yield the columns of a list such as `id INT NOT NULL COMMENT 'key', tags ARRAY<STRING>`."""
    for item in _typed_items(tokens):
        yield column_definition(Cursor(text, item))


def column_definition(cursor: Cursor) -> ColumnDef:
    """Read one column: its name, its type, and its attributes in any order."""
    name = cursor.column()
    cursor.accept(":")
    kind = cut(cursor.text, column_type(cursor))
    if not kind:
        raise cursor.error(f"the column {name} needs a type")
    comment, is_required, first, after = "", False, False, ""
    while not cursor.ended:
        if cursor.accept("NOT", "NULL"):
            is_required = True
        elif cursor.accept("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.accept("FIRST"):
            first = True
        elif cursor.accept("AFTER"):
            after = cursor.column()
        elif not cursor.accept("NULL"):
            raise cursor.error(
                f"column {name}: expected NOT NULL, COMMENT, FIRST or AFTER. DEFAULT and constraints do not exist, "
                "and TBLPROPERTIES (primaryKey = '...') declares the key"
            )
    return ColumnDef(name=name, type=kind, comment=comment, is_required=is_required, first=first, after=after)


def column_type(cursor: Cursor) -> tuple[Token, ...]:
    """Read a type; keywords inside of `<...>` and `(...)` are part of it."""
    begin, depth = cursor.at, 0
    while not cursor.ended:
        token = cursor.tokens[cursor.at]
        if depth == 0 and token.has_word(*_AFTER_TYPE):
            break
        depth += _depth(token)
        cursor.at += 1
    return cursor.tokens[begin : cursor.at]


def _typed_items(tokens: Sequence[Token]) -> Iterator[tuple[Token, ...]]:
    """Yield the items between commas outside of parentheses and angle brackets."""
    item: list[Token] = []
    depth = 0
    for token in tokens:
        depth += _depth(token)
        if token.text == "," and not token.is_string and depth == 0:
            yield tuple(item)
            item = []
        else:
            item.append(token)
    if item:
        yield tuple(item)


def _depth(token: Token) -> int:
    if token.is_quoted or token.is_string:
        return 0
    text = token.text
    return text.count("(") + text.count("<") - text.count(")") - text.count(">")
