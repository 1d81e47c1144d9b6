"""INSERT, UPDATE, DELETE and MERGE: their clauses, with expressions as characters of the statement."""

from __future__ import annotations

from lakehouse.sql.properties import names, partition_values
from lakehouse.sql.statements import Delete, Insert, Merge, MergeClause, PassThrough, Statement, Update
from lakehouse.sql.tokens import Cursor, Token, cut, split_list

_QUERY = ("SELECT", "WITH", "VALUES", "TABLE", "FROM", "MAP", "REDUCE", "(")


def insert(cursor: Cursor) -> Statement:
    """Read INSERT after its keyword."""
    overwrite = bool(cursor.one_of("OVERWRITE"))
    if not overwrite:
        cursor.accept("INTO")
    elif cursor.sees("DIRECTORY") or cursor.sees("LOCAL", "DIRECTORY"):
        return PassThrough()
    cursor.accept("TABLE")
    name = cursor.parts()
    partition: dict[str, str | None] = {}
    columns: tuple[str, ...] = ()
    by_name, replace_where = False, ""
    if cursor.accept("REPLACE", "WHERE"):
        replace_where = cut(cursor.text, cursor.until("SELECT", "WITH", "VALUES", "TABLE", "FROM"))
    while not cursor.ended:
        if cursor.accept("PARTITION"):
            partition = partition_values(cursor)
        elif cursor.accept("IF", "NOT", "EXISTS"):
            raise cursor.error("IF NOT EXISTS after PARTITION is not supported: check with SHOW PARTITIONS")
        elif cursor.accept("BY", "NAME"):
            by_name = True
        elif cursor.sees("(") and not columns and not _is_query(cursor):
            columns = names(cursor)
        else:
            break
    query = cursor.rest()
    if not query:
        raise cursor.error("expected a query or VALUES")
    return Insert(
        name=name,
        query=query,
        columns=columns,
        partition=partition,
        by_name=by_name,
        overwrite=overwrite,
        replace_where=replace_where,
    )


def update(cursor: Cursor) -> Statement:
    """Read UPDATE after its keyword."""
    name = cursor.parts()
    alias = _alias(cursor, "SET")
    cursor.expect("SET")
    assignments = _assignments(cursor, cursor.until("WHERE", "FROM"))
    if cursor.sees("FROM"):
        raise cursor.error("UPDATE ... FROM is not supported: use MERGE INTO ... WHEN MATCHED THEN UPDATE")
    where = _condition(cursor, cursor.until()) if cursor.accept("WHERE") else ""
    cursor.end()
    return Update(name=name, alias=alias, assignments=assignments, where=where)


def delete(cursor: Cursor) -> Statement:
    """Read DELETE after its keyword."""
    cursor.accept("FROM")
    name = cursor.parts()
    alias = _alias(cursor, "WHERE", "USING")
    if cursor.sees("USING"):
        raise cursor.error("DELETE ... USING is not supported: use WHERE key IN (SELECT ...), or MERGE INTO")
    where = _condition(cursor, cursor.until()) if cursor.accept("WHERE") else ""
    cursor.end()
    return Delete(name=name, alias=alias, where=where)


def merge(cursor: Cursor) -> Statement:
    """Read MERGE after its keyword."""
    if cursor.accept("WITH", "SCHEMA", "EVOLUTION"):
        raise cursor.error("WITH SCHEMA EVOLUTION is not supported: add the columns with ALTER TABLE first")
    cursor.expect("INTO")
    name = cursor.parts()
    alias = _alias(cursor, "USING") or name[-1]
    cursor.expect("USING")
    if cursor.sees("("):
        source = f"({cut(cursor.text, cursor.group())})"
        source_name = "source"
    else:
        begin = cursor.at
        parts = cursor.parts("the source")
        if cursor.sees("("):
            cursor.group()
        cursor.until("AS", "ON") if cursor.token is not None and cursor.token.has_word("VERSION", "TIMESTAMP") else ()
        source_name = parts[-1]
        if cursor.sees("AS", "OF"):
            cursor.at += 2
            cursor.one_of("TIMESTAMP", "DATE")
            cursor.at += 1
        source = cut(cursor.text, cursor.tokens[begin : cursor.at])
    source_alias = _alias(cursor, "ON") or source_name
    columns = names(cursor) if cursor.sees("(") else ()
    cursor.expect("ON")
    on = _condition(cursor, cursor.until(("WHEN", "MATCHED"), ("WHEN", "NOT")))
    clauses = []
    while cursor.accept("WHEN"):
        clauses.append(_clause(cursor))
    cursor.end()
    if not clauses:
        raise cursor.error("MERGE needs at least one WHEN clause")
    return Merge(
        name=name,
        alias=alias,
        source=source,
        source_alias=source_alias,
        source_columns=columns,
        on=on,
        clauses=tuple(clauses),
    )


