"""Types of Protocol Buffers as values: the fields of a message, and the Arrow types of their values.

int32, sint32, sfixed32              int32
uint32, fixed32                      int64
int64, sint64, sfixed64              int64
uint64, fixed64                      decimal(20, 0), which has all digits
enum                                 the name of the value as text, or its number as text if it has no name
google.protobuf.Timestamp            timestamp in microseconds, UTC
google.protobuf.Duration             int64, in microseconds
google.protobuf.Int64Value, ...      the value, null if the message is absent
map                                  map
a message that contains itself       the bytes of the message
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

#: Kinds of scalars: their wire type and the Arrow type of a value.
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
SCALARS: dict[str, tuple[int, pa.DataType]] = {
    "double": (FIXED64, pa.float64()),
    "float": (FIXED32, pa.float32()),
    "int32": (VARINT, pa.int32()),
    "sint32": (VARINT, pa.int32()),
    "uint32": (VARINT, pa.int64()),
    "int64": (VARINT, pa.int64()),
    "sint64": (VARINT, pa.int64()),
    "uint64": (VARINT, pa.decimal128(20, 0)),
    "fixed32": (FIXED32, pa.int64()),
    "sfixed32": (FIXED32, pa.int32()),
    "fixed64": (FIXED64, pa.decimal128(20, 0)),
    "sfixed64": (FIXED64, pa.int64()),
    "bool": (VARINT, pa.bool_()),
    "enum": (VARINT, pa.string()),
    "string": (BYTES, pa.string()),
    "bytes": (BYTES, pa.binary()),
}
#: Kinds of messages, and the Arrow type of those that are one value.
MESSAGE, MAP, WRAPPER = "message", "map", "wrapper"
TIMESTAMP, DURATION = "timestamp", "duration"
_VALUES = {TIMESTAMP: pa.timestamp("us", "UTC"), DURATION: pa.int64()}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtoField:
    """A field of a message.

    Attributes:
        name: The name of the field.
        number: The number of the field on the wire.
        kind: A name of `SCALARS` or one of the kinds of messages.
        is_repeated: Whether the field is a list.
        has_presence: Whether a message says that the field is absent; an absent field without it has its default.
        symbols: The names of an enum by number.
        default: The value of an absent field without presence.
        message: The type of a message; of a map the type of its entries, of a wrapper the type of the wrapper.
    """

    name: str
    number: int
    kind: str
    is_repeated: bool = False
    has_presence: bool = True
    symbols: Mapping[int, str] = field(default_factory=dict)
    default: Any = None
    message: ProtoMessage | None = None

    @property
    def wire(self) -> int:
        """The wire type of a value that is not packed."""
        return SCALARS[self.kind][0] if self.kind in SCALARS else BYTES

    @property
    def value_type(self) -> pa.DataType:
        """The Arrow type of one value."""
        if self.kind in SCALARS:
            return SCALARS[self.kind][1]
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
    """A type of messages: its full name and its fields in the order of their declaration."""

    name: str
    fields: tuple[ProtoField, ...]

    @property
    def arrow(self) -> pa.StructType:
        """The Arrow type of a message."""
        return pa.struct([pa.field(one.name, one.arrow) for one in self.fields])
