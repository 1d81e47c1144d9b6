"""Options of ttl, durations and sizes as text, and the patterns of rules."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.ttl import TtlPolicy, ttl_rule
from lakehouse.spec.quantities import duration_text, parse_duration, parse_size
from lakehouse.spec.table.service_settings import service_options

DAY = 86_400
HUDI = "hoodie.partition.ttl."


def test_policy_without_limits_has_no_rule() -> None:
    policy = parse_options({}).ttl
    assert (policy.rule(), policy.selected, policy.max_delete_partitions) == (None, (), 1000)


def test_setting_names_are_the_fields_of_the_policy() -> None:
    rule = TtlPolicy(partition_age="400d", max_partitions=90, max_bytes="5TB").rule()
    assert rule == TtlRule(id="table", partition_age_s=400 * DAY, max_partitions=90, max_bytes=5 * 10**12)


def test_table_spec_uses_the_field_names() -> None:
    options = service_options({"ttl": {"partition_age": "400d", "max_partitions": 90, "max_bytes": "5TB"}})
    assert parse_options(options).ttl == TtlPolicy(partition_age="400d", max_partitions=90, max_bytes="5TB")
    with pytest.raises(UserError, match=r"partition_age='400 days'.*such as 400d"):
        service_options({"ttl": {"partition_age": "400 days"}})


@pytest.mark.parametrize(
    ("strategy", "limit"),
    [
        ("KEEP_BY_TIME", "modification_age_s"),
        ("keep_by_creation_time", "creation_age_s"),
        ("KEEP_BY_EVENT_TIME", "partition_age_s"),
    ],
)
def test_strategy_of_hudi_selects_the_limit_of_its_days(strategy: str, limit: str) -> None:
    options = {f"{HUDI}management.strategy.type": strategy, f"{HUDI}strategy.days.retain": "30"}
    rule = parse_options(options).ttl.rule()
    assert rule is not None and rule.limits == {limit: 30 * DAY}


def test_stricter_of_two_options_for_one_limit_applies() -> None:
    rule = TtlPolicy(days_retain=30, modification_age="10d").rule()
    assert rule is not None and rule.limits == {"modification_age_s": 10 * DAY}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lakehouse.ttl.partition.age": "400"}, "partition_age='400' is not a duration; write numbers with units"),
        ({"lakehouse.ttl.creation.age": "1y"}, "creation_age='1y' is not a duration"),
        ({"lakehouse.ttl.max.bytes": "5 parsecs"}, "max_bytes='5 parsecs' is not a size"),
        ({"lakehouse.ttl.partition.age": "0d"}, "partition_age_s must be above 0"),
        ({f"{HUDI}inline": "true"}, "lakehouse ttl run"),
        ({f"{HUDI}strategy.max.delete.partitions": "0"}, "would expire no partition"),
        ({f"{HUDI}management.strategy.type": "KEEP_BY_TIMES"}, "Did you mean 'KEEP_BY_TIME'"),
        ({"lakehouse.ttl.max.partition": "3"}, "Did you mean 'lakehouse.ttl.max.partitions'"),
    ],
)
def test_invalid_value_is_refused_with_a_reason(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_options(options)


@pytest.mark.parametrize(
    ("text", "seconds"), [("400d", 400 * DAY), ("36h", 129_600), ("1d12h", 129_600), ("2W", 14 * DAY), ("90 m", 5400)]
)
def test_duration_text_is_parsed_to_seconds(text: str, seconds: int) -> None:
    assert parse_duration("x", text) == seconds


@pytest.mark.parametrize(
    ("text", "size"),
    [("5TB", 5 * 10**12), ("512MiB", 512 << 20), ("1.5 GiB", 3 << 29), ("12kb", 12_000), ("77", 77), ("3PiB", 3 << 50)],
)
def test_size_text_is_parsed_to_bytes(text: str, size: int) -> None:
    assert parse_size("x", text) == size


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (400 * DAY, "400d"),
        (DAY, "1d"),
        (36 * 3600, "36h"),
        (100_000, "27.8h"),
        (59, "59s"),
        (0, "0s"),
        (3 * DAY + 1, "3.0d"),
    ],
)
def test_durations_are_shown_in_the_unit_that_fits(seconds: int, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("pattern", "covered", "others"),
    [
        ("*", ["a", "a/b", "day=2026-01-01"], []),
        ("region=eu", ["region=eu", "region=eu/day=1"], ["region=eur", "x/region=eu"]),
        ("region=e?", ["region=eu/day=1"], ["region=e", "region=eur"]),
        ("region=*/day=2025-*", ["region=eu/day=2025-01-01"], ["region=eu/day=2026-01-01", "region=eu"]),
        ("re:day=2025", ["region=eu/day=2025-01-01", "day=2025"], ["day=2026"]),
        ("re:^a$", ["a"], ["a/b", "ba"]),
        ("a.b", ["a.b"], ["axb"]),
    ],
)
def test_pattern_matches_partitions(pattern: str, covered: list[str], others: list[str]) -> None:
    rule = ttl_rule(pattern)
    assert [path for path in covered if not rule.covers(path)] == []
    assert [path for path in others if rule.covers(path)] == []


@pytest.mark.parametrize(
    ("pattern", "length"),
    [
        ("*", 0),
        ("region=*", 7),
        ("region=eu", 9),
        ("re:day=1", 0),
        ("re:^day=1", 5),
        (r"re:^a\.b.*", 3),
        ("re:^ab?", 1),
        ("re:^ab|cd", 0),
        (r"re:^a\d", 1),
        ("re:^a[bc]", 1),
        ("re:^ab{2}", 1),
        ("re:^ab+", 2),
    ],
)
def test_specificity_of_a_pattern_is_the_length_of_its_literal_prefix(pattern: str, length: int) -> None:
    assert ttl_rule(pattern).specificity == length


def test_rule_refuses_invalid_values() -> None:
    with pytest.raises(UserError, match=r"unknown limit 'max_byte'. Did you mean 'max_bytes'"):
        ttl_rule("*", max_byte="5TB")  # type: ignore[call-arg]
    with pytest.raises(UserError, match="not a regular expression"):
        ttl_rule("re:(")
    with pytest.raises(UserError, match="an id and a pattern"):
        ttl_rule("")
    with pytest.raises(UserError, match=r"has no 'max_rows'"):
        TtlRule.from_mapping({"id": "a", "max_rows": 1})


def test_rule_round_trips_through_its_mapping() -> None:
    rule = ttl_rule("region=*", rule_id="r", partition_age="3d", max_bytes="1kB", format="yyyy", timezone="UTC")
    assert TtlRule.from_mapping(rule.to_mapping()) == rule
