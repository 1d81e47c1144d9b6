"""Messages of Protocol Buffers are decoded like the library decodes them."""

from __future__ import annotations

import gc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.errors import UserError
from lakehouse.platform.sources.kafka.kafka_protobuf import ProtobufDecoder
from lakehouse.platform.sources.kafka.protobuf_columns import decode_messages
from lakehouse.platform.sources.kafka.protobuf_types import message_of_class, message_of_file, message_type
from lakehouse.platform.sources.unread_fields import merged
from lakehouse.spark.messages import MESSAGES
from tests.support.protobuf import SCALARS, add_field, message_class, newer_file, order_file

Order, Newer = message_class(order_file()), message_class(newer_file())
TYPE = message_type(Order.DESCRIPTOR)
_BOUNDS = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1), "uint": (0, 2**32 - 1), "ulong": (0, 2**64 - 1)}
_RANGES = {
    **dict.fromkeys(("int32", "sint32", "sfixed32"), "int"),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), "long"),
    **dict.fromkeys(("uint32", "fixed32"), "uint"),
    **dict.fromkeys(("uint64", "fixed64"), "ulong"),
}


def scalars(kind: str) -> st.SearchStrategy[Any]:
    """Return values of a scalar type."""
    if kind in _RANGES:
        low, high = _BOUNDS[_RANGES[kind]]
        return st.sampled_from([0, 1, low, high, 127, 128]) | st.integers(low, high)
    if kind in ("double", "float"):
        return st.floats(width=64 if kind == "double" else 32, allow_nan=False)
    return {"bool": st.booleans(), "string": st.text(max_size=9), "bytes": st.binary(max_size=9)}[kind]


ITEMS = st.fixed_dictionaries({}, optional={"sku": st.text(max_size=3), "count": st.integers(-5, 5)})
ORDERS = st.fixed_dictionaries(
    {},
    optional={
        **{f"one_{kind}": scalars(kind) for kind in SCALARS},
        **{f"list_{kind}": st.lists(scalars(kind), max_size=4) for kind in SCALARS},
        "state": st.sampled_from([0, 1, 7, 3, -1]),
        "item": ITEMS,
        "items": st.lists(ITEMS, max_size=3),
        "card": st.text(max_size=3),
        "cash": st.text(max_size=3),
        "counts": st.dictionaries(st.text(max_size=2), st.integers(-5, 5), max_size=3),
    },
)


def expected(order: Any, kind: Any = TYPE) -> dict[str, Any]:
    """Return what a row has, by the library; absent fields are None."""
    row: dict[str, Any] = {}
    for one in kind.fields:
        value = getattr(order, one.name)
        if one.kind == "map":
            row[one.name] = sorted(value.items())
        elif one.name == "parent":
            row[one.name] = value.SerializeToString() if order.HasField("parent") else None
        elif one.is_repeated:
            row[one.name] = [plain(one, item) for item in value]
        elif one.has_presence:
            row[one.name] = plain(one, value) if order.HasField(one.name) else None
        else:
            row[one.name] = plain(one, value) if value or one.kind == "double" else None
    return row


def plain(one: Any, value: Any) -> Any:
    """Return a value as Arrow has it."""
    if one.kind == "message":
        return expected(value, one.message)
    if one.kind in ("uint64", "fixed64"):
        return Decimal(value)
    return one.symbols.get(value, str(value)) if one.kind == "enum" else value


def without_defaults(row: dict[str, Any], kind: Any = TYPE) -> dict[str, Any]:
    """Return a row in which an absent field without presence and its default are the same."""
    result: dict[str, Any] = {}
    for one in kind.fields:
        value = row[one.name]
        if one.is_repeated and value is None:
            value = []
        if one.kind == "map":
            value = sorted(value)
        elif one.kind == "message" and value is not None:
            items = value if one.is_repeated else [value]
            items = [without_defaults(item, one.message) for item in items]
            value = items if one.is_repeated else items[0]
        elif (not one.has_presence and not value) or (one.kind == "enum" and value == "NEW"):
            value = None
        result[one.name] = value
    return result


def values(*messages: Any) -> pa.Array:
    """Return messages as Kafka has them."""
    return pa.array([one.SerializeToString() for one in messages], pa.binary())


@settings(max_examples=60)
@given(st.lists(ORDERS, min_size=1, max_size=5))
def test_messages_of_all_types_equal_those_of_the_library(given: list[dict[str, Any]]) -> None:
    orders = [Order(**one) for one in given]
    records, unknown = decode_messages(values(*orders), TYPE)
    assert unknown == ()
    found = [without_defaults(row) for row in records.to_pylist()]
    assert found == [without_defaults(expected(one)) for one in orders]


