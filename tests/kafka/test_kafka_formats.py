"""Avro and Protocol Buffers with a schema registry, and Debezium's change events in JSON and Avro."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.model.drift import Drift
from lakehouse.platform.ingest.run import DEAD_LETTERS
from tests.kafka.test_kafka_runs import Topic
from tests.support.kafka import Broker, Message
from tests.support.protobuf import message_class, newer_file, order_file
from tests.support.schema_registry import SchemaRegistry, protobuf_schema, schema_registry

pytestmark = pytest.mark.spark
ORDER = {
    "type": "record",
    "name": "order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
CHANGE = {"id": "bigint", "name": "string", "born": "date", "at": "timestamp", "fare": "decimal(12,2)"}
FACTS = {"_change_operation_type": "string", "_event_bin_file": "string", "_event_pos": "bigint"}
AT = datetime(2026, 1, 1, 9, 30, tzinfo=UTC)
MICROS = int(AT.timestamp()) * 1_000_000
DAYS = (date(1999, 12, 31) - date(1970, 1, 1)).days


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


@pytest.fixture
def topic(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Topic:
    return Topic(spark, kafka, tmp_path, partitions=1)


def as_debezium(topic: Topic, format: str) -> None:
    """Let the table read change events of MySQL."""
    topic.change(format=format)
    topic.spec = replace(
        topic.spec,
        schema=CHANGE | FACTS,
        ordering=("_event_bin_file", "_event_pos"),
        delete_field="_change_operation_type",
        delete_marker="d",
    )


def rows(topic: Topic, *names: str) -> list[dict[str, Any]]:
    """Return the rows of the table, sorted by key."""
    return topic.table.scan(columns=list(names)).to_arrow().sort_by("id").to_pylist()


def letters(topic: Topic) -> dict[int, dict[str, Any]]:
    """Return the dead letters that the newest commit refers to, by offset."""
    store = open_storage(topic.extra()[DEAD_LETTERS])
    lines = [line for file in store.list("") for line in store.get(file.path).decode().splitlines()]
    return {letter["offset"]: letter for letter in map(json.loads, lines)}


def test_avro_records_of_several_schemas_are_read_by_column_names(topic: Topic, registry: SchemaRegistry) -> None:
    fields: list[Any] = ORDER["fields"]  # type: ignore[assignment]
    newer = {**ORDER, "fields": [{"name": "more", "type": "string"}, *fields[:2]]}
    order = {"id": 1, "name": None, "fare": Decimal("12.30"), "at": AT}
    first = registry.encoded(ORDER, order)
    topic.send(
        first, registry.encoded(newer, {"more": "x", "id": 2, "name": "b"}), registry.encoded(ORDER, order | {"id": 3})
    )
    unknown, short, cut = struct.pack(">bI", 0, 99) + b"x", b"\x00\x01", first[:-3]
    topic.send(unknown, short, cut, b'{"id": 4}')
    topic.spec = replace(
        topic.spec, schema={"id": "bigint", "name": "string", "fare": "decimal(14,2)", "at": "timestamp"}
    )
    topic.change(format="avro", max_bad_records=4)
    with pytest.raises(UserError, match=r"need a schema registry: add schema.registry.url to the extra"):
        topic.run()
    topic.connection["schema.registry.url"] = registry.url
    report = topic.run()
    assert (report.rows, report.bad_records) == (3, 4)
    assert rows(topic, "id", "name", "fare", "at") == [
        {"id": 1, "name": None, "fare": Decimal("12.30"), "at": AT},
        {"id": 2, "name": "b", "fare": None, "at": None},
        {"id": 3, "name": None, "fare": Decimal("12.30"), "at": AT},
    ]
    found = letters(topic)
    assert "schema id 99 is not in the registry" in found[3]["record"]
    assert "does not begin with the byte 0" in found[4]["record"]
    assert base64.b64decode(found[5]["value"]) == cut
    assert "does not begin with the byte 0" in found[6]["record"]


def test_debezium_json_events_are_applied_in_the_order_of_the_binlog(topic: Topic, kafka: Broker) -> None:
    def event(op: str, pos: int, before: object, after: object, **more: object) -> str:
        source = {"file": "binlog.000001", "pos": pos, "ts_ms": 1, "name": "shop"}
        return json.dumps({"before": before, "after": after, "op": op, "ts_ms": 2, "source": source, **more})

    a, b = {"id": 1, "name": "a", "born": DAYS, "fare": "1.50"}, {"id": 2, "name": "b", "born": None}
    described = {
        "fields": [{"field": "after", "fields": [{"field": "at", "name": "io.debezium.time.MicroTimestamp"}]}],
    }
    wrapped = json.dumps({"schema": described, "payload": json.loads(event("c", 5, None, {"id": 3, "at": MICROS}))})
    values: list[str | None] = [
        event("r", 1, None, a),
        event("c", 2, None, b),
        event("u", 3, a, a | {"name": "a2"}),
        event("d", 4, b, None),
        None,
        wrapped,
        event("u", 2, a, a | {"name": "delivered again"}),
        event("c", 6, None, {"id": 4, "at": MICROS}),
        event("c", 7, None, {"id": 5, "fare": base64.b64encode(b"\x01").decode()}),
        event("t", 8, None, None),
        event("c", 9, None, {"id": 6, "at": "2026-01-01T09:30:00Z"}),
    ]
    kafka.send(topic.name, [Message(value=value, key="k") for value in values])
    as_debezium(topic, "debezium")
    topic.change(max_bad_records=3)
    report = topic.run()
    assert report.bad_records == 3
    assert sorted(letters(topic)) == [7, 8, 9]
    assert rows(topic, "id", "name", "born", "at", "fare", "_event_pos") == [
        {"id": 1, "name": "a2", "born": date(1999, 12, 31), "at": None, "fare": Decimal("1.50"), "_event_pos": 3},
        {"id": 3, "name": None, "born": None, "at": AT, "fare": None, "_event_pos": 5},
        {"id": 6, "name": None, "born": None, "at": AT, "fare": None, "_event_pos": 9},
    ]
    kafka.send(topic.name, [Message(value=event("d", 10, a, None))])
    assert topic.run().deletes == 1
    assert [row["id"] for row in rows(topic, "id")] == [3, 6]


def test_debezium_without_a_rule_for_deletes_is_refused(topic: Topic) -> None:
    topic.change(format="debezium")
    with pytest.raises(UserError, match="deletes of Debezium would be stored as rows: add 'delete_field: _change_oper"):
        topic.run()


def test_debezium_avro_events_become_rows_and_deletes(topic: Topic, registry: SchemaRegistry) -> None:
    def optional(kind: object) -> dict[str, Any]:
        return {"type": ["null", kind], "default": None}

    value = {
        "type": "record",
        "name": "Value",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "name", **optional("string")},
            {"name": "born", **optional({"type": "int", "connect.name": "io.debezium.time.Date"})},
            {"name": "at", **optional({"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"})},
            {
                "name": "fare",
                **optional({"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}),
            },
        ],
    }
    source = {
        "type": "record",
        "name": "Source",
        "fields": [{"name": "file", "type": "string"}, {"name": "pos", "type": "long"}],
    }
    envelope = {
        "type": "record",
        "name": "Envelope",
        "namespace": "shop.inventory.orders",
        "fields": [
            {"name": "before", **optional(value)},
            {"name": "after", **optional("Value")},
            {"name": "source", "type": source},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", **optional("long")},
        ],
    }

    def event(op: str, pos: int, before: object, after: object) -> bytes:
        place = {"file": "binlog.000001", "pos": pos}
        return registry.encoded(envelope, {"before": before, "after": after, "source": place, "op": op, "ts_ms": 1})

    a = {"id": 1, "name": "a", "born": DAYS, "at": MICROS, "fare": Decimal("1.50")}
    topic.send(event("c", 1, None, a), event("c", 2, None, a | {"id": 2}), event("d", 3, a | {"id": 2}, None))
    as_debezium(topic, "debezium_avro")
    topic.connection["schema.registry.url"] = registry.url
    assert topic.run().bad_records == 0
    expected = {"id": 1, "name": "a", "born": date(1999, 12, 31), "at": AT, "fare": Decimal("1.50")}
    assert rows(topic, *CHANGE) == [expected]
    assert registry.requests <= 2


def test_protobuf_messages_of_a_registry_and_of_a_file_of_descriptors_become_rows(
    topic: Topic, registry: SchemaRegistry, tmp_path: Path
) -> None:
    order, newer = message_class(order_file()), message_class(newer_file())
    # The first file of the registry imports a second one, which has all messages.
    outer = descriptor_pb2.FileDescriptorProto(name="x", package="shop", syntax="proto3", dependency=["order.proto"])
    field = outer.message_type.add(name="Envelope").field.add(name="order", number=1, type_name=".shop.Order")
    field.label, field.type = 1, 11
    registry.subjects["/subjects/orders/versions/1"] = protobuf_schema(order_file())
    wrapped = protobuf_schema(outer, ("order.proto", "orders"))
    first = order(id=1, state=1, items=[{"sku": "a", "count": 2}], counts={"k": 1})
    first.at.FromDatetime(AT)
    topic.spec = replace(
        topic.spec,
        schema={
            "id": "bigint",
            "state": "string",
            "at": "timestamp",
            "note": "string",
            "items": "array<struct<sku: string, count: int>>",
            "counts": "map<string, int>",
        },
    )
    topic.change(format="protobuf", max_bad_records=3, new_column="ignore")
    topic.connection["schema.registry.url"] = registry.url
    topic.send(
        # Order is the second message of the file: one index, 1, as zigzag varints.
        registry.framed(protobuf_schema(order_file()), b"\x02\x02", first.SerializeToString()),
        registry.framed(protobuf_schema(newer_file()), b"\x02\x02", newer(id=2, vat=7).SerializeToString()),
        registry.framed(protobuf_schema(order_file()), b"\x02\x08", b""),
        registry.framed(wrapped, b"\x00", b""),
        b"no header",
    )
    report = topic.run()
    assert (report.rows, report.bad_records) == (2, 3)
    found = letters(topic)
    assert "its message index [4] is not in schema 1" in found[2]["record"]
    assert "is a shop.Envelope, which has none of the declared columns" in found[3]["record"]
    assert "does not begin with the byte 0" in found[4]["record"]
    assert {one.column: (one.rows, one.example) for one in report.drift if one.change is Drift.IGNORED} == {
        "vat": (1, "7")
    }
    files = descriptor_pb2.FileDescriptorSet(file=[order_file()])
    (tmp_path / "order.desc").write_bytes(files.SerializeToString())
    topic.change(message="shop.Order", descriptors=str(tmp_path / "order.desc"))
    topic.send(order(id=3, note={"value": "n"}).SerializeToString())
    assert topic.run().rows == 1
    columns = ("id", "state", "at", "note", "items", "counts")
    assert [tuple(row[name] for name in columns) for row in rows(topic, *columns)] == [
        (1, "PAID", AT, None, [{"sku": "a", "count": 2}], [("k", 1)]),
        (2, "NEW", None, None, [], []),
        (3, "NEW", None, "n", [], []),
    ]
