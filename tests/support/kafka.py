"""A Kafka broker in KRaft mode on a free port of 127.0.0.1, from the jars that `make kafka` fetches."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgresql import HOST, free_port, wait_for_port
from tests.support.waiting import until

JARS = Path(__file__).resolve().parents[2] / ".jars" / "kafka"
_CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"
_FLAGS = ("-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: Topic settings of all tests: without them, a broker deletes messages with old times within minutes.
_TOPIC = {"retention.ms": "-1"}
_names = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message to write; `time_ms` None is the current time, and `partition` None follows from the key."""

    value: bytes | str | None
    key: bytes | str | None = None
    partition: int = 0
    time_ms: int | None = None
    headers: Mapping[str, bytes] = field(default_factory=dict)


class Transactions:
    """A producer that writes in transactions; the first message begins one."""

    def __init__(self, producer: Any, topic: str) -> None:
        self._producer, self._topic, self._is_open = producer, topic, False

    def send(self, value: str) -> None:
        """Write a message and wait until the broker has it."""
        if not self._is_open:
            self._producer.begin_transaction()
            self._is_open = True
        self._producer.produce(self._topic, value, partition=0)
        assert self._producer.flush(30) == 0, "the broker did not take the message"

    def commit(self) -> None:
        """Commit the open transaction."""
        self._producer.commit_transaction(30)
        self._is_open = False

    def abort(self) -> None:
        """Abort the open transaction."""
        self._producer.abort_transaction(30)
        self._is_open = False


class Broker:
    """A running broker."""

    def __init__(self, address: str) -> None:
        from confluent_kafka.admin import AdminClient

        self.address = address
        # The futures of a client fail when the client is deleted, so it is kept.
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": "2"})

    @property
    def connection(self) -> dict[str, str]:
        """The environment variable of the Airflow connection `kafka_default`."""
        return {"AIRFLOW_CONN_KAFKA_DEFAULT": f'{{"extra": {{"bootstrap.servers": "{self.address}"}}}}'}

    def topic(self, partitions: int = 1, name: str | None = None, **settings: str) -> str:
        """Create a topic and return its name; each call has another name."""
        from confluent_kafka.admin import NewTopic

        name = name or f"topic-{next(_names)}"
        config = {**_TOPIC, **{key.replace("_", "."): text for key, text in settings.items()}}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result()
        assert until(lambda: self._partitions(name) == partitions), "the topic does not exist"
        return name

    def send(self, topic: str, messages: Iterable[Message], **settings: str) -> None:
        """Write messages and wait until the broker has all of them."""
        from confluent_kafka import Producer

        failures: list[object] = []
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": "0", **settings})
        for message in messages:
            producer.produce(
                topic,
                message.value,
                message.key,
                message.partition,
                on_delivery=lambda error, _: failures.append(error) if error else None,
                timestamp=message.time_ms or 0,
                headers=dict(message.headers),
            )
            producer.poll(0)
        assert producer.flush(30) == 0, "the broker did not take all messages"
        assert not failures, failures

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Delete the messages of a partition before an offset, as retention does."""
        from confluent_kafka import TopicPartition

        for future in self.admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            future.result()

    def add_partitions(self, topic: str, total: int) -> None:
        """Raise the number of partitions of a topic."""
        from confluent_kafka.admin import NewPartitions

        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result()
        assert until(lambda: self._partitions(topic) == total), "the partitions do not exist"

    def delete_topic(self, topic: str) -> None:
        """Delete a topic and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result()
        assert until(lambda: topic not in self.admin.list_topics().topics), "the topic still exists"

    @contextmanager
    def transaction(self, topic: str) -> Iterator[Transactions]:
        """Open a producer of transactions on partition 0."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.address, "transactional.id": f"tests-{next(_names)}"})
        producer.init_transactions(30)
        yield Transactions(producer, topic)

    def _partitions(self, topic: str) -> int:
        """Return the number of partitions that have a leader."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        places = [TopicPartition(topic, number) for number in self.admin.list_topics(topic).topics[topic].partitions]
        try:
            wanted = {place: OffsetSpec.latest() for place in places}
            return sum(future.result().offset >= 0 for future in self.admin.list_offsets(wanted).values())
        except KafkaException:
            return 0


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with one node for all tests of a process."""
    if shutil.which("java") is None or not any(JARS.glob("kafka_*.jar")):
        pytest.skip("missing: jars of Kafka; `make kafka` fetches them with mvn")
    if find_spec("confluent_kafka") is None:
        pytest.skip("missing: confluent-kafka; install lakehouse-tables[kafka]")
    with broker_at(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@contextmanager
def broker_at(place: Path) -> Iterator[Broker]:
    """Run a broker with one node, whose files are in the folder `place`, for the time of a `with` block."""
    place.mkdir(parents=True, exist_ok=True)
    java = shutil.which("java")
    assert java is not None, "java is not on the PATH"
    port, controller = free_port(), free_port()
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "log.dirs": place / "logs",
        "num.partitions": 1,
        "auto.create.topics.enable": "false",
        "offsets.topic.replication.factor": 1,
        "offsets.topic.num.partitions": 1,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.num.partitions": 1,
        "transaction.state.log.min.isr": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    config = place / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [java, *_FLAGS, "-cp", f"{JARS}/*"]
    with open(place / "log", "wb") as log:
        made = [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(config)]
        subprocess.run(made, cwd=place, stdout=log, stderr=log, check=True)
        server = subprocess.Popen([*command, "kafka.Kafka", config], cwd=place, stdout=log, stderr=log)
    try:
        wait_for_port(server, port, place / "log")
        yield Broker(f"{HOST}:{port}")
    finally:
        server.terminate()
        server.wait(timeout=60)
