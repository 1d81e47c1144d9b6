"""Delta's types, partition values and column statistics as text (Delta protocol: schema serialization, statistics)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import ColumnBounds
from lakehouse.platform.export.columns import ViewColumns
from lakehouse.platform.export.facts import FileFacts, MixedPartitionError

_EPOCH_DAY = date(1970, 1, 1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TEXT = 64
_NAMES: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us"): "timestamp_ntz",
}
_ARROW = {name: kind for kind, name in _NAMES.items()} | {"timestamp": pa.timestamp("us", "UTC")}


def schema_text(columns: ViewColumns, root: str) -> str:
    """Return the schema as Delta stores it; raise UnsupportedError for a column that Delta cannot represent."""
    return json.dumps(_struct(columns.schema, root, ""), separators=(",", ":"))


def parse_schema(text: str) -> pa.Schema | None:
    """Return a stored schema with Arrow types; None if it has types that no view has."""
    try:
        return pa.schema(list(_arrow_type(json.loads(text))))
    except (ValueError, KeyError, TypeError):
        return None


def has_local_times(kind: pa.DataType | pa.Schema) -> bool:
    """Return whether a type contains timestamps without time zone, which need a reader feature."""
    if isinstance(kind, pa.Schema) or pat.is_struct(kind):
        return any(has_local_times(field.type) for field in kind)
    if pat.is_list(kind):
        return has_local_times(kind.value_type)
    if pat.is_map(kind):
        return has_local_times(kind.key_type) or has_local_times(kind.item_type)
    return bool(pat.is_timestamp(kind) and kind.tz is None)


def partition_values(facts: FileFacts, columns: ViewColumns) -> dict[str, str | None]:
    """Return the partition values of a file as strings; None is null.

    Raises MixedPartitionError for an empty string, which Delta reads as null.
    """
    values: dict[str, str | None] = {}
    for name in columns.partition_by:
        value = facts.partition[name]
        if value is None:
            values[name] = None
            continue
        text = _partition_text(value, columns.kind(name))
        if not text:
            raise MixedPartitionError(f"{facts.path}: Delta cannot represent the partition value {name}={value!r}")
        values[name] = text
    return values


def statistics_text(facts: FileFacts, columns: ViewColumns) -> str:
    """Return the statistics of a file as JSON. Partition columns have none."""
    lows: dict[str, Any] = {}
    highs: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name, bounds in facts.bounds.items():
        if name in columns.partition_by:
            continue
        nulls[name] = bounds.nulls
        pair = None if bounds.low is None else _bounds_texts(bounds, columns.kind(name))
        if pair is not None:
            lows[name], highs[name] = pair
    document = {"numRecords": facts.rows, "minValues": lows, "maxValues": highs, "nullCount": nulls}
    return json.dumps(document, separators=(",", ":"))


def _struct(fields: Iterable[pa.Field], root: str, path: str) -> dict[str, Any]:
    listed = [
        {
            "name": field.name,
            "type": _type(field.type, root, f"{path}.{field.name}" if path else field.name),
            "nullable": True,
            "metadata": {},
        }
        for field in fields
    ]
    return {"type": "struct", "fields": listed}


def _type(kind: pa.DataType, root: str, column: str) -> Any:
    if kind in _NAMES:
        return _NAMES[kind]
    if pat.is_timestamp(kind):
        return "timestamp"
    if pat.is_fixed_size_binary(kind):
        return "binary"
    if pat.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pat.is_struct(kind):
        return _struct(kind, root, column)
    if pat.is_list(kind):
        return {
            "type": "array",
            "elementType": _type(kind.value_type, root, f"{column}.element"),
            "containsNull": True,
        }
    if pat.is_map(kind):
        return {
            "type": "map",
            "keyType": _type(kind.key_type, root, f"{column}.key"),
            "valueType": _type(kind.item_type, root, f"{column}.value"),
            "valueContainsNull": True,
        }
    raise UnsupportedError(
        f"{root}: column {column!r} has type {kind}, which Delta does not have. Export the table as Iceberg "
        "(lakehouse.export.formats=iceberg), or store the column as a string or a timestamp",
        column=column,
        type=str(kind),
    )


def _arrow_type(node: Any) -> pa.DataType:
    if isinstance(node, str):
        if node.startswith("decimal("):
            precision, scale = node[8:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
        return _ARROW[node]
    if node["type"] == "struct":
        return pa.struct([pa.field(field["name"], _arrow_type(field["type"])) for field in node["fields"]])
    if node["type"] == "array":
        return pa.list_(pa.field("element", _arrow_type(node["elementType"])))
    return pa.map_(_arrow_type(node["keyType"]), _arrow_type(node["valueType"]))


def _partition_text(value: Any, kind: pa.DataType) -> str:
    if pat.is_string(kind):
        return value.decode() if isinstance(value, bytes) else str(value)
    if pat.is_boolean(kind):
        return str(bool(value)).lower()
    if pat.is_date(kind):
        text = _day(value)
        if text is None:
            raise MixedPartitionError(f"Delta cannot represent the day {value} of a partition")
        return text
    return str(value)


def _bounds_texts(bounds: ColumnBounds, kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return both bounds as JSON values; None if one cannot be represented."""
    low, high = bounds.low, bounds.high
    if pat.is_boolean(kind):
        return None
    if pat.is_integer(kind):
        return int(low), int(high)
    if pat.is_string(kind):
        return _text_pair(low, high)
    pair: tuple[str | None, str | None]
    if pat.is_date(kind):
        pair = _day(low), _day(high)
    elif pat.is_decimal(kind):
        pair = _decimal(low, kind.scale), _decimal(high, kind.scale)
    else:
        zone = "" if kind.tz is None else "Z"
        # Readers compare milliseconds, so the bounds are rounded outwards.
        pair = _moment(low // 1000, zone), _moment(-(-high // 1000), zone)
    return None if pair[0] is None or pair[1] is None else pair


def _text_pair(low: bytes, high: bytes) -> tuple[str, str] | None:
    """Return the bounds of strings; a long lower bound is cut, a long upper bound is not represented."""
    try:
        lower, upper = low.decode(), high.decode()
    except UnicodeDecodeError:
        return None
    return (lower[:_LONGEST_TEXT], upper) if len(upper) <= _LONGEST_TEXT else None


def _day(days: int) -> str | None:
    try:
        return (_EPOCH_DAY + timedelta(days=days)).isoformat()
    except OverflowError:
        return None


def _moment(millis: int, zone: str) -> str | None:
    try:
        moment = _EPOCH + timedelta(milliseconds=millis)
    except OverflowError:
        return None
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{millis % 1000:03d}{zone}" if moment.year >= 1000 else None


def _decimal(unscaled: int, scale: int) -> str:
    """Return a decimal as text; Python's decimal context would round it to 28 digits."""
    sign, digits = "-" if unscaled < 0 else "", str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{sign}{digits[:-scale]}.{digits[-scale:]}" if scale else f"{sign}{digits}"
