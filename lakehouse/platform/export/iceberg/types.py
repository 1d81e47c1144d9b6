"""Iceberg's schemas, column ids, name mapping and single values (Iceberg spec: schemas, column projection, appendix D).

Hudi's files have no column ids. Readers find the columns of a file by `schema.name-mapping.default`, which maps names
to ids. A column keeps its id while its name and its type stay compatible.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from lakehouse.errors import UnsupportedError
from lakehouse.platform.export.columns import promotes

_LONGEST_TEXT = 64
_LAST_CODE_POINT = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)
_NAMES: dict[pa.DataType, str] = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.time64("us"): "time",
    pa.timestamp("us"): "timestamp",
    pa.timestamp("us", "UTC"): "timestamptz",
}
_ARROW = {name: kind for kind, name in _NAMES.items()}


class ColumnIds:
    """Assigns ids to columns: those of an earlier schema where names and types are compatible, otherwise new ids."""

    def __init__(self, before: Mapping[str, Any] | None = None, last: int = 0) -> None:
        self.last = last
        self._before: dict[str, tuple[int, pa.DataType]] = {}
        if before is not None:
            for path, number, kind in _ids(before, ""):
                self._before[path] = (number, kind)

    def of(self, path: str, kind: pa.DataType) -> int:
        """Return the id of a column, nested field, element, key or value by its path."""
        earlier = self._before.get(path)
        if earlier is not None and promotes(earlier[1], kind):
            return earlier[0]
        return self.next()

    def next(self) -> int:
        """Return an id that no column had."""
        self.last += 1
        return self.last


def schema_of(schema: pa.Schema, ids: ColumnIds, root: str) -> dict[str, Any]:
    """Return a schema without its schema id; raise UnsupportedError for a column that Iceberg cannot represent."""
    return {"type": "struct", "fields": _fields(schema, ids, root, "")}


def name_mapping(
    schema: Mapping[str, Any], ids: ColumnIds, *, earlier: Iterable[Any] = (), stored: Iterable[pa.Schema] = ()
) -> str:
    """Return the value of `schema.name-mapping.default`.

    Files keep columns that were dropped from the table. pyiceberg refuses a file with a column that the mapping lacks,
    so dropped columns stay in the mapping, with ids that no column of the schema has.

    Args:
        schema: The columns of the view.
        ids: Assigns ids to columns of files that no version of the view had.
        earlier: Mappings of earlier versions.
        stored: The columns of files that have more columns than the view.
    """
    mapping = _mapping(schema["fields"])
    for before in earlier:
        _keep_dropped(mapping, before)
    for columns in stored:
        _add_stored(mapping, columns, ids)
    return json.dumps(mapping, separators=(",", ":"))


def earlier_mappings(document: Mapping[str, Any], text: str | None) -> list[Any]:
    """Return the mapping of the newest version of a view, and one for each schema of its metadata."""
    newest = [] if text is None else [json.loads(text)]
    return [*newest, *(_mapping(schema["fields"]) for schema in reversed(document["schemas"]))]


def arrow_schema(schema: Mapping[str, Any]) -> pa.Schema | None:
    """Return the columns with Arrow types; None if another program added a type that no view has."""
    try:
        return pa.schema([pa.field(field["name"], _arrow_type(field["type"])) for field in schema["fields"]])
    except (KeyError, ValueError, TypeError):
        return None


def column_ids(schema: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids of the top-level columns by name."""
    return {field["name"]: field["id"] for field in schema["fields"]}


def avro_type(kind: pa.DataType) -> Any:
    """Return the Avro type of a partition value."""
    if pat.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    return {"int": "int", "long": "long", "string": "string", "boolean": "boolean"}[_NAMES[kind]]


def partition_value(value: Any, kind: pa.DataType) -> Any:
    """Return a physical value as the manifest stores it."""
    return value.decode() if pat.is_string(kind) and isinstance(value, bytes) else value


def encode_value(value: Any, kind: pa.DataType) -> bytes:
    """Return a physical value in Iceberg's binary form."""
    if pat.is_boolean(kind):
        return b"\x01" if value else b"\x00"
    if pat.is_string(kind):
        return value if isinstance(value, bytes) else str(value).encode()
    if pat.is_decimal(kind):
        size = (value if value >= 0 else ~value).bit_length() // 8 + 1
        return int(value).to_bytes(size, "big", signed=True)
    return struct.pack("<i" if pat.is_int32(kind) or pat.is_date(kind) else "<q", int(value))


def encode_bounds(low: Any, high: Any, kind: pa.DataType) -> tuple[bytes | None, bytes | None]:
    """Return both bounds in binary form. Long strings are cut so that the bounds still hold; None is no bound."""
    if not pat.is_string(kind):
        return encode_value(low, kind), encode_value(high, kind)
    try:
        lower, upper = low.decode(), high.decode()
    except UnicodeDecodeError:
        return None, None
    cut = _successor(upper[:_LONGEST_TEXT]) if len(upper) > _LONGEST_TEXT else upper
    return lower[:_LONGEST_TEXT].encode(), None if cut is None else cut.encode()


