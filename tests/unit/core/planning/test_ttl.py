"""TTL plans as values: the partitions that expire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from lakehouse.core.planning.ttl import Now, expiry_times, plan_ttl
from lakehouse.model.keys import KeyConfig, KeyGeneratorType
from lakehouse.model.statistics import PartitionStatistics
from lakehouse.model.ttl import TtlPlan, TtlRule
from lakehouse.spec.options.ttl import TtlLimits, ttl_rule

KEYS = KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",), partition_fields=("day",))
TODAY = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOW = Now(utc_ms=int(TODAY.timestamp() * 1000), instant="20260301120000000")


def instant(days_ago: float) -> str:
    return f"{TODAY - timedelta(days=days_ago):%Y%m%d%H%M%S}000"


def day(
    days_ago: int, parent: str = "", *, size: int = 10, created: float = 0, modified: float = 0
) -> PartitionStatistics:
    path = f"{parent}/" if parent else ""
    return PartitionStatistics(
        partition=f"{path}day={TODAY - timedelta(days=days_ago):%Y-%m-%d}",
        created=instant(created),
        modified=instant(modified),
        size_bytes=size,
    )


def named(name: str, *, size: int = 10, created: float = 0, modified: float = 0) -> PartitionStatistics:
    return PartitionStatistics(partition=name, created=instant(created), modified=instant(modified), size_bytes=size)


def plan(partitions: list[PartitionStatistics], *rules: TtlRule, limit: int = 1000, **more: object) -> TtlPlan:
    return plan_ttl(partitions, rules, KEYS, NOW, max_partitions=limit, **more)  # type: ignore[arg-type]


def rule(pattern: str = "*", **limits: object) -> TtlRule:
    return ttl_rule(pattern, **limits)  # type: ignore[arg-type]


def days(found: TtlPlan) -> list[str]:
    return [path.rpartition("=")[2] for path in found.partitions]


def test_partition_age_counts_from_the_end_of_the_day() -> None:
    listed = [day(n) for n in (0, 1, 2, 3)]
    # At noon, the day before yesterday ended 36 hours ago.
    assert days(plan(listed, rule(partition_age="36h"))) == ["2026-02-26"]
    assert days(plan(listed, rule(partition_age="35h"))) == ["2026-02-26", "2026-02-27"]


def test_partition_age_uses_the_time_zone_of_the_rule() -> None:
    assert days(plan([day(1)], rule(partition_age="11h"))) == ["2026-02-28"]
    assert days(plan([day(1)], rule(partition_age="11h", timezone="America/New_York"))) == []
    assert days(plan([day(1)], rule(partition_age="20h", timezone="Asia/Tokyo"))) == ["2026-02-28"]


def test_creation_and_modification_age_use_the_first_and_the_last_commit() -> None:
    listed = [named("a", created=9, modified=1), named("b", created=5, modified=5), named("c", created=1, modified=1)]
    assert plan(listed, rule(creation_age="5d")).partitions == ("a",)
    assert plan(listed, rule(modification_age="4d")).partitions == ("b",)
    assert plan(listed, rule(modification_age="4d", creation_age="8d")).partitions == ("a", "b")


def test_max_partitions_applies_to_each_parent_partition() -> None:
    listed = [day(n, parent) for parent in ("region=eu", "region=us") for n in (1, 2, 3)]
    assert plan(listed, rule(max_partitions=2)).partitions == (
        "region=eu/day=2026-02-26",
        "region=us/day=2026-02-26",
    )


def test_max_bytes_applies_to_all_parent_partitions_together() -> None:
    listed = [day(n, parent, size=10) for parent in ("region=eu", "region=us") for n in (1, 2, 3)]
    found = plan(listed, rule(max_bytes="45"))
    assert found.partitions == ("region=eu/day=2026-02-26", "region=us/day=2026-02-26")
    assert "45 bytes" in found.expired[0].reason


def test_max_bytes_expires_all_partitions_older_than_the_first_that_exceeds_it() -> None:
    listed = [day(1, size=10), day(2, size=100), day(3, size=1)]
    assert days(plan(listed, rule(max_bytes="20"))) == ["2026-02-26", "2026-02-27"]


def test_max_bytes_keeps_the_newest_partition_of_any_size() -> None:
    assert days(plan([day(1, size=100), day(2, size=1)], rule(max_bytes="20"))) == ["2026-02-27"]


def test_partitions_without_times_are_ordered_by_their_first_commit() -> None:
    listed = [named("a", created=1), named("b", created=3), named("c", created=2)]
    assert plan(listed, rule(max_partitions=1)).partitions == ("b", "c")


def test_partitions_without_a_time_are_counted_as_untimed_and_do_not_expire_by_partition_age() -> None:
    listed = [day(1), day(2), day(30), named("day=__HIVE_DEFAULT_PARTITION__", created=90)]
    found = plan(listed, rule(partition_age="10d"))
    assert (days(found), found.untimed) == (["2026-01-30"], 1)
    for limits in ({"max_partitions": 2}, {"max_bytes": "20"}):
        assert days(plan(listed, rule(**limits))) == ["2026-01-30"]
    assert plan(listed, rule(creation_age="60d")).partitions == ("day=__HIVE_DEFAULT_PARTITION__",)


def test_partition_expires_if_any_limit_of_its_rule_is_exceeded() -> None:
    listed = [day(1, created=50), day(2), day(3), day(30)]
    found = plan(listed, rule(partition_age="20d", creation_age="40d", max_partitions=3))
    assert days(found) == ["2026-01-30", "2026-02-28"]


def test_only_the_most_specific_rule_applies() -> None:
    listed = [day(5, "region=eu"), day(5, "region=us"), day(5, "region=cn")]
    rules = [rule(partition_age="1d"), rule("region=*", partition_age="90d"), rule("region=us", partition_age="2d")]
    for order in (rules, rules[::-1]):
        assert plan(listed, *order).partitions == ("region=us/day=2026-02-24",)


def test_last_rule_applies_among_equally_specific_rules() -> None:
    keep, expire = rule("*", rule_id="keep"), rule("*", rule_id="expire", partition_age="1d")
    assert plan([day(5)], keep, expire).partitions != ()
    assert plan([day(5)], expire, keep).partitions == ()


def test_rule_counts_only_the_partitions_that_it_covers() -> None:
    listed = [day(n, parent) for parent in ("region=eu", "region=us") for n in (1, 2)]
    found = plan(listed, rule(max_partitions=1), rule("region=eu"))
    assert found.partitions == ("region=us/day=2026-02-27",)


def test_pinned_busy_and_unselected_partitions_are_kept() -> None:
    listed = [day(n, parent) for parent in ("region=eu", "region=us") for n in (5, 6)]
    eu = [p.partition for p in listed[:2]]
    us = [p.partition for p in listed[2:]]
    limit = rule(partition_age="1d")
    assert plan(listed, limit, pinned=["region=eu"]).partitions == tuple(reversed(us))
    found = plan(listed, limit, pinned=[eu[0]], busy={us[0]: "commit 7 is in flight"})
    assert found.partitions == (eu[1], us[1])
    assert [(kept.partition, kept.reason) for kept in found.kept] == [
        (eu[0], "pinned"),
        (us[0], "commit 7 is in flight"),
    ]
    assert plan(listed, limit, selected=[eu[1]]).partitions == (eu[1],)


def test_run_deletes_the_oldest_partitions_up_to_its_limit() -> None:
    found = plan([day(n) for n in (3, 9, 5, 7)], rule(partition_age="1d"), limit=2)
    assert days(found) == ["2026-02-20", "2026-02-22"]
    assert [kept.reason for kept in found.kept] == ["a run deletes at most 2 partitions; the next run continues"] * 2


def test_ttl_plan_is_printed_as_json() -> None:
    assert '"partition": "day=2026-02-20"' in plan([day(9)], rule(partition_age="1d")).to_json()
    assert TtlLimits.__annotations__.keys() >= {"partition_age", "max_bytes"}


def test_expiry_is_the_first_age_limit_that_a_partition_exceeds() -> None:
    rules = (rule(partition_age="10d", creation_age="30d"), rule("day=2026-02-24", max_partitions=1))
    young, created, counted = day(12, created=2), day(9, created=28), day(5)
    found = expiry_times([young, created, counted], rules, KEYS, NOW)
    assert counted.partition == "day=2026-02-24" and counted.partition not in found
    day_ms = 86_400_000
    midnight = NOW.utc_ms - 12 * 3_600_000
    # The twelfth day before today ended eleven days before this midnight.
    assert found == {
        young.partition: midnight - 11 * day_ms + 10 * day_ms,
        created.partition: min(midnight - 8 * day_ms + 10 * day_ms, NOW.utc_ms + 2 * day_ms),
    }
    expired = plan([young, created, counted], *rules)
    assert expired.partitions == tuple(name for name, at in found.items() if at < NOW.utc_ms)
