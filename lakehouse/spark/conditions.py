"""Translates conditions on rows to columns of Spark that hold for the same rows as in Arrow.

Spark compares conditions with bounds and dictionaries of Parquet files. Bounds ignore NaN, and dictionaries tell -0.0
and 0.0 apart. Therefore conditions that NaN meets are hidden from these checks, and conditions on zero contain both
zeros.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.core.expressions.column_path import path_of, type_of
from lakehouse.core.expressions.literals import typed_comparison, typed_list
from lakehouse.model.predicate import (
    And,
    Applied,
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

_MICROS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_DAY_MICROS, _HOUR_MICROS, _MINUTE_MICROS, _SECOND_MICROS = 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000


def condition(predicate: Predicate, schema: pa.Schema) -> Column:
    """Return a predicate as a boolean Spark column."""
    if isinstance(predicate, And):
        return reduce(Column.__and__, [condition(p, schema) for p in predicate.parts], F.lit(True))
    if isinstance(predicate, Or):
        return reduce(Column.__or__, [condition(p, schema) for p in predicate.parts], F.lit(False))
    if isinstance(predicate, Not):
        return ~condition(predicate.part, schema)
    assert not isinstance(predicate, Applied | Evaluated), "workers evaluate functions, see is_evaluated_by_workers"
    column = F.col(".".join(f"`{name}`" for name in path_of(predicate.column, schema)))
    if isinstance(predicate, IsNull):
        return column.isNull()
    if isinstance(predicate, StartsWith):
        return column.startswith(predicate.prefix)
    kind = type_of(predicate.column, schema)
    if isinstance(predicate, In):
        return _is_in(column, typed_list(predicate, kind).values, kind)
    compared = typed_comparison(predicate, kind)
    if not isinstance(compared, Comparison):
        return condition(compared, schema)
    return _float_compared(compared, column) if pa.types.is_floating(kind) else _compared(compared, column)


def is_evaluated_by_workers(predicate: Predicate, schema: pa.Schema) -> bool:
    """Return whether Arrow evaluates a condition: it contains an expression, a function of a column or a time of day.

    Spark evaluates functions on times in the zone of its session, and Spark 4.1 has no type for times of day.
    """
    has_calls = any(True for _ in (*calls_of(predicate), *evaluated_in(predicate)))
    return has_calls or any(pa.types.is_time(type_of(name, schema)) for name in columns_of(predicate))


def _is_in(column: Column, values: Sequence[pa.Scalar], kind: pa.DataType) -> Column:
    if not pa.types.is_floating(kind):
        return column.isin([_literal(value) for value in values]) if values else _unless_null(column, F.lit(False))
    numbers = {value.as_py() for value in values}
    finite = [number for number in numbers if not math.isnan(number)]
    if 0.0 in numbers:
        finite += [0.0, -0.0]
    listed = column.isin([_literal(pa.scalar(number, kind)) for number in finite]) if finite else F.lit(False)
    return _unless_null(column, listed if len(numbers) == len(set(finite)) else listed | F.isnan(column))


def _compared(where: Comparison, column: Column) -> Column:
    value = _literal(where.value)
    compared: Column = {
        "=": column == value,
        "!=": column != value,
        "<": column < value,
        "<=": column <= value,
        ">": column > value,
        ">=": column >= value,
    }[where.operator]
    return compared


def _float_compared(where: Comparison, column: Column) -> Column:
    is_nan, number = _unless_null(column, F.isnan(column)), where.value.as_py()
    if math.isnan(number):
        every = _unless_null(column, F.lit(True))
        return {"=": is_nan, "!=": ~is_nan, "<": ~is_nan, "<=": every, ">": ~every, ">=": is_nan}[where.operator]
    if where.operator == "=" and number == 0:
        least, most = (_literal(pa.scalar(zero, where.value.type)) for zero in (-0.0, 0.0))
        return (column >= least) & (column <= most)
    compared = _compared(where, column)
    return compared | F.isnan(column) if where.operator in ("!=", ">", ">=") else compared


def _unless_null(column: Column, result: Column) -> Column:
    return F.when(column.isNotNull(), result)


def _literal(value: pa.Scalar) -> Column:
    """Return a typed value as a literal; times do not depend on the time zone of the session."""
    kind = value.type
    if pa.types.is_timestamp(kind):
        micros = value.value * _MICROS[kind.unit] if kind.unit in _MICROS else value.value // 1_000
        return F.timestamp_micros(F.lit(micros)) if kind.tz else F.expr(_local_time(micros))
    if pa.types.is_date32(kind):
        return F.date_from_unix_date(F.lit(value.value))
    return F.lit(value.as_py()).cast("float") if pa.types.is_float32(kind) else F.lit(value.as_py())


def _local_time(micros: int) -> str:
    """Return the SQL of a timestamp without time zone, even if its year has more than four digits."""
    days, rest = divmod(abs(micros), _DAY_MICROS)
    hours, rest = divmod(rest, _HOUR_MICROS)
    minutes, rest = divmod(rest, _MINUTE_MICROS)
    seconds, fraction = divmod(rest, _SECOND_MICROS)
    interval = f"{days} {hours}:{minutes}:{seconds}.{fraction:06}"
    return f"TIMESTAMP_NTZ '1970-01-01' {'-' if micros < 0 else '+'} INTERVAL '{interval}' DAY TO SECOND"
