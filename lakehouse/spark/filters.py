"""Translates filters that Spark pushes into a data source to predicates."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    EqualNullSafe,
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

from lakehouse.core.planning.column_path import type_of
from lakehouse.errors import UserError
from lakehouse.model.predicate import And, Comparison, In, Not, Predicate, StartsWith
from lakehouse.model.predicate import IsNull as IsNullPredicate

_OPERATORS: dict[type, Any] = {
    EqualTo: "=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
}


def to_predicate(pushed: Filter, schema: pa.Schema | None = None) -> Predicate | None:
    """Return a filter of Spark as a predicate that holds for the same rows, or None if there is none.

    Args:
        pushed: The filter. A column with several names is a nested field.
        schema: The columns of the read. Without it the types of columns are not considered.
    """
    if isinstance(pushed, NotFilter):
        inner = to_predicate(pushed.child, schema)
        return None if inner is None else Not(inner)
    attribute: tuple[str, ...] = tuple(getattr(pushed, "attribute", ()))
    if not attribute or (len(attribute) > 1 and any("." in name for name in attribute)):
        return None
    column = ".".join(attribute)
    if isinstance(pushed, IsNull):
        return IsNullPredicate(column)
    if isinstance(pushed, IsNotNull):
        return Not(IsNullPredicate(column))
    if _orders_nan(pushed, column, schema):
        return None
    if isinstance(pushed, InFilter):
        return None if None in pushed.value else In(column, tuple(pushed.value))
    if isinstance(pushed, StringStartsWith):
        return StartsWith(column, pushed.value)
    value = getattr(pushed, "value", None)
    if isinstance(pushed, EqualNullSafe):
        # Null is not equal to a value here; a plain comparison with null is neither true nor false.
        equal = And((Comparison(column, "=", value), Not(IsNullPredicate(column))))
        return IsNullPredicate(column) if value is None else equal
    operator = _OPERATORS.get(type(pushed))
    return None if operator is None or value is None else Comparison(column, operator, value)


def _orders_nan(pushed: Filter, column: str, schema: pa.Schema | None) -> bool:
    """Whether Spark and Arrow may disagree: in Spark NaN equals NaN and is greater than all numbers."""
    if schema is None:
        return False
    try:
        if not pa.types.is_floating(type_of(column, schema)):
            return False
    except UserError:
        return True
    value = getattr(pushed, "value", None)
    values = value if isinstance(value, list | tuple) else [value]
    return isinstance(pushed, GreaterThan | GreaterThanOrEqual) or any(one != one for one in values)
