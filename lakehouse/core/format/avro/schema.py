"""Convert between Arrow schemas and Avro JSON, the form in which a table stores its schema (DATA-1, DATA-3.2, DATA-11).

Names are chosen as in Spark's schema converter, which Hudi uses. A nested record has its field's name, in the namespace
of the enclosing record, also inside lists and maps. A decimal is a fixed type named `fixed` in the namespace of its
field.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any
from unicodedata import category

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.core.format.arrow_versions import cached_by_columns
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.document import parse_json

#: The meta columns that Hudi adds before the columns of the user, in this order.
META_COLUMNS: tuple[str, ...] = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)

#: Bounds of a schema. Each reference to a named type counts its fields again, because a short schema with references
#: can declare 2^1000 fields.
MAX_DEPTH, MAX_FIELDS = 64, 200_000

_FIRST_CATEGORIES = ("Lu", "Ll", "Lt", "Lm", "Lo")
_CATEGORIES = (*_FIRST_CATEGORIES, "Nd")
_LAST_CHARACTER = "\uffff"
_MASK = "__"
_MAX_PRECISION = 38

_TO_AVRO: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.binary(): "bytes",
    pa.large_binary(): "bytes",
    pa.binary_view(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time32("ms"): {"type": "int", "logicalType": "time-millis"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
    pa.timestamp("ms"): {"type": "long", "logicalType": "local-timestamp-millis"},
    pa.timestamp("us"): {"type": "long", "logicalType": "local-timestamp-micros"},
}
_INSTANT_OF_UNIT = {"ms": "timestamp-millis", "us": "timestamp-micros"}

_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_LOGICAL: dict[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("ms", "UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", "UTC"),
    ("long", "timestamp-nanos"): pa.timestamp("ns", "UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("ms"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
    ("long", "local-timestamp-nanos"): pa.timestamp("ns"),
}


def with_meta_fields(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the five meta columns first, nullable as in Hudi. Existing meta columns are replaced."""
    meta = [pa.field(name, pa.string()) for name in META_COLUMNS]
    return pa.schema([*meta, *(f for f in schema if f.name not in META_COLUMNS)], metadata=schema.metadata)


@cached_by_columns(maxsize=64)
def arrow_to_avro(schema: pa.Schema, *, table: str) -> str:
    """Return the Avro JSON of `schema` as record `<table>_record` in namespace `hoodie.<table>`.

    Nullable columns become `["null", T]` with default null. Raises UserError with the column and its type or name if
    Avro cannot represent it.
    """
    name = _sanitized(table)
    return json.dumps(_record(list(schema), f"{name}_record", f"hoodie.{name}", ""), separators=(",", ":"))


@lru_cache(maxsize=64)
def avro_to_arrow(schema_json: str) -> pa.Schema:
    """Return the Arrow schema for a table's Avro JSON from this package or another writer.

    Enums and uuids become strings; fixed types become fixed-size binary.

    Raises:
        UserError: A column has no Arrow type, for example a union of several types; the message names it.
        CorruptTableError: The JSON is not the schema of a record.
        UnsupportedError: The schema has more than MAX_DEPTH levels or MAX_FIELDS fields.
    """
    try:
        parsed = parse_json(schema_json)
    except ValueError as error:
        raise CorruptTableError(f"the table schema is not JSON; it starts with {schema_json[:40]!r}") from error
    if not isinstance(parsed, dict) or parsed.get("type") != "record":
        raise CorruptTableError(f"the table schema is not an Avro record: {schema_json[:80]!r}")
    try:
        kind = _AvroReader().arrow_type(parsed, "", "")
        _check_depth(kind, 0)
        return pa.schema(list(kind))
    except RecursionError:
        raise _too_deep() from None
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise CorruptTableError(f"the table schema is malformed: {type(error).__name__}: {error}") from error


def is_legal_name(name: str) -> bool:
    """Return whether Avro's Java library, which Hudi uses, accepts the name of a column.

    Letters and digits of all scripts are legal, but no character beyond U+FFFF, because Java checks UTF-16 units.
    """
    first, rest = name[:1], name[1:]
    if not first or max(name) > _LAST_CHARACTER:
        return False
    is_first_legal = first == "_" or category(first) in _FIRST_CATEGORIES
    return is_first_legal and all(char == "_" or category(char) in _CATEGORIES for char in rest)


