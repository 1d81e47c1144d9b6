"""Plans of publication: periods, readiness, what is done again, what becomes files of its own."""

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
from lakehouse.platform.publish.plan import Asked, Candidate, Facts, PublishPlan, period, plan_publication
from lakehouse.spec.publish import GRANULARITIES, PublishSpec, parse_publish
from lakehouse.spec.table import parse_spec
from tests.support.tables import examples

NEWEST = Version(instant="9", completion="99")
DAY_MS = 86_400_000


def at(text: str) -> int:
    """Return a UTC time in milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def spec(**settings: Any) -> PublishSpec:
    """Return a publication by date."""
    return parse_publish("bank.accounts", {"database": "bank", "partitions": "date", **settings})


def facts(**told: Any) -> Facts:
    """Return facts of a table whose events go from the first to the third of March."""
    known: dict[str, Any] = {
        "now_ms": at("2025-03-04T00:00:00"),
        "newest": NEWEST,
        "span": EventSpan(first_ms=at("2025-03-01T10:00:00"), last_ms=at("2025-03-03T10:00:00")),
        "watermark_ms": at("2025-03-03T00:00:00"),
    }
    return Facts(**known | told)


def plan(
    told: PublishSpec, known: Facts, publication: Publication | None = None, asked: Asked | None = None
) -> PublishPlan:
    """Plan; the version of an event time is called by its end."""
    return plan_publication(
        told, publication or Publication(), known, asked or Asked(), lambda ms: Version(instant=str(ms), completion="c")
    )


def test_days_whose_end_the_watermark_has_reached_appear_at_the_version_of_their_end() -> None:
    found = plan(spec(), facts())
    assert [(p.name, p.version.instant) for p in found.publish] == [
        ("dt=2025-03-01", str(at("2025-03-02T00:00:00"))),
        ("dt=2025-03-02", str(at("2025-03-03T00:00:00"))),
    ]
    assert [(w.name, w.lag_ms) for w in found.waiting] == [("dt=2025-03-03", DAY_MS)]


def test_one_millisecond_less_is_not_there() -> None:
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
def test_days_are_those_of_the_time_zone_however_long(zone: str, day: str, start: str, end: str) -> None:
    found = period(spec(timezone=zone), day)
    assert (found.start_ms, found.end_ms) == (at(start), at(end))


def test_hours_and_a_first_one() -> None:
    told = spec(granularity="hour", since="2025-03-02-22")
    found = plan(told, facts())
    assert [p.name for p in found.publish] == ["dt=2025-03-02-22", "dt=2025-03-02-23"]
    assert [w.name for w in found.waiting][:2] == ["dt=2025-03-03-00", "dt=2025-03-03-01"]


def test_what_is_told_stays_and_is_done_again_where_it_is_asked_for() -> None:
    told = Publication(
        partitions={
            "dt=2025-03-01": PublishedPartition(stage=Stage.PUBLISHED, version=NEWEST, manifest="m", published_ms=0),
            "dt=2025-03-02": PublishedPartition(stage=Stage.WITHDRAWN, version=NEWEST),
        }
    )
    assert plan(spec(), facts(), told).is_empty
    asked = Asked(interval_ms=(at("2025-03-01T00:00:00"), at("2025-03-03T00:00:00")), force=True)
    assert [p.name for p in plan(spec(), facts(), told, asked).publish] == ["dt=2025-03-01", "dt=2025-03-02"]
    signalled = Publication(partitions=told.partitions, signals={"dt=2025-03-01": 5})
    assert [p.name for p in plan(spec(ready="signal"), facts(), signalled).publish] == ["dt=2025-03-01"]
    assert plan(spec(), facts(), signalled).is_empty, "signals are not what this one waits for"


def test_an_interval_takes_whole_periods_inside_it_only() -> None:
    asked = Asked(interval_ms=(at("2025-03-01T12:00:00"), at("2025-03-03T00:00:00")), ended=True)
    found = plan(spec(ready="interval"), facts(), asked=asked)
    assert [p.name for p in found.publish] == ["dt=2025-03-02"]
    assert plan(spec(ready="interval"), facts()).is_empty, "no run of an interval"


def test_pointers_of_an_age_become_files_of_their_own() -> None:
    def told(published_ms: int, stage: Stage = Stage.PUBLISHED) -> Publication:
        partition = PublishedPartition(stage=stage, version=NEWEST, manifest="m", published_ms=published_ms)
        return Publication(partitions={"dt=2025-03-01": partition})

    week = spec(archive_after="7d")
    now = facts().now_ms
    assert plan(week, facts(), told(now - 7 * DAY_MS)).archive == ("dt=2025-03-01",)
    assert plan(week, facts(), told(now - 7 * DAY_MS + 1)).archive == ()
    assert plan(week, facts(), told(0, Stage.ARCHIVED)).archive == ()
    assert plan(spec(), facts(), told(0)).archive == (), "never, unless it is asked for"
    assert plan(spec(), facts(), told(now), Asked(archive=True)).archive == ("dt=2025-03-01",)


def test_what_was_begun_is_gone_on_with_and_not_begun_again() -> None:
    begun = {
        "dt=2025-03-01": PublishedPartition(stage=Stage.PUBLISHING, version=NEWEST, manifest="m"),
        "dt=2025-03-02": PublishedPartition(stage=Stage.ARCHIVING, version=NEWEST, manifest="m", copy="c"),
    }
    found = plan(spec(), facts(), Publication(partitions=begun))
    assert found.begun == ("dt=2025-03-01", "dt=2025-03-02")
    assert found.publish == ()


def test_partitions_of_the_table_wait_for_the_end_that_their_path_names() -> None:
    known = facts(
        partitions=(
            Candidate(name="day=2025-03-02", paths=("2025-03-02",), start_ms=0, end_ms=at("2025-03-03T00:00:00")),
            Candidate(name="day=2025-03-03", paths=("2025-03-03",), start_ms=0, end_ms=at("2025-03-04T00:00:00")),
            Candidate(name="day=other", paths=("other",)),
        )
    )
    found = plan(parse_publish("t", {"database": "d"}), known)
    assert [(p.name, p.paths, p.version) for p in found.publish] == [("day=2025-03-02", ("2025-03-02",), NEWEST)]
    reasons = {w.name: w.reason for w in found.waiting}
    assert reasons["day=other"] == "waits for nothing: its name tells no time"


@pytest.mark.parametrize(
    ("ready", "words"),
    [
        ("event_time", "waits for nothing: its name tells no time"),
        ("interval", "waits for nothing: its name tells no time"),
        (["event_time", "signal"], "waits for a signal: its name tells no time"),
        (["interval", "signal"], "waits for a signal: its name tells no time"),
        ("signal", "waits for a signal"),
    ],
)
def test_a_partition_without_a_time_waits_for_a_signal_or_for_nothing(ready: str | list[str], words: str) -> None:
    known = facts(partitions=(Candidate(name="day=other", paths=("other",)),))
    (waiting,) = plan(parse_publish("t", {"database": "d", "ready": ready}), known).waiting
    assert waiting.reason == words


def test_an_empty_table_and_one_without_event_times_say_what_is_missing() -> None:
    silent = facts(watermark_ms=None, span=NO_EVENTS)
    assert plan(spec(), silent).waiting == (), "no event, no day"
    asked = Asked(names=("dt=2025-03-01",))
    assert "hoodie.payload.event.time.field" in plan(spec(), silent, asked=asked).waiting[0].reason
    empty = facts(newest=None, watermark_ms=None, span=NO_EVENTS)
    forced = Asked(names=("dt=2025-03-01",), force=True)
    assert plan(spec(), empty, asked=forced).waiting[0].reason == "no data is there"


def test_a_partition_that_cannot_be_is_refused() -> None:
    with pytest.raises(UserError, match="has no partition 'day=x'"):
        plan(parse_publish("t", {"database": "d"}), facts(), asked=Asked(names=("day=x",)))


stages = st.sampled_from([Stage.PUBLISHING, Stage.PUBLISHED, Stage.ARCHIVED, Stage.WITHDRAWN])
moments = st.integers(at("2025-03-01T00:00:00"), at("2025-03-09T00:00:00"))


@examples(200)
@given(moments, st.dictionaries(st.integers(1, 8), stages), st.sampled_from(["day", "hour"]))
def test_nothing_appears_before_it_is_ready_and_planning_twice_is_the_same(
    watermark: int, told: dict[int, Stage], granularity: str
) -> None:
    declared = spec(granularity=granularity)
    value = {"day": "2025-03-0{}", "hour": "2025-03-0{}-05"}[granularity]
    partitions = {
        f"dt={value.format(day)}": PublishedPartition(stage=stage, version=NEWEST, published_ms=0)
        for day, stage in told.items()
    }
    publication = Publication(partitions=partitions)
    known = facts(watermark_ms=watermark, span=EventSpan(first_ms=at("2025-03-01T10:00:00"), last_ms=watermark))
    found = plan(declared, known, publication)
    assert found == plan(declared, known, publication)
    for planned in found.publish:
        assert planned.event_time_ms is not None and planned.event_time_ms <= watermark
        assert planned.name not in partitions, "what is there stays"
    names = [p.name for p in found.publish] + [w.name for w in found.waiting] + list(partitions)
    assert len(set(names)) == len(names), "each is in one place"
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
def test_the_state_reads_back_equal(told: dict[str, Publication]) -> None:
    assert decode_publications(encode_publications(told, "fresh"), "here") == told


@pytest.mark.parametrize(("archive_after", "is_refused"), [("30d", True), (None, True), ("7d", False), ("1d", False)])
def test_a_retention_that_is_shorter_than_a_pin_is_refused(archive_after: str | None, is_refused: bool) -> None:
    text = (
        "table: s.t\nlocation: /t\nrecord_key: id\npartition_by: day\nservices:\n  ttl: {partition_age: 7d}\n"
        f"  publish: {{database: d{f', archive_after: {archive_after}' if archive_after else ''}}}\n"
    )
    if not is_refused:
        assert parse_spec(text, source="t.yaml").publication() is not None
        return
    with pytest.raises(UserError, match=r"t\.yaml:6: services\.ttl: partitions expire after 7d, but .* pins"):
        parse_spec(text, source="t.yaml")