def _clause(cursor: Cursor) -> MergeClause:
    match = "matched"
    if cursor.accept("NOT"):
        match = "not_matched"
    cursor.expect("MATCHED")
    if match == "not_matched" and cursor.accept("BY"):
        match = "not_matched_by_source" if cursor.one_of("SOURCE", "TARGET") == "SOURCE" else "not_matched"
    condition = _condition(cursor, cursor.until("THEN")) if cursor.accept("AND") else ""
    cursor.expect("THEN")
    if cursor.accept("DELETE"):
        if match == "not_matched":
            raise cursor.error("WHEN NOT MATCHED takes INSERT only")
        return MergeClause(match=match, action="delete", condition=condition)
    if cursor.accept("UPDATE"):
        if match == "not_matched":
            raise cursor.error("WHEN NOT MATCHED takes INSERT only")
        cursor.expect("SET")
        if cursor.accept("*"):
            return MergeClause(match=match, action="update_all", condition=condition, except_cols=_except(cursor))
        assignments = _assignments(cursor, cursor.until("WHEN"))
        return MergeClause(match=match, action="update", condition=condition, assignments=assignments)
    cursor.expect("INSERT")
    if match != "not_matched":
        raise cursor.error("INSERT is only for WHEN NOT MATCHED")
    if cursor.accept("*"):
        return MergeClause(match=match, action="insert_all", condition=condition, except_cols=_except(cursor))
    columns = names(cursor)
    cursor.expect("VALUES")
    values = [cut(cursor.text, item) for item in split_list(cursor.text, cursor.group())]
    if len(columns) != len(values):
        raise cursor.error(f"INSERT has {len(columns)} columns and {len(values)} values")
    pairs = tuple(zip((name.rpartition(".")[2] for name in columns), values, strict=True))
    return MergeClause(match=match, action="insert", condition=condition, assignments=pairs)


def _condition(cursor: Cursor, tokens: tuple[Token, ...]) -> str:
    """Return the characters of a condition. No tokens are refused, because they would mean all rows."""
    if not tokens:
        raise cursor.error("expected a condition")
    return cut(cursor.text, tokens)


def _except(cursor: Cursor) -> tuple[str, ...]:
    return names(cursor) if cursor.accept("EXCEPT") else ()


def _assignments(cursor: Cursor, tokens: tuple[Token, ...]) -> tuple[tuple[str, str], ...]:
    """Return pairs of column and expression; the column keeps its qualifier."""
    assignments = []
    for item in split_list(cursor.text, tokens):
        part = Cursor(cursor.text, item)
        column = part.column()
        if not part.accept("=") and not part.accept("=="):
            raise part.error(f"expected = after the column {column}")
        value = part.rest()
        if not value:
            raise part.error(f"expected a value for the column {column}")
        assignments.append((column, value))
    if not assignments:
        raise cursor.error("expected column = value")
    return tuple(assignments)


def _alias(cursor: Cursor, *stops: str) -> str:
    if cursor.accept("AS"):
        return cursor.name("an alias")
    token = cursor.token
    return cursor.name() if token is not None and token.is_name and not token.has_word(*stops) else ""


def _is_query(cursor: Cursor) -> bool:
    """Return whether a query in parentheses begins here, and not a list of columns."""
    following = cursor.tokens[cursor.at + 1 : cursor.at + 2]
    return bool(following) and following[0].has_word(*_QUERY)
