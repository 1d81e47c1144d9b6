"""Types of Protocol Buffers that tests build without a compiler."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

_TYPES: Any = descriptor_pb2.FieldDescriptorProto
SCALARS = tuple(
    "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 bool string bytes".split()  # noqa: SIM905
)


def order_file() -> Any:
    """Return the descriptor of a file with the message `shop.Order`, which has a field of every kind."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    file.dependency.extend([timestamp_pb2.DESCRIPTOR.name, wrappers_pb2.DESCRIPTOR.name])
    _enum(file)
    item = file.message_type.add(name="Item")
    add_field(item, "sku", 1, "string")
    add_field(item, "count", 2, "int32")
    order = file.message_type.add(name="Order")
    for number, kind in enumerate(SCALARS, 1):
        add_field(order, f"one_{kind}", number, kind)
        add_field(order, f"list_{kind}", 20 + number, kind, repeated=True)
    add_field(order, "id", 40, "int64")
    add_field(order, "state", 41, ".shop.State")
    add_field(order, "at", 42, ".google.protobuf.Timestamp")
    add_field(order, "note", 43, ".google.protobuf.StringValue")
    add_field(order, "item", 44, ".shop.Item")
    add_field(order, "items", 45, ".shop.Item", repeated=True)
    add_field(order, "parent", 46, ".shop.Order")
    for number, name in ((47, "card"), (48, "cash")):
        add_field(order, name, number, "string").oneof_index = 0
    order.oneof_decl.add(name="payment")
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    add_field(entry, "key", 1, "string")
    add_field(entry, "value", 2, "int32")
    add_field(order, "counts", 49, ".shop.Order.CountsEntry", repeated=True)
    return file


def newer_file() -> Any:
    """Return the same file with further fields of `Order` and of `Item`."""
    file = order_file()
    add_field(file.message_type[1], "vat", 60, "int32")
    add_field(file.message_type[0], "color", 3, "string")
    return file


def message_class(file: Any, name: str = "shop.Order") -> Any:
    """Return the class of a message of a file."""
    pool = DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName(name))


def _enum(file: Any) -> None:
    state = file.enum_type.add(name="State")
    for number, name in ((0, "NEW"), (1, "PAID"), (7, "LOST")):
        state.value.add(name=name, number=number)


def add_field(message: Any, name: str, number: int, kind: str, *, repeated: bool = False) -> Any:
    """Add a field to the descriptor of a message."""
    field = message.field.add(name=name, number=number)
    field.label = _TYPES.LABEL_REPEATED if repeated else _TYPES.LABEL_OPTIONAL
    if kind.startswith("."):
        field.type, field.type_name = (_TYPES.TYPE_ENUM if kind == ".shop.State" else _TYPES.TYPE_MESSAGE), kind
    else:
        field.type = getattr(_TYPES, f"TYPE_{kind.upper()}")
    return field