def illegal_name(name: str, column: str) -> UserError:
    """Return the error for the name of a column that Avro does not accept, with a similar legal name."""
    legal = re.sub(r"\W+", "_", name).strip("_")
    legal = f"_{legal}" if legal[:1].isdecimal() else legal
    similar = f", for example {legal!r}" if is_legal_name(legal) else ""
    return UserError(
        f"column {column!r}: {name!r} is not a name that Avro and Apache Hudi allow; use letters, digits and "
        f"underscores, starting with a letter or underscore{similar}",
        column=column,
    )


def _sanitized(name: str) -> str:
    """Return the table's name as Hudi writes it: `__` replaces a leading digit and each character that Avro forbids."""
    masked = re.sub(r"[^A-Za-z0-9_]", _MASK, name)
    return re.sub(r"^[0-9]", _MASK, masked)


def _record(fields: list[pa.Field], name: str, namespace: str, path: str) -> dict[str, Any]:
    if not fields:
        raise UserError(
            f"column {path!r} is a struct without fields, which Avro and Parquet cannot store; drop it", column=path
        )
    inner = f"{namespace}.{name}"
    seen: set[str] = set()
    written = []
    for field in fields:
        column = f"{path}.{field.name}" if path else field.name
        if not is_legal_name(field.name):
            raise illegal_name(field.name, column)
        if field.name in seen:
            raise UserError(f"column {column!r} occurs twice; rename one of them", column=column)
        seen.add(field.name)
        kind = _avro_type(field.type, field.name, inner, column)
        entry: dict[str, Any] = {"name": field.name, "type": ["null", kind] if field.nullable else kind}
        written.append(entry | {"default": None} if field.nullable else entry)
    return {"type": "record", "name": name, "namespace": namespace, "fields": written}


