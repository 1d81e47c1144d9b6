"""Objects of JSON that have a key twice, at any level: a bad record, because one of the two values would be lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.kafka import Broker, Message
from tests.support.text_landing import TextLanding

pytestmark = pytest.mark.spark
NESTED = {"id": "string", "n": "string", "s": "struct<x: int, y: string>", "a": "array<struct<x: int>>"}
REASON = "an object has a key twice"
#: Records whose keys differ in every object, by `id`.
GOOD = {
    "g1": '{"id": "g1", "n": "x", "s": {"x": 1, "y": "{\\"x\\": 1, \\"x\\": 2}"}, "a": [{"x": 1}, {"x": 2}]}',
    "g2": "{'id': 'g2', 'n': 'x', 's': {'x': 1}, 'a': [{'x': 1}]}",
    "g3": '{"id": "g3", "n": "x", "s": {"x": 1}, "more": {"x": {"x": 1.5}}}',
}
BAD = (
    '{"id": "b1", "n": "x", "s": {"x": 1, "x": 2}}',
    '{"id": "b2", "n": "x", "a": [{"x": 1}, {"x": 1, "x": 2}]}',
    '{"id": "b3", "n": "x", "s": {"x": 1}, "more": {"y": [[{"z": {}, "z": {}}]]}}',
    "{'id': 'b4', 'n': 'x', 's': {'x': 1, \"\\u0078\": 2}}",
    '{"id": "b5", "n": "x", "s": {"x": 1}, "n": "y"}',
)
#: Events of Debezium; the first two are good.
EVENTS = (
    '{"before": null, "after": {"id": "g1", "n": "x"}, "op": "c"}',
    '{"payload": {"before": null, "after": {"id": "g2", "n": "x"}, "op": "c"}}',
    '{"before": null, "after": {"id": "b1", "n": "x", "n": "y"}, "op": "c"}',
    '{"before": {"id": "b2", "id": "b3"}, "after": null, "op": "d"}',
    '{"payload": {"after": {"id": "b4", "n": "x"}, "op": "c", "op": "d"}}',
    '{"after": {"id": "b5", "n": "x"}, "op": "c", "op": "d"}',
)


@pytest.fixture
def landing(spark: SparkSession, tmp_path: Path) -> TextLanding:
    return TextLanding(spark, tmp_path)


def lines(*records: str) -> bytes:
    """Return records as lines."""
    return "".join(f"{record}\n" for record in records).encode()


def run_topic(
    spark: SparkSession, kafka: Broker, root: Path, values: tuple[str, ...], **spec: Any
) -> Mapping[str, Any]:
    """Ingest messages, and return the keys of the table and the numbers of the report."""
    settings = {"format": spec.pop("format", "json"), "topic": kafka.topic(1)}
    kafka.send(settings["topic"], [Message(value=value) for value in values])
    ingest = IngestSpec(source=KafkaSourceSpec(**settings), max_bad_records=len(values))
    table = TableSpec(table="t", location=str(root / "table"), record_key=("id",), ingest=ingest, **spec)
    environ = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": {"bootstrap.servers": kafka.address}})}
    report = run_ingest(spark, table, IngestCommand(table="t"), environ=environ)
    keys = sorted(Table.open(table.location).scan(columns=["id"]).to_arrow()["id"].to_pylist())
    return {"keys": keys, "bad": report.bad_records}


@pytest.mark.parametrize("schema", [NESTED, {}], ids=["declared", "inferred"])
def test_files_with_a_key_twice_inside_of_columns(landing: TextLanding, schema: dict[str, str]) -> None:
    """danielaparker/jsoncons#505, apache/spark#47920: `{"s": {"x": 1, "x": 2}}` was read as 2 without a word."""
    landing.put("a.json", lines(*GOOD.values(), *BAD))
    landing.put("b.json", lines('{"id": "g4", "n": "y", "s": {"x": 4}}'))
    message = landing.refusal(schema)
    assert "5 bad records" in message and "a.json" in message and REASON in message
    report = landing.ingest(schema, max_bad_records=5)
    assert (report.rows, report.bad_records) == (4, 5)
    assert landing.rows("id") == [("g1",), ("g2",), ("g3",), ("g4",)]
    assert landing.rows("id", "s")[0][1]["y"] == '{"x": 1, "x": 2}'


def test_replay_does_not_read_records_with_a_key_twice(landing: TextLanding) -> None:
    """apache/spark#47920: the run refused the record, and the replay of its dead letter kept the last value."""
    landing.put("a.json", lines(GOOD["g1"], *BAD))
    assert landing.ingest(NESTED, max_bad_records=5).bad_records == 5
    replay = landing.ingest(NESTED, action="replay", max_bad_records=5)
    assert (replay.rows, replay.bad_records) == (0, 5)
    assert landing.rows("id") == [("g1",)]


def test_new_columns_of_bad_records_and_of_empty_objects_are_not_added(landing: TextLanding) -> None:
    """apache/spark#47920: a column that only a refused record has ended the run with `KEY_NOT_EXISTS`."""
    landing.put("a.json", lines(GOOD["g1"], BAD[2], '{"id": "g5", "n": "x", "empty": {}}'))
    assert landing.ingest(NESTED, max_bad_records=1).rows == 2
    names = Table.open(str(landing.root / "table")).schema.names
    assert "more" not in names and "empty" not in names


def test_setting_of_the_session_does_not_allow_a_key_twice(landing: TextLanding) -> None:
    """apache/spark#47920: `spark.sql.variant.allowDuplicateKeys` is about variants of queries, not about ingestion."""
    setting = "spark.sql.variant.allowDuplicateKeys"
    landing.put("a.json", lines(GOOD["g1"], *BAD))
    landing.spark.conf.set(setting, "true")
    try:
        assert landing.ingest(NESTED, max_bad_records=5).bad_records == 5
        assert landing.spark.conf.get(setting) == "true"
    finally:
        landing.spark.conf.unset(setting)


def test_events_in_files_with_a_key_twice(landing: TextLanding) -> None:
    """apache/spark#47920, for events of Debezium: a delete `op` won over the `op` before it."""
    schema = {"id": "string", "n": "string", "_change_operation_type": "string"}
    landing.put("a.json", lines(*EVENTS))
    message = landing.refusal(schema, format="debezium")
    assert "4 bad records" in message and REASON in message
    report = landing.ingest(schema, format="debezium", max_bad_records=4)
    assert (report.rows, report.bad_records) == (2, 4)
    assert landing.rows("id") == [("g1",), ("g2",)]


def test_messages_with_a_key_twice(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """apache/spark#47920, for messages of Kafka."""
    found = run_topic(spark, kafka, tmp_path, (*GOOD.values(), *BAD), schema=NESTED)
    assert found == {"keys": ["g1", "g2", "g3"], "bad": len(BAD)}


def test_events_in_messages_with_a_key_twice(spark: SparkSession, kafka: Broker, tmp_path: Path) -> None:
    """apache/spark#47920, for events of Debezium in messages of Kafka."""
    schema = {"id": "string", "n": "string", "_change_operation_type": "string"}
    marks = {"delete_field": "_change_operation_type", "delete_marker": "d"}
    found = run_topic(spark, kafka, tmp_path, EVENTS, schema=schema, format="debezium", **marks)
    assert found == {"keys": ["g1", "g2"], "bad": 4}
