"""Complete ingest runs from a Kafka broker through Spark: each message once, offsets in the commit."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.ingest.run import CHECKPOINT, DEAD_LETTERS, run_ingest
from lakehouse.platform.sources.kafka.kafka_reader import LATE, WATERMARKS
from lakehouse.platform.sources.kafka.kafka_source import CHANGES, LAG, OFFSETS
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.contracts.lineage import LINEAGE
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.kafka import Broker, Message

pytestmark = pytest.mark.spark
SECOND = 1000
NINE = int(datetime(2026, 1, 1, 9, tzinfo=UTC).timestamp() * 1000)


class Topic:
    """A topic, and a table that ingests it."""

    def __init__(self, spark: SparkSession, broker: Broker, root: Path, partitions: int) -> None:
        self.spark, self.broker = spark, broker
        self.name = broker.topic(partitions)
        self.connection = {"bootstrap.servers": broker.address}
        self.spec = TableSpec(
            table="orders",
            location=str(root / "table"),
            record_key=("id",),
            schema={"id": "bigint", "name": "string"},
            ingest=IngestSpec(source=KafkaSourceSpec(topic=self.name)),
        )

    def send(self, *records: object, partition: int = 0, time_ms: int | None = None) -> None:
        """Write records as JSON; text and bytes are written unchanged."""
        values = [one if isinstance(one, str | bytes) else json.dumps(one) for one in records]
        self.broker.send(self.name, [Message(value=one, partition=partition, time_ms=time_ms) for one in values])

    def rows_of(self, first: int, last: int, partition: int = 0) -> None:
        """Write records with the keys from `first` to the one before `last`."""
        self.send(*({"id": key, "name": f"n{key}"} for key in range(first, last)), partition=partition)

    def change(self, **settings: Any) -> None:
        """Change settings of the source, or of the section."""
        assert self.spec.ingest is not None
        own = {name: value for name, value in settings.items() if name in KafkaSourceSpec.__dataclass_fields__}
        common = {name: value for name, value in settings.items() if name not in own}
        source: Any = self.spec.ingest.source
        self.spec = replace(self.spec, ingest=replace(self.spec.ingest, source=replace(source, **own), **common))

    def run(self, start: str | None = None, end: str | None = None, **command: Any) -> IngestReport:
        """Run once."""
        wanted = IngestCommand(table="x", interval_start=start, interval_end=end, **command)
        environ = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": self.connection})}
        return run_ingest(self.spark, self.spec, wanted, environ=environ)

    @property
    def table(self) -> Table:
        """The table."""
        return Table.open(self.spec.location)

    def keys(self) -> list[int]:
        """Return the keys of the table, sorted."""
        return sorted(self.table.scan(columns=["id"]).to_arrow().column("id").to_pylist())

    def extra(self) -> Mapping[str, str]:
        """Return the extra metadata of the newest commit."""
        return self.table.commits()[-1][1].extra


@pytest.fixture
def topic(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Topic:
    return Topic(spark, kafka, tmp_path, partitions=2)


def test_messages_are_ingested_once_by_repeated_runs(topic: Topic) -> None:
    topic.rows_of(0, 3)
    topic.rows_of(3, 5, partition=1)
    first = topic.run()
    assert (first.status, first.rows, first.inserts) == (JobStatus.COMMITTED, 5, 5)
    assert topic.run().status is JobStatus.NOTHING_TO_DO
    topic.send({"id": 4, "name": "changed"}, partition=1)
    topic.rows_of(5, 6)
    second = topic.run()
    assert (second.rows, second.inserts, second.updates) == (2, 1, 1)
    assert topic.keys() == [0, 1, 2, 3, 4, 5]
    assert json.loads(topic.extra()[OFFSETS])["partitions"] == {"0": [3, 4], "1": [2, 3]}
    assert json.loads(topic.extra()[CHECKPOINT])["next"] == {"0": 4, "1": 3}
    assert json.loads(topic.extra()[LAG]) == {"offsets": 0, "partitions": {}}


def test_bad_messages_are_kept_with_key_offset_reason_and_bytes(topic: Topic, kafka: Broker) -> None:
    broken = b'{"id": 1, \xff'
    values: list[bytes | str | None] = [
        b'{"id": 2, "name": "b"}',
        broken,
        None,
        "[1]",
        '{"name": "no key"}',
        '{"id": "x"}',
    ]
    kafka.send(topic.name, [Message(value=value, key=f"k{number}") for number, value in enumerate(values)])
    with pytest.raises(UserError, match="5 bad records, max_bad_records is 0; nothing was written"):
        topic.run()
    topic.change(max_bad_records=5)
    report = topic.run()
    assert (report.rows, report.bad_records) == (1, 5)
    store = open_storage(topic.extra()[DEAD_LETTERS])
    letters = [json.loads(line) for file in store.list("") for line in store.get(file.path).decode().splitlines()]
    by_offset = {letter["offset"]: letter for letter in letters}
    assert sorted(by_offset) == [1, 2, 3, 4, 5]
    assert base64.b64decode(by_offset[1]["value"]) == broken
    assert base64.b64decode(by_offset[1]["key"]) == b"k1"
    assert (by_offset[1]["reason"], by_offset[1]["partition"]) == ("does not parse", 0)
    assert "value" not in by_offset[2]
    assert by_offset[4]["reason"] == "no record key: id is null or empty"
    assert by_offset[4]["source_file"] == f"{topic.name}[0]@4"


def test_limits_divide_a_backlog_into_runs_that_continue_each_other(topic: Topic) -> None:
    topic.rows_of(0, 10)
    topic.rows_of(10, 12, partition=1)
    topic.change(max_messages=6)
    first = topic.run()
    assert first.rows == 6
    assert json.loads(topic.extra()[LAG])["offsets"] == 6
    (lag,) = first.lag
    assert (lag.source, lag.unit, lag.left) == (f"kafka:{topic.name}", "offsets", 6)
    assert lag.seconds is not None and lag.seconds > 0
    topic.change(max_messages=0, max_bytes=60)
    assert topic.run().rows == 3
    assert json.loads(topic.extra()[OFFSETS])["partitions"] == {"0": [4, 7]}
    topic.change(max_bytes=0, max_seconds=60)
    assert topic.run().rows == 3
    assert topic.keys() == list(range(12))
    last = topic.run()
    assert (last.status, [(one.left, one.seconds) for one in last.lag]) == (JobStatus.NOTHING_TO_DO, [(0, 0.0)])


def test_columns_of_messages_reach_the_table_if_the_spec_names_them(topic: Topic, kafka: Broker) -> None:
    kafka.send(topic.name, [Message(value='{"id": 7, "name": "a"}', key="key", partition=1, time_ms=NINE)])
    topic.change(metadata=("topic", "partition", "offset", "timestamp", "key"))
    topic.run()
    names = ["_kafka_topic", "_kafka_partition", "_kafka_offset", "_kafka_timestamp", "_kafka_key"]
    (row,) = topic.table.scan(columns=names).to_arrow().to_pylist()
    assert list(row.values()) == [topic.name, 1, 0, datetime(2026, 1, 1, 9, tzinfo=UTC), "key"]
    topic.change(metadata=(), select=("id", "upper(name) AS name", "_kafka_offset AS position"))


def test_report_of_selected_messages_names_the_fields_that_columns_are_made_of(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINEAGE, "true")
    topic.send({"id": 7, "name": "a"})
    topic.change(select=("id", "upper(name) AS name"))
    report = topic.run()
    assert report.lineage is not None
    columns = {one.name: [(of.field, of.kind) for of in one.sources] for one in report.lineage.outputs[0].columns}
    assert columns == {"id": [("id", "IDENTITY")], "name": [("name", "TRANSFORMATION")]}


def test_raw_messages_keep_their_bytes(topic: Topic) -> None:
    topic.send(b"\x00\xff", b"")
    topic.change(format="raw", metadata=("partition", "offset"))
    topic.spec = replace(topic.spec, record_key=("_kafka_partition", "_kafka_offset"), schema={})
    assert topic.run().rows == 2
    found = topic.table.scan(columns=["value", "_kafka_offset"]).to_arrow().sort_by("_kafka_offset")
    assert found.column("value").to_pylist() == [b"\x00\xff", b""]


def test_intervals_are_read_by_the_times_of_messages_also_late_ones(topic: Topic) -> None:
    times = [0, 10, 3590, 3600, 3599, 7300, 3598]
    for key, seconds in enumerate(times):
        topic.send({"id": key, "name": "n"}, time_ms=NINE + seconds * SECOND)
    topic.change(by_time=True, operation="insert")
    nine, ten, eleven = (f"2026-01-01T{hour:02}:00:00+00:00" for hour in (9, 10, 11))
    assert topic.run(nine, ten).rows == 3
    assert topic.run(nine, ten).status is JobStatus.NOTHING_TO_DO
    assert topic.run(ten, eleven).rows == 1
    assert json.loads(topic.extra()[LATE]) == {"messages": 1, "partitions": {"0": 1}}
    # With an hour more for arrivals, the interval also has the message that is behind later ones.
    topic.change(arrival_s=600)
    assert topic.run(nine, ten, full_refresh=True).rows == 4
    assert CHECKPOINT not in topic.extra()


def test_late_messages_are_counted_by_the_watermarks_of_earlier_commits(topic: Topic) -> None:
    topic.send({"id": 1}, time_ms=NINE + 9 * SECOND)
    topic.send({"id": 2}, time_ms=NINE, partition=1)
    topic.run()
    assert json.loads(topic.extra()[WATERMARKS]) == {"0": NINE + 9 * SECOND, "1": NINE}
    topic.send({"id": 3}, time_ms=NINE + SECOND)
    topic.send({"id": 4}, time_ms=NINE + SECOND, partition=1)
    assert topic.run().rows == 2
    assert json.loads(topic.extra()[LATE]) == {"messages": 1, "partitions": {"0": 1}}
    assert json.loads(topic.extra()[WATERMARKS]) == {"0": NINE + 9 * SECOND, "1": NINE + SECOND}


def test_new_partitions_are_read_from_their_first_message_and_reported(topic: Topic, kafka: Broker) -> None:
    topic.rows_of(0, 1)
    topic.run()
    kafka.add_partitions(topic.name, 3)
    topic.rows_of(1, 3, partition=2)
    report = topic.run()
    assert report.rows == 2
    assert "has new partitions, read from their first message: 2" in report.warning
    assert json.loads(topic.extra()[CHANGES]) == [report.warning]
    topic.rows_of(3, 4, partition=2)
    assert topic.run().warning == ""


def test_lost_messages_fail_the_run_unless_the_spec_resets(topic: Topic, kafka: Broker) -> None:
    topic.rows_of(0, 2)
    topic.run()
    topic.rows_of(2, 8)
    kafka.delete_before(topic.name, 0, 5)
    with pytest.raises(UserError, match=r"retention deleted 3 offsets of partition 0 .* Set reset: earliest"):
        topic.run()
    topic.change(reset="earliest")
    report = topic.run()
    assert (report.rows, topic.keys()) == (3, [0, 1, 5, 6, 7])
    assert "retention deleted 3 offsets of partition 0" in report.warning


def test_topic_that_was_created_again_fails_the_run_unless_the_spec_resets(topic: Topic, kafka: Broker) -> None:
    topic.rows_of(0, 2)
    topic.run()
    kafka.delete_topic(topic.name)
    with pytest.raises(UserError, match=f"topic '{topic.name}' does not exist"):
        topic.run()
    kafka.topic(2, topic.name)
    topic.rows_of(10, 13)
    with pytest.raises(UserError, match="was deleted and created again since the last commit"):
        topic.run()
    topic.change(reset="earliest")
    assert topic.run().rows == 3
    assert topic.keys() == [0, 1, 10, 11, 12]
    topic.change(reset="fail")
    assert topic.run().status is JobStatus.NOTHING_TO_DO


def test_open_and_aborted_transactions_are_not_read(topic: Topic, kafka: Broker) -> None:
    with kafka.transaction(topic.name) as producer:
        producer.send('{"id": 1}')
        producer.abort()
        producer.send('{"id": 2}')
        producer.commit()
        producer.send('{"id": 3}')
        assert topic.run().rows == 1
        assert topic.run().status is JobStatus.NOTHING_TO_DO
        producer.commit()
    assert topic.run().rows == 1
    assert topic.keys() == [2, 3]


def test_check_of_an_ingestion_names_the_missing_topic_and_connection(topic: Topic) -> None:
    command = IngestCommand(table="x")
    notes = check_ingest(topic.spec, command, environ=topic.broker.connection, storage_options={})
    assert "the run creates it" in notes[0]
    topic.change(topic="absent")
    with pytest.raises(UserError, match="topic 'absent' does not exist at 127"):
        check_ingest(topic.spec, command, environ=topic.broker.connection, storage_options={})
    with pytest.raises(UserError, match="AIRFLOW_CONN_KAFKA_DEFAULT is not set"):
        check_ingest(topic.spec, command, environ={}, storage_options={})
