"""Read and write delete blocks of version 3 with fastavro and the Avro schema of Apache Hudi 1.2."""

from __future__ import annotations

import io
import struct
from typing import Any

import fastavro

_SCALARS = {
    "Boolean": "boolean",
    "Int": "int",
    "Long": "long",
    "Float": "float",
    "Double": "double",
    "Bytes": "bytes",
    "String": "string",
    "Date": "int",
    "Decimal": "bytes",
    "TimeMicros": "long",
    "TimestampMicros": "long",
}


def _wrapper(name: str, kind: str) -> dict[str, Any]:
    return {"type": "record", "name": f"{name}Wrapper", "fields": [{"name": "value", "type": kind}]}


_ITEMS = ["null", *(f"{name}Wrapper" for name in _SCALARS), _wrapper("LocalDate", "int")]
_ARRAY = {
    "type": "record",
    "name": "ArrayWrapper",
    "fields": [{"name": "wrappedValues", "type": ["null", {"type": "array", "items": _ITEMS}]}],
}
_RECORD = {
    "type": "record",
    "name": "HoodieDeleteRecord",
    "fields": [
        {"name": "recordKey", "type": ["null", "string"]},
        {"name": "partitionPath", "type": ["null", "string"]},
        {"name": "orderingVal", "type": ["null", *(_wrapper(*item) for item in _SCALARS.items()), _ARRAY]},
    ],
}
_LIST = fastavro.parse_schema(
    {
        "type": "record",
        "name": "HoodieDeleteRecordList",
        "fields": [{"name": "deleteRecordList", "type": {"type": "array", "items": _RECORD}}],
    }
)
#: Key, partition and ordering value; the ordering value is None, or the name of its Avro wrapper and the wrapped value.
Entry = tuple[str, str | None, tuple[str, Any] | None]


def read_entries(content: bytes) -> list[Entry]:
    """Return the entries of a delete block of version 3."""
    payload = io.BytesIO(content[8:])
    record: Any = fastavro.schemaless_reader(payload, _LIST, None, return_record_name=True)
    assert not payload.read()
    return [(e["recordKey"], e["partitionPath"], _unwrapped(e["orderingVal"])) for e in record["deleteRecordList"]]


def write_entries(entries: list[Entry]) -> bytes:
    """Return the content of a delete block of version 3."""
    records = [
        {"recordKey": key, "partitionPath": partition, "orderingVal": _wrapped(value)}
        for key, partition, value in entries
    ]
    out = io.BytesIO()
    fastavro.schemaless_writer(out, _LIST, {"deleteRecordList": records})
    return struct.pack(">ii", 3, len(out.getvalue())) + out.getvalue()


def _unwrapped(value: Any) -> tuple[str, Any] | None:
    if value is None:
        return None
    name = value[0].removesuffix("Wrapper")
    if name == "Array":
        return name, [_unwrapped(item) for item in value[1]["wrappedValues"] or ()]
    return name, value[1]["value"]


def _wrapped(value: tuple[str, Any] | None) -> Any:
    if value is None:
        return None
    name, content = value
    if name == "Array":
        return f"{name}Wrapper", {"wrappedValues": [_wrapped(item) for item in content]}
    return f"{name}Wrapper", {"value": content}
