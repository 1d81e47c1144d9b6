"""Choose a run's offsets from a topic's state and a checkpoint. The functions are pure.

    new partition          it is read from its first message
    topic created again     its id differs from the checkpoint's; the checkpoint's offsets mean nothing
    retention overtaken    the checkpoint lies before the first message; the messages between are lost
    log truncated          the checkpoint lies behind the last message, as after an unclean election of a leader

The last three fail the run, because messages are lost. With `reset: earliest` the run continues with the first message,
and the commit records the lost messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lakehouse.errors import UserError
from lakehouse.platform.sources.kafka.kafka_checkpoint import KafkaCheckpoint
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange, PartitionState, TopicState

#: The metadata column with a message's offset.
OFFSET_COLUMN = "_kafka_offset"
#: The maximum number of partitions in a message.
_SHOWN = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicChanges:
    """Changes to a topic since the checkpoint.

    Attributes:
        new_partitions: Partitions that are missing in the checkpoint.
        recreated: Whether the topic was deleted and created again.
        lost: The number of offsets that were deleted before a run read them, by partition.
        truncated: Partitions that end before the checkpoint.
    """

    new_partitions: tuple[int, ...] = ()
    recreated: bool = False
    lost: Mapping[int, int] = field(default_factory=dict)
    truncated: tuple[int, ...] = ()

    @property
    def loses(self) -> bool:
        """Whether messages are lost, or may be."""
        return self.recreated or bool(self.lost) or bool(self.truncated)

    @property
    def restarts(self) -> bool:
        """Whether offsets up to the checkpoint now belong to other messages."""
        return self.recreated or bool(self.truncated)

    def sentences(self, topic: str) -> tuple[str, ...]:
        """Return one sentence per change."""
        texts = []
        if self.new_partitions:
            names = ", ".join(map(str, self.new_partitions))
            texts.append(f"topic {topic!r} has new partitions, read from their first message: {names}")
        if self.recreated:
            texts.append(
                f"topic {topic!r} was deleted and created again since the last commit, so the offsets of the "
                "checkpoint belong to other messages"
            )
        for partition, count in sorted(self.lost.items()):
            texts.append(
                f"retention deleted {count} offsets of partition {partition} of topic {topic!r} before they were read"
            )
        for partition in self.truncated:
            texts.append(f"partition {partition} of topic {topic!r} ends before the offset in the checkpoint")
        return tuple(texts)


def starts(
    state: TopicState, checkpoint: KafkaCheckpoint | None, first_at: Mapping[int, int | None] | None
) -> tuple[dict[int, int], TopicChanges]:
    """Return the first offset to read per partition, and the changes since the checkpoint.

    Args:
        state: The topic.
        checkpoint: The position after earlier commits; None to begin from the start.
        first_at: The offsets at which a table without checkpoint starts; None for the first messages. A partition
            whose value is None starts at its end.
    """
    if checkpoint is None:
        return {one.partition: _started(one, first_at) for one in state.partitions}, TopicChanges()
    if checkpoint.topic_id != state.topic_id or checkpoint.topic != state.topic:
        return {one.partition: one.first for one in state.partitions}, TopicChanges(recreated=True)
    offsets: dict[int, int] = {}
    new, truncated, lost = list[int](), list[int](), dict[int, int]()
    for one in state.partitions:
        start = checkpoint.next.get(one.partition)
        if start is None:
            new.append(one.partition)
            start = one.first
        elif start < one.first:
            lost[one.partition] = one.first - start
            start = one.first
        elif start > one.end:
            truncated.append(one.partition)
            start = one.first
        offsets[one.partition] = start
    return offsets, TopicChanges(new_partitions=tuple(new), lost=lost, truncated=tuple(truncated))


def check_changes(changes: TopicChanges, state: TopicState, checkpoint: KafkaCheckpoint, reset: str) -> None:
    """Raise UserError if messages are lost and the spec does not allow it."""
    if changes.loses and reset == "fail":
        raise UserError(
            f"{'; '.join(changes.sentences(state.topic))}. {places(state, checkpoint)}. Set reset: earliest in "
            "'ingest' to continue with the earliest message, or run with --full-refresh to read all messages of the "
            "topic once more",
            topic=state.topic,
        )


def check_ordering(
    changes: TopicChanges, state: TopicState, checkpoint: KafkaCheckpoint, ordering: Sequence[str]
) -> None:
    """Raise UserError if stored rows would win over new messages, because rows are ordered by offsets that restart."""
    if changes.restarts and OFFSET_COLUMN in ordering:
        raise UserError(
            f"{'; '.join(changes.sentences(state.topic))}. {places(state, checkpoint)}. The table is ordered by "
            f"{OFFSET_COLUMN}, so stored rows with larger offsets would win over new messages with the same key. "
            "Ingest the topic into a new table: write another location in the spec",
            topic=state.topic,
        )


def places(state: TopicState, checkpoint: KafkaCheckpoint) -> str:
    """Return a sentence with the positions in the checkpoint and in the topic, by partition."""
    offsets = {one.partition: f"{one.first}-{one.end}" for one in state.partitions}
    return (
        f"The last commit has the topic id {checkpoint.topic_id} and the next offsets {_listed(checkpoint.next)}, and "
        f"the topic has the id {state.topic_id} and the offsets {_listed(offsets)}"
    )


def _listed(offsets: Mapping[int, object]) -> str:
    shown = [f"{partition}: {offsets[partition]}" for partition in sorted(offsets)[:_SHOWN]]
    return f"{{{', '.join([*shown, '...'] if len(offsets) > _SHOWN else shown)}}}"


def ranges_from(state: TopicState, offsets: Mapping[int, int]) -> list[OffsetRange]:
    """Return the ranges from these offsets to the end per partition."""
    return [OffsetRange(partition=one.partition, first=offsets[one.partition], end=one.end) for one in state.partitions]


def limited(ranges: Iterable[OffsetRange], most: int) -> tuple[OffsetRange, ...]:
    """Limit ranges to at most `most` offsets in total; 0 is no limit.

    Partitions get equal shares. Partitions with few messages leave their unused share to the others.
    """
    given = sorted(one for one in ranges if one.size > 0)
    if not most or sum(one.size for one in given) <= most:
        return tuple(given)
    left, taken = most, dict[int, int]()
    by_size = sorted(given, key=lambda one: (one.size, one.partition))
    for position, one in enumerate(by_size):
        taken[one.partition] = min(one.size, left // (len(by_size) - position))
        left -= taken[one.partition]
    cut = (OffsetRange(partition=one.partition, first=one.first, end=one.first + taken[one.partition]) for one in given)
    return tuple(one for one in cut if one.size > 0)


def split(ranges: Sequence[OffsetRange], most: int) -> tuple[OffsetRange, ...]:
    """Split ranges into parts of about equal size with at most `most` offsets each."""
    parts = []
    for one in ranges:
        count = max(1, -(-one.size // most))
        bounds = [one.first + one.size * number // count for number in range(count + 1)]
        parts += [OffsetRange(partition=one.partition, first=low, end=high) for low, high in pairwise(bounds)]
    return tuple(parts)


def _started(one: PartitionState, first_at: Mapping[int, int | None] | None) -> int:
    if first_at is None:
        return one.first
    offset = first_at.get(one.partition)
    return one.end if offset is None else min(max(offset, one.first), one.end)
