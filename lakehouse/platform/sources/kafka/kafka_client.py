"""Access to Kafka through confluent-kafka: offsets in the driver, messages in Spark tasks. It needs the extra `kafka`.

A task reads from an explicit offset and ends by position, not by the last message: transaction markers and compaction
leave offsets without messages. `auto.offset.reset=error` makes a deleted offset an error; any other value would skip
messages silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange, PartitionState, TopicState
from lakehouse.spark.messages import MESSAGES
from lakehouse.spec.sources.kafka_connection import SERVERS, client_settings

_TIMEOUT_S = 30.0
#: A task ends with a retryable error if no message and no new position arrives for this long.
_STALLED_S = 60.0
_POLL_S = 1.0
_BATCH = 10_000
#: The client logs to standard error; failures raise exceptions, so only critical lines are logged.
_QUIET = {"log_level": "2"}
#: By default the client waits 1 s before it requests more messages when its queue contains 100,000, although a task
#: reads them within 0.2 s. A connection may set another value.
_READING = {"fetch.queue.backoff.ms": 10}
_CLOCK = SystemClock()
_NOT_FOUND = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)
_DENIED = (
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
    KafkaError._INVALID_ARG,
)


class KafkaLog:
    """See `TopicLog`."""

    def __init__(self, topic: str, settings: Mapping[str, str]) -> None:
        self._topic, self._servers = topic, settings[SERVERS]
        try:
            self._admin = AdminClient({**_QUIET, **client_settings(settings)})
        except KafkaException as error:
            raise _translated(error, topic, self._servers) from error

    def describe(self) -> TopicState:
        """Return the topic and its partitions (see `TopicLog.describe`)."""
        try:
            futures = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=_TIMEOUT_S)
            description = futures[self._topic].result()
        except KafkaException as error:
            raise _translated(error, self._topic, self._servers) from error
        numbers = sorted(one.id for one in description.partitions)
        first, end = (self._offsets(numbers, spec) for spec in (OffsetSpec.earliest(), OffsetSpec.latest()))
        return TopicState(
            topic=self._topic,
            topic_id=str(description.topic_id),
            partitions=tuple(PartitionState(partition=n, first=first[n], end=max(end[n], first[n])) for n in numbers),
        )

    def offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int | None]:
        """Return the first offset at or after a time (see `TopicLog.offsets_at`)."""
        offsets = self._offsets(partitions, OffsetSpec.for_timestamp(time_ms))
        return {partition: None if offset < 0 else offset for partition, offset in offsets.items()}

    def _offsets(self, partitions: Iterable[int], spec: Any) -> dict[int, int]:
        wanted = {TopicPartition(self._topic, partition): spec for partition in partitions}
        try:
            # A reader of committed messages can read up to the offset of the first open transaction.
            futures = self._admin.list_offsets(
                wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=_TIMEOUT_S
            )
            return {place.partition: future.result().offset for place, future in futures.items()}
        except KafkaException as error:
            raise _translated(error, self._topic, self._servers) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeReader:
    """Reads offset ranges in Spark tasks. It is sent to the workers, with the settings.

    Attributes:
        topic: The topic.
        settings: The client settings.
        parts: The ranges; a task gets indexes into this tuple.
        max_bytes: The maximum size of a range's keys and values in bytes; 0 for no limit. At least one message is read.
        deadline_ms: The time since 1970 in milliseconds at which to end; 0 for none. At least one message is read.
    """

    topic: str
    settings: Mapping[str, str]
    parts: tuple[OffsetRange, ...]
    max_bytes: int = 0
    deadline_ms: int = 0

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages in the ranges whose indexes are in the batches, and one row with the end of each range."""
        for batch in batches:
            for position in batch.column(0).to_pylist():
                yield from self._read(self.parts[position])

    def _read(self, part: OffsetRange) -> Iterator[pa.RecordBatch]:
        place = TopicPartition(self.topic, part.partition, part.first)
        following, size = part.first, 0
        with _consumer(self.settings) as consumer:
            consumer.assign([place])
            changed_s = _CLOCK.monotonic_s()
            while following < part.end:
                # `consume` waits the whole timeout unless it gets the wanted number of messages.
                polled = consumer.consume(min(_BATCH, part.end - following), _POLL_S)
                messages = [one for one in polled if _is_message(one, self) and following <= one.offset() < part.end]
                if self.max_bytes:
                    messages = _within(messages, self.max_bytes - size)
                if messages:
                    yield _batch(part.partition, messages)
                    size += sum(map(_size, messages))
                reached = messages[-1].offset() + 1 if messages else following
                is_full = bool(self.max_bytes) and size >= self.max_bytes
                if not is_full:
                    # The position also moves over offsets without messages.
                    reached = max(reached, consumer.position([place])[0].offset)
                if reached > following:
                    following, changed_s = reached, _CLOCK.monotonic_s()
                elif _CLOCK.monotonic_s() - changed_s > _STALLED_S:
                    raise RetryableError(
                        f"topic {self.topic!r}, partition {part.partition}: no message at offset {following} for "
                        f"{_STALLED_S:.0f} s, and the run planned to read up to offset {part.end}"
                    )
                is_late = bool(self.deadline_ms) and _CLOCK.now_ms() >= self.deadline_ms
                if is_full or (is_late and following > part.first):
                    break
        yield _end(part.partition, min(following, part.end))


