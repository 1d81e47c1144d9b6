"""Convert Arrow schemas to Hive column types and to Spark's schema JSON, as Hudi's metastore sync does.

Hive is case-insensitive, so its names are in lower case, even in structs; Spark's JSON keeps the case. Timestamps
become `bigint` unless `hoodie.datasource.hive_sync.support_timestamp` is set.
"""

from __future__ import annotations

import json
import re

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.errors import UserError
from lakehouse.platform.metastore.protocol import Column

_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_HIVE = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time32("ms"): "int",
    pa.time64("us"): "bigint",
}
_SPARK = {
    pa.bool_(): "boolean",
    pa.int8(): "integer",
    pa.int16(): "integer",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.time32("ms"): "integer",
    pa.time64("us"): "long",
}
#: Allowed changes of a column type, as for table columns. Hudi's sync only changes int, float and structs.
_WIDENINGS = {
    "int": ("bigint", "float", "double", "string"),
    "bigint": ("float", "double", "string"),
    "float": ("double", "string"),
    "double": ("string",),
    "date": ("string",),
    "string": ("binary",),
    "binary": ("string",),
}


def hive_columns(schema: pa.Schema, *, timestamps: bool = False) -> tuple[Column, ...]:
    """Return the columns in order; raise UserError for an unsupported type and for names that differ only in case."""
    columns: dict[str, Column] = {}
    for field in schema:
        name = field.name.lower()
        if name in columns:
            raise UserError(
                f"column {field.name!r}: Hive ignores case and already has {name!r}; rename one of them",
                column=field.name,
            )
        columns[name] = Column(name=name, type=hive_type(field.type, field.name, timestamps=timestamps))
    return tuple(columns.values())


def hive_type(kind: pa.DataType, column: str, *, timestamps: bool = False) -> str:
    """Return the Hive type of a column. A timestamp becomes `timestamp` if `timestamps` is set, else `bigint`."""
    if kind in _HIVE:
        return _HIVE[kind]
    if pat.is_dictionary(kind):
        return hive_type(kind.value_type, column, timestamps=timestamps)
    if _is_text(kind):
        return "string"
    if _is_bytes(kind):
        return "binary"
    if pat.is_timestamp(kind):
        return "timestamp" if timestamps else "bigint"
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pat.is_struct(kind):
        parts = (f"{f.name.lower()}:{hive_type(f.type, f'{column}.{f.name}', timestamps=timestamps)}" for f in kind)
        return f"struct<{','.join(parts)}>"
    if pat.is_list(kind) or pat.is_large_list(kind):
        return f"array<{hive_type(kind.value_type, column, timestamps=timestamps)}>"
    if pat.is_map(kind):
        key = hive_type(kind.key_type, column, timestamps=timestamps)
        return f"map<{key},{hive_type(kind.item_type, column, timestamps=timestamps)}>"
    raise _unknown(kind, column)


def spark_json(schema: pa.Schema) -> str:
    """Return the schema as the JSON that Spark stores in a metastore, formatted as by Hudi's sync."""
    return _spark_struct(list(schema), "")


def is_widening(before: str, after: str) -> bool:
    """Return whether a column of Hive type `before` may become `after`; fields of structs are not compared."""
    one, other = before.replace(" ", "").lower(), after.replace(" ", "").lower()
    if one == other or other in _WIDENINGS.get(one, ()) or (_is_nested(one) and _is_nested(other)):
        return True
    decimals = [_DECIMAL.fullmatch(one), _DECIMAL.fullmatch(other)]
    digits = [(int(match[1]) - int(match[2]), int(match[2])) for match in decimals if match]
    return len(digits) == 2 and digits[0][0] <= digits[1][0] and digits[0][1] <= digits[1][1]


def _is_nested(kind: str) -> bool:
    return kind.startswith(("struct<", "array<", "map<"))


def _spark_struct(fields: list[pa.Field], path: str) -> str:
    parts = (
        f'{{"name":{json.dumps(f.name, ensure_ascii=False)},"type":{_spark_type(f.type, f"{path}{f.name}")},'
        f'"nullable":{_flag(f.nullable)},"metadata":{{}}}}'
        for f in fields
    )
    return f'{{"type":"struct","fields":[{",".join(parts)}]}}'


def _spark_type(kind: pa.DataType, column: str) -> str:
    if pat.is_dictionary(kind):
        return _spark_type(kind.value_type, column)
    if pat.is_struct(kind):
        return _spark_struct(list(kind), f"{column}.")
    if pat.is_list(kind) or pat.is_large_list(kind):
        element = kind.value_field
        content = f'"elementType":{_spark_type(element.type, column)},"containsNull":{_flag(element.nullable)}'
        return f'{{"type":"array", {content}}}'
    if pat.is_map(kind):
        key, item = _spark_type(kind.key_type, column), kind.item_field
        content = f'"valueType":{_spark_type(item.type, column)},"valueContainsNull":{_flag(item.nullable)}'
        return f'{{"type":"map", "keyType":{key},{content}}}'
    return f'"{_spark_name(kind, column)}"'


def _spark_name(kind: pa.DataType, column: str) -> str:
    if kind in _SPARK:
        return _SPARK[kind]
    if _is_text(kind):
        return "string"
    if _is_bytes(kind):
        return "binary"
    if pat.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    raise _unknown(kind, column)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    binary = pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_binary_view(kind)
    return bool(binary or pat.is_fixed_size_binary(kind))


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _unknown(kind: pa.DataType, column: str) -> UserError:
    return UserError(
        f"column {column!r} has type {kind}, which a Hudi table cannot hold", column=column, type=str(kind)
    )
