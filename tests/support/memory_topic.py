"""A Kafka topic in memory, and its ingestion without Spark: the real planner with a reader of this process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import pyarrow as pa

from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.kafka.kafka_source import KafkaPlan, KafkaSource, kafka_source_of
from lakehouse.platform.sources.kafka.kafka_topic import PartitionState, TopicState
from lakehouse.platform.sources.source import Batch
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.ingested import BAD

_ids = count(1)


@dataclass
class MemoryTopic:
    """A topic whose messages are texts with times; `first` is the first offset that retention left, by partition."""

    name: str
    partitions: int = 1
    messages: dict[int, list[tuple[int, str]]] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    appended: int = 0

    def __post_init__(self) -> None:
        self.topic_id = f"id-{next(_ids)}"

    def append(self, text: str, *, time_ms: int = 0, partition: int | None = None) -> None:
        """Write a message, to the partitions in turn if none is given."""
        number = self.appended % self.partitions if partition is None else partition
        self.messages.setdefault(number, []).append((time_ms, text))
        self.appended += 1

    def recreate(self) -> None:
        """Delete the topic and create it again, without messages."""
        self.messages, self.first, self.topic_id = {}, {}, f"id-{next(_ids)}"

    def describe(self) -> TopicState:
        """Return the partitions (see `TopicLog.describe`)."""
        return TopicState(
            topic=self.name,
            topic_id=self.topic_id,
            partitions=tuple(
                PartitionState(partition=n, first=self.first.get(n, 0), end=len(self.messages.get(n, ())))
                for n in range(self.partitions)
            ),
        )

    def offsets_at(self, partitions: Iterable[int], time_ms: int) -> dict[int, int | None]:
        """Return the first offsets at or after a time (see `TopicLog.offsets_at`)."""
        return {
            number: next(
                (
                    offset
                    for offset, (moment, _) in enumerate(self.messages.get(number, ()))
                    if moment >= time_ms and offset >= self.first.get(number, 0)
                ),
                None,
            )
            for number in partitions
        }


def kafka_source(spec: TableSpec, topic: MemoryTopic) -> KafkaSource:
    """Return the Kafka source of a spec that reads a topic in memory."""
    return KafkaSource(spec=spec, settings=kafka_source_of(spec), log=topic, reader=partial(_read, topic))


@contextmanager
def _read(
    topic: MemoryTopic, plan: KafkaPlan, spec: TableSpec, *, known: object, dead_letters: DeadLetterBox
) -> Iterator[Batch | None]:
    """Read messages as `kafka_reader` does, without Spark."""
    low, high = plan.interval_ms or (0, 1 << 62)
    found = [message for one in plan.ranges for message in topic.messages[one.partition][one.first : one.end]]
    texts = [text for moment, text in found if low <= moment < high]
    letters = [text for text in texts if text.startswith(BAD)]
    for number, letter in enumerate(letters):
        path = f"{dead_letters.path_of(dead_letters.attempt)}/part-{number}.json"
        dead_letters.storage.put(path, letter.encode())
    rows = [{"id": text, "p": "p", "ts": 1} for text in texts if text not in letters]
    schema = pa.schema({"id": pa.string(), "p": pa.string(), "ts": pa.int64()})
    frame: Any = pa.Table.from_pylist(rows, schema)
    read: Any = schema
    yield Batch(frame=frame, rows=len(rows), bad_records=len(letters), schema=read)
