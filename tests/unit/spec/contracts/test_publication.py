"""Contracts of publication: round trips, and the decisions of sensors and operators that follow from them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.contracts.publication import (
    PartitionEvent,
    PartitionState,
    PartitionStatus,
    PublicationDue,
    PublicationPreview,
    PublicationStatus,
    PublishReason,
    PublishResult,
    SensorEvent,
    SignalResult,
    Visibility,
    WithdrawResult,
    visible_since,
)

names = st.text(max_size=5)
statuses = st.builds(
    PartitionStatus,
    partition=names,
    state=st.sampled_from(PartitionState),
    code=st.sampled_from(PublishReason),
    lag_s=st.none() | st.floats(0, 1e6),
    visibility=st.sampled_from(Visibility),
)
events = st.builds(PartitionEvent, table=names, partition=names, instant=names)
tuples = st.lists(names, max_size=2).map(tuple)
documents = (
    st.builds(PublicationStatus, target=names, partitions=st.lists(statuses, max_size=2).map(tuple))
    | st.builds(PublicationDue, target=names, publish=tuples, archive=tuples, begun=tuples, lost=tuples)
    | st.builds(
        PublicationPreview,
        target=names,
        begun=tuples,
        publish=st.lists(statuses, max_size=2).map(tuple),
        archive=tuples,
        waiting=st.lists(statuses, max_size=2).map(tuple),
        missed=st.lists(statuses, max_size=2).map(tuple),
    )
    | events
    | st.builds(
        PublishResult,
        status=st.sampled_from(JobStatus),
        table=names,
        published=st.lists(events, max_size=2).map(tuple),
        refused=st.none() | names,
        interval=st.none() | names,
    )
    | st.builds(SignalResult, ready=tuples, published=tuples)
    | st.builds(WithdrawResult, withdrawn=tuples)
    | st.builds(SensorEvent, partition=st.none() | events, error=names, final=st.booleans())
)


@given(document=documents)
def test_publication_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document


@pytest.mark.parametrize(
    ("state", "code", "unreachable"),
    [
        (PartitionState.WAITING, PublishReason.UNREACHABLE, True),
        (PartitionState.WAITING, PublishReason.WAITS_FOR_CONDITION, False),
        (PartitionState.WAITING, PublishReason.NO_DATA, False),
        (PartitionState.ABSENT, PublishReason.ABSENT, False),
        (PartitionState.LOST, PublishReason.VERSION_CLEANED, True),
        (PartitionState.EXPIRED, PublishReason.TOO_OLD, True),
        (PartitionState.PUBLISHED, PublishReason.NONE, False),
    ],
)
def test_partition_is_unreachable_by_its_state_and_code(
    state: PartitionState, code: PublishReason, unreachable: bool
) -> None:
    assert PartitionStatus(partition="dt=1", state=state, code=code).is_unreachable is unreachable


def test_visible_since_skips_older_and_invisible_partitions() -> None:
    since = datetime(2026, 3, 1, 12, 0, 0, 500, tzinfo=UTC)
    row = PartitionStatus(
        partition="dt=1",
        state=PartitionState.PUBLISHED,
        instant="7",
        published="2026-03-01T12:00:00Z",
        visibility=Visibility.PUBLISHED_VERSION,
    )
    rows = (row, replace(row, partition="dt=2", visibility=Visibility.OTHER), replace(row, published=""))
    status = PublicationStatus(target="shop.orders", partitions=rows)
    assert visible_since(status, since) == (
        PartitionEvent(table="shop.orders", partition="dt=1", instant="7", published="2026-03-01T12:00:00Z"),
    )
    assert visible_since(status, since + timedelta(seconds=1)) == ()
