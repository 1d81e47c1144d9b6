"""Fields of messages that the spec does not declare become columns, or are counted and reported."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.model.drift import DRIFT_KEY, ColumnDrift, Drift
from lakehouse.spec.contracts.job import IngestReport, parse_report
from lakehouse.spec.sources.transform import TransformSpec
from tests.kafka.test_kafka_formats import as_debezium, registry
from tests.kafka.test_kafka_runs import Topic
from tests.support.kafka import Broker
from tests.support.schema_registry import SchemaRegistry

pytestmark = pytest.mark.spark
__all__ = ["registry"]


@pytest.fixture
def topic(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Topic:
    return Topic(spark, kafka, tmp_path, partitions=2)


def rows(topic: Topic, *names: str) -> list[dict[str, Any]]:
    """Return the rows of the table, sorted by key."""
    return topic.table.scan(columns=list(names)).to_arrow().sort_by("id").to_pylist()


def ignored(report: IngestReport) -> dict[str, tuple[int, str]]:
    """Return number and example of the fields that were not read."""
    return {one.column: (one.rows, one.example) for one in report.drift if one.change is Drift.IGNORED}


def test_new_fields_become_columns_with_types_that_fit_all_values(topic: Topic) -> None:
    topic.spec = replace(topic.spec, schema={"id": "bigint", "place": "struct<x: bigint>"})
    topic.send({"id": 1, "place": {"x": 1}})
    assert topic.run().drift == ()
    topic.send({"id": 2, "place": {"x": 2, "y": "b"}, "vat": 1}, {"id": 3})
    topic.send({"id": 4, "vat": "free", "when": "2026-01-01T00:00:00Z", "gone": None}, partition=1)
    topic.change(max_bytes=10_000)
    report = topic.run()
    assert {one.column: one.change for one in report.drift} == dict.fromkeys(("place.y", "vat", "when"), Drift.ADDED)
    topic.change(max_bytes=0)
    topic.send({"id": 5, "vat": 2.5, "place": {"y": "c"}})
    assert topic.run().drift == ()
    assert rows(topic, "id", "place", "vat", "when") == [
        {"id": 1, "place": {"x": 1, "y": None}, "vat": None, "when": None},
        {"id": 2, "place": {"x": 2, "y": "b"}, "vat": "1", "when": None},
        {"id": 3, "place": None, "vat": None, "when": None},
        {"id": 4, "place": None, "vat": "free", "when": "2026-01-01T00:00:00Z"},
        {"id": 5, "place": {"x": None, "y": "c"}, "vat": "2.5", "when": None},
    ]


def test_ignored_fields_are_counted_with_an_example_in_commit_report_and_warning(topic: Topic) -> None:
    topic.change(new_column="ignore")
    topic.send({"id": 1, "vat": 7}, {"id": 2, "vat": 7}, {"id": 3}, '{"id": 4,\n "vat": 7}')
    report = topic.run()
    assert (report.rows, ignored(report)) == (4, {"vat": (3, "7")})
    assert "field vat of 3 records is not read, such as 7" in report.warning
    assert parse_report(report.to_json()) == report
    assert [ColumnDrift.of(one) for one in json.loads(topic.extra()[DRIFT_KEY])] == list(report.drift)
    topic.change(transform=TransformSpec(sql="SELECT id, upper(name) AS name FROM batch"))
    topic.send({"id": 5, "name": "e", "vat": 1})
    assert ignored(topic.run()) == {"vat": (1, "1")}


def test_new_fields_fail_the_run_before_anything_is_written_if_the_spec_says_so(topic: Topic) -> None:
    topic.change(new_column="fail")
    topic.send({"id": 1, "vat": 7})
    with pytest.raises(
        UserError, match="field 'vat' of 1 records, such as 7, is not among the columns of table orders"
    ):
        topic.run()
    topic.change(new_column="add")
    topic.send({"id": 2, "ID": 7})
    with pytest.raises(UserError, match="field 'ID' of 1 records, such as 7, differs from 'id' only in case"):
        topic.run()


def test_columns_of_the_writers_schema_become_columns_or_are_counted(topic: Topic, registry: SchemaRegistry) -> None:
    order = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    day = {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}], "default": None}
    newer = {**order, "fields": [*order["fields"], day]}
    topic.send(registry.encoded(order, {"id": 1}), registry.encoded(newer, {"id": 2, "day": 10}))
    topic.spec = replace(topic.spec, schema={"id": "bigint"})
    topic.connection["schema.registry.url"] = registry.url
    topic.change(format="avro", new_column="ignore")
    report = topic.run()
    assert ignored(report) == {"day": (1, '"1970-01-11"')}
    topic.change(new_column="add")
    topic.send(registry.encoded(newer, {"id": 3, "day": 20}))
    topic.run()
    assert [str(row["day"]) for row in rows(topic, "id", "day")] == ["None", "None", "1970-01-21"]


def test_columns_of_change_events_that_the_spec_lacks_are_counted(topic: Topic) -> None:
    as_debezium(topic, "debezium")
    after = {"id": 1, "name": "a", "more": 5}
    source = {"file": "binlog.000001", "pos": 4, "ts_ms": 1, "gtid": "x"}
    topic.send({"before": None, "after": after, "op": "c", "ts_ms": 2, "source": source})
    assert ignored(topic.run()) == {"more": (1, "5")}


def test_arrow_and_spark_parse_values_equally(topic: Topic) -> None:
    kinds = {"id": "bigint", "n": "int", "d": "double", "b": "boolean", "t": "timestamp", "day": "date", "s": "string"}
    topic.spec = replace(topic.spec, schema=kinds | {"m": "decimal(12,2)", "l": "array<struct<a: bigint>>"})
    values = {
        "n": [1, -(2**31), None],
        "d": [1, 0.1, -1e300, 5e-324, 123456789.123456789, None],
        "b": [True, False],
        "t": ["2026-01-01T10:00:00Z", "1969-12-31T23:59:59.999999+05:30", "0001-01-01T00:00:00.1Z"],
        "day": ["2026-01-31", "0001-01-01", "9999-12-31"],
        "s": ["", "a\"\\\n\u00e4\U0001f600", "null", None],
        "m": [1, 1.5, -0.25, "7.25", 9999999999.99],
        "l": [[], [{"a": 1}, None, {}], None],
    }  # fmt: skip
    records = [{"id": 0}] + [{name: one} for name, given in values.items() for one in given]
    records = [{**record, "id": number} for number, record in enumerate(records)]
    topic.send(*records)
    topic.run()
    fast = rows(topic, "id", *values)
    # A line break inside of a value is what Arrow's way does not accept.
    topic.send(*(json.dumps(record, indent=0) for record in records), partition=1)
    topic.run()
    assert rows(topic, "id", *values) == fast
    assert len(fast) == len(records)
