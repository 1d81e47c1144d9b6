"""Plans of the Kafka source: limits, splits, and changes of the topic."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.platform.sources.kafka.kafka_checkpoint import KafkaCheckpoint
from lakehouse.platform.sources.kafka.kafka_plan import TopicChanges, check_changes, limited, split, starts
from lakehouse.platform.sources.kafka.kafka_topic import OffsetRange, PartitionState, TopicState

RANGES = st.lists(st.integers(0, 50), min_size=1, max_size=6).map(
    lambda sizes: [OffsetRange(partition=n, first=10 * n, end=10 * n + size) for n, size in enumerate(sizes)]
)
STATE = TopicState(
    topic="orders",
    topic_id="one",
    partitions=(PartitionState(partition=0, first=5, end=9), PartitionState(partition=1, first=0, end=4)),
)
CHECKPOINT = KafkaCheckpoint(topic="orders", topic_id="one", next={0: 7, 1: 4})


@given(ranges=RANGES, most=st.integers(1, 200))
def test_limited_ranges_are_prefixes_and_use_the_whole_limit(ranges: list[OffsetRange], most: int) -> None:
    chosen = {one.partition: one for one in limited(ranges, most)}
    wanted = sum(one.size for one in ranges)
    assert sum(one.size for one in chosen.values()) == min(most, wanted)
    for one in ranges:
        taken = chosen.get(one.partition, replace(one, end=one.first))
        assert (taken.first, taken.end <= one.end) == (one.first, True)
        # A partition that was cut has at least the share of every other one, except for the remainder.
        assert taken.end == one.end or taken.size + 1 >= max((other.size for other in chosen.values()), default=0)


@given(ranges=RANGES, most=st.integers(1, 20))
def test_split_ranges_cover_the_same_offsets_in_small_parts(ranges: list[OffsetRange], most: int) -> None:
    given_ranges = limited(ranges, 0)
    parts = split(given_ranges, most)
    assert all(0 < part.size <= most for part in parts)
    covered = [(part.partition, offset) for part in parts for offset in range(part.first, part.end)]
    assert covered == [(one.partition, offset) for one in given_ranges for offset in range(one.first, one.end)]


def test_starts_continue_after_the_checkpoint_without_changes() -> None:
    assert starts(STATE, CHECKPOINT, None) == ({0: 7, 1: 4}, TopicChanges())


def test_starts_without_checkpoint_are_the_first_messages_or_those_of_a_time() -> None:
    assert starts(STATE, None, None)[0] == {0: 5, 1: 0}
    assert starts(STATE, None, {0: 8, 1: None})[0] == {0: 8, 1: 4}


@pytest.mark.parametrize(
    ("checkpoint", "offsets", "changes"),
    [
        (replace(CHECKPOINT, next={0: 7}), {0: 7, 1: 0}, TopicChanges(new_partitions=(1,))),
        (replace(CHECKPOINT, next={0: 2, 1: 4}), {0: 5, 1: 4}, TopicChanges(lost={0: 3})),
        (replace(CHECKPOINT, next={0: 7, 1: 6}), {0: 7, 1: 0}, TopicChanges(truncated=(1,))),
        (replace(CHECKPOINT, topic_id="other"), {0: 5, 1: 0}, TopicChanges(recreated=True)),
    ],
    ids=["new partition", "retention", "truncated", "created again"],
)
def test_starts_report_what_changed(
    checkpoint: KafkaCheckpoint, offsets: dict[int, int], changes: TopicChanges
) -> None:
    assert starts(STATE, checkpoint, None) == (offsets, changes)
    assert changes.sentences("orders")
    check_changes(changes, STATE, checkpoint, "earliest")
    if changes.new_partitions:
        check_changes(changes, STATE, checkpoint, "fail")
    else:
        with pytest.raises(UserError, match="Set reset: earliest in 'ingest'"):
            check_changes(changes, STATE, checkpoint, "fail")


def test_checkpoint_round_trips_and_refuses_newer_versions() -> None:
    assert KafkaCheckpoint.from_json(CHECKPOINT.to_json()) == CHECKPOINT
    with pytest.raises(UnsupportedError, match="has version 2"):
        KafkaCheckpoint.from_json('{"version": 2}')
    with pytest.raises(CorruptTableError, match="an offset is negative"):
        KafkaCheckpoint.from_json('{"version": 1, "topic": "t", "topic_id": "x", "next": {"0": -1}}')
