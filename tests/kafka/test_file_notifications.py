"""Notifications of an object store in a topic are the list of new files."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote_plus

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import SettingError
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.sources.files.file_discovery import NOTIFICATIONS
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import file_ingest
from tests.support.kafka import Broker, Message
from tests.support.s3 import S3Server

pytestmark = [pytest.mark.spark, pytest.mark.s3]


def test_files_that_messages_of_a_topic_name_are_read_once(
    spark: SparkSession, kafka: Broker, s3_server: S3Server, tmp_path: Path
) -> None:
    zone = open_storage(f"s3://{s3_server.bucket}/notified", s3_server.options)
    topic = kafka.topic(2)
    spec = TableSpec(
        table="orders",
        location=str(tmp_path / "orders"),
        record_key=("id",),
        schema={"id": "bigint"},
        ingest=file_ingest(path=f"{zone.root}/", notifications=f"kafka://kafka_eu/{topic}", operation="insert"),
    )
    connection = json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": kafka.address}})

    def send(*keys: str) -> None:
        for place, key in enumerate(keys):
            found = {"bucket": {"name": s3_server.bucket}, "object": {"key": quote_plus(f"notified/{key}")}}
            event = {"eventName": "ObjectCreated:Put", "s3": found}
            kafka.send(topic, [Message(value=json.dumps({"Records": [event]}), partition=place % 2)])

    def run() -> JobStatus:
        command = IngestCommand(table="orders")
        environ = {"AIRFLOW_CONN_KAFKA_EU": connection}
        return run_ingest(spark, spec, command, environ=environ, storage_options=s3_server.options).status

    with pytest.raises(SettingError, match="kafka_eu"):
        run_ingest(spark, spec, IngestCommand(table="orders"), environ={})
    zone.put("day 1/a+b.json", b'{"id": 1}')
    zone.put("not notified.json", b'{"id": 9}')
    send("day 1/a+b.json", "day 1/a+b.json", "deleted.json")
    assert run() is JobStatus.COMMITTED
    zone.put("c.json", b'{"id": 2}')
    send("c.json", "day 1/a+b.json")
    assert run() is JobStatus.COMMITTED
    assert run() is JobStatus.NOTHING_TO_DO
    table = Table.open(spec.location)
    assert sorted(table.scan(columns=["id"]).to_arrow().column("id").to_pylist()) == [1, 2]
    counted = json.loads(table.last_commit_extra(NOTIFICATIONS) or "")
    assert (counted["events"], counted["repeated"]) == (2, 1)
