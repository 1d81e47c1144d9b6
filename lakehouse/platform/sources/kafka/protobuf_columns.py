"""Read Protocol Buffers messages into Arrow columns with Google's library `protobuf`.

One call parses all messages of a batch as the elements of one list, which takes a quarter of the CPU time compared with
one call per message. The library parses them with a type that is built here from the writer's type:

    every field has presence                    absent fields become null
    a string is bytes                           Arrow checks all strings of a column for UTF-8
    an enum is a number                         a number without a name is not lost
    a map is a list of entries                  the order of the entries stays
    a message inside of itself is bytes         no message is nested deeper than its type

The package `ptars` takes a sixth of the CPU time. It is not used, because it drops fields that the type lacks without
counting them, and because it depends on a private module of `protobuf`.
"""

from __future__ import annotations

import base64
import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, compress
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from lakehouse.core.format.spread import spread
from lakehouse.errors import UserError
from lakehouse.platform.sources.kafka.protobuf_types import (
    DURATION,
    MAP,
    TIMESTAMP,
    WRAPPER,
    ProtoField,
    ProtoMessage,
)

#: A list element starts with this byte: field 1, with a length.
_ELEMENT = b"\n"
_WIRE_VARINT, _WIRE_FIXED64, _WIRE_BYTES, _WIRE_GROUP, _WIRE_FIXED32 = 0, 1, 2, 3, 5
_FIXED_BYTES = {_WIRE_FIXED64: 8, _WIRE_FIXED32: 4}
_EXAMPLE_BYTES = 60
#: The range of timestamps; durations have a narrower range.
_FIRST_SECOND, _LAST_SECOND = -62_135_596_800, 315_576_000_000
_DESCRIPTOR: Any = descriptor_pb2.FieldDescriptorProto
#: Types of values before conversion, if they differ from the column types.
_RAW = {"string": pa.binary(), "enum": pa.int32(), "uint64": pa.uint64(), "fixed64": pa.uint64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownField:
    """A field that the schema lacks: its path with its number, the number of messages, and the start of one value."""

    path: tuple[str, ...]
    messages: int
    example: str


def decode_messages(values: pa.Array, message: ProtoMessage) -> tuple[pa.StructArray, tuple[UnknownField, ...]]:
    """Return the messages in a binary array without nulls as structs, and the fields that their type lacks.

    Absent fields are null, including lists and maps. A field without presence is null if it has its default.

    Raises:
        UserError: A value is not a message of this type, a string is not UTF-8, or a field is a group.
    """
    with _paused_collector():
        return _decoded(values.to_pylist(), message)


def _decoded(bodies: list[bytes], message: ProtoMessage) -> tuple[pa.StructArray, tuple[UnknownField, ...]]:
    try:
        rows = list(_list_class(message).FromString(_as_list(bodies)).rows)
        # Concatenated messages are one message with each field that occurs in any of them.
        union = type(rows[0]).FromString(b"".join(bodies)) if rows else None
    except DecodeError as error:
        raise UserError("it is cut off, or its bytes are not a message") from error
    columns = _Columns()
    records = columns.structs(message, _Rows(rows, np.arange(len(rows)), union), ())
    return records, tuple(columns.unknown)


@contextmanager
def _paused_collector() -> Iterator[None]:
    """Pause Python's cyclic garbage collector, which takes a quarter of the time and finds no message cycles."""
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


def _as_list(bodies: Sequence[bytes]) -> bytes:
    """Return the bytes of a message whose field 1 is the list of messages."""
    starts: dict[int, bytes] = {}
    parts: list[bytes] = []
    for value in bodies:
        start = starts.get(len(value))
        if start is None:
            start = starts[len(value)] = _ELEMENT + _varint(len(value))
        parts += (start, value)
    return b"".join(parts)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@lru_cache(maxsize=256)
def _list_class(message: ProtoMessage) -> Any:
    """Return a message class whose field `rows` is a list of `message`."""
    file = descriptor_pb2.FileDescriptorProto(name="columns.proto", syntax="proto2")
    rows = file.message_type.add(name="Rows")
    rows.field.add(
        name="rows",
        number=1,
        label=_DESCRIPTOR.LABEL_REPEATED,
        type=_DESCRIPTOR.TYPE_MESSAGE,
        type_name=_declare(file, message),
    )
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("Rows"))


