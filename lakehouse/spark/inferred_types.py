"""Infers the types of string columns: the narrowest type in which every string is the usual notation of a value.

A string such as `007`, `+5` or `12D` is not the usual notation of a number, so its column stays a string: as a number
it would be the same value as `7`. The column also stays a string if it contains fractions, and integers that a double
would round.

    12 | 3000000000 | 20 to 38 digits | 0.5    int | bigint | decimal | double
    2026-01-31 | 2026-01-31 10:00              date | timestamp
    true                                       boolean
    a column without values                    string
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lakehouse.spark.field_values import FieldRules, is_exact, literal, matches, quoted

_INT, _LONG, _DECIMAL, _DOUBLE, _DATE, _TIMESTAMP, _BOOLEAN, _STRING = (1 << bit for bit in range(8))
_MOST_DIGITS = 38
_WHOLE = r"^\s*(0|-?[1-9][0-9]*)\s*\z"
_FRACTION = r"^\s*-?((0|[1-9][0-9]*)([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?\s*\z"
_DAY = r"^\s*[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}\s*\z"
#: Types in the order in which they are tried, by the bit of a string that is one of their values.
_TYPES: Mapping[int, DataType] = {
    _INT: IntegerType(),
    _LONG: LongType(),
    _DECIMAL: DecimalType(_MOST_DIGITS, 0),
    _DOUBLE: DoubleType(),
    _DATE: DateType(),
    _TIMESTAMP: TimestampType(),
    _BOOLEAN: BooleanType(),
    _STRING: StringType(),
}


def inferred_types(texts: DataFrame, rules: FieldRules) -> StructType:
    """Return the columns of a string DataFrame with their inferred types, found in one pass."""
    return _inferred(texts, {name: _kinds(quoted(name), rules) for name in texts.columns}, rules)


def number_types(texts: DataFrame, columns: Collection[str], rules: FieldRules) -> StructType:
    """Return the types of the numbers in string columns; strings that are not numbers are ignored."""
    return _inferred(texts, {name: f"CASE {_numbers(quoted(name), rules)} END" for name in columns}, rules)


def with_key_types(schema: StructType, keys: Collection[str], *, is_json: bool) -> StructType:
    """Return the columns with types for record keys that keep the key's string: string, or integer for JSON integers.

    `keys` are dotted names in lower case.
    """
    columns = []
    for column in schema:
        name, kind = column.name.lower(), column.dataType
        inner = {key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}.")}
        if isinstance(kind, StructType) and inner:
            kind = with_key_types(kind, inner, is_json=is_json)
        is_integer = isinstance(kind, IntegerType | LongType) or (isinstance(kind, DecimalType) and not kind.scale)
        if name in keys and not isinstance(kind, StructType) and not (is_json and is_integer):
            kind = StringType()
        columns.append(StructField(column.name, kind))
    return StructType(columns)


def _inferred(texts: DataFrame, kinds: Mapping[str, str], rules: FieldRules) -> StructType:
    if not kinds:
        return StructType([])
    sums = []
    for number, (name, kind) in enumerate(kinds.items()):
        sums += [f"bit_and({kind}) AS k{number}", f"max(length(trim({rules.number(quoted(name))}))) AS d{number}"]
    (row,) = texts.agg(*map(F.expr, sums)).collect()
    columns = []
    for number, name in enumerate(kinds):
        bits = row[f"k{number}"]
        chosen = next(kind for bit, kind in _TYPES.items() if bit is None or bits & bit) if bits else StringType()
        if isinstance(chosen, DecimalType):
            chosen = DecimalType(min(row[f"d{number}"], _MOST_DIGITS), 0)
        columns.append(StructField(name, chosen))
    return StructType(columns)


def _kinds(text: str, rules: FieldRules) -> str:
    """Return the SQL for the bits of all types that a string can represent."""
    is_date = matches(text, _DAY) if not rules.option("dateformat") else "true"
    dates = _DATE | _TIMESTAMP | _STRING if rules.option("preferdate", "true").lower() == "true" else 0
    timestamp = _parsed(text, TimestampType(), rules)
    cases = f"WHEN {is_date} AND {_parsed(text, DateType(), rules)} IS NOT NULL THEN {dates} " if dates else ""
    return (
        f"CASE WHEN {text} IS NULL THEN NULL {_numbers(text, rules)} {cases}"
        f"WHEN {timestamp} IS NOT NULL THEN {_TIMESTAMP | _STRING} "
        f"WHEN lower({text}) IN ('true', 'false') THEN {_BOOLEAN | _STRING} ELSE {_STRING} END"
    )


def _parsed(text: str, kind: DataType, rules: FieldRules) -> str:
    name = "date" if isinstance(kind, DateType) else "timestamp"
    pattern = rules.option(f"{name}format")
    return f"try_to_{name}({text}, {literal(pattern)})" if pattern else rules.value(text, kind)


def _numbers(text: str, rules: FieldRules) -> str:
    """Return the SQL for the cases of strings that are numbers."""
    number = rules.number(text)
    whole, exact = matches(number, _WHOLE), is_exact(number, DoubleType())
    also = f"IF({exact}, {_DOUBLE}, 0)"
    return (
        f"WHEN {whole} AND try_cast({number} AS INT) IS NOT NULL "
        f"THEN {_INT | _LONG | _DECIMAL | _DOUBLE | _STRING} "
        f"WHEN {whole} AND try_cast({number} AS BIGINT) IS NOT NULL THEN {_LONG | _DECIMAL | _STRING} | {also} "
        f"WHEN {whole} AND try_cast({number} AS DECIMAL(38,0)) IS NOT NULL THEN {_DECIMAL | _STRING} | {also} "
        f"WHEN {whole} THEN {_STRING} "
        f"WHEN {matches(number, _FRACTION)} AND {exact} THEN {_DOUBLE | _STRING} "
        f"WHEN {rules.special(text)} THEN {_DOUBLE | _STRING}"
    )
