"""Conditions on rows. A reader may skip rows and files for which a condition does not hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

Operator = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True, slots=True)
class Comparison:
    """`column operator value`; the value is a Python value, never None."""

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
    """The text of `column` starts with `prefix`."""

    column: str
    prefix: str


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


Predicate = Comparison | In | IsNull | StartsWith | Not | And | Or


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Yield the columns of a predicate."""
    if isinstance(predicate, And | Or):
        for part in predicate.parts:
            yield from columns_of(part)
    elif isinstance(predicate, Not):
        yield from columns_of(predicate.part)
    else:
        yield predicate.column
