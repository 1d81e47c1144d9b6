"""Translates filters that Spark pushes into a data source to predicates."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.datasource import In as InFilter
from pyspark.sql.datasource import Not as NotFilter

from lakehouse.model.predicate import Comparison, In, Not, Predicate, StartsWith
from lakehouse.model.predicate import IsNull as IsNullPredicate

_OPERATORS: dict[type, Any] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def to_predicate(pushed: Filter) -> Predicate | None:
    """Return a filter of Spark as a predicate, or None if its kind is not supported."""
    if isinstance(pushed, NotFilter):
        inner = to_predicate(pushed.child)
        return None if inner is None else Not(inner)
    attribute: tuple[str, ...] = getattr(pushed, "attribute", ())
    if len(attribute) != 1:
        return None
    column = attribute[0]
    if isinstance(pushed, IsNull):
        return IsNullPredicate(column)
    if isinstance(pushed, IsNotNull):
        return Not(IsNullPredicate(column))
    if isinstance(pushed, InFilter):
        return None if None in pushed.value else In(column, tuple(pushed.value))
    if isinstance(pushed, StringStartsWith):
        return StartsWith(column, pushed.value)
    operator = _OPERATORS.get(type(pushed))
    value = getattr(pushed, "value", None)
    return None if operator is None or value is None else Comparison(column, operator, value)
