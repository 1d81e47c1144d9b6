"""Publication plans: periods, readiness, repeated publication and archiving."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.publication import decode_publications, encode_publications
from lakehouse.errors import UserError
from lakehouse.model.publication import NO_EVENTS, EventSpan, Publication, PublishedPartition, Retired, Stage, Version
from lakehouse.platform.publish.publication_plan import (
    PublicationCandidate,
    PublicationFacts,
    PublishPlan,
    PublishRequest,
    period,
    plan_publication,
)
from lakehouse.spec.contracts.publication import PublishReason
from lakehouse.spec.table.publish import PublishSpec, parse_publish
from lakehouse.spec.table.publish_keys import GRANULARITIES
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.tables import examples

NEWEST = Version(instant="9", completion="99")
DAY_MS = 86_400_000


def at(text: str) -> int:
    """Return a UTC time in milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def spec(**settings: Any) -> PublishSpec:
    """Return a publication by date."""
    return parse_publish("bank.accounts", {"database": "bank", "partitions": "date", **settings})


def facts(**changes: Any) -> PublicationFacts:
    """Return facts of a table whose events go from the first to the third of March."""
    defaults: dict[str, Any] = {
        "now_ms": at("2025-03-04T00:00:00"),
        "newest": NEWEST,
        "span": EventSpan(first_ms=at("2025-03-01T10:00:00"), last_ms=at("2025-03-03T10:00:00")),
        "watermark_ms": at("2025-03-03T00:00:00"),
    }
    return PublicationFacts(**defaults | changes)


def day_partition(day: str, *, end: str) -> PublicationCandidate:
    """Return a partition of a table that is partitioned by day."""
    return PublicationCandidate(name=f"day={day}", paths=(day,), start_ms=0, end_ms=at(f"{end}T00:00:00"))


def plan(
    declared: PublishSpec,
    state: PublicationFacts,
    publication: Publication | None = None,
    request: PublishRequest | None = None,
) -> PublishPlan:
    """Return the plan of a run; the instant of a version is its event time in milliseconds."""
    return plan_publication(
        declared,
        publication or Publication(),
        state,
        request or PublishRequest(),
        lambda ms: Version(instant=str(ms), completion="c"),
    )


def test_plan_publishes_days_that_the_watermark_has_passed_at_the_version_of_their_end() -> None:
    found = plan(spec(), facts())
    assert [(p.name, p.version.instant) for p in found.publish] == [
        ("dt=2025-03-01", str(at("2025-03-02T00:00:00"))),
        ("dt=2025-03-02", str(at("2025-03-03T00:00:00"))),
    ]
    assert [(w.name, w.lag_ms) for w in found.waiting] == [("dt=2025-03-03", DAY_MS)]


def test_plan_omits_a_day_one_millisecond_before_the_watermark_reaches_its_end() -> None:
    found = plan(spec(), facts(watermark_ms=at("2025-03-03T00:00:00") - 1))
    assert [p.name for p in found.publish] == ["dt=2025-03-01"]


@pytest.mark.parametrize(
    ("zone", "day", "start", "end"),
    [
        ("Europe/Berlin", "2025-03-30", "2025-03-29T23:00:00", "2025-03-30T22:00:00"),
        ("Europe/Berlin", "2025-10-26", "2025-10-25T22:00:00", "2025-10-26T23:00:00"),
        ("Asia/Kolkata", "2025-03-01", "2025-02-28T18:30:00", "2025-03-01T18:30:00"),
    ],
)
def test_period_of_a_day_follows_the_time_zone_with_daylight_saving(zone: str, day: str, start: str, end: str) -> None:
    found = period(spec(timezone=zone), day)
    assert (found.start_ms, found.end_ms) == (at(start), at(end))


def test_plan_of_hourly_periods_starts_at_since() -> None:
    found = plan(spec(granularity="hour", since="2025-03-02-22"), facts())
    assert [p.name for p in found.publish] == ["dt=2025-03-02-22", "dt=2025-03-02-23"]
    assert [w.name for w in found.waiting][:2] == ["dt=2025-03-03-00", "dt=2025-03-03-01"]


