"""Expressions over the columns of rows, as SQL text describes them.

`core.expressions` parses them and evaluates them on Arrow data. Expressions are compared by value and can be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Column:
    """A column by its path; `a.b` is the field `b` of the struct column `a`."""

    name: str


@dataclass(frozen=True, slots=True)
class Value:
    """A literal: None, a boolean, an integer, a `Decimal`, a float, a string or a `TimeLiteral`."""

    value: Any


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator or a function with its arguments.

    Attributes:
        name: The operator, such as `+` or `and`, or the name of the function in lower case.
        arguments: The arguments in the order of Spark SQL.
        option: The type of a cast, or the unit of an interval.
    """

    name: str
    arguments: tuple[Expression, ...]
    option: str = ""


Expression = Column | Value | Operation


def columns_in(expression: Expression) -> Iterator[str]:
    """Yield the columns of an expression; a column that occurs twice is yielded twice."""
    if isinstance(expression, Column):
        yield expression.name
    elif isinstance(expression, Operation):
        for argument in expression.arguments:
            yield from columns_in(argument)


def rename_columns(expression: Expression, name_of: Callable[[str], str]) -> Expression:
    """Return the expression with each column name replaced by `name_of(name)`."""
    if isinstance(expression, Column):
        return Column(name_of(expression.name))
    if isinstance(expression, Operation):
        arguments = tuple(rename_columns(argument, name_of) for argument in expression.arguments)
        return Operation(expression.name, arguments, expression.option)
    return expression
