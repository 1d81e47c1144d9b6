"""Recognise a statement by its first keywords and return its value.

A statement of another kind, or one with syntax that tables of the catalog do not have, is a PassThrough. Whether the
table of a statement belongs to the catalog is decided later: nothing here reads the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from lakehouse.errors import UserError
from lakehouse.sql.changes import delete, insert, merge, update
from lakehouse.sql.definitions import alter_table, create, drop
from lakehouse.sql.properties import partition_values, static_partition
from lakehouse.sql.statements import (
    Call,
    Describe,
    Namespace,
    PassThrough,
    Refresh,
    SetOption,
    ShowIndexes,
    ShowTable,
    ShowTables,
    Statement,
    Truncate,
)
from lakehouse.sql.tokens import Cursor, split_list, tokens_of

_NAMESPACES = ("NAMESPACES", "DATABASES", "SCHEMAS")
_NAMESPACE = ("NAMESPACE", "DATABASE", "SCHEMA")
#: Statements DESCRIBE of Delta, each with the equivalent.
_DELTA_WORDS = {"HISTORY": "CALL show_commits(table => '...')", "DETAIL": "DESCRIBE EXTENDED"}


def recognise(text: str, dialect: str) -> Statement:
    """Return the value of one statement; raise UserError for wrong syntax in a statement of this package."""
    tokens = tokens_of(text, dialect)
    while tokens and tokens[-1].text == ";" and not tokens[-1].is_string:
        tokens = tokens[:-1]
    if not tokens:
        return PassThrough()
    cursor = Cursor(text, tokens)
    keyword = tokens[0].text.upper()
    read = _READERS.get(keyword)
    if read is None or tokens[0].is_quoted or tokens[0].is_string:
        return PassThrough()
    cursor.at = 1
    return read(cursor)


def _truncate(cursor: Cursor) -> Statement:
    if not cursor.accept("TABLE"):
        return PassThrough()
    name = cursor.parts()
    values = static_partition(cursor) if cursor.accept("PARTITION") else {}
    cursor.end()
    return Truncate(name=name, partition=values)


def _refresh(cursor: Cursor) -> Statement:
    cursor.accept("TABLE")
    token = cursor.token
    if token is None or not token.is_name:
        return PassThrough()
    name = cursor.parts()
    return Refresh(name=name) if cursor.ended else PassThrough()


def _call(cursor: Cursor) -> Statement:
    procedure = cursor.parts("the name of a procedure")
    arguments = cursor.inside() if cursor.sees("(") else None
    cursor.end()
    named: dict[str, str] = {}
    positional: list[str] = []
    for item in [] if arguments is None else split_list(cursor.text, arguments.tokens):
        part = Cursor(cursor.text, item)
        is_named = len(item) > 2 and (item[1].text == "=>" or (item[1].text == "=" and item[2].text == ">"))
        if is_named:
            name = part.name("the name of an argument").lower()
            part.at += 1 if item[1].text == "=>" else 2
            if name in named:
                raise part.error(f"the argument {name} is given twice")
            named[name] = part.value(f"the value of {name}")
        else:
            if named:
                raise part.error("an argument without name must be before those with names")
            positional.append(part.value("the value of an argument"))
        part.end()
    return Call(procedure=procedure, named=named, positional=tuple(positional))


def _show(cursor: Cursor) -> Statement:
    if cursor.one_of(*_NAMESPACES):
        pattern = _pattern(cursor)
        return Namespace(verb="show", pattern=pattern) if cursor.ended else PassThrough()
    if cursor.accept("TABLES"):
        name = cursor.parts("a namespace") if cursor.one_of("IN", "FROM") else ()
        pattern = _pattern(cursor)
        return ShowTables(namespace=name, pattern=pattern) if cursor.ended else PassThrough()
    if cursor.one_of("INDEXES", "INDEX"):
        cursor.one_of("FROM", "IN", "ON")
        return ShowIndexes(name=cursor.parts())
    if cursor.accept("PARTITIONS"):
        name = cursor.parts()
        values = partition_values(cursor) if cursor.accept("PARTITION") else {}
        return ShowTable(what="partitions", name=name, partition=values)
    if cursor.accept("COLUMNS"):
        cursor.one_of("IN", "FROM")
        name = cursor.parts()
        if cursor.one_of("IN", "FROM"):
            name = (*cursor.parts("a namespace"), name[-1])
        return ShowTable(what="columns", name=name)
    if cursor.accept("TBLPROPERTIES"):
        name = cursor.parts()
        key = cursor.inside().value("a key") if cursor.sees("(") else ""
        return ShowTable(what="tblproperties", name=name, key=key)
    if cursor.accept("CREATE", "TABLE"):
        name = cursor.parts()
        cursor.accept("AS", "SERDE")
        return ShowTable(what="create table", name=name)
    return PassThrough()


def _pattern(cursor: Cursor) -> str:
    """Read `LIKE 'pattern'` or a pattern alone; return an empty string if there is none."""
    if cursor.accept("LIKE"):
        return cursor.string("a pattern")
    return cursor.string("a pattern") if cursor.token is not None and cursor.token.is_string else ""


def _describe(cursor: Cursor) -> Statement:
    other = cursor.one_of("QUERY", "FUNCTION", "NAMESPACE", "DATABASE", "SCHEMA", *_DELTA_WORDS)
    if other in _DELTA_WORDS and cursor.token is not None and cursor.token.is_name:
        raise UserError(f"DESCRIBE {other} is not supported for tables of the catalog: use {_DELTA_WORDS[other]}")
    if other:
        return PassThrough()
    cursor.accept("TABLE")
    is_extended = bool(cursor.one_of("EXTENDED", "FORMATTED"))
    token = cursor.token
    if token is None or not token.is_name or token.has_word("SELECT", "WITH", "VALUES", "FROM"):
        return PassThrough()
    name = cursor.parts()
    column = "" if cursor.ended or not cursor.tokens[cursor.at].is_name else cursor.column()
    return Describe(name=name, is_extended=is_extended, column=column) if cursor.ended else PassThrough()


def _use(cursor: Cursor) -> Statement:
    cursor.one_of(*_NAMESPACE)
    token = cursor.token
    if token is None or not token.is_name:
        return PassThrough()
    name = cursor.parts("a namespace")
    return Namespace(verb="use", name=name) if cursor.ended else PassThrough()


def _set(cursor: Cursor) -> Statement:
    tokens = cursor.tokens[1:]
    key = cursor.text[tokens[0].start :].partition("=")[0].strip() if tokens else ""
    if not key.lower().startswith(("hoodie.", "lakehouse.")) or "=" not in cursor.text:
        return PassThrough()
    value = cursor.text[tokens[0].start : tokens[-1].end].partition("=")[2].strip()
    return SetOption(key=key, value=value.strip("'\""))


def _reset(cursor: Cursor) -> Statement:
    key = cursor.rest()
    return SetOption(key=key) if key.lower().startswith(("hoodie.", "lakehouse.")) else PassThrough()


_READERS: Mapping[str, Callable[[Cursor], Statement]] = {
    "ALTER": alter_table,
    "CALL": _call,
    "CREATE": create,
    "DELETE": delete,
    "DESC": _describe,
    "DESCRIBE": _describe,
    "DROP": drop,
    "INSERT": insert,
    "MERGE": merge,
    "REFRESH": _refresh,
    "REPLACE": lambda cursor: create(cursor, replace=True),
    "RESET": _reset,
    "SET": _set,
    "SHOW": _show,
    "TRUNCATE": _truncate,
    "UPDATE": update,
    "USE": _use,
}
