"""Protocol Buffers types as values, from the descriptors in a file, a class or a schema registry.

int32, sint32, sfixed32              int32
uint32, fixed32                      int64
int64, sint64, sfixed64              int64
uint64, fixed64                      decimal(20, 0), which is exact
enum                                 string: the value's name, or its number if it has no name
google.protobuf.Timestamp            timestamp in microseconds, UTC
google.protobuf.Duration             int64, in microseconds
google.protobuf.Int64Value, ...      the value, null if the message is absent
map                                  map
a message that contains itself       the bytes of the message
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from google.protobuf import (
    any_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError, nearest
from lakehouse.platform.sources.kafka.schema_registry import BadMessageError, fetched_schema, registry_answer

#: The Arrow type per scalar kind.
SCALARS: dict[str, pa.DataType] = {
    "double": pa.float64(),
    "float": pa.float32(),
    "int32": pa.int32(),
    "sint32": pa.int32(),
    "uint32": pa.int64(),
    "int64": pa.int64(),
    "sint64": pa.int64(),
    "uint64": pa.decimal128(20, 0),
    "fixed32": pa.int64(),
    "sfixed32": pa.int32(),
    "fixed64": pa.decimal128(20, 0),
    "sfixed64": pa.int64(),
    "bool": pa.bool_(),
    "enum": pa.string(),
    "string": pa.string(),
    "bytes": pa.binary(),
}
#: Message kinds, and the Arrow type of kinds that are one value.
MESSAGE, MAP, WRAPPER = "message", "map", "wrapper"
TIMESTAMP, DURATION = "timestamp", "duration"
_VALUES = {TIMESTAMP: pa.timestamp("us", "UTC"), DURATION: pa.int64()}
_SERIALIZED = "?format=serialized"
#: Files that every Protocol Buffers compiler includes.
_COMMON = {
    module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb
    for module in (any_pb2, duration_pb2, empty_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2)
}
_KINDS = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()  # type: ignore[attr-defined, unused-ignore]
}
_SPECIAL = {
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": DURATION,
    **{
        f"google.protobuf.{name}Value": WRAPPER
        for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoField:
    """A message field.

    Attributes:
        name: The name of the field.
        number: The field number in the wire format.
        kind: A name in `SCALARS` or a message kind.
        is_repeated: Whether the field is a list.
        has_presence: Whether an absent field is distinguishable from its default; an absent field without presence has
            its default.
        symbols: The names of an enum by number.
        default: The value of an absent field without presence.
        message: The message type; for a map, its entry type; for a wrapper, the wrapper type.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool = False
    has_presence: bool = True
    symbols: Mapping[int, str] = field(default_factory=dict, hash=False)
    default: Any = None
    message: ProtoMessage | None = None

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of one value."""
        if self.kind in SCALARS:
            return SCALARS[self.kind]
        if self.kind in _VALUES:
            return _VALUES[self.kind]
        assert self.message is not None, "messages have a type"
        if self.kind == WRAPPER:
            return self.message.fields[0].value_type
        return self.message.arrow

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type of the field."""
        if self.kind == MAP:
            assert self.message is not None, "a map has a type of entries"
            key, value = self.message.fields
            return pa.map_(key.arrow, pa.field("value", value.arrow))
        return pa.list_(pa.field("element", self.value_type)) if self.is_repeated else self.value_type


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoMessage:
    """A message type: its full name and its fields in declaration order."""

    name: str
    fields: tuple[ProtoField, ...]

    @property
    def arrow(self) -> pa.StructType:
        """The Arrow type of a message."""
        return pa.struct([pa.field(one.name, one.arrow) for one in self.fields])


def message_of_class(name: str) -> ProtoMessage:
    """Return the type of a generated class, `package.module:Class`; raise UserError if there is none."""
    module, _, attribute = name.partition(":")
    try:
        message_class = getattr(import_module(module), attribute)
        return message_type(message_class.DESCRIPTOR)
    except ModuleNotFoundError as error:
        raise UserError(
            f"ingest.message: the module {module!r} is not in Spark's environment ({error}); add its folder to "
            "PYTHONPATH, or name a file of descriptors",
            setting="ingest.message",
        ) from error
    except AttributeError as error:
        raise UserError(f"ingest.message: {name!r} is not a class of messages: {error}") from error


