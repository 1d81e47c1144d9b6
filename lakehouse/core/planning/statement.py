"""Clauses of UPDATE, DELETE and MERGE, bound to the columns of a table and a source.

Binding resolves the names in the texts of a statement. A bound expression names a column of the table `target.x` by
`TARGET + "x"`, and a column of the source by `SOURCE + "x"`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import pyarrow as pa

from lakehouse.core.expressions.column_path import root_of, spelled
from lakehouse.core.expressions.evaluate import matches, type_of_expression
from lakehouse.core.expressions.functions import check_functions
from lakehouse.core.expressions.parse import parse_expression
from lakehouse.errors import UserError, nearest
from lakehouse.model.expression import Column, Expression, Operation, Value, columns_in, rename_columns

#: Prefixes of the columns of both sides in bound expressions.
TARGET, SOURCE = "t\0", "s\0"


class When(StrEnum):
    """The rows for which a clause is considered."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class Verb(StrEnum):
    """What a clause does with a row."""

    UPDATE = "update"
    DELETE = "delete"
    INSERT = "insert"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClauseText:
    """A clause as the caller gave it.

    Attributes:
        when: The rows for which it is considered.
        verb: What it does.
        values: SQL text by column, or a literal; None for all columns of the source.
        predicate: A condition; None for all rows.
        except_columns: Columns that a clause for all columns leaves out.
    """

    when: When
    verb: Verb
    values: Mapping[str, Any] | None = field(default_factory=dict)
    predicate: str | None = None
    except_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Clause:
    """A bound clause; `values` are the assigned columns of the table, `is_star` whether they are all of the source."""

    when: When
    verb: Verb
    values: tuple[tuple[str, Expression], ...] = ()
    predicate: Expression | None = None
    is_star: bool = False

    @property
    def columns(self) -> frozenset[str]:
        """The columns that the clause assigns."""
        return frozenset(name for name, _ in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The columns of both sides and their aliases; a statement without a source has no source columns."""

    target: pa.Schema
    source: pa.Schema = field(default_factory=lambda: pa.schema([]))
    target_alias: str = "target"
    source_alias: str = "source"

    def bound(self, text: str, when: When, noun: str) -> Expression:
        """Parse an expression and resolve its names; raise UserError for an unknown or ambiguous column."""
        expression = parse_expression(text, noun=noun)
        check_functions(expression)
        return rename_columns(expression, lambda name: self._resolved(name, when, text))

    def schema(self) -> pa.Schema:
        """Return the columns of both sides with their names in bound expressions."""
        sides = ((TARGET, self.target), (SOURCE, self.source))
        return pa.schema([each.with_name(prefix + each.name) for prefix, side in sides for each in side])

    def _resolved(self, name: str, when: When, text: str) -> str:
        alias, _, rest = name.partition(".")
        sides = [(self.target_alias, TARGET, self.target), (self.source_alias, SOURCE, self.source)]
        for own_alias, prefix, schema in sides:
            column = spelled(rest, schema)
            if alias.lower() == own_alias.lower() and rest and _has(column, schema):
                return self._allowed(prefix, column, when, text)
        columns = [(prefix, spelled(name, schema), schema) for _, prefix, schema in sides if _is_allowed(prefix, when)]
        bound = [prefix + column for prefix, column, schema in columns if _has(column, schema)]
        if len(bound) == 1:
            return bound[0]
        if bound:
            raise UserError(
                f"column {name!r} in {text!r} is in the table and in the source: write {self.target_alias}.{name} or "
                f"{self.source_alias}.{name}",
                column=name,
            )
        options = [f"{own}." * bool(rest) + column for own, _, schema in sides for column in schema.names]
        raise UserError(f"column {name!r} in {text!r} does not exist.{nearest(name, options)}", column=name)

    def _allowed(self, prefix: str, name: str, when: When, text: str) -> str:
        if not _is_allowed(prefix, when):
            side = "table" if prefix == TARGET else "source"
            raise UserError(f"{text!r} uses a column of the {side}, which has no row when {when}", column=name)
        return prefix + name


def _is_allowed(prefix: str, when: When) -> bool:
    return when is When.MATCHED or (when is When.NOT_MATCHED) == (prefix == SOURCE)


def _has(name: str, schema: pa.Schema) -> bool:
    try:
        root_of(name, schema)
    except UserError:
        return False
    return True


def bind_clause(clause: ClauseText, names: Names) -> Clause:
    """Return a clause with resolved names; raise UserError for columns, types or conditions that do not fit."""
    predicate = None
    if clause.predicate is not None:
        predicate = names.bound(clause.predicate, clause.when, "condition")
        matches(predicate, names.schema().empty_table())
    if clause.verb is Verb.DELETE:
        return Clause(when=clause.when, verb=clause.verb, predicate=predicate)
    values = _star(clause, names) if clause.values is None else _assigned(clause, names)
    return Clause(when=clause.when, verb=clause.verb, values=values, predicate=predicate, is_star=clause.values is None)


def _star(clause: ClauseText, names: Names) -> tuple[tuple[str, Expression], ...]:
    target = {name: spelled(name, names.target) for name in names.source.names}
    unknown = [name for name in names.source.names if target[name] not in names.target.names]
    extra = [name for name in unknown if name not in clause.except_columns]
    if extra:
        raise UserError(
            f"the source has the columns {', '.join(extra)}, which the table lacks: add them to the table with "
            "table.alter(), or leave them out with except_cols",
            column=extra[0],
        )
    for name in clause.except_columns:
        if name not in names.source.names:
            raise UserError(f"except_cols: the source has no column {name!r}.{nearest(name, names.source.names)}")
    taken = [name for name in names.source.names if name not in clause.except_columns]
    twice = next((name for name in taken if [target[each] for each in taken].count(target[name]) > 1), None)
    if twice is not None:
        raise UserError(f"the source has several columns for the column {target[twice]!r} of the table: rename one")
    return tuple((target[name], Column(SOURCE + name)) for name in taken)


def _assigned(clause: ClauseText, names: Names) -> tuple[tuple[str, Expression], ...]:
    values = []
    for given, value in (clause.values or {}).items():
        name = spelled(given.removeprefix(f"{names.target_alias}."), names.target)
        if name not in names.target.names:
            hint = "; assign the whole struct" if "." in name else ""
            raise UserError(
                f"column {given!r} is not in the table{hint}.{nearest(name, names.target.names)}", column=given
            )
        expression = names.bound(value, clause.when, "value") if isinstance(value, str) else Value(_plain(value))
        if not (isinstance(expression, Value) and expression.value is None):
            type_of_expression(expression, names.schema())
        values.append((name, expression))
    if not values:
        raise UserError(f"when {clause.when}, {clause.verb}: name at least one column")
    return tuple(values)


def _plain(value: Any) -> Any:
    return value.as_py() if isinstance(value, pa.Scalar) else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """The condition of a MERGE: pairs of equal expressions, and what remains of the condition.

    Attributes:
        pairs: Expressions of the table and of the source whose values are equal.
        residual: The rest of the condition, for pairs of rows; None if nothing remains.
    """

    pairs: tuple[tuple[Expression, Expression], ...]
    residual: Expression | None = None

    def equal_columns(self) -> dict[str, Expression]:
        """Return the expression of the source by each column of the table that must equal it."""
        return {target.name.removeprefix(TARGET): source for target, source in self.pairs if isinstance(target, Column)}


def bind_join(on: str | Sequence[str], names: Names) -> Join:
    """Return the condition of a MERGE: SQL text, or names of columns that are equal on both sides."""
    if not isinstance(on, str):
        if not on:
            raise UserError("on: name at least one column, or give a condition", argument="on")
        columns = [(spelled(name, names.target), spelled(name, names.source)) for name in on]
        for both in columns:
            for name, side, schema in zip(both, ("table", "source"), (names.target, names.source), strict=True):
                if name not in schema.names:
                    raise UserError(f"on: column {name!r} is not in the {side}.{nearest(name, schema.names)}")
        return Join(pairs=tuple((Column(TARGET + target), Column(SOURCE + source)) for target, source in columns))
    condition = names.bound(on, When.MATCHED, "condition")
    matches(condition, names.schema().empty_table())
    parts = condition.arguments if isinstance(condition, Operation) and condition.name == "and" else (condition,)
    pairs, rest = [], []
    for part in parts:
        pair = _pair(part, names)
        if pair is None:
            rest.append(part)
        else:
            pairs.append(pair)
    residual = None if not rest else rest[0] if len(rest) == 1 else Operation("and", tuple(rest))
    return Join(pairs=tuple(pairs), residual=residual)


def _pair(part: Expression, names: Names) -> tuple[Expression, Expression] | None:
    """Return the two sides of an equality between the table and the source that a hash join can use."""
    if not isinstance(part, Operation) or part.name != "=":
        return None
    left, right = part.arguments
    prefixes = [{name[:2] for name in columns_in(side)} for side in (left, right)]
    if prefixes == [{SOURCE}, {TARGET}]:
        left, right = right, left
    elif prefixes != [{TARGET}, {SOURCE}]:
        return None
    schema = names.schema()
    # A hash join compares the bits of floats, but NaN equals NaN and -0.0 equals 0.0.
    if any(pa.types.is_floating(type_of_expression(side, schema)) for side in (left, right)):
        return None
    return left, right
