"""Write one Avro record as plain values: each schema is compiled to functions, one per field.

fastavro compares a value with each type of a union. For the optional fields of timeline files this takes most of the
time. A union of null and one other type needs no comparison. Both produce the same bytes; a property test compares
them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeAlias

Write: TypeAlias = Callable[[bytearray, Any], None]

_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_SMALL = 0x80
_LEAST, _GREATEST = -(1 << 63), (1 << 63) - 1


class UnsupportedSchemaError(Exception):
    """The schema has a type that these functions do not write."""


def record_writer(schema: Any) -> Callable[[Any], bytes]:
    """Return a function that encodes a record, given as a mapping; absent fields have their defaults.

    Raises:
        UnsupportedSchemaError: The schema has a union of several types, or a type that timeline files do not use.
    """
    write = _Compiler().compile(schema)

    def encode(record: Any) -> bytes:
        out = bytearray()
        write(out, record)
        return bytes(out)

    return encode


def write_long(out: bytearray, number: int) -> None:
    """Append a number as an Avro varint."""
    if not _LEAST <= number <= _GREATEST:
        raise ValueError(f"{number} has more than 64 bits")
    rest = (number << 1) ^ (number >> 63)
    while rest >= _SMALL:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)


def write_bytes(out: bytearray, data: bytes) -> None:
    """Append bytes with their length."""
    write_long(out, len(data))
    out += data


def _write_text(out: bytearray, text: str) -> None:
    data = text.encode()
    write_long(out, len(data))
    out += data


def _write_flag(out: bytearray, flag: bool) -> None:
    out.append(1 if flag else 0)


_PLAIN: dict[str, Write] = {
    "null": lambda out, value: None,
    "boolean": _write_flag,
    "int": write_long,
    "long": write_long,
    "float": lambda out, value: out.extend(_FLOAT.pack(value)),
    "double": lambda out, value: out.extend(_DOUBLE.pack(value)),
    "bytes": write_bytes,
    "string": _write_text,
}


class _Compiler:
    """Compiles one schema; records may be referred to by their names."""

    def __init__(self) -> None:
        self._named: dict[str, Write] = {}

    def compile(self, schema: Any) -> Write:
        if isinstance(schema, list):
            return self._optional(schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if isinstance(kind, dict | list):
            return self.compile(kind)
        if kind in _PLAIN:
            return _PLAIN[kind]
        if kind in self._named:
            return self._named[kind]
        if not isinstance(schema, dict):
            raise UnsupportedSchemaError(f"type {kind!r}")
        if kind == "record":
            return self._record(schema)
        if kind == "array":
            return _items(self.compile(schema["items"]))
        if kind == "map":
            return _entries(self.compile(schema["values"]))
        raise UnsupportedSchemaError(f"type {kind!r}")

    def _optional(self, branches: list[Any]) -> Write:
        if len(branches) != 2 or "null" not in branches or branches[0] == branches[1]:
            raise UnsupportedSchemaError(f"union {branches}")
        null = branches.index("null")
        write, absent, present = self.compile(branches[1 - null]), 2 * null, 2 - 2 * null

        def optional(out: bytearray, value: Any) -> None:
            if value is None:
                out.append(absent)
            else:
                out.append(present)
                write(out, value)

        return optional

    def _record(self, schema: dict[str, Any]) -> Write:
        fields: list[tuple[str, Any, Write]] = []

        def record(out: bytearray, value: Any) -> None:
            get = value.get
            for name, default, write in fields:
                write(out, get(name, default))

        self._named[schema["name"]] = record
        if "namespace" in schema:
            self._named[f"{schema['namespace']}.{schema['name']}"] = record
        fields += [(field["name"], field.get("default"), self.compile(field["type"])) for field in schema["fields"]]
        return record


def _items(write: Write) -> Write:
    def items(out: bytearray, values: Any) -> None:
        if values:
            write_long(out, len(values))
            for value in values:
                write(out, value)
        out.append(0)

    return items


def _entries(write: Write) -> Write:
    def entries(out: bytearray, values: Any) -> None:
        if values:
            write_long(out, len(values))
            for key, value in values.items():
                _write_text(out, key)
                write(out, value)
        out.append(0)

    return entries
