"""ALTER TABLE: columns, nested fields, properties and partitions."""

from __future__ import annotations

from lakehouse.sql.properties import (
    column_definition,
    column_definitions,
    column_type,
    names,
    pairs,
    static_partition,
)
from lakehouse.sql.statements import (
    AddColumns,
    AlterAction,
    AlterTable,
    ChangeColumn,
    DropColumns,
    DropPartitions,
    Name,
    PassThrough,
    RenameColumn,
    SetProperties,
    Statement,
    UnsetProperties,
    UnsupportedAlter,
)
from lakehouse.sql.tokens import Cursor, cut, split_list

#: Statements of other formats, each with the way of this package.
_OTHERS = {
    ("RENAME", "TO"): "a table keeps its name in its files: register its location under the new name with CALL "
    "lakehouse.register_table(table => 'namespace.new', location => '...'), then DROP the old one",
    ("SET", "LOCATION"): "register the table at the new location: CALL lakehouse.register_table(...)",
    ("ADD", "PARTITION"): "partitions appear with their first rows; INSERT them",
    ("ADD", "IF"): "partitions appear with their first rows; INSERT them",
    ("RECOVER", "PARTITIONS"): "partitions are listed from the table itself; nothing is to be recovered",
    ("SET", "SERDE"): "the files have one format",
    ("CLUSTER BY",): "set 'hoodie.clustering.plan.strategy.sort.columns', then CALL lakehouse.clustering(...)",
    ("ADD", "CONSTRAINT"): "constraints are not supported: check rows in the query that writes them",
    ("DROP", "CONSTRAINT"): "constraints are not supported",
}


def alter(cursor: Cursor) -> Statement:
    """Read ALTER TABLE after its keywords."""
    name = cursor.parts()
    for words, advice in _OTHERS.items():
        if cursor.sees(*words):
            return UnsupportedAlter(name=name, advice=advice)
    action = _action(cursor, name)
    if isinstance(action, PassThrough | UnsupportedAlter):
        return action
    cursor.end()
    return AlterTable(name=name, actions=action)


def _action(cursor: Cursor, name: Name) -> tuple[AlterAction, ...] | PassThrough | UnsupportedAlter:
    if cursor.accept("ADD"):
        cursor.one_of("COLUMNS", "COLUMN")
        if cursor.sees("("):
            return (AddColumns(columns=tuple(column_definitions(cursor.text, cursor.group()))),)
        return (AddColumns(columns=tuple(column_definitions(cursor.text, cursor.until()))),)
    if cursor.accept("DROP"):
        return _drop(cursor)
    if cursor.accept("RENAME", "COLUMN"):
        old = cursor.column()
        cursor.expect("TO")
        return (RenameColumn(old=old, new=cursor.name("the new name")),)
    if cursor.sees("RENAME"):
        raise cursor.error("write RENAME COLUMN old TO new, expected COLUMN")
    if cursor.accept("SET", "TBLPROPERTIES"):
        return (SetProperties(values=pairs(cursor)),)
    if cursor.accept("UNSET", "TBLPROPERTIES"):
        exist_ok = cursor.accept("IF", "EXISTS")
        keys = [Cursor(cursor.text, item).value("a key") for item in split_list(cursor.text, cursor.group())]
        return (UnsetProperties(names=tuple(keys), exist_ok=exist_ok),)
    if cursor.one_of("ALTER", "CHANGE"):
        cursor.accept("COLUMN")
        return (_change(cursor),)
    if cursor.accept("REPLACE", "COLUMNS"):
        return UnsupportedAlter(name=name, advice="use ADD COLUMNS, DROP COLUMN and ALTER COLUMN")
    return UnsupportedAlter(name=name, advice="the grammar is in docs/reference/sql.md")


def _drop(cursor: Cursor) -> tuple[AlterAction, ...]:
    if cursor.one_of("COLUMNS", "COLUMN"):
        exist_ok = cursor.accept("IF", "EXISTS")
        if cursor.sees("("):
            return (DropColumns(names=names(cursor), exist_ok=exist_ok),)
        columns = [cursor.column()]
        while cursor.accept(","):
            columns.append(cursor.column())
        return (DropColumns(names=tuple(columns), exist_ok=exist_ok),)
    exist_ok = cursor.accept("IF", "EXISTS")
    partitions = []
    cursor.expect("PARTITION")
    partitions.append(static_partition(cursor))
    while cursor.accept(",", "PARTITION") or cursor.accept("PARTITION"):
        partitions.append(static_partition(cursor))
    if cursor.accept("PURGE"):
        raise cursor.error("PURGE is not supported: a later clean removes the files")
    return (DropPartitions(partitions=tuple(partitions), exist_ok=exist_ok),)


def _change(cursor: Cursor) -> ChangeColumn:
    """Read `c TYPE t`, `c COMMENT 'x'`, `c FIRST | AFTER d`, or Hive's `CHANGE COLUMN c c t COMMENT 'x'`."""
    name = cursor.column()
    if cursor.accept("TYPE") or cursor.accept("SET", "DATA", "TYPE"):
        kind = cut(cursor.text, column_type(cursor))
        rest = _attributes(cursor, name)
        return ChangeColumn(name=name, type=kind, comment=rest.comment, first=rest.first, after=rest.after)
    if cursor.one_of("SET", "DROP"):
        raise cursor.error("NOT NULL and DEFAULT cannot be changed; every column accepts nulls")
    token = cursor.token
    if token is not None and not token.has_word("COMMENT", "FIRST", "AFTER"):
        definition = column_definition(cursor)
        return ChangeColumn(
            name=name,
            new_name="" if definition.name == name else definition.name,
            type=definition.type,
            comment=definition.comment or None,
            first=definition.first,
            after=definition.after,
        )
    return _attributes(cursor, name)


def _attributes(cursor: Cursor, name: str) -> ChangeColumn:
    comment, first, after = None, False, ""
    while not cursor.ended:
        if cursor.accept("COMMENT"):
            comment = cursor.string("a comment")
        elif cursor.accept("FIRST"):
            first = True
        elif cursor.accept("AFTER"):
            after = cursor.column()
        else:
            raise cursor.error("expected COMMENT, FIRST or AFTER")
    return ChangeColumn(name=name, comment=comment, first=first, after=after)
