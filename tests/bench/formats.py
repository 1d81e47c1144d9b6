"""Decoding of Avro files and of messages of Protocol Buffers into Arrow, against the libraries of these formats.

A library yields one Python object for each record, from which no column has been built yet. Bare parsing of Protocol
Buffers yields not even the values: each is made when it is asked for.
"""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2

from lakehouse.core.format.avro.container import AvroContainer
from lakehouse.platform.sources.kafka.protobuf_columns import decode_messages
from lakehouse.platform.sources.kafka.protobuf_types import ProtoMessage, message_type
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import Setting
from tests.support.protobuf import add_field, message_class

_BATCH = 16_384
_COLUMNS = {
    "id": "int64",
    "name": "string",
    "email": "string",
    "amount": "double",
    "day": "string",
    "number": "int32",
    "paid": "bool",
    "city": "string",
    "note": "string",
    "rate": "double",
}
_AVRO = {"int64": "long", "int32": "int", "bool": "boolean"}


def run(setting: Setting) -> list[Comparison]:
    """Compare the decoders."""
    rows = min(setting.rows, 200_000)
    records = [_record(number) for number in range(rows)]
    file = _avro_file(records)
    order = _order()
    messages = [order(**one).SerializeToString() for one in records]
    values = pa.array(messages, pa.binary())
    decode = partial(_decode, values, message_type(order.DESCRIPTOR))
    sides = {
        "Avro file to Arrow, against fastavro without columns": (partial(_read, file), partial(_iterate, file)),
        "Protocol Buffers to Arrow, against bare parsing": (decode, partial(_parse, order, messages)),
        "Protocol Buffers to Arrow, against parsing and all fields": (decode, partial(_values, order, messages)),
    }
    comparisons = []
    for what, (ours, other) in sides.items():
        both = [Side(name="lakehouse", run=ours), Side(name="library", run=other)]
        comparisons.append(compare(what, interleave(both, setting.rounds), "lakehouse", "library"))
    return comparisons


def _record(number: int) -> dict[str, Any]:
    return {
        "id": number + 1_000_000_000,
        "name": f"customer {number}",
        "email": f"c{number}@example.com",
        "amount": number * 1.5,
        "day": f"2026-01-{number % 28 + 1:02d}",
        "number": number % 1000,
        "paid": bool(number % 2),
        "city": "Amsterdam",
        "note": "a note of a customer about the order " * 2,
        "rate": 0.5,
    }


def _avro_file(records: list[dict[str, Any]]) -> bytes:
    fields = [{"name": name, "type": ["null", _AVRO.get(kind, kind)]} for name, kind in _COLUMNS.items()]
    out = io.BytesIO()
    fastavro.writer(out, {"type": "record", "name": "Order", "fields": fields}, records, codec="deflate")
    return out.getvalue()


def _order() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="bench.proto", package="shop", syntax="proto3")
    order = file.message_type.add(name="Order")
    for number, (name, kind) in enumerate(_COLUMNS.items(), 1):
        add_field(order, name, number, kind)
    return message_class(file)


def _read(file: bytes, number: int) -> None:
    del number
    assert sum(map(len, AvroContainer(io.BytesIO(file)).batches()))


def _iterate(file: bytes, number: int) -> None:
    del number
    assert sum(1 for _ in fastavro.reader(io.BytesIO(file)))


def _decode(values: pa.Array, message: ProtoMessage, number: int) -> None:
    del number
    for start in range(0, len(values), _BATCH):
        decode_messages(values.slice(start, _BATCH), message)


def _parse(order: Any, messages: list[bytes], number: int) -> None:
    del number
    for one in messages:
        order.FromString(one)


def _values(order: Any, messages: list[bytes], number: int) -> None:
    del number
    for one in map(order.FromString, messages):
        for name in _COLUMNS:
            getattr(one, name)