def test_parts_of_a_message_are_merged_and_the_last_value_counts() -> None:
    one, two = Order(id=1, card="x", item={"sku": "a"}), Order(id=2, cash="y", item={"count": 3})
    joined = one.SerializeToString() + two.SerializeToString()
    records, _ = decode_messages(pa.array([joined, b""], pa.binary()), TYPE)
    first, second = records.to_pylist()
    assert (first["id"], first["item"]) == (2, {"sku": "a", "count": 3})
    assert (second["id"], second["item"], second["list_int32"]) == (None, None, None)


def test_one_long_message_among_short_ones_is_read() -> None:
    orders = [Order(id=number) for number in range(50)]
    orders[7] = Order(id=7, items=[{"sku": str(number)} for number in range(5000)], list_string=["x"] * 300)
    records, _ = decode_messages(values(*orders), TYPE)
    rows = records.to_pylist()
    assert [row["id"] or 0 for row in rows] == list(range(50))
    assert [one["sku"] for one in rows[7]["items"]] == [str(number) for number in range(5000)]


def test_every_damaged_message_is_an_error_or_a_message() -> None:
    data = Order(
        one_string="text", list_int32=[1, 300], item={"sku": "a"}, counts={"a": 1}, one_double=1.5
    ).SerializeToString()
    for end in range(1, len(data)):
        try:
            Order.FromString(data[:end])
        except Exception:
            with pytest.raises(UserError):
                decode_messages(pa.array([data[:end]], pa.binary()), TYPE)
    random = np.random.default_rng(7)
    for _ in range(300):
        changed = bytearray(data)
        changed[random.integers(len(data))] = random.integers(256)
        try:
            decode_messages(pa.array([bytes(changed)], pa.binary()), TYPE)
        except UserError:
            continue


def varint(number: int) -> bytes:
    """Return a number as Protocol Buffers writes it."""
    return bytes([number & 0x7F | 0x80]) + varint(number >> 7) if number > 0x7F else bytes([number])


def nested(body: bytes, depth: int) -> bytes:
    """Return an order with `depth` orders inside of each other in the field `parent`."""
    for _ in range(depth):
        body = varint(46 << 3 | 2) + varint(len(body)) + body
    return body


GROUP_START, GROUP_END = varint(70 << 3 | 3), varint(70 << 3 | 4)
BOMBS = {
    "groups inside of each other": GROUP_START * 100_000 + GROUP_END * 100_000,
    "a group without an end": GROUP_START,
    "a field that claims 2 GiB": varint(15 << 3 | 2) + varint(1 << 31) + b"x",
    "a field that claims 2^63 bytes": varint(35 << 3 | 2) + varint(1 << 63) + b"x",
    "a packed list that ends inside of a number": varint(24 << 3 | 2) + varint(2) + b"\xff\xff",
    "a number that does not end": b"\x18" + b"\xff" * 5000,
    "a field with the number 0": b"\x00\x01",
}


@pytest.mark.parametrize("what", BOMBS)
def test_hostile_message_is_refused_and_leaves_the_others_readable(what: str) -> None:
    with pytest.raises(UserError, match="it is cut off, or its bytes are not a message"):
        decode_messages(pa.array([BOMBS[what]], pa.binary()), TYPE)
    good = Order(id=7).SerializeToString()
    records, problems, _ = decoded({"id": pa.int64()}, good, BOMBS[what], good, message=TYPE)
    assert records == [{"id": 7}, None, {"id": 7}]
    assert problems[0] is problems[2] is None and "does not decode: it is cut off" in problems[1]


def test_message_inside_of_itself_stays_bytes_at_any_depth() -> None:
    body = Order(id=7).SerializeToString()
    records, unknown = decode_messages(pa.array([nested(body, 20_000)], pa.binary()), TYPE)
    assert records.to_pylist()[0]["parent"] == nested(body, 19_999)
    assert unknown == ()


def test_group_is_refused_by_its_number() -> None:
    group = GROUP_START + b"\x08\x01" + GROUP_END
    with pytest.raises(UserError, match="its field #70 is a group, which is not supported; use a message"):
        decode_messages(pa.array([group], pa.binary()), TYPE)


