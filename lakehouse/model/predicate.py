"""Conditions on rows. A reader may skip rows and files for which a condition does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

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
    """`column IN values`."""

    column: str
    values: tuple[Any, ...]


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


Predicate = Comparison | In | IsNull | StartsWith | Applied | Not | And | Or


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Yield the columns of a predicate, including those to which functions are applied."""
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from columns_of(part)
    elif isinstance(predicate, Not):
        yield from columns_of(predicate.part)
    elif isinstance(predicate, Applied):
        yield predicate.call.column
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
