"""Avro object container files of exactly one record, as the timeline holds them (format: timeline.md 3.3).

Equal records give equal bytes: the sync marker, random in other writers, is a digest of the record.
"""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import fastavro

from lakehouse.errors import CorruptTableError
from lakehouse.format.schemas import Schema

MAGIC = b"Obj\x01"

_SYNC = {"type": "fixed", "name": "Sync", "size": 16}
_HEADER = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Header",
        "fields": [
            {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
            {"name": "meta", "type": {"type": "map", "values": "bytes"}},
            {"name": "sync", "type": _SYNC},
        ],
    }
)
_BLOCK = fastavro.parse_schema(
    {
        "type": "record",
        "name": "Block",
        "fields": [
            {"name": "count", "type": "long"},
            {"name": "data", "type": "bytes"},
            {"name": "sync", "type": _SYNC},
        ],
    }
)


def write_record(schema: Schema, record: dict[str, Any]) -> bytes:
    """Return the container file of `record`: null codec, and nothing but the schema in the header, as Hudi has it."""
    data = _encode(fastavro.parse_schema(schema), record)
    sync = hashlib.blake2b(data, digest_size=16).digest()
    text = json.dumps(schema, separators=(",", ":")).encode()
    header = _encode(_HEADER, {"magic": MAGIC, "meta": {"avro.schema": text}, "sync": sync})
    return header + _encode(_BLOCK, {"count": 1, "data": data, "sync": sync})


def read_record(data: bytes, *schemas: Schema) -> dict[str, Any]:
    """Return the one record of a container file, resolved to the one of `schemas` that has the record's name.

    Raises CorruptTableError if the bytes are no container file, hold another record, or not exactly one.
    """
    if not data:
        raise CorruptTableError("the file is empty; expected an Avro container file")
    if not data.startswith(MAGIC):
        raise CorruptTableError(f"the file starts with {data[:8]!r}; expected an Avro container file, {MAGIC!r}")
    wanted = {schema["name"]: schema for schema in schemas}
    try:
        name = _record_name(data)
        records = list(fastavro.reader(io.BytesIO(data), wanted[name])) if name in wanted else []
    except Exception as error:  # fastavro raises a dozen kinds on broken bytes; all of them mean the same here
        raise CorruptTableError(f"Avro content cannot be read: {type(error).__name__}: {error}") from error
    if name not in wanted:
        raise CorruptTableError(f"the file holds {name}; expected {' or '.join(wanted)}", found=name)
    if len(records) != 1:
        raise CorruptTableError(f"the file holds {len(records)} {name} records; expected exactly one")
    record: dict[str, Any] = records[0]  # type: ignore[assignment]
    return record


def _record_name(data: bytes) -> str:
    schema: Any = fastavro.reader(io.BytesIO(data)).writer_schema
    return str(schema["name"]).rpartition(".")[2]


def _encode(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()