def message_of_file(storage: Storage, path: str, name: str) -> ProtoMessage:
    """Return a message type in a descriptor file; raise UserError if the file does not contain it."""
    place = f"{storage.root.rstrip('/')}/{path}"
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(storage.get(path))
    except DecodeError as error:
        raise UserError(
            f"ingest.descriptors: {place} is not a file of descriptors; write it by protoc --include_imports "
            "--descriptor_set_out=FILE",
            path=place,
        ) from error
    pool = _pool({one.name: one for one in files.file}, place)
    names = [f"{one.package}.{kind.name}".lstrip(".") for one in files.file for kind in one.message_type]
    try:
        return message_type(pool.FindMessageTypeByName(name))
    except KeyError as error:
        raise UserError(
            f"ingest.message: {place} has no message {name!r}.{nearest(name, names)} There are: {', '.join(names)}.",
            path=place,
        ) from error


def messages_of_registry(registry: Mapping[str, str], schema_id: int) -> Any:
    """Return the file descriptor for a schema; raise BadMessageError if the registry does not have the id."""
    answer = fetched_schema(registry, schema_id, kind="PROTOBUF", query=_SERIALIZED)
    name = f"schema {schema_id}"
    files = _referenced(registry, answer)
    files[name] = _parsed(answer, name)
    return _pool(files, f"schema {schema_id} of the registry").FindFileByName(name)


def message_at(file: Any, indexes: tuple[int, ...]) -> ProtoMessage:
    """Return the message type at the wire format's indexes: in the file, then inside of the previous message."""
    try:
        descriptor = list(file.message_types_by_name.values())[indexes[0]]
        for index in indexes[1:]:
            descriptor = descriptor.nested_types[index]
    except IndexError as error:
        raise BadMessageError(f"its message index {list(indexes)} is not in {file.name}") from error
    return message_type(descriptor)


def message_type(descriptor: Any, around: tuple[str, ...] = ()) -> ProtoMessage:
    """Return the type that a descriptor declares; `around` contains the names of the enclosing messages."""
    inside = (*around, descriptor.full_name)
    fields = tuple(_field(one, inside) for one in descriptor.fields)
    return ProtoMessage(name=descriptor.full_name, fields=fields)


def _field(one: Any, around: tuple[str, ...]) -> ProtoField:
    kind, default, symbols = _KINDS[one.type], one.default_value, {}
    message = None
    if kind == "enum":
        symbols = {value.number: value.name for value in one.enum_type.values}
        default = symbols.get(default, str(default)) if not one.is_repeated else None
    if kind in ("message", "group"):
        inner, default = one.message_type, None
        if inner.full_name in around or not inner.fields or kind == "group":
            kind = "bytes"
        else:
            is_map = inner.GetOptions().map_entry
            kind = MAP if is_map else _SPECIAL.get(inner.full_name, MESSAGE)
            message = message_type(inner, around)
    is_list = one.is_repeated
    return ProtoField(
        name=one.name,
        number=one.number,
        kind=kind,
        is_repeated=is_list,
        has_presence=bool(one.has_presence) or is_list,
        symbols=symbols,
        default=None if is_list else default,
        message=message,
    )


def _referenced(registry: Mapping[str, str], answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the files that a schema imports, directly or indirectly, by name."""
    files: dict[str, Any] = {}
    waiting = list(answer.get("references") or ())
    while waiting:
        one = waiting.pop()
        name = one["name"]
        if name in files or name in _COMMON:
            continue
        path = f"subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"
        try:
            version = registry_answer(registry, path + _SERIALIZED)
        except FileNotFoundError as error:
            raise UserError(f"the registry lacks {path}, to which a schema refers as {name!r}") from error
        files[name] = _parsed(version, name)
        waiting += version.get("references") or ()
    return files


def _parsed(answer: Mapping[str, Any], name: str) -> Any:
    """Return the file descriptor in a registry response."""
    file = descriptor_pb2.FileDescriptorProto()
    try:
        file.ParseFromString(base64.b64decode(str(answer["schema"]), validate=True))
    except (binascii.Error, ValueError, DecodeError) as error:
        raise UserError(
            f"the registry gives {name} as text, and not as a descriptor, which format=serialized asks for: name a "
            "file of descriptors by 'descriptors' and 'message' in 'ingest'"
        ) from error
    file.name = name
    return file


def _pool(files: Mapping[str, Any], place: str) -> DescriptorPool:
    """Return a pool with files and their imports; raise UserError if one is missing."""
    pool = DescriptorPool()
    done: set[str] = set()

    def add(name: str) -> None:
        if name in done:
            return
        done.add(name)
        if name in files:
            for imported in files[name].dependency:
                add(imported)
            pool.Add(files[name])
        elif name in _COMMON:
            pool.AddSerializedFile(_COMMON[name])
        else:
            raise UserError(f"{place} imports {name!r}, which it does not contain: write it with --include_imports")

    for name in files:
        add(name)
    return pool
