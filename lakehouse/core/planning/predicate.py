"""Apply predicates to rows; `ranges` evaluates them on column ranges, `expressions` parses them.

Conditions of the form `column operator literal` become Arrow expressions. A function of a column for which indexes
exist, such as `hour(at)`, is computed as a further column first; see `rows.index_functions`. All other conditions are
evaluated on the rows that meet these.

Rows are compared as in Spark: literals exactly in the type of their column (see `literals`), NaN equals NaN and is
greater than all numbers, and -0.0 equals 0.0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.column_path import expression_of, path_of, type_of
from lakehouse.core.expressions.literals import arrow_values, typed_comparison, typed_list
from lakehouse.core.rows.index_functions import IndexFunction, index_function
from lakehouse.errors import UserError
from lakehouse.model.expression import Expression
from lakehouse.model.predicate import (
    And,
    Applied,
    Call,
    Comparison,
    Evaluated,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    calls_of,
    columns_of,
    evaluated_in,
)

__all__ = ["Range", "check_columns", "function_of", "matching", "parse_predicate", "result_field", "to_arrow"]


Range = tuple[Any, Any, int]


def parse_predicate(text: str) -> Predicate:
    """Parse a condition; raise UserError for a syntax error, an unknown function, or a construct that is no condition.

    The parser is imported when it is used first: a read without a condition does not need it.
    """
    predicate: Predicate = import_module("lakehouse.core.expressions.conditions").parse_predicate(text)
    return predicate


def matches_of(condition: Expression, rows: pa.Table) -> pa.Array:
    """Evaluate a condition on rows: true, false or null for each row."""
    return import_module("lakehouse.core.expressions.evaluate").matches(condition, rows)


def check_columns(predicate: Predicate, schema: pa.Schema) -> None:
    """Raise UserError for a column that `schema` lacks, with a similar name, and for a literal of another type."""
    for name in columns_of(predicate):
        path_of(name, schema)
    for part in evaluated_in(predicate):
        matches_of(part.expression, schema.empty_table())
    to_arrow(predicate, schema)


def matching(rows: pa.Table, where: Predicate, schema: pa.Schema) -> pa.Table:
    """Return the rows that meet a condition."""
    if isinstance(where, And) and next(evaluated_in(where), None) is not None:
        # Conditions on single columns are applied first: they are cheaper, and later ones see fewer rows.
        parts = sorted(where.parts, key=lambda part: next(evaluated_in(part), None) is not None)
        for part in parts:
            rows = matching(rows, part, schema)
        return rows
    filtered = rows
    for text, call in {call.text: call for call in calls_of(where)}.items():
        column, *inner = path_of(call.column, schema)
        values = rows.column(column)
        for name in inner:
            values = pc.struct_field(values, name)
        filtered = filtered.append_column(text, function_of(call).of_rows(values))
    for part in dict.fromkeys(evaluated_in(where)):
        if isinstance(where, Evaluated):
            return rows.filter(matches_of(part.expression, rows)) if rows.num_rows else rows
        filtered = filtered.append_column(_flag(part), matches_of(part.expression, rows))
    matches = filtered.filter(to_arrow(where, schema))
    return matches.select(range(rows.num_columns)) if filtered is not rows else matches


def _flag(part: Evaluated) -> str:
    """Return the name of the column with the results of a condition that Arrow expressions do not contain."""
    return f"\0{part.expression}"


def function_of(call: Call) -> IndexFunction:
    """Return the function of a call."""
    return index_function(call.function, dict(call.options))


def result_field(call: Call, schema: pa.Schema) -> pa.Field:
    """Return the column with the results of a call; raise UserError if the function does not accept the column."""
    function, kind = function_of(call), type_of(call.column, schema)
    why = function.refusal(kind)
    if why is not None:
        raise UserError(f"{call.text}: {why}", column=call.column)
    return pa.field(call.text, function.result_type(kind))


def to_arrow(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """Return the predicate as an expression over tables of `schema`; literals take the type of their column.

    The results of functions and of other conditions are columns that `matching` adds.
    """
    if isinstance(predicate, And):
        return _fold(predicate.parts, schema, lambda a, b: a & b, True)
    if isinstance(predicate, Or):
        return _fold(predicate.parts, schema, lambda a, b: a | b, False)
    if isinstance(predicate, Not):
        return ~to_arrow(predicate.part, schema)
    if isinstance(predicate, Evaluated):
        return pc.field(_flag(predicate))
    if isinstance(predicate, Applied):
        return to_arrow(predicate.part, pa.schema([result_field(predicate.call, schema)]))
    field = expression_of(predicate.column, schema)
    if isinstance(predicate, IsNull):
        return field.is_null()
    kind = type_of(predicate.column, schema)
    if isinstance(predicate, StartsWith):
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            raise UserError(f"column {predicate.column!r} is {kind}; LIKE needs text", column=predicate.column)
        return pc.starts_with(field, predicate.prefix)
    if isinstance(predicate, In):
        return _is_in(field, typed_list(predicate, kind).values, kind)
    compared = typed_comparison(predicate, kind)
    if not isinstance(compared, Comparison):
        return to_arrow(compared, schema)
    return _compared(field, compared, kind)


def _is_in(field: pc.Expression, values: Sequence[pa.Scalar], kind: pa.DataType) -> pc.Expression:
    listed = arrow_values(values, kind).array
    if not pa.types.is_floating(kind):
        is_in = field.isin(listed)
    else:
        # Arrow's is_in compares the bits of floats: signs of zeros and payloads of NaN.
        if pc.any(pc.equal(listed, 0.0)).as_py():
            listed = pa.concat_arrays([listed, pa.array([0.0, -0.0], kind)])
        is_in = field.isin(listed)
        if pc.any(pc.is_nan(listed)).as_py():
            is_in = is_in | field.is_nan()
    # In SQL a null is neither in a list nor outside it; Arrow's is_in returns false for a null.
    return pc.if_else(field.is_valid(), is_in, pa.scalar(None, pa.bool_()))


def _compared(field: pc.Expression, where: Comparison, kind: pa.DataType) -> pc.Expression:
    """Convert a comparison with a typed literal to an Arrow expression."""
    is_floating = pa.types.is_floating(kind)
    if is_floating and math.isnan(where.value.as_py()):
        # NaN is the greatest value.
        every = field.is_nan() | ~field.is_nan()
        return {
            "=": field.is_nan(),
            "!=": ~field.is_nan(),
            "<": ~field.is_nan(),
            "<=": every,
            ">": ~every,
            ">=": field.is_nan(),
        }[where.operator]
    value = where.value
    compared: pc.Expression = {
        "=": field == value,
        "!=": field != value,
        "<": field < value,
        "<=": field <= value,
        ">": field > value,
        ">=": field >= value,
    }[where.operator]
    return compared | field.is_nan() if is_floating and where.operator in (">", ">=") else compared


def _fold(
    parts: tuple[Predicate, ...], schema: pa.Schema, join: Callable[[Any, Any], Any], empty: bool
) -> pc.Expression:
    expressions = [to_arrow(part, schema) for part in parts]
    if not expressions:
        return pc.scalar(empty)
    result = expressions[0]
    for expression in expressions[1:]:
        result = join(result, expression)
    return result
