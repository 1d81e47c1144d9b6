"""Specs that are suggested from topics: an ingestion with them has no bad records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.main import main
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.suggest.document import suggested_spec
from lakehouse.platform.suggest.kafka import sample_topic
from lakehouse.platform.suggest.sample import Limits
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.kafka import Broker, Message
from tests.support.schema_registry import schema_registry
from tests.support.shared import shared_dir

pytestmark = pytest.mark.spark
PLACES = shared_dir() / "data" / "cdc"


def suggested(environ: dict[str, str], topic: str, limits: Limits | None = None) -> tuple[TableSpec, str]:
    """Return the spec that is suggested for a topic, and its text."""
    text = suggested_spec(sample_topic("kafka_default", topic, limits or Limits(), environ))
    return parse_spec(text, source="suggested.yaml"), text


def ingested(environ: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch, home: Path) -> Table:
    """Check a suggested spec and ingest with it; return the table."""
    monkeypatch.chdir(home)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    Path("suggested.yaml").write_text(text)
    assert main(["spec", "check", "suggested.yaml"]) == 0
    assert main(["ingest", "run", "--table", "suggested.yaml"]) == 0
    return Table.open(home / parse_spec(text, source="x").location)


def test_suggestion_of_json_messages_orders_them_by_offset(
    spark: Any, kafka: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = kafka.topic(2)
    records = [{"id": n % 5, "fare": n / 4, "at": f"2026-01-{1 + n % 28:02d}T10:00:00Z"} for n in range(40)]
    messages = [
        Message(value=json.dumps(record), key=json.dumps({"id": record["id"]}), partition=number % 2)
        for number, record in enumerate(records)
    ]
    kafka.send(topic, messages)
    spec, text = suggested(kafka.connection, topic)
    assert (spec.record_key, spec.ordering) == (("id",), ("_kafka_offset",))
    assert dict(spec.schema) == {"id": "bigint", "fare": "double", "at": "timestamp", "_kafka_offset": "bigint"}
    assert "Suggested from 40 messages" in text.replace("\n# ", " ")
    assert kafka.address not in text
    # The key is unique in its partition only.
    days = {(record["id"], record["at"]) for record in records}
    assert ingested(kafka.connection, text, monkeypatch, tmp_path).scan().to_arrow().num_rows == len(days)


def test_suggestion_of_change_events_deletes_rows(
    spark: Any, kafka: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = kafka.topic()
    lines = (PLACES / "debezium_1.1_inventory_products.jsonl").read_text().splitlines()
    kafka.send(topic, [Message(value=line) for line in lines])
    spec, text = suggested(kafka.connection, topic)
    assert (spec.record_key, spec.ordering) == (("id",), ("_event_bin_file", "_event_pos"))
    assert (spec.delete_field, spec.delete_marker) == ("_change_operation_type", "d")
    table = ingested(kafka.connection, text, monkeypatch, tmp_path)
    deleted = {json.loads(line)["before"]["id"] for line in lines if json.loads(line)["op"] == "d"}
    stored = set(table.scan(columns=["id"]).to_arrow().column("id").to_pylist())
    assert deleted
    assert not stored & deleted


def test_suggestion_of_avro_messages_has_the_columns_of_the_registry(
    spark: Any, kafka: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ]
    schema = {"type": "record", "name": "order", "fields": fields}
    topic = kafka.topic()
    with schema_registry() as registry:
        values = [registry.encoded(schema, {"id": n, "name": f"n{n}", "at": 1769850000000}) for n in range(20)]
        kafka.send(topic, [Message(value=value) for value in values])
        with pytest.raises(UserError, match=r"has no schema\.registry\.url"):
            suggested(kafka.connection, topic)
        extra = {"bootstrap.servers": kafka.address, "schema.registry.url": registry.url}
        environ = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": extra})}
        spec, text = suggested(environ, topic)
        types = {"id": "bigint", "name": "string", "at": "timestamp", "_kafka_offset": "bigint"}
        assert dict(spec.schema) == types
        assert spec.record_key == ("id",)
        assert ingested(environ, text, monkeypatch, tmp_path).scan().to_arrow().num_rows == 20


def test_suggestion_of_other_messages_keeps_their_bytes(
    spark: Any, kafka: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = kafka.topic()
    kafka.send(topic, [Message(value=b"\xff\xfe" + bytes([n])) for n in range(5)])
    spec, text = suggested(kafka.connection, topic)
    assert spec.record_key == ("_kafka_partition", "_kafka_offset")
    assert "neither JSON objects nor have schema ids" in text.replace("\n# ", " ")
    assert ingested(kafka.connection, text, monkeypatch, tmp_path).scan().to_arrow().num_rows == 5


def test_suggestion_counts_messages_that_are_not_json_and_bounds_the_sample(kafka: Broker) -> None:
    topic = kafka.topic()
    values = [f'{{"id": {n}}}' for n in range(50)] + ["{broken"]
    kafka.send(topic, [Message(value=value) for value in values])
    _, text = suggested(kafka.connection, topic, Limits(rows=10))
    comments = text.replace("\n# ", " ")
    assert "Suggested from 10 messages, the newest ones of 1 partitions" in comments
    assert "1 of 10 sampled messages are not one JSON object, such as '{broken'" in comments


def test_suggestion_counts_messages_without_a_value(kafka: Broker) -> None:
    topic = kafka.topic()
    kafka.send(topic, [Message(value='{"id": 1}', key="1"), Message(value=None, key="1")])
    _, text = suggested(kafka.connection, topic)
    assert "1 sampled messages have no value and are bad records" in text.replace("\n# ", " ")


def test_suggestion_refuses_a_topic_that_is_empty_or_missing(kafka: Broker) -> None:
    with pytest.raises(UserError, match="has no messages with a value"):
        suggested(kafka.connection, kafka.topic())
    with pytest.raises(UserError, match="not-there"):
        suggested(kafka.connection, "not-there")


def test_sample_of_a_topic_shows_rows_and_bad_messages_with_their_offsets(
    spark: Any, kafka: Broker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kafka.topic()
    kafka.send(topic, [Message(value='{"id": 1, "n": 5}'), Message(value='{"id": 2, "n": "x"}')])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(*next(iter(kafka.connection.items())))
    ingest = f"{{source: kafka, topic: {topic}, max_bad_records: 1}}"
    Path("t.yaml").write_text(
        f"table: t\nlocation: lake\nrecord_key: [id]\nschema: {{id: bigint, n: int}}\ningest: {ingest}\n"
    )
    assert main(["spec", "check", "t.yaml", "--sample"]) == 0
    out = capsys.readouterr().out
    assert "1 rows, 1 bad records" in out
    assert "partition 0, offset 1" in out
    assert "column 'n': 'x' is not a value" in out
