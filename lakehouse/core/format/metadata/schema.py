"""The Avro schema of metadata records (MDT-2).

Each file stores the schema of its records, and older releases of Hudi lack fields. A decoder therefore compiles the
schema that it finds in a file. Records in memory have the form of `SCHEMA`. Files are written with a `RecordSchema`:

    CURRENT    Hudi 1.1 and newer; every table of version 9
    HUDI_1_0   Hudi 1.0: statistics have no value type, and no bounds of arrays. All other records have the same bytes.

The logs of a file slice must have the schema of its base file. hudi-rs fails otherwise, and a compaction of Hudi 1.0
labels its records with the schema of the newest commit.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakehouse.core.format.avro.nodes import AvroNode
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

FILES, BLOOM_FILTER, COLUMN_STATS = "filesystemMetadata", "BloomFilterMetadata", "ColumnStatsMetadata"
RECORD_INDEX, SECONDARY_INDEX = "recordIndexMetadata", "SecondaryIndexMetadata"

#: Names of the value wrappers for statistics in the order of their union; the branch of the first is 1.
WRAPPERS = (
    "BooleanWrapper",
    "IntWrapper",
    "LongWrapper",
    "FloatWrapper",
    "DoubleWrapper",
    "BytesWrapper",
    "StringWrapper",
    "DateWrapper",
    "DecimalWrapper",
    "TimeMicrosWrapper",
    "TimestampMicrosWrapper",
    "LocalDateWrapper",
)

_NAMESPACE = "org.apache.hudi.avro.model"
_META_COLUMNS = (
    "_hoodie_commit_time",
    "_hoodie_commit_seqno",
    "_hoodie_record_key",
    "_hoodie_partition_path",
    "_hoodie_file_name",
)
#: Fields that older releases lack.
_OPTIONAL = frozenset(
    {*_META_COLUMNS, BLOOM_FILTER, COLUMN_STATS, RECORD_INDEX, SECONDARY_INDEX}
    | {"isTightBound", "valueType", "fileId", "fileIdEncoding", "position"}
)
#: Hudi's compaction reads strings with this schema; without the annotation it gets objects of another class and fails.
_TEXT = {"type": "string", "avro.java.string": "String"}
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 15}
_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
_SIZES = {"boolean": 1, "float": 4, "double": 8}


def _field(name: str, kind: Any, **attributes: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **attributes}


def _optional(name: str, kind: Any) -> dict[str, Any]:
    return _field(name, ["null", kind], default=None)


def _record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def _bounds(*, arrays: bool) -> list[dict[str, Any]]:
    """Return the fields of the lower and the upper bound.

    The first declares the wrapper types, the second refers to them.
    """
    kinds: tuple[Any, ...] = ("boolean", "int", "long", "float", "double", "bytes", _TEXT, "int", _DECIMAL)
    kinds += ({"type": "long", "logicalType": "time-micros"}, "long", "int")
    wrappers = [_record(name, _field("value", kind)) for name, kind in zip(WRAPPERS, kinds, strict=True)]
    items = {"type": "array", "items": ["null", *WRAPPERS]}
    array = [_record("ArrayWrapper", _optional("wrappedValues", items))] if arrays else []
    return [
        _field("minValue", ["null", *wrappers, *array], default=None),
        _field("maxValue", ["null", *WRAPPERS, *(kind["name"] for kind in array)], default=None),
    ]


def _column_stats(*, value_types: bool) -> dict[str, Any]:
    counts = ("valueCount", "nullCount", "totalSize", "totalUncompressedSize")
    value_type = _record("HoodieValueTypeInfo", _field("typeOrdinal", "int"), _optional("additionalInfo", _TEXT))
    return _record(
        "HoodieMetadataColumnStats",
        _optional("fileName", _TEXT),
        _optional("columnName", _TEXT),
        *_bounds(arrays=value_types),
        *(_optional(name, "long") for name in counts),
        _field("isDeleted", "boolean"),
        _field("isTightBound", "boolean", default=False),
        *([_optional("valueType", value_type)] if value_types else []),
    )


def _payload(*, value_types: bool = True) -> list[dict[str, Any]]:
    """Return the fields of a record without the meta columns."""
    file_info = _record("HoodieMetadataFileInfo", _field("size", "long"), _field("isDeleted", "boolean"))
    files = {"type": "map", "values": file_info, "avro.java.string": "String"}
    bloom = _record(
        "HoodieMetadataBloomFilter",
        _field("type", _TEXT),
        _field("timestamp", _TEXT),
        _field("bloomFilter", "bytes"),
        _field("isDeleted", "boolean"),
    )
    location = _record(
        "HoodieRecordIndexInfo",
        _optional("partitionName", _TEXT),
        _optional("fileIdHighBits", "long"),
        _optional("fileIdLowBits", "long"),
        _optional("fileIndex", "int"),
        _optional("fileId", _TEXT),
        _optional("instantTime", "long"),
        _field("fileIdEncoding", "int", default=0),
        _optional("position", "long"),
    )
    return [
        _field("key", _TEXT),
        _field("type", "int"),
        _field(FILES, ["null", files]),
        _optional(BLOOM_FILTER, bloom),
        _optional(COLUMN_STATS, _column_stats(value_types=value_types)),
        _optional(RECORD_INDEX, location),
        _optional(SECONDARY_INDEX, _record("HoodieSecondaryIndexInfo", _field("isDeleted", "boolean"))),
    ]


def _schema(*fields: dict[str, Any]) -> str:
    record = {"type": "record", "name": "HoodieMetadataRecord", "namespace": _NAMESPACE, "fields": list(fields)}
    return json.dumps(record, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSchema:
    """The schema of metadata records as a Hudi release writes it.

    Attributes:
        files: The schema of the records in files: `schema` of HFiles and the SCHEMA header of log blocks.
        commits: The schema without meta columns: `schema` in the extra metadata of metadata table commits.
    """

    files: str
    commits: str


def _record_schema(*, value_types: bool) -> RecordSchema:
    payload = _payload(value_types=value_types)
    meta = (_optional(name, "string") for name in _META_COLUMNS)
    return RecordSchema(files=_schema(*meta, *payload), commits=_schema(*payload))


CURRENT, HUDI_1_0 = _record_schema(value_types=True), _record_schema(value_types=False)
#: The schema of records in memory.
SCHEMA = CURRENT.files


@lru_cache(maxsize=64)
def record_node(schema: str) -> AvroNode:
    """Return the node of the metadata records with this Avro schema; its children are the columns.

    Logical types are ignored: numbers stay numbers and decimals stay bytes.

    Raises CorruptTableError if the schema is malformed or does not declare metadata records.
    """
    try:
        node = _Compiler().node(parse_json(schema), "")
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CorruptTableError(
            f"the Avro schema of the metadata records is malformed: {type(error).__name__}: {error}"
        ) from error
    if schema != SCHEMA:
        _require_compatible(node.arrow, record_node(SCHEMA).arrow, "")
    return node


def schema_of_form(schema: str) -> RecordSchema | None:
    """Return the record schema with the fields of an Avro schema, or None if this package does not write that form."""
    forms = (form for form in (CURRENT, HUDI_1_0) if record_node(schema) == record_node(form.files))
    return next(forms, None)


@lru_cache(maxsize=16)
def is_current(schema: str) -> bool:
    """Return whether records with a schema have the form of records in memory."""
    return schema == SCHEMA or record_node(schema) == record_node(SCHEMA)


@lru_cache(maxsize=16)
def lacks_value_types(schema: str) -> bool:
    """Return whether only the value type of statistics is missing, compared with records in memory (`HUDI_1_0`)."""
    return schema == HUDI_1_0.files or record_node(schema) == record_node(HUDI_1_0.files)


def _require_compatible(actual: pa.DataType, expected: pa.DataType, path: str) -> None:
    """Raise CorruptTableError if a type lacks fields that all releases have, or has fields of other types.

    Unions are structs here; a release may know fewer branches.
    """
    if not pa.types.is_struct(expected):
        if pa.types.is_map(expected) and pa.types.is_map(actual):
            return _require_compatible(actual.item_type, expected.item_type, path)
        if actual != expected and not pa.types.is_list(expected):
            raise CorruptTableError(
                f"the Avro schema of the metadata records declares {path!r} as {actual}", column=path
            )
        return None
    if not pa.types.is_struct(actual):
        raise CorruptTableError(f"the Avro schema does not declare metadata records: {path!r} is {actual}", column=path)
    for field in expected:
        place = f"{path}.{field.name}" if path else field.name
        if actual.get_field_index(field.name) >= 0:
            _require_compatible(actual.field(field.name).type, field.type, place)
        elif field.name not in _OPTIONAL and not field.name.endswith("Wrapper"):
            raise CorruptTableError(
                f"the Avro schema does not declare metadata records: it has no field {place!r}", column=place
            )
    return None


class _Compiler:
    """Builds the node of a schema and stores its named types."""

    def __init__(self) -> None:
        self._named: dict[str, AvroNode] = {}

    def node(self, declared: Any, path: str) -> AvroNode:
        if isinstance(declared, list):
            return self._union(declared, path)
        if isinstance(declared, str):
            if declared in _PRIMITIVES:
                return AvroNode(path=path, kind=declared, arrow=_PRIMITIVES[declared], size=_SIZES.get(declared, 0))
            return self._named[declared.rpartition(".")[2]]
        kind = declared["type"]
        if kind == "record":
            return self._record(declared, path)
        if kind == "map":
            key = AvroNode(path=f"{path}.key", kind="string", arrow=pa.string())
            value = self.node(declared["values"], f"{path}.value")
            arrow = pa.map_(pa.string(), pa.field("value", value.arrow, nullable=value.null_branch is not None))
            return AvroNode(path=path, kind="map", arrow=arrow, children=(key, value))
        if kind == "array":
            item = self.node(declared["items"], f"{path}.element")
            return AvroNode(path=path, kind="array", arrow=pa.list_(item.arrow), children=(item,))
        return self.node(kind, path)

    def _record(self, declared: dict[str, Any], path: str) -> AvroNode:
        prefix = f"{path}." if path else ""
        children = tuple(self.node(field["type"], f"{prefix}{field['name']}") for field in declared["fields"])
        if not children:
            raise ValueError(f"record {declared['name']} has no fields")
        names = [field["name"] for field in declared["fields"]]
        arrow = pa.struct(
            [
                pa.field(name, child.arrow, nullable=child.null_branch is not None)
                for name, child in zip(names, children, strict=True)
            ]
        )
        node = AvroNode(path=path, kind="record", arrow=arrow, children=children)
        self._named[str(declared["name"]).rpartition(".")[2]] = node
        return node

    def _union(self, declared: list[Any], path: str) -> AvroNode:
        kinds = [(number, kind) for number, kind in enumerate(declared) if kind != "null"]
        null = declared.index("null") if "null" in declared else None
        if not kinds or len(declared) > len(kinds) + 1 or len(declared) > 60:
            raise ValueError(f"{path} is a union of {len(declared)} types")
        children = [(number, self.node(kind, path)) for number, kind in kinds]
        if len(children) == 1:
            ((number, child),) = children
            if child.value_branch is not None or child.kind == "union":
                raise ValueError(f"{path} is a union that contains a union")
            return AvroNode(
                path=child.path, kind=child.kind, arrow=child.arrow, children=child.children, size=child.size,
                value_branch=number, null_branch=null,
            )  # fmt: skip
        names = [_branch_name(kind) for _, kind in kinds]
        arrow = pa.struct([pa.field(name, child.arrow) for name, (_, child) in zip(names, children, strict=True)])
        return AvroNode(
            path=path, kind="union", arrow=arrow, children=tuple(child for _, child in children),
            branches=tuple(number for number, _ in children), null_branch=null,
        )  # fmt: skip


def _branch_name(kind: Any) -> str:
    name = kind if isinstance(kind, str) else kind.get("name", kind["type"])
    return str(name).rpartition(".")[2]
