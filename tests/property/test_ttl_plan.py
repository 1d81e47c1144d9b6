"""The TTL planner, for any partitions and any rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.planning.partition_time import partition_time
from lakehouse.core.planning.ttl import Now, plan_ttl
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.model.statistics import PartitionStatistics
from lakehouse.model.ttl import LIMITS, TtlPlan, TtlRule
from tests.support.tables import examples

KEYS = KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",), partition_fields=("day",))
TODAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = Now(utc_ms=int(TODAY.timestamp() * 1000), instant="20260301120000000")
HOUR = 3600


def instant(hours_ago: int) -> str:
    return f"{TODAY - timedelta(hours=hours_ago):%Y%m%d%H%M%S}000"


@st.composite
def tables(draw: st.DrawFn) -> list[PartitionStatistics]:
    timed = st.tuples(st.sampled_from(["", "r=a/", "r=b/"]), st.integers(0, 12)).map(
        lambda t: f"{t[0]}day={TODAY - timedelta(days=t[1]):%Y-%m-%d}"
    )
    paths = draw(st.lists(timed | st.sampled_from(["r=a/none", "r=b", "zz"]), unique=True, max_size=12))
    listed = []
    for path in paths:
        created, modified = sorted((draw(st.integers(0, 300)), draw(st.integers(0, 300))), reverse=True)
        size = draw(st.integers(0, 50))
        listed.append(
            PartitionStatistics(partition=path, created=instant(created), modified=instant(modified), size_bytes=size)
        )
    return listed


@st.composite
def rule_lists(draw: st.DrawFn) -> list[TtlRule]:
    ages = st.none() | st.integers(1, 300).map(lambda hours: hours * HOUR)
    limits = {
        "partition_age_s": ages,
        "creation_age_s": ages,
        "modification_age_s": ages,
        "max_partitions": st.none() | st.integers(1, 5),
        "max_bytes": st.none() | st.integers(1, 200),
    }
    patterns = draw(st.lists(st.sampled_from(["*", "r=*", "r=a", "re:day", "re:^r=b"]), max_size=4))
    return [
        TtlRule(id=str(number), pattern=pattern, **{name: draw(limit) for name, limit in limits.items()})
        for number, pattern in enumerate(patterns)
    ]


def plan(listed: list[PartitionStatistics], rules: list[TtlRule], limit: int = 1000) -> TtlPlan:
    return plan_ttl(listed, rules, KEYS, NOW, max_partitions=limit)


def without(listed: list[PartitionStatistics], found: TtlPlan) -> list[PartitionStatistics]:
    return [statistics for statistics in listed if statistics.partition not in found.partitions]


def rule_of(path: str, rules: list[TtlRule]) -> TtlRule | None:
    """Return the rule of a partition: the most specific one, and the last one of these."""
    covering = [(rule.specificity, number, rule) for number, rule in enumerate(rules) if rule.covers(path)]
    return max(covering)[2] if covering else None


def hours(time: str) -> float:
    return (TODAY - datetime.strptime(time, "%Y%m%d%H%M%S000").replace(tzinfo=UTC)).total_seconds() / HOUR


@given(tables(), rule_lists())
@examples(60)
def test_plan_is_empty_after_its_partitions_are_deleted(
    listed: list[PartitionStatistics], rules: list[TtlRule]
) -> None:
    found = plan(listed, rules)
    assert plan(listed, rules) == found
    assert plan(without(listed, found), rules).expired == ()


@given(tables(), rule_lists(), st.integers(1, 3))
@examples(60)
def test_limited_plans_expire_the_same_partitions_as_one_plan(
    listed: list[PartitionStatistics], rules: list[TtlRule], limit: int
) -> None:
    whole, remaining = plan(listed, rules), listed
    while (found := plan(remaining, rules, limit)).expired:
        assert len(found.expired) <= limit
        remaining = without(remaining, found)
    assert remaining == without(listed, whole)


@given(tables(), rule_lists())
@examples(60)
def test_plan_expires_no_partition_that_is_younger_than_its_rule(
    listed: list[PartitionStatistics], rules: list[TtlRule]
) -> None:
    by_path = {statistics.partition: statistics for statistics in listed}
    for expiry in plan(listed, rules).expired:
        rule = rule_of(expiry.partition, rules)
        assert rule is not None and rule.id == expiry.rule and rule.limits
        if rule.max_partitions or rule.max_bytes:
            continue
        found, time = by_path[expiry.partition], partition_time(expiry.partition, KEYS)
        ages = [
            (rule.creation_age_s, hours(found.created)),
            (rule.modification_age_s, hours(found.modified)),
            (rule.partition_age_s, (NOW.utc_ms - time.end_ms) / 3_600_000 if time else None),
        ]
        assert any(limit is not None and age is not None and age * HOUR > limit for limit, age in ages)


@given(tables(), rule_lists())
@examples(60)
def test_plan_of_all_limits_equals_the_union_of_the_plans_of_each_limit(
    listed: list[PartitionStatistics], rules: list[TtlRule]
) -> None:
    alone: set[str] = set()
    for name in LIMITS:
        bare = [replace(rule, **{other: None for other in LIMITS if other != name}) for rule in rules]
        alone |= set(plan(listed, bare).partitions)
    assert set(plan(listed, rules).partitions) == alone


@given(tables(), rule_lists())
@examples(60)
def test_limits_of_count_and_size_keep_the_newest_partitions_and_at_least_one(
    listed: list[PartitionStatistics], rules: list[TtlRule]
) -> None:
    ages = {"partition_age_s": None, "creation_age_s": None, "modification_age_s": None}
    rules = [replace(rule, **ages) for rule in rules]
    expired = set(plan(listed, rules).partitions)
    for rule in rules:
        covered = [s for s in listed if rule_of(s.partition, rules) == rule]
        times = {s.partition: partition_time(s.partition, KEYS) for s in covered}
        timed = [(t.end_ms, s.partition, s.size_bytes, t.parent) for s in covered if (t := times[s.partition])]
        others = [
            (s.created, s.partition, s.size_bytes, s.partition.rpartition("/")[0])
            for s in covered
            if times[s.partition] is None
        ]
        for kind in (sorted(timed), sorted(others)):
            assert not kind or kind[-1][1] not in expired
            for parent in {entry[3] for entry in kind}:
                gone = [path in expired for _, path, _, at in kind if at == parent]
                assert gone == sorted(gone, reverse=True), "an older partition is kept but a newer one expires"
                assert rule.max_partitions is None or gone.count(False) <= rule.max_partitions
            kept = [size for _, path, size, _ in kind if path not in expired]
            assert rule.max_bytes is None or len(kept) <= 1 or sum(kept) <= rule.max_bytes


@given(tables(), rule_lists(), st.sets(st.sampled_from(["r=a", "r=b", "zz"])))
@examples(40)
def test_pins_remove_only_pinned_partitions_from_a_plan(
    listed: list[PartitionStatistics], rules: list[TtlRule], pinned: set[str]
) -> None:
    free = plan(listed, rules)
    held = plan_ttl(listed, rules, KEYS, NOW, max_partitions=1000, pinned=pinned)
    under = {path for path in free.partitions if any(path == pin or path.startswith(f"{pin}/") for pin in pinned)}
    assert set(held.partitions) == set(free.partitions) - under
    assert {expiry.partition for expiry in held.kept} == under
