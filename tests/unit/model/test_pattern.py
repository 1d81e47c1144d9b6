"""Regular expressions of users and tables: matched in linear time; unsupported syntax is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakehouse.core.format.ttl_rules import decode_edit
from lakehouse.core.planning.clustering import partitions_of
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.pattern import MAX_PATTERN, Pattern, compile_pattern, escaped
from lakehouse.model.ttl import TtlRule
from lakehouse.platform.catalog.policies import ServicePolicy
from lakehouse.spec.options.clustering import ClusteringPolicy
from lakehouse.spec.options.compaction import CompactionPolicy
from lakehouse.spec.table.bucket_rules import BucketRules, parse_rules

# A backtracking engine needs 2^5000 steps for this text.
SLOW, TEXT = "(a|a|aa)+$", "a" * 5000 + "!"


def test_pattern_is_searched_and_matched_as_in_java() -> None:
    pattern = Pattern(r"^day=\d{4}")
    assert pattern.found_in("day=2026-01") and not pattern.found_in("x/day=2026")
    assert pattern.matches("day=2026") and not pattern.matches("day=2026-01")
    # Arabic digits do not match \d, and a name that is not UTF-8 can be matched too.
    assert not Pattern(r"\d").found_in("\u0663") and not Pattern("b$").found_in("a\udcff")
    text = "a-b c/d.ü*[]\n"
    assert Pattern(escaped(text)).matches(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "back-references"),
        ("a++", "possessive"),
        ("(?>a)b", "atomic groups"),
        ("a(b", "missing )"),
        ("(((a{100}){100}){100})", "repetition size"),
        ("\ud800", "contains a surrogate"),
        ("a" * (MAX_PATTERN + 1), "4097 characters"),
    ],
)
def test_unsupported_pattern_is_refused_with_the_name_of_its_option(text: str, reason: str) -> None:
    with pytest.raises(UserError, match=r"^option x .* is not a regular expression") as raised:
        compile_pattern(text, "option x")
    assert reason in raised.value.message and len(raised.value.message) < 600


def test_patterns_are_matched_in_linear_time_in_all_options() -> None:
    assert not Pattern(SLOW).found_in(TEXT)
    assert BucketRules(7, parse_rules(f"{SLOW},3")).of(TEXT) == 7
    assert not TtlRule(id="x", pattern=f"re:{SLOW}").covers(TEXT)
    assert not TtlRule(id="x", pattern="*a" * 40 + "b").covers(TEXT)
    assert partitions_of([TEXT], ClusteringPolicy(partition_pattern=SLOW), 0) == ()
    policy = ServicePolicy(namespace="n", name="t", pattern=SLOW, service="ttl", settings={})
    assert not policy.covers(TEXT) and policy.covers("aaa")


DECLARATIONS: dict[str, Callable[[str], object]] = {
    "bucket rule": lambda text: parse_rules(f"{text},3"),
    "ttl rule": lambda text: TtlRule(id="x", pattern=f"re:{text}"),
    "clustering option": lambda text: ClusteringPolicy(partition_pattern=text),
    "compaction option": lambda text: CompactionPolicy(partition_regex=text),
}


@pytest.mark.parametrize("declare", DECLARATIONS.values(), ids=DECLARATIONS)
def test_look_around_is_refused_by_each_option(declare: Callable[[str], object]) -> None:
    with pytest.raises(UserError, match="no look-around, back-references"):
        declare("(?!a)b")


def test_look_around_in_the_policy_log_of_a_table_is_named_with_its_file() -> None:
    edit = b'{"id": "1", "at_ms": 1, "set": {"id": "x", "pattern": "re:(?=a)"}}'
    with pytest.raises(CorruptTableError, match=r"^log/1 has no TTL rules .*look-around"):
        decode_edit(edit, "log/1")
