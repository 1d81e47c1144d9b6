"""Dead letters of messages are parsed again after their cause was repaired."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import UserError
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import BAD_RECORDS, DEAD_LETTERS, REPLAYED
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.job_command import ReplayCommand
from tests.kafka.test_kafka_runs import Topic
from tests.support.kafka import Broker, Message

pytestmark = pytest.mark.spark
LARGE = 3_000_000_000


@pytest.fixture
def topic(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Topic:
    made = Topic(spark, kafka, tmp_path, partitions=1)
    made.spec = replace(
        made.spec, schema={"id": "bigint", "n": "int", "_kafka_offset": "bigint"}, ordering=("_kafka_offset",)
    )
    made.change(metadata=("offset",), max_bad_records=10)
    return made


def replay(topic: Topic, **flags: str) -> IngestReport:
    """Replay dead letters."""
    command = ReplayCommand(table="x", **flags)
    environ = {"AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"extra": topic.connection})}
    check_ingest(topic.spec, command, environ=environ, storage_options={})
    return run_replay(topic.spark, topic.spec, command, environ=environ)


def numbers(topic: Topic) -> dict[int, int]:
    """Return `n` of each row by key."""
    return {row["id"]: row["n"] for row in topic.table.scan(columns=["id", "n"]).to_arrow().to_pylist()}


def test_letters_become_rows_once_and_never_replace_newer_rows(topic: Topic, kafka: Broker) -> None:
    values = [{"id": 1, "n": LARGE}, {"id": 2, "n": LARGE}, {"id": 2, "n": 5}, {"id": 3, "n": 6}]
    kafka.send(topic.name, [Message(value=json.dumps(one)) for one in values] + [Message(value="broken", key="k")])
    first = topic.run()
    assert (first.rows, first.bad_records, numbers(topic)) == (2, 3, {2: 5, 3: 6})
    letters = topic.extra()[DEAD_LETTERS]
    nothing = replay(topic)
    assert (nothing.status, nothing.bad_records) == (JobStatus.NOTHING_TO_DO, 3)
    assert "none of the 3 dead letters becomes a row yet" in nothing.reason
    topic.spec = replace(topic.spec, schema=topic.spec.schema | {"n": "bigint"})
    report = replay(topic)
    assert (report.status, report.rows, report.bad_records, report.folders) == (JobStatus.COMMITTED, 1, 1, (letters,))
    # The message of key 2 is older than the stored row, so its row is not written.
    assert numbers(topic) == {1: LARGE, 2: 5, 3: 6}
    assert json.loads(topic.extra()[REPLAYED]) == [letters]
    assert (topic.extra()[BAD_RECORDS], topic.extra()[DEAD_LETTERS] != letters) == ("1", True)
    # The letter that is still bad is a letter of the replay, and the others are not read again.
    again = replay(topic)
    assert (again.status, again.bad_records) == (JobStatus.NOTHING_TO_DO, 1)
    assert replay(topic, commit=str(report.instant)).bad_records == 1
    assert replay(topic, commit=str(first.instant)).reason == "no commit names dead letters that were not replayed"
    assert replay(topic, dead_letters=letters).reason == "a commit has replayed this folder already"
    assert numbers(topic) == {1: LARGE, 2: 5, 3: 6}
    # The next run continues from the offsets of the first one.
    topic.send({"id": 4, "n": 1})
    assert topic.run().rows == 1


def test_letters_of_a_refused_run_are_replayed_by_their_folder(topic: Topic) -> None:
    topic.change(max_bad_records=0)
    topic.send({"id": 1, "n": LARGE, "vat": 1})
    with pytest.raises(UserError, match="1 bad record, max_bad_records is 0") as error:
        topic.run()
    folder = str(error.value.facts["dead_letters"])
    topic.spec = replace(topic.spec, schema=topic.spec.schema | {"n": "bigint"})
    report = replay(topic, dead_letters=folder)
    assert (report.rows, numbers(topic)) == (1, {1: LARGE})
    assert [(one.column, one.rows) for one in report.drift] == [("vat", 1)]
    assert replay(topic, dead_letters=folder).status is JobStatus.NOTHING_TO_DO
    with pytest.raises(UserError, match="has no dead letters; name its folder with --dead-letters"):
        replay(topic, commit=str(report.instant))


def test_replay_without_ordering_column_needs_force(topic: Topic) -> None:
    topic.spec = replace(topic.spec, ordering=())
    with pytest.raises(UserError, match="no ordering column, so a replayed record would replace a newer row"):
        replay(topic)
    with pytest.raises(UserError, match="--commit and --dead-letters both name dead letters"):
        replay(topic, commit="1", dead_letters="x")