def _successor(text: str) -> str | None:
    """Return the shortest string that is greater than all strings that begin with `text`."""
    for end in range(len(text) - 1, -1, -1):
        following = ord(text[end]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CODE_POINT:
            return text[:end] + chr(following)
    return None


def _fields(fields: Iterable[pa.Field], ids: ColumnIds, root: str, path: str) -> list[dict[str, Any]]:
    listed = list(fields)
    # Ids of one level are consecutive, as in tables of other writers.
    paths = [f"{path}.{field.name}" if path else field.name for field in listed]
    numbers = [ids.of(name, field.type) for name, field in zip(paths, listed, strict=True)]
    return [
        {"id": number, "name": field.name, "required": False, "type": _type(field.type, ids, root, name)}
        for number, field, name in zip(numbers, listed, paths, strict=True)
    ]


def _type(kind: pa.DataType, ids: ColumnIds, root: str, path: str) -> Any:
    if kind in _NAMES:
        return _NAMES[kind]
    if pat.is_timestamp(kind):
        return "timestamptz"
    if pat.is_fixed_size_binary(kind):
        return f"fixed[{kind.byte_width}]"
    if pat.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pat.is_struct(kind):
        return {"type": "struct", "fields": _fields(kind, ids, root, path)}
    if pat.is_list(kind):
        number = ids.of(f"{path}.element", kind.value_type)
        element = _type(kind.value_type, ids, root, f"{path}.element")
        return {"type": "list", "element-id": number, "element": element, "element-required": False}
    if pat.is_map(kind):
        key, value = ids.of(f"{path}.key", kind.key_type), ids.of(f"{path}.value", kind.item_type)
        return {
            "type": "map",
            "key-id": key,
            "key": _type(kind.key_type, ids, root, f"{path}.key"),
            "value-id": value,
            "value": _type(kind.item_type, ids, root, f"{path}.value"),
            "value-required": False,
        }
    raise UnsupportedError(
        f"{root}: column {path!r} has type {kind}, which Iceberg (format version 2) does not have. Store the column in "
        "another type",
        column=path,
        type=str(kind),
    )


def _ids(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, int, pa.DataType]]:
    """Yield path, id and Arrow type of all fields below a type; types that no view has are skipped."""
    if node["type"] == "struct":
        below = [(f"{path}.{f['name']}" if path else f["name"], f["id"], f["type"]) for f in node["fields"]]
    elif node["type"] == "list":
        below = [(f"{path}.element", node["element-id"], node["element"])]
    else:
        below = [(f"{path}.key", node["key-id"], node["key"]), (f"{path}.value", node["value-id"], node["value"])]
    for name, number, kind in below:
        try:
            yield name, number, _arrow_type(kind)
        except (KeyError, ValueError, TypeError):
            continue
        if isinstance(kind, dict):
            yield from _ids(kind, name)


def _arrow_type(node: Any) -> pa.DataType:
    if isinstance(node, str):
        if node.startswith("decimal("):
            precision, scale = node[8:-1].split(",")
            return pa.decimal128(int(precision), int(scale))
        if node.startswith("fixed["):
            return pa.binary(int(node[6:-1]))
        return _ARROW[node]
    if node["type"] == "struct":
        return pa.struct([pa.field(field["name"], _arrow_type(field["type"])) for field in node["fields"]])
    if node["type"] == "list":
        return pa.list_(pa.field("element", _arrow_type(node["element"])))
    return pa.map_(_arrow_type(node["key"]), _arrow_type(node["value"]))


def _mapping(fields: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [_mapped(field["id"], field["name"], field["type"]) for field in fields]


def _keep_dropped(mapping: list[dict[str, Any]], before: Iterable[Mapping[str, Any]]) -> None:
    """Add the entries of an earlier mapping for names that a mapping lacks, at any depth."""
    entries = {name: entry for entry in mapping for name in entry["names"]}
    for dropped in before:
        if not any(name in entries for name in dropped["names"]):
            mapping.append(dict(dropped))
            continue
        same = next(entries[name] for name in dropped["names"] if name in entries)
        if "fields" in same and "fields" in dropped:
            _keep_dropped(same["fields"], dropped["fields"])


def _add_stored(mapping: list[dict[str, Any]], fields: Iterable[pa.Field], ids: ColumnIds) -> None:
    """Add the columns of a file that a mapping lacks, at any depth."""
    entries = {name: entry for entry in mapping for name in entry["names"]}
    for column in fields:
        entry = entries.get(column.name)
        if entry is None:
            mapping.append(entry := {"field-id": ids.next(), "names": [column.name]})
            if pat.is_nested(column.type):
                entry["fields"] = []
        if "fields" in entry:
            _add_stored(entry["fields"], _children(column.type), ids)


def _children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type, with Iceberg's names for elements, keys and values."""
    fields = [kind.field(number) for number in range(kind.num_fields)]
    if pat.is_struct(kind):
        return fields
    names = ("element",) if len(fields) == 1 and not pat.is_map(kind) else ("key", "value")
    if pat.is_map(kind):
        fields = [kind.key_field, kind.item_field]
    return [field.with_name(name) for field, name in zip(fields, names, strict=True)]


def _mapped(number: int, name: str, kind: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"field-id": number, "names": [name]}
    if isinstance(kind, dict):
        if kind["type"] == "struct":
            entry["fields"] = _mapping(kind["fields"])
        elif kind["type"] == "list":
            entry["fields"] = [_mapped(kind["element-id"], "element", kind["element"])]
        else:
            entry["fields"] = [
                _mapped(kind["key-id"], "key", kind["key"]),
                _mapped(kind["value-id"], "value", kind["value"]),
            ]
    return entry
