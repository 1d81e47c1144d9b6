"""CREATE, DROP and ALTER of tables, views, indexes and namespaces."""

from __future__ import annotations

from lakehouse.sql.alterations import alter
from lakehouse.sql.properties import column_definitions, names, pairs
from lakehouse.sql.statements import (
    CreateIndex,
    CreateTable,
    CreateView,
    DropIndex,
    DropTable,
    DropView,
    Namespace,
    PassThrough,
    Statement,
)
from lakehouse.sql.tokens import Cursor, cut, split_list

#: Formats of CREATE TABLE ... USING that make a table of the catalog.
FORMATS = ("LAKEHOUSE", "HUDI")
_NAMESPACE = ("NAMESPACE", "DATABASE", "SCHEMA")


def create(cursor: Cursor, *, replace: bool = False) -> Statement:
    """Read CREATE after its keyword, or REPLACE TABLE."""
    replace = replace or cursor.accept("OR", "REPLACE")
    if cursor.accept("TABLE"):
        return _create_table(cursor, replace)
    if cursor.accept("INDEX"):
        return _create_index(cursor)
    if cursor.one_of(*_NAMESPACE):
        return _create_namespace(cursor)
    is_temporary = bool(cursor.one_of("TEMPORARY", "TEMP"))
    if cursor.accept("VIEW"):
        exist_ok = cursor.accept("IF", "NOT", "EXISTS")
        name = cursor.parts("the name of a view")
        columns = names(cursor) if cursor.sees("(") else ()
        if cursor.accept("COMMENT"):
            cursor.string("a comment")
        if exist_ok or not cursor.accept("AS"):
            return PassThrough()
        return CreateView(name=name, query=cursor.rest(), columns=columns, replace=replace, is_temporary=is_temporary)
    return PassThrough()


def drop(cursor: Cursor) -> Statement:
    """Read DROP after its keyword."""
    if cursor.one_of(*_NAMESPACE):
        exist_ok = cursor.accept("IF", "EXISTS")
        name = cursor.parts("a namespace")
        cascade = cursor.one_of("CASCADE", "RESTRICT") == "CASCADE"
        return Namespace(verb="drop", name=name, exist_ok=exist_ok, cascade=cascade)
    if cursor.accept("INDEX"):
        exist_ok = cursor.accept("IF", "EXISTS")
        index = cursor.name("the name of an index")
        cursor.expect("ON")
        cursor.accept("TABLE")
        name = cursor.parts()
        cursor.end()
        return DropIndex(index=index, name=name, exist_ok=exist_ok)
    is_view = cursor.accept("VIEW")
    if not is_view and not cursor.accept("TABLE"):
        return PassThrough()
    exist_ok = cursor.accept("IF", "EXISTS")
    name = cursor.parts()
    purge = cursor.accept("PURGE")
    cursor.end()
    return DropView(name=name, exist_ok=exist_ok) if is_view else DropTable(name=name, exist_ok=exist_ok, purge=purge)


def alter_table(cursor: Cursor) -> Statement:
    """Read ALTER after its keyword."""
    return alter(cursor) if cursor.accept("TABLE") else PassThrough()


def _create_table(cursor: Cursor, replace: bool) -> Statement:
    exist_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.parts()
    like = cursor.parts() if cursor.accept("LIKE") else ()
    columns = tuple(column_definitions(cursor.text, cursor.group())) if _starts_columns(cursor) else ()
    using, location, comment, query = "", "", "", ""
    partition_by: tuple[str, ...] = ()
    properties: dict[str, str] = {}
    while not cursor.ended:
        if cursor.accept("USING"):
            using = cursor.name("a format").upper()
            if using not in FORMATS:
                return PassThrough()
        elif cursor.one_of("TBLPROPERTIES", "OPTIONS"):
            properties |= pairs(cursor)
        elif cursor.accept("PARTITIONED BY"):
            partition_by = _partition_columns(cursor)
        elif cursor.accept("LOCATION"):
            location = cursor.string("a location")
        elif cursor.accept("COMMENT"):
            comment = cursor.string("a comment")
        elif using and cursor.one_of("CLUSTERED BY", "CLUSTER BY", "CLUSTERED"):
            raise cursor.error("CLUSTERED BY is not supported: set 'hoodie.index.type' = 'BUCKET' in TBLPROPERTIES")
        elif cursor.accept("AS") or cursor.sees("SELECT") or cursor.sees("WITH"):
            query = cursor.rest()
        elif using:
            raise cursor.error("expected PARTITIONED BY, LOCATION, COMMENT, TBLPROPERTIES or AS SELECT")
        else:
            return PassThrough()
    if not using:
        return PassThrough()
    return CreateTable(
        name=name,
        columns=columns,
        partition_by=partition_by,
        location=location or properties.pop("path", ""),
        comment=comment,
        properties=properties,
        query=query,
        exist_ok=exist_ok,
        replace=replace,
        like=like,
    )


def _starts_columns(cursor: Cursor) -> bool:
    following = cursor.tokens[cursor.at + 1 : cursor.at + 2]
    return cursor.sees("(") and bool(following) and not following[0].has_word("SELECT", "WITH")


def _partition_columns(cursor: Cursor) -> tuple[str, ...]:
    columns = []
    for item in split_list(cursor.text, cursor.group()):
        part = Cursor(cursor.text, item)
        columns.append(part.column("a partition column"))
        if not part.ended:
            raise part.error(
                "a partition column takes no type and no transform: declare the column in the list of columns, and "
                "name it here"
            )
    return tuple(columns)


def _create_index(cursor: Cursor) -> Statement:
    exist_ok = cursor.accept("IF", "NOT", "EXISTS")
    index = cursor.name("the name of an index")
    cursor.expect("ON")
    cursor.accept("TABLE")
    name = cursor.parts()
    kind = cursor.name("the kind of an index") if cursor.accept("USING") else ""
    columns = tuple(cut(cursor.text, item) for item in split_list(cursor.text, cursor.group()))
    options = pairs(cursor) if cursor.accept("OPTIONS") else {}
    cursor.end()
    return CreateIndex(index=index, name=name, kind=kind.lower(), columns=columns, options=options, exist_ok=exist_ok)


def _create_namespace(cursor: Cursor) -> Statement:
    exist_ok = cursor.accept("IF", "NOT", "EXISTS")
    name = cursor.parts("a namespace")
    location = ""
    while not cursor.ended:
        if cursor.accept("COMMENT"):
            cursor.string("a comment")
        elif cursor.accept("LOCATION"):
            location = cursor.string("a location")
        elif cursor.accept("WITH") and cursor.one_of("DBPROPERTIES", "PROPERTIES"):
            pairs(cursor)
        else:
            return PassThrough()
    return Namespace(verb="create", name=name, exist_ok=exist_ok, location=location)
