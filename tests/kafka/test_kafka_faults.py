"""Two runs at once, a network and a broker that fail during a run, and logins to broker and schema registry."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.errors import ConflictError, RetryableError, UserError
from lakehouse.platform.ingest.run import CHECKPOINT
from lakehouse.platform.sources.kafka import kafka_client
from lakehouse.platform.sources.kafka.kafka_client import KafkaLog, RangeReader
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange
from lakehouse.spec.contracts.job import JobStatus
from tests.kafka.test_kafka_runs import Topic
from tests.support.kafka import Broker, Message, SecuredBroker, secured_broker_at
from tests.support.proxy import random_cuts
from tests.support.schema_registry import schema_registry
from tests.support.waiting import until

pytestmark = pytest.mark.spark
PASSWORD = "correct-horse-battery-staple"
#: Replies of about 20 kB, so that a run needs many of them, and fast reconnects after a cut.
SMALL_REPLIES = {"fetch.message.max.bytes": "20000", "reconnect.backoff.max.ms": "200"}


@pytest.fixture(scope="module")
def servers(kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A broker that may be restarted; the one of all tests shows that its jars are here."""
    assert kafka.address
    place = tmp_path_factory.mktemp("faults") / "broker"
    with secured_broker_at(place, PASSWORD) as found:
        yield found


@pytest.fixture
def topic(spark: SparkSession, servers: SecuredBroker, tmp_path: Path) -> Topic:
    """A topic with an append-only table: a message that is read twice would be two rows."""
    made = Topic(spark, servers.broker, tmp_path, partitions=2)
    made.change(operation="insert")
    return made


def fill(topic: Topic, first: int, last: int) -> None:
    """Write messages of about 1 kB, half of them to each partition, in batches of 20: a reply has whole batches."""
    values = [(number, json.dumps({"id": number, "name": "x" * 1000})) for number in range(first, last)]
    messages = [Message(value=value, partition=number % 2) for number, value in values]
    topic.broker.send(topic.name, messages, **{"batch.num.messages": "20"})


def run_until_done(topic: Topic, most: int = 12) -> None:
    """Run until there is nothing left; only failures that a later run may not have are expected."""
    for _ in range(most):
        try:
            if topic.run().status is JobStatus.NOTHING_TO_DO:
                return
        except RetryableError:
            continue
    raise AssertionError(f"{most} runs did not read everything")


def assert_complete(topic: Topic, count: int) -> None:
    """Assert that the table has each message exactly once, and that its offsets are those of the topic."""
    assert topic.keys() == list(range(count))
    state = KafkaLog(topic.name, {"bootstrap.servers": topic.broker.address}).describe()
    ends = {str(one.partition): one.end for one in state.partitions}
    (newest,) = {extra[CHECKPOINT] for _, commit in topic.table.commits()[-1:] if (extra := commit.extra)}
    assert json.loads(newest)["next"] == ends


def test_two_runs_at_once_commit_each_message_once(topic: Topic) -> None:
    def run(_: int) -> None:
        try:
            run_until_done(topic)
        except ConflictError:
            # The other run has committed first three times.
            return

    for first in (0, 200):
        fill(topic, first, first + 200)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, range(2)))
    run_until_done(topic)
    assert_complete(topic, 400)


def test_cut_connections_and_a_killed_broker_lose_and_repeat_no_message(topic: Topic, servers: SecuredBroker) -> None:
    proxy = servers.proxy
    topic.connection = {"bootstrap.servers": proxy.address, **SMALL_REPLIES}
    fill(topic, 0, 400)
    proxy.cut_after = random_cuts(seed=7, most=120_000)
    try:
        run_until_done(topic)
        assert proxy.cuts > 0
        assert_complete(topic, 400)
        fill(topic, 400, 800)
        # A connection that is cut after a part of the messages shows that tasks are reading.
        proxy.cuts, proxy.cut_after = 0, lambda _: 60_000
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_until_done, topic)
            assert until(lambda: proxy.cuts > 0)
            servers.node.kill()
            proxy.cut_after = None
            servers.node.start()
            running.result()
    finally:
        proxy.cut_after = None
    assert_complete(topic, 800)


def test_unreachable_broker_ends_a_run_with_a_retryable_error(
    topic: Topic, servers: SecuredBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = servers.proxy
    topic.connection = {"bootstrap.servers": proxy.address, **SMALL_REPLIES}
    fill(topic, 0, 10)
    monkeypatch.setattr(kafka_client, "_TIMEOUT_S", 1.0)
    monkeypatch.setattr(kafka_client, "_STALLED_S", 1.0)
    reader = RangeReader(topic=topic.name, settings=topic.connection, parts=(OffsetRange(partition=0, first=0, end=5),))
    proxy.refuses = True
    try:
        proxy.cut_all()
        with pytest.raises(RetryableError, match=f"Kafka at {proxy.address} does not answer for topic '{topic.name}'"):
            topic.run()
        with pytest.raises(RetryableError, match="partition 0: no message at offset 0 for 1 s"):
            list(reader([pa.record_batch({"id": [0]})]))
    finally:
        proxy.refuses = False
    run_until_done(topic)
    assert_complete(topic, 10)


def test_topic_is_read_by_tls_with_a_password(topic: Topic, servers: SecuredBroker) -> None:
    fill(topic, 0, 10)
    login = {
        "bootstrap.servers": servers.secure,
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "reader",
        "sasl.password": PASSWORD,
        "ssl.ca.location": str(servers.certificate),
    }
    topic.connection = login
    run_until_done(topic)
    assert_complete(topic, 10)
    shown = [
        path
        for path in Path(topic.spec.location).rglob("*")
        if path.is_file() and PASSWORD.encode() in path.read_bytes()
    ]
    assert shown == []
    topic.connection = login | {"sasl.password": "wrong"}
    with pytest.raises((UserError, RetryableError)) as error:
        topic.run()
    assert servers.secure in str(error.value)
    assert "wrong" not in str(error.value)


def test_registry_with_a_login_is_asked_with_it(topic: Topic) -> None:
    order = {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]}
    topic.spec = replace(topic.spec, schema={"id": "bigint"})
    topic.change(format="avro")
    with schema_registry() as registry:
        registry.login = f"reader:{PASSWORD}"
        topic.send(registry.encoded(order, {"id": 0}))
        topic.connection["schema.registry.url"] = registry.url
        with pytest.raises(UserError, match="the schema registry refuses the access to http"):
            topic.run()
        topic.connection["schema.registry.basic.auth.user.info"] = registry.login
        run_until_done(topic)
    assert topic.keys() == [0]


def test_client_asks_for_more_messages_while_its_queue_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    class Opened(Exception):
        """The settings of a client."""

    def consumer(settings: dict[str, Any]) -> None:
        raise Opened(settings["fetch.queue.backoff.ms"])

    monkeypatch.setattr(kafka_client, "Consumer", consumer)
    part = OffsetRange(partition=0, first=0, end=1)
    for given, expected in (({}, 10), ({"fetch.queue.backoff.ms": "500"}, "500")):
        reader = RangeReader(topic="t", settings={"bootstrap.servers": "127.0.0.1:1", **given}, parts=(part,))
        with pytest.raises(Opened) as opened:
            list(reader([pa.record_batch({"id": [0]})]))
        assert opened.value.args == (expected,)
