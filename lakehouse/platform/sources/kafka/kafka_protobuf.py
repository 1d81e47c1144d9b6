"""Decode Protocol Buffers messages in Spark tasks: bare messages of one type, and messages with a registry header.

    bare       the message
    registry   byte 0 | schema id, 4 bytes | indexes of the message type in the schema, as zigzag varints | the message

The indexes are a count and as many numbers; one byte 0 stands for the first message type. Fields are matched by name;
fields that the writer's type lacks are null. Absent fields without presence have their default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.platform.sources.kafka.message_decoder import MessageDecoder
from lakehouse.platform.sources.kafka.protobuf_columns import decode_messages
from lakehouse.platform.sources.kafka.protobuf_types import (
    MAP,
    MESSAGE,
    ProtoField,
    ProtoMessage,
    message_at,
    messages_of_registry,
)
from lakehouse.platform.sources.kafka.schema_registry import HEADER, BadMessageError, schema_ids, without_start
from lakehouse.platform.sources.unread_fields import UnreadField, UnreadFields

_MOST_INDEXES = 16
#: File descriptors by registry and id, and their message types by indexes. An id always means the same schema.
_files: dict[tuple[str, int], Any] = {}
_types: dict[tuple[str, int, tuple[int, ...]], ProtoMessage] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtobufDecoder(MessageDecoder):
    """Decodes Protocol Buffers messages.

    Attributes:
        message: The type of bare messages; None for messages with a registry header.
        registry: The settings of the schema registry, `url` and optionally `basic.auth.user.info`.
    """

    message: ProtoMessage | None = None
    registry: Mapping[str, str] = field(default_factory=dict, repr=False)

    def _schema_ids(self, values: pa.Array) -> Any:
        return np.zeros(len(values), np.int64) if self.message is not None else schema_ids(values)

    def _schema(self, schema_id: int) -> Any:
        if self.message is not None:
            return None
        if schema_id < 0:
            raise BadMessageError("does not begin with the byte 0 and a schema id")
        key = (self.registry["url"], schema_id)
        if key not in _files:
            _files[key] = messages_of_registry(self.registry, schema_id)
        return key

    def _records(self, values: pa.Array, schema: Any, unread: UnreadFields) -> pa.Array:
        if self.message is not None:
            return self._of_type(values, self.message, unread)
        bodies = without_start(values, HEADER)
        indexes = [_indexes(one) for one in pc.binary_slice(bodies, 0, _MOST_INDEXES).to_pylist()]
        kinds = sorted(set(indexes))
        if len(kinds) > 1:
            # A topic with several message types: each type has different columns.
            parts = [np.array([place for place, one in enumerate(indexes) if one == kind]) for kind in kinds]
            records = [self._records(values.take(pa.array(part)), schema, unread) for part in parts]
            order = np.argsort(np.concatenate(parts), kind="stable")
            return pa.concat_arrays(records).take(pa.array(order))
        path, size = kinds[0]
        key = (*schema, path)
        if key not in _types:
            _types[key] = message_at(_files[schema], path)
        return self._of_type(without_start(bodies, size), _types[key], unread)

    def _of_type(self, values: pa.Array, message: ProtoMessage, unread: UnreadFields) -> pa.Array:
        wanted = {one.name for one in self.target}
        if not any(one.name in wanted for one in message.fields):
            raise BadMessageError(f"is a {message.name}, which has none of the declared columns")
        records, unknown = decode_messages(values.cast(pa.binary()), message)
        result = _conformed(records, self.target, message)
        unread.add_array(records)
        for one in unknown:
            unread.add(UnreadField(path=one.path, records=one.messages, example=one.example, type=pa.null()))
        return result


def _indexes(start: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes at the start of a value, and their number of bytes."""
    numbers: list[int] = []
    at = raw = shift = 0
    while not numbers or len(numbers) <= numbers[0]:
        if at >= len(start):
            raise BadMessageError("has no indexes of its message type")
        raw |= (start[at] & 0x7F) << shift
        shift += 7
        if start[at] < 0x80:
            numbers.append((raw >> 1) ^ -(raw & 1))
            raw = shift = 0
        at += 1
    return tuple(numbers[1:]) or (0,), at


def _conformed(records: pa.Array, target: pa.DataType, message: ProtoMessage) -> pa.Array:
    """Convert messages to the type `target`: fields by name, missing fields null, absent fields with their default."""
    fields = {one.name: one for one in message.fields}
    children = [
        _column(records, column, fields[column.name]) if column.name in fields else pa.nulls(len(records), column.type)
        for column in target
    ]
    return pa.StructArray.from_arrays(children, fields=list(target), mask=records.is_null())


def _column(records: pa.StructArray, column: pa.Field, one: ProtoField) -> pa.Array:
    values = pc.struct_field(records, [one.name])
    if not one.has_presence and one.default is not None:
        values = pc.fill_null(values, pa.scalar(one.default, one.arrow))
    if one.kind == MESSAGE and one.message is not None and not one.is_repeated and pa.types.is_struct(column.type):
        return _conformed(values, column.type, one.message)
    if one.is_repeated and pa.types.is_list(column.type):
        return _list(values, column.type, one)
    if one.kind == MAP:
        values = pa.MapArray.from_arrays(values.offsets, values.keys, values.items, type=values.type)
    return values if values.type.equals(column.type) else values.cast(column.type)


def _list(values: pa.ListArray, kind: pa.ListType, one: ProtoField) -> pa.Array:
    """Convert lists to the type `kind`; an absent list is empty."""
    items = pc.list_flatten(values)
    if one.message is not None and one.kind == MESSAGE and pa.types.is_struct(kind.value_type):
        items = _conformed(items, kind.value_type, one.message)
    lengths = pc.fill_null(pc.list_value_length(values), 0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, items.cast(kind.value_type), type=kind)