def test_plan_publishes_a_published_partition_again_only_by_force_or_signal() -> None:
    stored = Publication(
        partitions={
            "dt=2025-03-01": PublishedPartition(stage=Stage.PUBLISHED, version=NEWEST, manifest="m", published_ms=0),
            "dt=2025-03-02": PublishedPartition(stage=Stage.WITHDRAWN, version=NEWEST),
        }
    )
    assert plan(spec(), facts(), stored).is_empty
    request = PublishRequest(interval_ms=(at("2025-03-01T00:00:00"), at("2025-03-03T00:00:00")), force=True)
    assert [p.name for p in plan(spec(), facts(), stored, request).publish] == ["dt=2025-03-01", "dt=2025-03-02"]
    signalled = Publication(partitions=stored.partitions, signals={"dt=2025-03-01": 5})
    assert [p.name for p in plan(spec(ready="signal"), facts(), signalled).publish] == ["dt=2025-03-01"]
    assert plan(spec(), facts(), signalled).is_empty, "signals are not among the conditions of this publication"


def test_interval_request_selects_only_periods_that_lie_inside_it() -> None:
    request = PublishRequest(interval_ms=(at("2025-03-01T12:00:00"), at("2025-03-03T00:00:00")), ended=True)
    found = plan(spec(ready="interval"), facts(), request=request)
    assert [p.name for p in found.publish] == ["dt=2025-03-02"]
    assert plan(spec(ready="interval"), facts()).is_empty, "without an interval no partition is ready"


def test_plan_archives_pointers_at_the_age_of_archive_after() -> None:
    def stored(published_ms: int, stage: Stage = Stage.PUBLISHED) -> Publication:
        partition = PublishedPartition(stage=stage, version=NEWEST, manifest="m", published_ms=published_ms)
        return Publication(partitions={"dt=2025-03-01": partition})

    week = spec(archive_after="7d")
    now = facts().now_ms
    assert plan(week, facts(), stored(now - 7 * DAY_MS)).archive == ("dt=2025-03-01",)
    assert plan(week, facts(), stored(now - 7 * DAY_MS + 1)).archive == ()
    assert plan(week, facts(), stored(0, Stage.ARCHIVED)).archive == ()
    assert plan(spec(), facts(), stored(0)).archive == (), "archived only on request"
    assert plan(spec(), facts(), stored(now), PublishRequest(archive=True)).archive == ("dt=2025-03-01",)


def test_plan_continues_unfinished_partitions_without_starting_them_again() -> None:
    begun = {
        "dt=2025-03-01": PublishedPartition(stage=Stage.PUBLISHING, version=NEWEST, manifest="m"),
        "dt=2025-03-02": PublishedPartition(stage=Stage.ARCHIVING, version=NEWEST, manifest="m", copy="c"),
    }
    found = plan(spec(), facts(), Publication(partitions=begun))
    assert found.begun == ("dt=2025-03-01", "dt=2025-03-02")
    assert found.publish == ()


def test_table_partitions_are_ready_at_the_end_of_the_period_in_their_path() -> None:
    state = facts(
        partitions=(
            day_partition("2025-03-02", end="2025-03-03"),
            day_partition("2025-03-03", end="2025-03-04"),
            PublicationCandidate(name="day=other", paths=("other",)),
        )
    )
    found = plan(parse_publish("t", {"database": "d"}), state)
    assert [(p.name, p.paths, p.version) for p in found.publish] == [("day=2025-03-02", ("2025-03-02",), NEWEST)]
    reasons = {w.name: w.reason for w in found.waiting}
    assert reasons["day=other"] == "waits for nothing: its name has no time"
    assert {w.code for w in found.waiting if w.name == "day=other"} == {PublishReason.UNREACHABLE}


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ("event_time", "waits for nothing: its name has no time"),
        ("interval", "waits for nothing: its name has no time"),
        (["event_time", "signal"], "waits for a signal: its name has no time"),
        (["interval", "signal"], "waits for a signal: its name has no time"),
        ("signal", "waits for a signal"),
    ],
)
def test_partition_without_a_time_waits_for_a_signal_or_nothing(ready: str | list[str], words: str) -> None:
    state = facts(partitions=(PublicationCandidate(name="day=other", paths=("other",)),))
    (waiting,) = plan(parse_publish("t", {"database": "d", "ready": ready}), state).waiting
    assert waiting.reason == words
    unreachable = words.startswith("waits for nothing")
    assert waiting.code is (PublishReason.UNREACHABLE if unreachable else PublishReason.WAITS_FOR_CONDITION)


def test_waiting_reason_names_the_missing_data_or_watermark() -> None:
    silent = facts(watermark_ms=None, span=NO_EVENTS)
    assert plan(spec(), silent).waiting == (), "without events no day is due"
    request = PublishRequest(names=("dt=2025-03-01",))
    assert "hoodie.payload.event.time.field" in plan(spec(), silent, request=request).waiting[0].reason
    empty = facts(newest=None, watermark_ms=None, span=NO_EVENTS)
    forced = PublishRequest(names=("dt=2025-03-01",), force=True)
    assert plan(spec(), empty, request=forced).waiting[0].reason == "the table has no data yet"