def _declare(file: Any, message: ProtoMessage) -> str:
    """Add a message type to a file, with the types of its fields, and return its name."""
    name = f"Message{len(file.message_type)}"
    declared = file.message_type.add(name=name)
    for one in message.fields:
        # A field could have the same name as a method.
        field = declared.field.add(name=_attribute(one), number=one.number)
        field.label = _DESCRIPTOR.LABEL_REPEATED if one.is_repeated else _DESCRIPTOR.LABEL_OPTIONAL
        if one.message is not None:
            field.type, field.type_name = _DESCRIPTOR.TYPE_MESSAGE, _declare(file, one.message)
        else:
            kind = {"string": "bytes", "enum": "int32"}.get(one.kind, one.kind)
            field.type = getattr(_DESCRIPTOR, f"TYPE_{kind.upper()}")
    return f".{name}"


def _attribute(one: ProtoField) -> str:
    return f"field_{one.number}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Parsed messages of one type.

    Attributes:
        messages: The messages.
        roots: For each message, the position of the outermost one.
        union: A message with each field that occurs in any of the messages; None if it is unknown.
    """

    messages: list[Any]
    roots: NDArray[np.int64]
    union: Any

    def has(self, name: str) -> bool:
        """Return whether any message may have a field."""
        if self.union is None:
            return True
        field = self.union.DESCRIPTOR.fields_by_name[name]
        return bool(getattr(self.union, name)) if field.is_repeated else bool(self.union.HasField(name))


class _Columns:
    """Fill columns from parsed messages, and collect the fields that their types lack."""

    def __init__(self) -> None:
        self.unknown: list[UnknownField] = []

    def structs(self, message: ProtoMessage, rows: _Rows, path: tuple[str, ...]) -> pa.StructArray:
        """Return messages of one type."""
        self._note_unknown(rows, path)
        count = len(rows.messages)
        columns = [
            self._column(one, rows, (*path, one.name)) if rows.has(_attribute(one)) else pa.nulls(count, one.arrow)
            for one in message.fields
        ]
        if not columns:
            return pa.array([{}] * count, pa.struct([]))
        return pa.StructArray.from_arrays(columns, fields=list(message.arrow))

    def _column(self, one: ProtoField, rows: _Rows, path: tuple[str, ...]) -> Any:
        name, messages = _attribute(one), rows.messages
        if one.is_repeated:
            lists = list(map(attrgetter(name), messages))
            lengths = np.fromiter(map(len, lists), np.int64, len(lists))
            elements = _Rows(list(chain.from_iterable(lists)), np.repeat(rows.roots, lengths), None)
            items = self._values(one, elements, path)
            return _maps(one, items, lengths) if one.kind == MAP else _lists(one, items, lengths)
        if not one.has_presence:
            values = _raw(one, list(map(attrgetter(name), messages)))
            return pc.if_else(_is_default(values), pa.scalar(None, one.arrow), _converted(one, values))
        has_value = np.fromiter(map(methodcaller("HasField", name), messages), np.bool_, len(messages))
        present = list(map(attrgetter(name), compress(messages, has_value)))
        union = None if rows.union is None else getattr(rows.union, name)
        values = self._values(one, _Rows(present, rows.roots[has_value], union), path)
        return values if len(present) == len(messages) else spread(values, has_value, nullable=True)

    def _values(self, one: ProtoField, rows: _Rows, path: tuple[str, ...]) -> Any:
        """Return the Arrow array of values, all of which are present."""
        if one.message is None:
            return _converted(one, _raw(one, rows.messages))
        inner = self.structs(one.message, rows, path)
        if one.kind in (TIMESTAMP, DURATION):
            seconds, nanos = (np.asarray(pc.fill_null(inner.field(place), 0)).astype(np.int64) for place in (0, 1))
            if ((seconds < _FIRST_SECOND) | (seconds > _LAST_SECOND)).any():
                raise UserError(f"field {one.name!r} has a time outside of the years 1 to 9999")
            return pa.array(seconds * 1_000_000 + nanos // 1000).cast(one.value_type)
        if one.kind == WRAPPER:
            return pc.fill_null(inner.field(0), pa.scalar(one.message.fields[0].default, one.value_type))
        return inner

    def _note_unknown(self, rows: _Rows, path: tuple[str, ...]) -> None:
        """Collect the fields that the type lacks: per field, the number of outermost messages and one value."""
        if rows.union is not None and not len(UnknownFieldSet(rows.union)):
            return
        owners: dict[int, set[int]] = {}
        examples: dict[int, str] = {}
        for place, message in enumerate(rows.messages):
            fields = UnknownFieldSet(message)
            for field in fields if len(fields) else ():
                number = field.field_number
                owners.setdefault(number, set()).add(int(rows.roots[place]))
                if number not in examples:
                    examples[number] = _example(field)
        for number in sorted(owners):
            note = UnknownField(path=(*path, f"#{number}"), messages=len(owners[number]), example=examples[number])
            self.unknown.append(note)


def _example(field: Any) -> str:
    """Return how the value of an unknown field begins; raise UserError for a group, which has no column type."""
    if field.wire_type == _WIRE_GROUP:
        raise UserError(f"its field #{field.field_number} is a group, which is not supported; use a message")
    if field.wire_type == _WIRE_VARINT:
        return str(field.data)
    size = _FIXED_BYTES.get(field.wire_type)
    data = field.data if size is None else field.data.to_bytes(size, "little")
    return base64.b64encode(data[:_EXAMPLE_BYTES]).decode()


def _raw(one: ProtoField, values: list[Any]) -> pa.Array:
    return pa.array(values, _RAW.get(one.kind, one.value_type))


def _is_default(values: pa.Array) -> pa.Array:
    """Return a mask of default values, which absent fields have: zero, empty or false."""
    kind = values.type
    if pa.types.is_binary(kind):
        return pc.equal(pc.binary_length(values), 0)
    if pa.types.is_boolean(kind):
        return pc.invert(values)
    if pa.types.is_floating(kind):
        # -0.0 equals zero, but it is a value.
        values = values.view(pa.int64() if kind.bit_width == 64 else pa.int32())
    return pc.equal(values, pa.scalar(0, values.type))


def _converted(one: ProtoField, values: pa.Array) -> Any:
    """Return values in the type of the column."""
    if one.kind == "enum":
        numbers, places = np.unique(np.asarray(values), return_inverse=True)
        names = pa.array([one.symbols.get(number, str(number)) for number in numbers.tolist()], pa.string())
        return names.take(pa.array(places))
    try:
        return values.cast(one.value_type)
    except pa.ArrowInvalid as error:
        raise UserError(f"field {one.name!r} has text that is not UTF-8") from error


def _lists(one: ProtoField, items: Any, lengths: NDArray[np.int64]) -> Any:
    """Return lists of items; an empty list is null, because a message does not distinguish it from an absent list."""
    return pa.ListArray.from_arrays(_offsets(lengths), items, type=one.arrow, mask=pa.array(lengths == 0))


def _maps(one: ProtoField, entries: pa.StructArray, lengths: NDArray[np.int64]) -> Any:
    """Return maps of entries; of equal keys the last entry counts."""
    assert one.message is not None, "a map has a type of entries"
    key_field, value_field = one.message.fields
    keys = pc.fill_null(entries.field(0), pa.scalar(key_field.default, key_field.arrow))
    values = entries.field(1)
    if value_field.default is not None:
        values = pc.fill_null(values, pa.scalar(value_field.default, value_field.arrow))
    owners = np.repeat(np.arange(len(lengths)), lengths)
    codes = np.asarray(keys.dictionary_encode().indices).astype(np.int64)
    identity = owners * (int(codes.max(initial=0)) + 1) + codes
    last = len(identity) - 1 - np.unique(identity[::-1], return_index=True)[1]
    rows = np.sort(last)
    taken = pa.array(rows)
    offsets = _offsets(np.bincount(owners[rows], minlength=len(lengths)))
    mask = pa.array(lengths == 0)
    return pa.MapArray.from_arrays(offsets, keys.take(taken), values.take(taken), type=one.arrow, mask=mask)


def _offsets(lengths: NDArray[np.int64]) -> pa.Array:
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
