"""Conditions of a query that a scan can use: comparisons of a column with literals.

A condition is used only if every row in the result meets it, whatever the other tables contain: conjuncts
of WHERE for tables whose rows no outer join replaces by nulls, and conjuncts of ON for the joined table. The engine
evaluates the original text again, so a condition may be left out, but it must never exclude a row of the result.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp

#: A node of a syntax tree; the names of its base classes differ between versions of sqlglot.
Node = Any
_COMPARISONS: Mapping[type, str] = {exp.EQ: "=", exp.GT: ">", exp.GTE: ">=", exp.LT: "<", exp.LTE: "<=", exp.NEQ: "<>"}
_MIRRORED = {"=": "=", ">": "<", ">=": "<=", "<": ">", "<=": ">=", "<>": "<>"}
_DAY = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d:\d\d(?:\.\d{1,6})?)?")
_NUMBER = re.compile(r"-?\d{1,30}(?:\.\d{1,30})?")
_COLUMN = re.compile(r"[A-Za-z_]\w*", re.ASCII)
#: Names that the language of conditions reserves.
_RESERVED = frozenset(
    [
        "and",
        "or",
        "not",
        "in",
        "is",
        "null",
        "like",
        "between",
        "true",
        "false",
        "date",
        "timestamp",
        "time",
        "case",
        "when",
        "then",
        "else",
        "end",
        "cast",
        "interval",
    ]
)


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal: `kind` is number, string, boolean, date or timestamp."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """A column and an operator with its literals: a comparison, [NOT] IN, BETWEEN, LIKE or IS [NOT] NULL."""

    column: str
    operator: str
    literals: tuple[Literal, ...] = ()


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A disjunction."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class AllOf:
    """A conjunction."""

    parts: tuple[Condition, ...]


Condition = Comparison | AnyOf | AllOf


def pushed_conditions(table: exp.Table) -> tuple[Condition, ...]:
    """Return the conditions on one reference to a table in a parsed query."""
    select, join = _owner(table)
    if select is None:
        return ()
    joins: Sequence[exp.Join] = select.args.get("joins") or ()
    name, where = table.alias_or_name, select.args.get("where")
    conditions: list[Condition] = []
    has_outer = any(_side(one) in ("RIGHT", "FULL") for one in joins)
    if where is not None and not has_outer and (join is None or _is_inner(join)):
        is_alone = not joins and not select.args.get("laterals")
        conditions += _conjuncts(where.this, name, alone=is_alone)
    on = None if join is None else join.args.get("on")
    if join is not None and on is not None and (_is_inner(join) or _is_left(join)):
        conditions += _conjuncts(on, name, alone=False)
    return tuple(conditions)


def _side(join: exp.Join) -> str:
    return str(join.args.get("side") or "").upper()


def _kind(join: exp.Join) -> str:
    return str(join.args.get("kind") or "").upper()


def _is_inner(join: exp.Join) -> bool:
    return _side(join) == "" and _kind(join) in ("", "INNER", "CROSS")


def _is_left(join: exp.Join) -> bool:
    return _side(join) == "LEFT" and _kind(join) in ("", "OUTER")


def where_text(conditions: Sequence[Condition], schema: pa.Schema, *, is_utc: bool) -> str | None:
    """Return the conditions that have the same meaning for a scan as for the engine, as one condition; None if none.

    `is_utc` is whether the engine reads timestamps without a zone as UTC.
    """
    names: dict[str, list[pa.Field]] = {}
    for column in schema:
        names.setdefault(column.name.lower(), []).append(column)
    rendered = [text for text in (_rendered(one, names, is_utc) for one in conditions) if text is not None]
    return " AND ".join(f"({text})" for text in dict.fromkeys(rendered)) or None


def _owner(table: exp.Table) -> tuple[exp.Select | None, exp.Join | None]:
    """Return the query that reads the table directly, and the join whose right side the table is."""
    parent = table.parent
    if table.args.get("joins") or table.args.get("pivots") or table.args.get("sample"):
        return None, None
    if isinstance(parent, exp.From) and isinstance(parent.parent, exp.Select):
        return parent.parent, None
    if isinstance(parent, exp.Join) and isinstance(parent.parent, exp.Select) and parent.this is table:
        return parent.parent, parent
    return None, None


def _conjuncts(node: Node, name: str, *, alone: bool) -> Iterator[Condition]:
    if isinstance(node, exp.Paren):
        yield from _conjuncts(node.this, name, alone=alone)
    elif isinstance(node, exp.And):
        yield from _conjuncts(node.this, name, alone=alone)
        yield from _conjuncts(node.expression, name, alone=alone)
    else:
        condition = _condition(node, name, alone)
        if condition is not None:
            yield condition


def _condition(node: Node, name: str, alone: bool) -> Condition | None:
    """Return a condition of supported form, or None."""
    if isinstance(node, exp.Paren):
        return _condition(node.this, name, alone)
    read = _FORMS.get(type(node))
    return None if read is None else read(node, name, alone)


def _connected(node: Node, name: str, alone: bool) -> Condition | None:
    parts = [_condition(part, name, alone) for part in (node.this, node.expression)]
    if any(part is None for part in parts):
        return None
    complete = tuple(part for part in parts if part is not None)
    return AllOf(complete) if isinstance(node, exp.And) else AnyOf(complete)


def _between(node: Node, name: str, alone: bool) -> Condition | None:
    if node.args.get("symmetric"):
        return None
    return _listed(node.this, "BETWEEN", (node.args["low"], node.args["high"]), (name, alone))


def _in(node: Node, name: str, alone: bool) -> Condition | None:
    if not node.expressions or node.args.get("query"):
        return None
    return _listed(node.this, "IN", node.expressions, (name, alone))


def _is_null(node: Node, name: str, alone: bool) -> Condition | None:
    return _listed(node.this, "IS NULL", (), (name, alone)) if isinstance(node.expression, exp.Null) else None


def _like(node: Node, name: str, alone: bool) -> Condition | None:
    pattern = node.expression
    is_prefix = isinstance(pattern, exp.Literal) and pattern.is_string and re.fullmatch(r"[^%_\\]+%", pattern.name)
    return _listed(node.this, "LIKE", (pattern,), (name, alone)) if is_prefix else None


def _negation(node: exp.Not, name: str, alone: bool) -> Condition | None:
    inner = node.this.this if isinstance(node.this, exp.Paren) else node.this
    if isinstance(inner, exp.Is) and isinstance(inner.expression, exp.Null):
        return _listed(inner.this, "IS NOT NULL", (), (name, alone))
    if isinstance(inner, exp.In) and inner.expressions and not inner.args.get("query"):
        return _listed(inner.this, "NOT IN", inner.expressions, (name, alone))
    return None


def _comparison(node: Node, name: str, alone: bool) -> Condition | None:
    operator = _COMPARISONS[type(node)]
    left, right = node.this, node.expression
    if isinstance(right, exp.Column):
        left, right, operator = right, left, _MIRRORED[operator]
    return _listed(left, operator, (right,), (name, alone))


def _listed(column: Node, operator: str, values: Sequence[Node], source: tuple[str, bool]) -> Comparison | None:
    name, alone = source
    if not isinstance(column, exp.Column) or column.args.get("db") or not isinstance(column.this, exp.Identifier):
        return None
    if column.table.lower() != name.lower() if column.table else not alone:
        return None
    literals = [_literal(value) for value in values]
    if any(literal is None for literal in literals):
        return None
    return Comparison(column.name, operator, tuple(literal for literal in literals if literal is not None))


def _literal(node: Node) -> Literal | None:
    if isinstance(node, exp.Neg) and isinstance(node.this, exp.Literal) and not node.this.is_string:
        return Literal("number", f"-{node.this.name}")
    if isinstance(node, exp.Literal):
        return Literal("string" if node.is_string else "number", node.name)
    if isinstance(node, exp.Boolean):
        return Literal("boolean", str(node.this).lower())
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) and node.this.is_string:
        kind = node.to.this
        if kind is exp.DataType.Type.DATE:
            return Literal("date", node.this.name)
        if kind in (exp.DataType.Type.TIMESTAMP, exp.DataType.Type.TIMESTAMPTZ, exp.DataType.Type.TIMESTAMPNTZ):
            return Literal("timestamp", node.this.name)
    return None


def _rendered(condition: Condition, names: dict[str, list[pa.Field]], is_utc: bool) -> str | None:
    if isinstance(condition, Comparison):
        fields = names.get(condition.column.lower(), [])
        return _comparison_text(condition, fields[0], is_utc) if len(fields) == 1 else None
    parts = [_rendered(part, names, is_utc) for part in condition.parts]
    if isinstance(condition, AnyOf) and any(part is None for part in parts):
        return None
    joined = " AND " if isinstance(condition, AllOf) else " OR "
    return joined.join(f"({part})" for part in parts if part is not None) or None


def _comparison_text(condition: Comparison, field: pa.Field, is_utc: bool) -> str | None:
    column, operator = field.name, condition.operator
    if not _COLUMN.fullmatch(column) or column.lower() in _RESERVED:
        return None
    literals = [_literal_text(literal, field.type, is_utc) for literal in condition.literals]
    if any(literal is None for literal in literals) or (operator == "LIKE" and not pa.types.is_string(field.type)):
        return None
    values = [literal for literal in literals if literal is not None]
    if operator in ("IN", "NOT IN"):
        return f"{column} {operator} ({', '.join(values)})"
    return f"{column} {operator} {' AND '.join(values)}".rstrip()


def _literal_text(literal: Literal, kind: pa.DataType, is_utc: bool) -> str | None:
    """Return the literal if a comparison with a column of this type needs no conversion of the column."""
    text, types = literal.text, pa.types
    is_text = literal.kind == "string"
    if types.is_string(kind) or types.is_large_string(kind):
        return "'" + text.replace("'", "''") + "'" if is_text and "\\" not in text else None
    if types.is_integer(kind) or types.is_decimal(kind) or types.is_floating(kind):
        return text if literal.kind == "number" and _NUMBER.fullmatch(text) else None
    if types.is_boolean(kind):
        return text if literal.kind == "boolean" else None
    if types.is_date32(kind):
        return f"DATE '{text}'" if literal.kind in ("string", "date") and _DAY.fullmatch(text) else None
    if types.is_timestamp(kind) and is_utc:
        return f"TIMESTAMP '{text}'" if literal.kind in ("string", "timestamp") and _MOMENT.fullmatch(text) else None
    return None


_FORMS: Mapping[type, Callable[[Node, str, bool], Condition | None]] = {
    **dict.fromkeys(_COMPARISONS, _comparison),
    exp.And: _connected,
    exp.Or: _connected,
    exp.Between: _between,
    exp.In: _in,
    exp.Is: _is_null,
    exp.Not: _negation,
    exp.Like: _like,
}
