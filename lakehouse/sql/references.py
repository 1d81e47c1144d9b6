"""The references to tables in a query, and the replacement of each by the name of a view.

The query is parsed only to locate references and to collect conditions. Clauses that the parser of a dialect does not
support are replaced by blanks of the same length first, so that all positions are those of the original text:
time travel, the arguments of Hudi's table functions, and placeholders of pyspark in braces.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlglot
from sqlglot import exp
from sqlglot.errors import ErrorLevel, SqlglotError

from lakehouse.errors import UserError
from lakehouse.sql.pushdown import Condition, Node, pushed_conditions
from lakehouse.sql.tokens import Cursor, Token, name_parts, quoted, split_list, tokens_of

CHANGES, TIMELINE = "hudi_table_changes", "hudi_query_timeline"
TABLE_FUNCTIONS = (CHANGES, TIMELINE)
#: Hudi's table functions without an equivalent, each with the replacement.
OTHER_FUNCTIONS = {
    "hudi_metadata": "use CALL lakehouse.metadata(table => '...', op => 'show')",
    "hudi_filesystem_view": "use CALL lakehouse.show_files(table => '...')",
}
_VERSIONED = ("VERSION", "TIMESTAMP", "SYSTEM_VERSION", "SYSTEM_TIME")
#: Statements in which a view can replace a table: queries, and writes of other tables.
_READS = (exp.Query, exp.Values, exp.Insert, exp.Create, exp.Merge, exp.Update, exp.Delete, exp.Describe)
#: Words that select all columns of a table without naming them.
_ALL_COLUMNS = ("NATURAL", "PIVOT", "UNPIVOT", "TABLE")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeTravelClause:
    """`VERSION AS OF` or `TIMESTAMP AS OF` with a literal."""

    kind: str
    value: str
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """One reference to a table in a query.

    Attributes:
        name: The parts of the name; for a table function its first argument.
        start: The position of the first character that a view replaces.
        end: The position after the last character.
        alias: The alias in the query; empty if there is none.
        sample_end: The position after a TABLESAMPLE clause, which has its place before the alias; otherwise `end`.
        version: The time travel clause, if any.
        function: The table function; empty for a table.
        arguments: The arguments of the table function after the name of the table.
        conditions: Conditions on the table that every row of the result meets.
        qualifiers: Ranges of namespaces before columns (`sales.orders.id`), which a view does not have.
    """

    name: tuple[str, ...]
    start: int
    end: int
    alias: str = ""
    sample_end: int = 0
    version: TimeTravelClause | None = None
    function: str = ""
    arguments: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    qualifiers: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryReferences:
    """The references in a statement.

    `is_read` is whether a view can replace a reference. `words` are all names and words of the statement in lower
    case. If `has_star`, the query needs all columns. `created` is the name of the table or view that the statement
    creates in the engine, unless it is temporary; `makes_table` is whether it is a table.
    """

    text: str
    is_read: bool = True
    created: tuple[str, ...] = ()
    makes_table: bool = False
    references: tuple[Reference, ...] = ()
    words: frozenset[str] = frozenset()
    has_star: bool = False


class UnparsedStatement(Exception):
    """The parser of the dialect does not support the statement; `detail` is the syntax error, if there is one."""

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail)
        self.detail = detail


@dataclass(slots=True)
class _Blanks:
    """The statement with blanks, and the clauses that were replaced."""

    characters: list[str]
    clauses: list[TimeTravelClause] = field(default_factory=list)
    functions: dict[int, tuple[int, tuple[str, ...]]] = field(default_factory=dict)

    def blank(self, start: int, end: int) -> None:
        self.characters[start:end] = " " * (end - start)


def find_references(text: str, dialect: str) -> QueryReferences:
    """Return the references of a statement; raise UnparsedStatement if the dialect does not support it."""
    tokens = tokens_of(text, dialect)
    blanks = _Blanks(list(text))
    _blank_clauses(text, tokens, blanks)
    try:
        parsed = sqlglot.parse("".join(blanks.characters), read=dialect, error_level=ErrorLevel.RAISE)
    except (SqlglotError, RecursionError) as error:
        raise UnparsedStatement(_syntax_error(error)) from None
    trees = [tree for tree in parsed if tree is not None]
    if len(trees) != 1 or isinstance(trees[0], exp.Command):
        raise UnparsedStatement
    tree: Node = trees[0]
    target = _created(tree)
    spans = [table for table in _tables(tree, blanks) if table is not target]
    return QueryReferences(
        text=text,
        is_read=isinstance(tree, _READS) and not (isinstance(tree, exp.Create) and tree.find(exp.LikeProperty)),
        created=() if target is None or _is_temporary(tree) else _name_of(target),
        makes_table=target is not None and tree.kind == "TABLE",
        references=tuple(_reference(text, tokens, table, tree, blanks) for table in spans),
        words=frozenset(token.text.lower() for token in tokens),
        has_star=_has_star(tree, tokens, spans),
    )


def _created(tree: Node) -> exp.Table | None:
    """Return the name that a statement gives to a new table or view, which is not a reference."""
    if not isinstance(tree, exp.Create) or tree.kind not in ("TABLE", "VIEW"):
        return None
    target = tree.this.this if isinstance(tree.this, exp.Schema) else tree.this
    return target if isinstance(target, exp.Table) else None


def _is_temporary(tree: Node) -> bool:
    properties = tree.args.get("properties")
    return properties is not None and properties.find(exp.TemporaryProperty) is not None


def _name_of(table: exp.Table) -> tuple[str, ...]:
    return tuple(part.name for part in (table.args.get("catalog"), table.args.get("db"), table.this) if part)


def _syntax_error(error: Exception) -> str:
    """Return the place of a syntax error; empty if the parser does not report one."""
    reports = getattr(error, "errors", None)
    if not reports:
        return ""
    report = reports[0]
    near = f"near {report['highlight']!r}" if report.get("highlight") else "at the end"
    return f"syntax error {near} in line {report.get('line')}, column {report.get('col')}"


def replaced(text: str, views: Mapping[Reference, str], mark: str) -> str:
    """Return the statement with a view, or an expression in parentheses, in place of each reference."""
    edits: list[tuple[int, int, str]] = []
    for reference, view in views.items():
        alias = "" if reference.alias else f" AS {quoted(reference.name[-1], mark)}"
        after = max(reference.sample_end, reference.end)
        if after > reference.end:
            edits += [(reference.start, reference.end, view), (after, after, alias)]
        else:
            edits.append((reference.start, reference.end, view + alias))
        edits += [(start, end, "") for start, end in reference.qualifiers]
    for start, end, new in sorted(set(edits), reverse=True):
        text = text[:start] + new + text[end:]
    return text


def named_tables(text: str, dialect: str) -> Iterator[tuple[str, ...]]:
    """Yield each name with dots in a statement: the tables that a statement may name that cannot be parsed."""
    cursor = Cursor(text, tokens_of(text, dialect))
    while not cursor.ended:
        token = cursor.token
        if token is None or not token.is_name:
            cursor.at += 1
            continue
        names = [cursor.name()]
        while cursor.sees(".") and cursor.at + 1 < len(cursor.tokens) and cursor.tokens[cursor.at + 1].is_name:
            cursor.at += 1
            names.append(cursor.name())
        yield tuple(names)


def _blank_clauses(text: str, tokens: Sequence[Token], blanks: _Blanks) -> None:
    cursor = Cursor(text, tokens)
    if cursor.accept("EXPLAIN"):
        cursor.one_of("EXTENDED", "FORMATTED", "COST", "CODEGEN", "ANALYZE")
        blanks.blank(tokens[0].start, tokens[cursor.at - 1].end)
    while not cursor.ended:
        token = cursor.tokens[cursor.at]
        begin = cursor.at
        if token.text.lower() in TABLE_FUNCTIONS and not token.is_string:
            cursor.at += 1
            if cursor.sees("("):
                _blank_function(text, cursor, token, blanks)
            continue
        if token.is_name and token.text.lower() in OTHER_FUNCTIONS:
            raise UserError(f"{token.text} is not supported: {OTHER_FUNCTIONS[token.text.lower()]}")
        if token.text == "{" and begin + 2 < len(tokens) and tokens[begin + 2].text == "}":
            blanks.characters[token.start], blanks.characters[tokens[begin + 2].start] = "_", "_"
            cursor.at += 3
            continue
        cursor.at += 1
        if begin > 0 and (token.has_word("FOR") or token.has_word(*_VERSIONED)) and tokens[begin - 1].text != ",":
            _blank_version(cursor, begin, blanks)


def _blank_version(cursor: Cursor, begin: int, blanks: _Blanks) -> None:
    cursor.at = begin
    cursor.accept("FOR")
    kind = cursor.one_of(*_VERSIONED)
    if not kind or not cursor.accept("AS", "OF"):
        cursor.at = begin + 1
        return
    cursor.one_of("TIMESTAMP", "DATE")
    token = cursor.token
    if token is None or not (token.is_string or token.text.isdigit()):
        raise cursor.error(f"{kind} AS OF needs a literal, such as '2026-01-31 12:00:00' or an instant")
    cursor.at += 1
    start = cursor.tokens[begin].start
    # Without the digits a month such as 2026-1-3 would not be refused.
    blanks.clauses.append(TimeTravelClause(kind=kind, value=token.text, start=start, end=token.end))
    blanks.blank(start, token.end)


def _blank_function(text: str, cursor: Cursor, token: Token, blanks: _Blanks) -> None:
    opening = cursor.tokens[cursor.at]
    arguments = []
    for item in split_list(text, cursor.group()):
        literals = [one.text for one in item if one.is_string or one.text.isdigit()]
        if len(literals) != 1 or len(item) > 3:
            raise cursor.error(f"{token.text} takes literals: the name of the table in quotes, then strings")
        arguments.append(literals[0])
    end = cursor.tokens[cursor.at - 1].end
    blanks.functions[token.start] = (end, tuple(arguments))
    blanks.blank(opening.start, end)


def _tables(tree: Node, blanks: _Blanks) -> Iterator[exp.Table]:
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier) or "start" not in table.this.meta:
            continue
        if not table.args.get("db") and _is_cte(table):
            continue
        yield table


def _is_cte(table: exp.Table) -> bool:
    """Return whether the name of a table is the name of a common table expression that is visible there."""
    name = table.name.lower()
    inner: Node = table
    node: Node = table.parent
    while node is not None:
        clause = node.args.get("with_") or node.args.get("with")
        is_visible = clause is not None and clause is not inner
        if is_visible and any(cte.alias.lower() == name for cte in clause.expressions):
            return True
        if isinstance(node, exp.With):
            for cte in node.expressions:
                if cte is inner and not node.recursive:
                    break
                if cte.alias.lower() == name:
                    return True
                if cte is inner:
                    break
            # The query that owns the clause was visited by its definition, so it is skipped.
            inner, node = node.parent, node.parent.parent if node.parent is not None else None
            continue
        inner, node = node, node.parent
    return False


def _span(table: exp.Table) -> tuple[int, int]:
    parts = [part for part in (table.args.get("catalog"), table.args.get("db"), table.this) if part is not None]
    return parts[0].meta["start"], parts[-1].meta["end"] + 1


def _reference(text: str, tokens: Sequence[Token], table: exp.Table, tree: Node, blanks: _Blanks) -> Reference:
    start, end = _span(table)
    name = _name_of(table)
    following = next((clause for clause in blanks.clauses if clause.start >= end), None)
    version = following if following is not None and not text[end : following.start].strip() else None
    function = ""
    arguments: tuple[str, ...] = ()
    if start in blanks.functions:
        function = name[-1].lower()
        end, arguments = blanks.functions[start]
        if not arguments:
            raise UserError(f"{function} needs the name of a table in quotes")
        name = name_parts(arguments[0])
    if version is not None:
        end = version.end
    return Reference(
        name=name,
        start=start,
        end=end,
        alias=table.alias,
        sample_end=_sample_end(text, tokens, end),
        version=version,
        function=function,
        arguments=tuple(arguments[1:]),
        # sqlglot rewrites pipes, so the conditions in the tree may differ from the statement.
        conditions=() if function or _has_pipe(tokens) else pushed_conditions(table),
        qualifiers=tuple(_qualifiers(tree, name)) if len(name) > 1 else (),
    )


def _sample_end(text: str, tokens: Sequence[Token], end: int) -> int:
    cursor = Cursor(text, tokens, next((at for at, token in enumerate(tokens) if token.start >= end), len(tokens)))
    if not cursor.accept("TABLESAMPLE"):
        return end
    cursor.group()
    if cursor.accept("REPEATABLE"):
        cursor.group()
    return cursor.tokens[cursor.at - 1].end


def _qualifiers(tree: Node, name: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    wanted = tuple(part.lower() for part in name)
    for column in tree.find_all(exp.Column):
        parts = [column.args.get(key) for key in ("catalog", "db", "table")]
        named = [part for part in parts if part is not None]
        if len(named) < 2:
            continue
        if tuple(part.name.lower() for part in named) in (wanted, wanted[-2:]):
            yield named[0].meta["start"], named[-1].meta["start"]


def _has_pipe(tokens: Sequence[Token]) -> bool:
    return any(token.text == "|>" and not token.is_string for token in tokens)


def _has_star(tree: Node, tokens: Sequence[Token], tables: Sequence[exp.Table]) -> bool:
    if _has_pipe(tokens) or any(token.has_word(*_ALL_COLUMNS) for token in tokens):
        return True
    names = {name.lower() for table in tables for name in (table.alias, table.name)}
    for node in tree.find_all(exp.Star, exp.Column):
        if isinstance(node, exp.Star) and not isinstance(node.parent, exp.Count):
            return True
        is_row = isinstance(node, exp.Column) and not node.table and node.name.lower() in names
        if is_row and not isinstance(node.this, exp.Star):
            return True
    return not any(True for _ in tree.find_all(exp.Select))


def literal_text(value: Any) -> str:
    """Return a value of Python as a SQL literal; raise UserError for a type without a literal."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, float) and not math.isfinite(value):
        return f"CAST('{value}' AS DOUBLE)"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    kind = type(value).__name__
    if kind == "Decimal":
        return str(value)
    if kind == "datetime":
        return f"TIMESTAMP '{value.isoformat(sep=' ')}'"
    if kind == "date":
        return f"DATE '{value.isoformat()}'"
    raise UserError(f"a parameter of type {kind} has no SQL literal here; write the value in the statement")
