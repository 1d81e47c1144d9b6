"""Read and write Avro object container files of exactly one record, the format of timeline files (TL-3.3).

Equal records are encoded as equal bytes. To achieve this, the sync marker, which other writers choose at random, is a
digest of the record.
"""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import fastavro

from lakehouse.core.format.avro.bounds import check_schema
from lakehouse.core.format.avro.record_writer import record_writer, write_bytes
from lakehouse.core.format.timeline.schemas import Schema
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

MAGIC = b"Obj\x01"
#: The maximum uncompressed size of a block in bytes. Deflate can expand a small block more than a thousand times.
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


#: Cache of parsed schemas by `id` of the schema object: the object (so that its id stays valid), the parsed schema, and
#: its JSON.
_schemas: dict[int, tuple[Schema, Any, bytes]] = {}
#: Cache for writers, also by `id`: the schema, the encoder for records, and the bytes before the sync marker.
_writers: dict[int, tuple[Schema, Callable[[Any], bytes], bytes]] = {}
#: The number 1 as an Avro varint.
_ONE_RECORD = b"\2"


def write_record(schema: Schema, record: dict[str, Any]) -> bytes:
    """Return the container file of `record`, as Hudi writes it: not compressed, only the schema in the header."""
    encode, header = _writer(schema)
    data = encode(record)
    sync = _sync_marker(data)
    block = bytearray(_ONE_RECORD)
    write_bytes(block, data)
    return b"".join((header, sync, block, sync))


def is_own_record(data: bytes) -> bool:
    """Return whether `write_record` made a container file; every other writer has a random sync marker."""
    source = io.BytesIO(data)
    try:
        header: Any = fastavro.schemaless_reader(source, _HEADER, None)
        block: Any = fastavro.schemaless_reader(source, _BLOCK, None)
    except Exception:  # fastavro raises many exception types for damaged bytes
        return False
    return bool(header["sync"] == block["sync"] == _sync_marker(block["data"]))


def _sync_marker(datum: bytes) -> bytes:
    return hashlib.blake2b(datum, digest_size=16).digest()


def read_datum(data: bytes, *schemas: Schema) -> tuple[bytes, bytes]:
    """Return the schema (JSON) and the encoded record of a container file. Raises the errors of `read_record`."""
    text, _, datum = _only_record(data, schemas)
    return text, datum


def read_record(data: bytes, *schemas: Schema) -> dict[str, Any]:
    """Return the record of a container file, resolved to the schema of `schemas` with the record's name.

    Raises CorruptTableError if the bytes are not a container file, or have a record of another name, or do not have
    exactly one record.
    """
    text, name, datum = _only_record(data, schemas)
    _, ours, our_text = _own(next(schema for schema in schemas if schema["name"] == name))
    try:
        written, _ = _parsed(text)
        record: Any = fastavro.schemaless_reader(io.BytesIO(datum), written, None if text == our_text else ours)
    except Exception as error:  # fastavro raises many exception types for damaged bytes
        raise _unreadable(error) from error
    result: dict[str, Any] = record
    return result


def _only_record(data: bytes, schemas: Sequence[Schema]) -> tuple[bytes, str, bytes]:
    """Return the schema of a container file, the name of its record, and its only record, encoded."""
    if not data:
        raise CorruptTableError("the file is empty; expected an Avro container file")
    if not data.startswith(MAGIC):
        raise CorruptTableError(f"the file starts with {data[:8]!r}; expected an Avro container file, {MAGIC!r}")
    names = [schema["name"] for schema in schemas]
    try:
        text, name, count, datum = _content(data, names)
    except Exception as error:  # fastavro raises many exception types for damaged bytes
        raise _unreadable(error) from error
    if name not in names:
        raise CorruptTableError(f"the file has a record {name}; expected {' or '.join(names)}", found=name)
    if count != 1:
        raise CorruptTableError(f"the file has {count} {name} records; expected exactly one")
    return text, name, datum


def _unreadable(error: Exception) -> CorruptTableError:
    return CorruptTableError(f"Avro content cannot be read: {type(error).__name__}: {error}")


def _content(data: bytes, names: Sequence[str]) -> tuple[bytes, str, int, bytes]:
    """Return the schema, the name and number of the records, and the encoded record if its name is in `names`.

    Raises ValueError, or any exception of fastavro, for damaged bytes.
    """
    source = io.BytesIO(data)
    header: Any = fastavro.schemaless_reader(source, _HEADER, None)
    text = header["meta"]["avro.schema"]
    _, name = _parsed(text)
    if name not in names:
        return text, name, 0, b""
    codec = header["meta"].get("avro.codec", b"null")
    if codec not in (b"null", b"deflate"):
        raise ValueError(f"codec {codec!r} is not supported in timeline files; expected null or deflate")
    count, packed = 0, b""
    while source.tell() < len(data):
        block: Any = fastavro.schemaless_reader(source, _BLOCK, None)
        if block["sync"] != header["sync"] or len(block["sync"]) != _SYNC["size"] or block["count"] < 0:
            raise ValueError(f"the block that ends at byte {source.tell()} does not have the file's sync marker")
        count, packed = count + block["count"], block["data"] if block["count"] else packed
    if count != 1:
        return text, name, count, b""
    return text, name, count, packed if codec == b"null" else _inflated(packed)


def _inflated(packed: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=-zlib.MAX_WBITS)
    data = unpacker.decompress(packed, MAX_INFLATED)
    if unpacker.unconsumed_tail:
        raise ValueError(f"a compressed block of {len(packed)} bytes expands to more than {MAX_INFLATED} bytes")
    return data


@lru_cache(maxsize=64)
def _parsed(text: bytes) -> tuple[Any, str]:
    """Return the schema in a file's header, parsed, and the name of its record without namespace."""
    schema = parse_json(text)
    check_schema(schema)
    return fastavro.parse_schema(schema), str(schema["name"]).rpartition(".")[2]


def _own(schema: Schema) -> tuple[Schema, Any, bytes]:
    entry = _schemas.get(id(schema))
    if entry is None:
        text = json.dumps(schema, separators=(",", ":")).encode()
        entry = _schemas[id(schema)] = (schema, fastavro.parse_schema(schema), text)
    return entry


def _writer(schema: Schema) -> tuple[Callable[[Any], bytes], bytes]:
    """Return the function that encodes a record, and the bytes of a container file before the sync marker."""
    entry = _writers.get(id(schema))
    if entry is None:
        own, _, text = _own(schema)
        header = bytearray(MAGIC + _ONE_RECORD)  # the header map has one entry
        write_bytes(header, b"avro.schema")
        write_bytes(header, text)
        entry = _writers[id(schema)] = (own, record_writer(schema), bytes(header + b"\0"))
    return entry[1:]
