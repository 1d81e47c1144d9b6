"""Conditions on rows. A reader may skip rows and files for which a condition does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lakehouse.model.expression import Expression, columns_in

Operator = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class TimeLiteral:
    """The literal `DATE 'text'`, `TIMESTAMP 'text'` or `TIME 'text'`."""

    type: Literal["DATE", "TIMESTAMP", "TIME"]
    text: str

    def __str__(self) -> str:
        return f"{self.type} '{self.text}'"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`; the value is a literal or a typed value of Arrow, never None.

    Numbers with a fraction or an exponent are `decimal.Decimal`, so that no digit is lost.
    """

    column: str
    operator: Operator
    value: Any


@dataclass(frozen=True, slots=True)
class In:
    """`column IN values`; many values are an array (`expressions.literals.ArrowValues`)."""

    column: str
    values: Sequence[Any]


@dataclass(frozen=True, slots=True)
class IsNull:
    """`column IS NULL`."""

    column: str


@dataclass(frozen=True, slots=True)
class StartsWith:
    """The string in `column` starts with `prefix`."""

    column: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Call:
    """A function of a column, such as `hour(at)`; `options` are its further arguments by name, sorted."""

    function: str
    column: str
    options: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The call as written in a condition. In the condition `Applied.part` it is the name of the result."""
        arguments = "".join(f", '{value.replace(chr(39), 2 * chr(39))}'" for _, value in self.options)
        return f"{self.function}({self.column}{arguments})"


@dataclass(frozen=True, slots=True)
class Applied:
    """The condition `part` holds for the result of a function; the column of `part` is `call.text`."""

    call: Call
    part: Comparison | In | IsNull | StartsWith


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A condition that only rows can answer, such as `price * quantity > 10`.

    Attributes:
        expression: The condition; Arrow evaluates it on rows.
        implied: A condition for statistics, which holds for every row that meets the expression; None if there is none.
    """

    expression: Expression
    implied: Predicate | None = None


@dataclass(frozen=True, slots=True)
class Not:
    """The condition does not hold."""

    part: Predicate


@dataclass(frozen=True, slots=True)
class And:
    """All conditions hold; true when empty."""

    parts: tuple[Predicate, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """At least one condition holds."""

    parts: tuple[Predicate, ...]


Predicate = Comparison | In | IsNull | StartsWith | Applied | Evaluated | Not | And | Or


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Yield the columns of a predicate, including those to which functions are applied."""
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from columns_of(part)
    elif isinstance(predicate, Not):
        yield from columns_of(predicate.part)
    elif isinstance(predicate, Applied):
        yield predicate.call.column
    elif isinstance(predicate, Evaluated):
        yield from columns_in(predicate.expression)
    else:
        yield predicate.column


def calls_of(predicate: Predicate) -> Iterator[Call]:
    """Yield the functions of columns in a predicate."""
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from calls_of(part)
    elif isinstance(predicate, Not):
        yield from calls_of(predicate.part)
    elif isinstance(predicate, Applied):
        yield predicate.call


def evaluated_in(predicate: Predicate) -> Iterator[Evaluated]:
    """Yield the parts of a predicate that only rows can answer."""
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from evaluated_in(part)
    elif isinstance(predicate, Not):
        yield from evaluated_in(predicate.part)
    elif isinstance(predicate, Evaluated):
        yield predicate


def statistics_condition(predicate: Predicate | None) -> Predicate | None:
    """Return the condition that statistics, indexes and partition paths can answer; None if there is none.

    It holds for every row that meets the predicate, and contains no `Evaluated`.
    """
    if predicate is None or next(evaluated_in(predicate), None) is None:
        return predicate
    if isinstance(predicate, Evaluated):
        return predicate.implied
    if isinstance(predicate, Not):
        return None
    parts = [statistics_condition(part) for part in predicate.parts] if isinstance(predicate, And | Or) else []
    answered = tuple(part for part in parts if part is not None)
    if isinstance(predicate, Or):
        return Or(answered) if len(answered) == len(parts) else None
    return (answered[0] if len(answered) == 1 else And(answered)) if answered else None