def test_request_for_an_impossible_partition_raises_user_error() -> None:
    with pytest.raises(UserError, match="has no partition 'day=x'"):
        plan(parse_publish("t", {"database": "d"}), facts(), request=PublishRequest(names=("day=x",)))


stages = st.sampled_from([Stage.PUBLISHING, Stage.PUBLISHED, Stage.ARCHIVED, Stage.WITHDRAWN])
moments = st.integers(at("2025-03-01T00:00:00"), at("2025-03-09T00:00:00"))


@examples(200)
@given(moments, st.dictionaries(st.integers(1, 8), stages), st.sampled_from(["day", "hour"]))
def test_plan_is_deterministic_and_publishes_no_partition_before_its_end(
    watermark: int, stages_by_day: dict[int, Stage], granularity: str
) -> None:
    declared = spec(granularity=granularity)
    value = {"day": "2025-03-0{}", "hour": "2025-03-0{}-05"}[granularity]
    partitions = {
        f"dt={value.format(day)}": PublishedPartition(stage=stage, version=NEWEST, published_ms=0)
        for day, stage in stages_by_day.items()
    }
    publication = Publication(partitions=partitions)
    state = facts(watermark_ms=watermark, span=EventSpan(first_ms=at("2025-03-01T10:00:00"), last_ms=watermark))
    found = plan(declared, state, publication)
    assert found == plan(declared, state, publication)
    for planned in found.publish:
        assert planned.event_time_ms is not None and planned.event_time_ms <= watermark
        assert planned.name not in partitions, "a published partition is not planned again"
    names = [p.name for p in found.publish] + [w.name for w in found.waiting] + list(partitions)
    assert len(set(names)) == len(names), "each partition is in one list"
    starts = [datetime.strptime(name.removeprefix("dt="), GRANULARITIES[granularity]) for name in names]
    assert all(start.minute == 0 for start in starts)


versions = st.builds(Version, instant=st.text(max_size=3), completion=st.text(max_size=3))
plain = st.builds(
    PublishedPartition,
    stage=st.sampled_from(list(Stage)),
    version=versions,
    manifest=st.text(max_size=3),
    copy=st.text(max_size=3),
    paths=st.none() | st.lists(st.text(max_size=3), max_size=2).map(tuple),
    event_time_ms=st.none() | st.integers(0, 99),
    ready_ms=st.integers(0, 99),
    published_ms=st.none() | st.integers(0, 99),
    files=st.integers(0, 9),
    size_bytes=st.integers(0, 9),
    needs_copy=st.booleans(),
    reason=st.text(max_size=3),
)
partitions = st.one_of(plain, st.tuples(plain, plain).map(lambda pair: _with_before(*pair)))
publications = st.builds(
    Publication,
    partitions=st.dictionaries(st.text(max_size=4), partitions, max_size=3),
    signals=st.dictionaries(st.text(max_size=4), st.integers(0, 99), max_size=2),
    retired=st.lists(st.builds(Retired, manifest=st.text(), copy=st.text(), at_ms=st.integers(0, 9)), max_size=2).map(
        tuple
    ),
)


def _with_before(partition: PublishedPartition, before: PublishedPartition) -> PublishedPartition:
    return replace(partition, before=before)


@examples(100)
@given(st.dictionaries(st.text(max_size=5), publications, max_size=3))
def test_publication_state_round_trips(state: dict[str, Publication]) -> None:
    assert decode_publications(encode_publications(state, "fresh"), "here") == state


@pytest.mark.parametrize(("archive_after", "is_refused"), [("30d", True), (None, True), ("7d", False), ("1d", False)])
def test_spec_with_ttl_shorter_than_archive_after_is_refused(archive_after: str | None, is_refused: bool) -> None:
    text = (
        "table: s.t\nlocation: /t\nrecord_key: id\npartition_by: day\nservices:\n  ttl: {partition_age: 7d}\n"
        f"  publish: {{database: d{f', archive_after: {archive_after}' if archive_after else ''}}}\n"
    )
    if not is_refused:
        assert parse_spec(text, source="t.yaml").publication() is not None
        return
    with pytest.raises(UserError, match=r"t\.yaml:6: services\.ttl: partitions expire after 7d, but .* pins"):
        parse_spec(text, source="t.yaml")