@contextmanager
def _consumer(settings: Mapping[str, str]) -> Iterator[Consumer]:
    """Open a consumer without a consumer group for the duration of a `with` block."""
    consumer = Consumer(
        {
            **_QUIET,
            **_READING,
            **client_settings(settings),
            "group.id": "lakehouse",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def _is_message(polled: Any, reader: RangeReader) -> bool:
    """Return whether the result of a poll is a message; raise an exception for an error."""
    error = polled.error()
    if error is None:
        return True
    if error.code() == KafkaError._PARTITION_EOF:
        return False
    if error.code() == KafkaError._AUTO_OFFSET_RESET:
        raise RetryableError(
            f"topic {reader.topic!r}, partition {polled.partition()}: offset {polled.offset()} was deleted after the "
            "run was planned; the next try plans again"
        )
    raise _translated(KafkaException(error), reader.topic, reader.settings[SERVERS])


def _within(messages: Sequence[Any], size: int) -> list[Any]:
    """Return the first messages until their total size reaches `size`."""
    total = 0
    for position, message in enumerate(messages):
        total += _size(message)
        if total >= size:
            return list(messages[: position + 1])
    return list(messages)


def _size(message: Any) -> int:
    return len(message.key() or b"") + len(message.value() or b"")


def _batch(partition: int, messages: Sequence[Any]) -> pa.RecordBatch:
    """Return messages as Arrow columns. The client returns one object per message, so this loops over them."""
    count = len(messages)
    columns = [
        pa.repeat(pa.scalar(partition, pa.int32()), count),
        pa.array([one.offset() for one in messages], pa.int64()),
        pa.array([one.timestamp()[1] for one in messages], pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")),
        pa.array([one.key() for one in messages], pa.binary()),
        pa.array([one.value() for one in messages], pa.binary()),
        pa.repeat(pa.scalar(False), count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _end(partition: int, offset: int) -> pa.RecordBatch:
    """Return the row with the offset up to which a range was read."""
    values = (partition, offset, None, None, None, True)
    columns = [pa.array([value], kind.type) for value, kind in zip(values, MESSAGES, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _translated(error: KafkaException, topic: str, servers: str) -> LakehouseError:
    cause = error.args[0]
    code, text = cause.code(), cause.str()
    if code in _NOT_FOUND:
        return UserError(f"topic {topic!r} does not exist at {servers}: create it, or correct 'topic'", topic=topic)
    if code in _DENIED:
        return UserError(f"Kafka at {servers} refuses the access to topic {topic!r}: {text}", topic=topic)
    return RetryableError(f"Kafka at {servers} does not answer for topic {topic!r}: {text}", topic=topic)
