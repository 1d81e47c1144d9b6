"""The state of a Kafka topic as plain values, and the protocol of the client that supplies it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The messages in a partition.

    Attributes:
        partition: The partition number.
        first: The first offset that retention has not deleted.
        end: The offset after the last message that a reader of committed messages can read.
    """

    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicState:
    """A topic. Its id changes if the topic is deleted and created again."""

    topic: str
    topic_id: str
    partitions: tuple[PartitionState, ...]


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class OffsetRange:
    """The messages in a partition with offsets in `[first, end)`."""

    partition: int
    first: int
    end: int

    @property
    def size(self) -> int:
        """The number of offsets; compaction and transactions leave offsets without messages."""
        return self.end - self.first


class TopicLog(Protocol):
    """Looks up the offsets of one topic; reads no messages."""

    def describe(self) -> TopicState:
        """Return the topic and its partitions.

        Raises UserError if the topic does not exist or the client has no access, RetryableError if no broker answers.
        """

    def offsets_at(self, partitions: Iterable[int], time_ms: int) -> Mapping[int, int | None]:
        """Return the first offset whose message has this time or a later time, None if there is none, by partition."""
