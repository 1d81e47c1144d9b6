"""Avro object container files of exactly one record, as the timeline holds them (TL-3.3).

Equal records give equal bytes: the sync marker, random in other writers, is a digest of the record.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from functools import lru_cache
from typing import Any

import fastavro

from lakehouse.core.format.avro.bounds import check_schema
from lakehouse.core.format.timeline.schemas import Schema
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

MAGIC = b"Obj\x01"
#: Bytes that one compressed block may become: a thousand times its size and more is possible.
MAX_INFLATED = 1 << 28

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


#: Schemas of this package by their identity, which keeps them: parsed, and as the text that files have.
_known: dict[int, tuple[Schema, Any, bytes]] = {}


def write_record(schema: Schema, record: dict[str, Any]) -> bytes:
    """Return the container file of `record`: null codec, and nothing but the schema in the header, as Hudi has it."""
    _, parsed, text = _own(schema)
    data = _encode(parsed, record)
    sync = hashlib.blake2b(data, digest_size=16).digest()
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
        name, count, record = _content(data, wanted)
    except Exception as error:  # fastavro raises a dozen kinds on broken bytes; all of them mean the same here
        raise CorruptTableError(f"Avro content cannot be read: {type(error).__name__}: {error}") from error
    if name not in wanted:
        raise CorruptTableError(f"the file holds {name}; expected {' or '.join(wanted)}", found=name)
    if count != 1:
        raise CorruptTableError(f"the file holds {count} {name} records; expected exactly one")
    found: dict[str, Any] = record
    return found


def _content(data: bytes, wanted: dict[str, Schema]) -> tuple[str, int, Any]:
    """Return name and number of the records, and the record if it is the only one and of a `wanted` name.

    Raises whatever fastavro does.
    """
    source = io.BytesIO(data)
    header: Any = fastavro.schemaless_reader(source, _HEADER, None)
    text = header["meta"]["avro.schema"]
    written, name = _parsed(text)
    if name not in wanted:
        return name, 0, None
    codec = header["meta"].get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise ValueError(f"codec {codec!r} is not one of the timeline's, null and deflate")
    count, packed = 0, b""
    while source.tell() < len(data):
        block: Any = fastavro.schemaless_reader(source, _BLOCK, None)
        if block["sync"] != header["sync"] or len(block["sync"]) != _SYNC["size"] or block["count"] < 0:
            raise ValueError(f"a block ends at byte {source.tell()} without the marker of the file")
        count, packed = count + block["count"], block["data"] if block["count"] else packed
    if count != 1:
        return name, count, None
    _, ours, our_text = _own(wanted[name])
    datum = io.BytesIO(packed if codec == b"null" else _inflated(packed))
    return name, count, fastavro.schemaless_reader(datum, written, None if text == our_text else ours)


def _inflated(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    data = unpacker.decompress(packed, MAX_INFLATED)
    if unpacker.unconsumed_tail:
        raise ValueError(f"a block of {len(packed)} bytes holds more than {MAX_INFLATED}")
    return data


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> tuple[Any, str]:
    """Return a schema as it stands in a file, parsed, and the bare name of its records."""
    schema = parse_json(text)
    check_schema(schema)
    return fastavro.parse_schema(schema), str(schema["name"]).rpartition(".")[2]


def _own(schema: Schema) -> tuple[Schema, Any, bytes]:
    known = _known.get(id(schema))
    if known is None:
        text = json.dumps(schema, separators=(",", ":")).encode()
        known = _known[id(schema)] = (schema, fastavro.parse_schema(schema), text)
    return known


def _encode(schema: Any, record: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()
