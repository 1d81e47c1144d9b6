"""A Kafka broker in KRaft mode on a free port of 127.0.0.1, from the jars that `make kafka` fetches."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgresql import HOST, free_port, wait_for_port
from tests.support.proxy import CutAfter, Proxy, proxy_to
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
    with node_at(place, {}) as node:
        yield Broker(node.address)


class Node:
    """The process of a broker, which can be killed and started again with the same files and ports."""

    def __init__(self, place: Path, port: int, command: Sequence[str]) -> None:
        self.place, self.port, self._command = place, port, command
        self.address = f"{HOST}:{port}"
        self.start()

    def start(self) -> None:
        """Start the process and wait until it answers."""
        with open(self.place / "log", "ab") as log:
            self._server = subprocess.Popen(self._command, cwd=self.place, stdout=log, stderr=log)
        wait_for_port(self._server, self.port, self.place / "log")

    def kill(self) -> None:
        """Kill the process."""
        self._server.kill()
        self._server.wait(timeout=60)

    def stop(self) -> None:
        """End the process."""
        self._server.terminate()
        self._server.wait(timeout=60)


@contextmanager
def node_at(place: Path, more: Mapping[str, object]) -> Iterator[Node]:
    """Run the process of a broker; `more` has further settings, whose listeners are added to the plain one."""
    place.mkdir(parents=True, exist_ok=True)
    java = shutil.which("java")
    assert java is not None, "java is not on the PATH"
    port, controller = free_port(), free_port()
    own = dict(more)
    listeners, advertised, protocols = (
        f",{own.pop(name)}" if name in own else ""
        for name in ("listeners", "advertised.listeners", "listener.security.protocol.map")
    )
    settings = {
        "process.roles": "broker,controller",
        "node.id": 1,
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listeners": f"PLAINTEXT://{HOST}:{port},CONTROLLER://{HOST}:{controller}{listeners}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{port}{advertised}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}",
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
        **own,
    }
    config = place / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    command = [java, *_FLAGS, "-cp", f"{JARS}/*"]
    with open(place / "log", "wb") as log:
        made = [*command, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", str(config)]
        subprocess.run(made, cwd=place, stdout=log, stderr=log, check=True)
    node = Node(place, port, [*command, "kafka.Kafka", str(config)])
    try:
        yield node
    finally:
        node.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredBroker:
    """A broker with a listener for TLS with passwords, and one whose address is that of a proxy.

    Attributes:
        node: Its process.
        broker: Its plain listener.
        proxy: The proxy in front of another listener.
        secure: The address of the listener with TLS.
        certificate: The file of its certificate, which it has signed itself.
    """

    node: Node
    broker: Broker
    proxy: Proxy
    secure: str
    certificate: Path


@contextmanager
def secured_broker_at(place: Path, password: str, cut_after: CutAfter | None = None) -> Iterator[SecuredBroker]:
    """Run a broker with all listeners; the user of the one with TLS is `reader`."""
    place.mkdir(parents=True)
    behind, secure = free_port(), free_port()
    store, certificate = place / "store.p12", place / "certificate.pem"
    access = ["-alias", "kafka", "-keystore", str(store), "-storepass", "changeit"]
    names = ["-dname", "CN=kafka", "-ext", f"SAN=ip:{HOST}", "-validity", "3650"]
    pair = ["keytool", "-genkeypair", "-keyalg", "RSA", "-keysize", "2048", "-storetype", "PKCS12", *names]
    for command in ([*pair, *access], ["keytool", "-exportcert", "-rfc", "-file", str(certificate), *access]):
        subprocess.run(command, check=True, capture_output=True)
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    with proxy_to(f"{HOST}:{behind}", cut_after) as proxy:
        settings = {
            "listeners": f"CUT://{HOST}:{behind},SECURE://{HOST}:{secure}",
            "advertised.listeners": f"CUT://{proxy.address},SECURE://{HOST}:{secure}",
            "listener.security.protocol.map": "CUT:PLAINTEXT,SECURE:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.secure.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secure.plain.sasl.jaas.config": f'{login} user_reader="{password}";',
            "listener.name.secure.ssl.keystore.location": store,
            "listener.name.secure.ssl.keystore.password": "changeit",
            "listener.name.secure.ssl.keystore.type": "PKCS12",
        }
        with node_at(place / "node", settings) as node:
            yield SecuredBroker(
                node=node,
                broker=Broker(node.address),
                proxy=proxy,
                secure=f"{HOST}:{secure}",
                certificate=certificate,
            )