def _avro_type(kind: pa.DataType, name: str, namespace: str, column: str) -> Any:
    if kind in _TO_AVRO:
        return _TO_AVRO[kind]
    if pat.is_timestamp(kind) and kind.tz is not None and kind.unit in _INSTANT_OF_UNIT:
        return {"type": "long", "logicalType": _INSTANT_OF_UNIT[kind.unit]}
    if pat.is_decimal(kind) and kind.precision <= _MAX_PRECISION and 0 <= kind.scale <= kind.precision:
        fixed = _fixed(name, namespace, _bytes_for_precision(kind.precision))
        return fixed | {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pat.is_fixed_size_binary(kind):
        return _fixed(name, namespace, kind.byte_width)
    if pat.is_dictionary(kind):
        return _avro_type(kind.value_type, name, namespace, column)
    if pat.is_struct(kind):
        return _record(list(kind), name, namespace, column)
    if pat.is_list(kind) or pat.is_large_list(kind):
        return {"type": "array", "items": _element(kind.value_field, name, namespace, column)}
    if pat.is_map(kind) and (pat.is_string(kind.key_type) or pat.is_large_string(kind.key_type)):
        return {"type": "map", "values": _element(kind.item_field, name, namespace, column)}
    raise UserError(
        f"column {column!r} has type {kind}, which a Hudi table cannot store; cast it first{_hint(kind)}",
        column=column,
        type=str(kind),
    )


def _element(field: pa.Field, name: str, namespace: str, column: str) -> Any:
    kind = _avro_type(field.type, name, namespace, column)
    return ["null", kind] if field.nullable else kind


def _hint(kind: pa.DataType) -> str:
    if pat.is_timestamp(kind):
        return ", for example to timestamp[us, UTC]"
    if pat.is_unsigned_integer(kind):
        return ", for example to int64"
    if pat.is_map(kind):
        return "; the keys of a map must be strings"
    return ""


def _fixed(name: str, namespace: str, size: int) -> dict[str, Any]:
    return {"type": "fixed", "name": "fixed", "namespace": f"{namespace}.{name}", "size": size}


def _bytes_for_precision(precision: int) -> int:
    """Return the minimum number of bytes whose signed integers have at least `precision` digits."""
    return next(size for size in range(1, 17) if 2 ** (8 * size - 1) >= 10**precision)


class _AvroReader:
    """Reads one schema and stores its named types, because Avro declares a type once and then refers to its name."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}
        self._fields = 0
        self._fields_of: dict[str, int] = {}

    def field(self, entry: dict[str, Any], namespace: str, path: str) -> pa.Field:
        column = f"{path}.{entry['name']}" if path else entry["name"]
        kind, is_nullable = self.nullable_type(entry["type"], namespace, column)
        return pa.field(entry["name"], kind, nullable=is_nullable)

    def nullable_type(self, declared: Any, namespace: str, column: str) -> tuple[pa.DataType, bool]:
        if not isinstance(declared, list):
            return self.arrow_type(declared, namespace, column), False
        kinds = [part for part in declared if part != "null"]
        if len(kinds) != 1:
            raise UserError(f"column {column!r} has Avro type {declared}: a union of several types", column=column)
        return self.arrow_type(kinds[0], namespace, column), len(declared) > 1

    def arrow_type(self, declared: Any, namespace: str, column: str) -> pa.DataType:
        """Return the Arrow type of a schema that is not a union; `namespace` belongs to the enclosing record."""
        self._count(1)
        if isinstance(declared, str):
            return self._by_name(declared, namespace, column)
        kind = declared["type"]
        if not isinstance(kind, str):
            return self.arrow_type(kind, namespace, column)
        if kind == "array":
            item, is_nullable = self.nullable_type(declared["items"], namespace, column)
            return pa.list_(pa.field("element", item, nullable=is_nullable))
        if kind == "map":
            value, is_nullable = self.nullable_type(declared["values"], namespace, column)
            return pa.map_(pa.string(), pa.field("value", value, nullable=is_nullable))
        if kind in ("record", "error", "enum", "fixed"):
            return self._declare(declared, namespace, column)
        logical = declared.get("logicalType")
        if kind == "bytes" and logical == "decimal":
            return _decimal(declared, column)
        return _LOGICAL.get((kind, logical)) or self._by_name(kind, namespace, column)

    def _declare(self, declared: dict[str, Any], namespace: str, column: str) -> pa.DataType:
        full_name = _full_name(declared["name"], declared.get("namespace", namespace))
        self._named[full_name] = None  # a reference to an incomplete type is recursive, which is an error
        before = self._fields
        if declared["type"] == "enum":
            kind: pa.DataType = pa.string()
        elif declared["type"] == "fixed":
            is_decimal = declared.get("logicalType") == "decimal"
            kind = _decimal(declared, column) if is_decimal else pa.binary(declared["size"])
        else:
            inner = full_name.rpartition(".")[0]
            kind = pa.struct([self.field(entry, inner, column) for entry in declared["fields"]])
        self._named[full_name] = kind
        self._fields_of[full_name] = self._fields - before
        return kind

    def _by_name(self, name: str, namespace: str, column: str) -> pa.DataType:
        if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        full_name = next((n for n in (_full_name(name, namespace), name) if self._named.get(n) is not None), "")
        if not full_name:
            raise UserError(
                f"column {column!r} has Avro type {name!r}, which is unknown, recursive or always null", column=column
            )
        self._count(self._fields_of[full_name])
        return self._named[full_name]

    def _count(self, fields: int) -> None:
        self._fields += fields
        if self._fields > MAX_FIELDS:
            raise UnsupportedError(f"the table schema has more than {MAX_FIELDS} fields, the limit")


def _check_depth(kind: pa.DataType, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _too_deep()
    for index in range(kind.num_fields):
        _check_depth(kind.field(index).type, depth + 1)


def _too_deep() -> UnsupportedError:
    return UnsupportedError(f"the table schema has more than {MAX_DEPTH} levels of nested columns, the limit")


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _decimal(declared: dict[str, Any], column: str) -> pa.DataType:
    precision, scale = declared["precision"], declared.get("scale", 0)
    if precision > _MAX_PRECISION:
        raise UserError(
            f"column {column!r} is a decimal of {precision} digits; at most 38 are supported", column=column
        )
    return pa.decimal128(precision, scale)
