"""Spark SQL types and Arrow types."""

from __future__ import annotations

import pyarrow as pa

from lakehouse.errors import UserError, nearest
from lakehouse.sql.tokens import SPARK, Cursor, quoted, tokens_of

_TYPES = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int32(),
    "BYTE": pa.int32(),
    "SMALLINT": pa.int32(),
    "SHORT": pa.int32(),
    "INT": pa.int32(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "LONG": pa.int64(),
    "FLOAT": pa.float32(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "VARCHAR": pa.string(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_DECIMAL = ("DECIMAL", "DEC", "NUMERIC")
_NESTED = ("ARRAY", "MAP", "STRUCT")
_BY_ARROW = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
}


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of a Spark SQL type; raise UserError for an unknown or unsupported type."""
    cursor = Cursor(text, tokens_of(_spaced(text), SPARK))
    cursor.text = _spaced(text)
    kind = _type(cursor)
    cursor.end()
    return kind


def type_text(kind: pa.DataType) -> str:
    """Return the Spark SQL type of an Arrow type."""
    types = pa.types
    if types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if types.is_timestamp(kind):
        return "TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"
    if types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{column_text(field.name)}: {type_text(field.type)}' for field in kind)}>"
    if types.is_map(kind):
        return f"MAP<{type_text(kind.key_type)}, {type_text(kind.item_type)}>"
    if types.is_list(kind) or types.is_large_list(kind):
        return f"ARRAY<{type_text(kind.value_type)}>"
    return _BY_ARROW.get(kind, str(kind).upper())


def column_text(name: str) -> str:
    """Return the name of a column for a statement, in quotes if it needs them."""
    return name if name.isascii() and name.isidentifier() else quoted(name)


def _spaced(text: str) -> str:
    # `>>` would be one token.
    return text.replace(">", " > ").replace("<", " < ")


def _type(cursor: Cursor) -> pa.DataType:
    name = cursor.name("a type").upper()
    if name in _DECIMAL:
        return _decimal(cursor)
    if name == "ARRAY":
        cursor.expect("<")
        value = _type(cursor)
        cursor.expect(">")
        return pa.list_(value)
    if name == "MAP":
        cursor.expect("<")
        key = _type(cursor)
        cursor.expect(",")
        item = _type(cursor)
        cursor.expect(">")
        return pa.map_(key, item)
    if name == "STRUCT":
        return _struct(cursor)
    if cursor.sees("("):
        raise UserError(f"the length of {name} would not be enforced: use STRING")
    if name not in _TYPES:
        names = [*_TYPES, "DECIMAL", *_NESTED]
        raise UserError(f"the type {name} is not supported.{nearest(name, names)} Types are {', '.join(names)}")
    return _TYPES[name]


def _decimal(cursor: Cursor) -> pa.DataType:
    if not cursor.accept("("):
        return pa.decimal128(10, 0)
    precision = int(cursor.value("a precision"))
    scale = int(cursor.value("a scale")) if cursor.accept(",") else 0
    cursor.expect(")")
    if not 1 <= precision <= 38 or not 0 <= scale <= precision:
        raise UserError(f"DECIMAL({precision},{scale}): the precision is 1 to 38, the scale at most the precision")
    return pa.decimal128(precision, scale)


def _struct(cursor: Cursor) -> pa.DataType:
    cursor.expect("<")
    fields = []
    while True:
        name = cursor.name("a field")
        cursor.accept(":")
        kind = _type(cursor)
        is_required = cursor.accept("NOT", "NULL")
        if cursor.accept("COMMENT"):
            cursor.string("a comment")
        fields.append(pa.field(name, kind, nullable=not is_required))
        if not cursor.accept(","):
            break
    cursor.expect(">")
    return pa.struct(fields)