def test_negative_zero_and_fields_named_like_methods_are_read() -> None:
    file = order_file()
    for number, name in ((80, "HasField"), (81, "from"), (82, "DESCRIPTOR")):
        add_field(file.message_type[1], name, number, "string")
    kind = message_class(file)
    order = kind(one_double=-0.0, one_float=-0.0, **{"HasField": "a", "from": "b", "DESCRIPTOR": "c"})
    records, unknown = decode_messages(values(order), message_type(kind.DESCRIPTOR))
    (row,) = records.to_pylist()
    assert (str(row["one_double"]), str(row["one_float"])) == ("-0.0", "-0.0")
    assert (row["HasField"], row["from"], row["DESCRIPTOR"], unknown) == ("a", "b", "c", ())


@pytest.mark.parametrize("is_enabled", [True, False])
def test_decoding_leaves_the_garbage_collector_as_it_was(is_enabled: bool) -> None:
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        decode_messages(values(Order(id=1)), TYPE)
        with pytest.raises(UserError):
            decode_messages(pa.array([b"\xff"], pa.binary()), TYPE)
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()


def decoded(target: dict[str, pa.DataType], *given: bytes | None, **options: Any) -> tuple[list[Any], list[Any], Any]:
    """Return records, problems and unread fields of messages."""
    rows = [{"partition": 0, "offset": place, "value": one, "is_end": False} for place, one in enumerate(given)]
    batches = [pa.RecordBatch.from_pylist(rows, MESSAGES)]
    decoder = ProtobufDecoder(messages=lambda found: found, target=pa.struct(list(target.items())), **options)
    found = list(decoder(batches))
    unread = merged(text for batch in found for text in batch.column("unread").to_pylist())
    return found[0].column("record").to_pylist(), found[0].column("problem").to_pylist(), unread


def test_columns_are_taken_by_name_with_defaults_and_all_other_fields_are_counted() -> None:
    at = datetime(2026, 1, 31, 9, 30, 0, 123456, tzinfo=UTC)
    order = Newer(id=1, state=1, vat=7, item={"sku": "a", "color": "red"}, list_sint64=[1], note={"value": ""})
    order.at.FromDatetime(at)
    target = {
        "id": pa.int64(),
        "state": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "note": pa.string(),
        "item": pa.struct([("sku", pa.string()), ("count", pa.int64())]),
        "one_int32": pa.int64(),
        "card": pa.string(),
        "absent": pa.string(),
        "list_int32": pa.list_(pa.int64()),
        "items": pa.list_(pa.struct([("sku", pa.string())])),
        "counts": pa.map_(pa.string(), pa.int32()),
    }
    records, problems, unread = decoded(
        target, order.SerializeToString(), None, b"\xff\xff", Order().SerializeToString(), message=TYPE
    )
    row = {"id": 1, "state": "PAID", "at": at, "note": "", "item": {"sku": "a", "count": 0}, "one_int32": 0}
    lists: dict[str, Any] = {"list_int32": [], "items": [], "counts": []}
    empty = dict.fromkeys(target) | lists | {"id": 0, "state": "NEW", "one_int32": 0}
    assert records == [row | lists | {"card": None, "absent": None}, None, None, empty]
    assert problems[:2] == [None, None] and "does not decode: it is cut off" in problems[2]
    found = {one.name: (one.records, one.example) for one in unread}
    assert found == {"#60": (1, "7"), "item.#3": (1, "cmVk"), "list_sint64": (1, "[1]")}


def test_types_of_a_file_and_of_a_class_are_found_or_refused_by_name() -> None:
    from google.protobuf import descriptor_pb2

    storage = MemoryStorage("memory://protobuf-types")
    files = descriptor_pb2.FileDescriptorSet(file=[order_file()])
    storage.put("order.desc", files.SerializeToString())
    assert message_of_file(storage, "order.desc", "shop.Order") == TYPE
    with pytest.raises(UserError, match=r"has no message 'shop.Ordr'. Did you mean 'shop.Order'\?"):
        message_of_file(storage, "order.desc", "shop.Ordr")
    storage.put("order.desc", b"no descriptors")
    with pytest.raises(UserError, match="is not a file of descriptors; write it by protoc --include_imports"):
        message_of_file(storage, "order.desc", "shop.Order")
    assert message_of_class("google.protobuf.timestamp_pb2:Timestamp").name == "google.protobuf.Timestamp"
    with pytest.raises(UserError, match="the module 'no_such_pb2' is not in Spark's environment"):
        message_of_class("no_such_pb2:Order")
