"""Contradicting settings are refused at their declaration, in a spec (with the line) and in a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.spec.table.contradictions import check_settings
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

HEAD = "table: sales.orders\nlocation: /lake/orders\nrecord_key: [id]\ntype: MERGE_ON_READ\n"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("services:\n  clean: {}\n  archive:\n    min_commits: 30\n    max_commits: 30\n", 8, "less than the second"),
        ("services:\n  archive:\n    min_commits: 12\n  clean:\n    commits_retained: 12\n", 7, "must be greater"),
        (
            "services:\n  compaction: {strategy: UnBounded}\n  logcompaction:\n    strategy: DayBased\n",
            8,
            "'DayBased' here and 'UnBounded' in services.compaction",
        ),
        (
            "options: {hoodie.cleaner.commits.retained: 5}\nservices:\n  clean:\n    commits_retained: 7\n",
            8,
            "'7' here and '5' in options",
        ),
        ("services:\n  clean: {}\n  ttl: {partition_age: 30d}\n", 7, "add 'partition_by'"),
        ("services:\n  clean:\n    enabled: true\n    priority: high\n", 8, "'high' is not a number"),
        ("services:\n  compaction:\n    priority: 2\n    max_delta_comits: 3\n", 8, "Did you mean"),
        ("services:\n  compaction:\n    max_delta_commits: often\n", 7, "expected int"),
    ],
)
def test_spec_with_contradicting_settings_is_refused_with_the_line(text: str, line: int, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_spec(HEAD + text, source="orders.yaml")
    assert caught.value.message.startswith(f"orders.yaml:{line}: "), caught.value.message
    assert message in caught.value.message


def test_spec_with_equal_or_disabled_settings_is_accepted() -> None:
    parse_spec(
        HEAD + "index: {type: bucket, buckets: 4}\noptions: {hoodie.clean.commits.retained: 7}\nservices:\n"
        "  clean: {commits_retained: 7}\n  clustering: {enabled: false}\n  ttl: {enabled: false}\n",
        source="orders.yaml",
    )
    # A clean policy that keeps hours or versions ignores the number of commits.
    check_settings(
        {"clean": {"policy": "KEEP_LATEST_BY_HOURS", "commits_retained": 40}, "archive": {"min_commits": 20}}
    )


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40))
def test_archive_and_clean_are_accepted_exactly_if_clean_keeps_fewer_commits(
    min_commits: int, max_commits: int, retained: int
) -> None:
    archive = {"min_commits": min_commits, "max_commits": max_commits}
    services = {"archive": archive, "clean": {"commits_retained": retained}}
    if retained < min_commits < max_commits:
        check_settings(services)
    else:
        with pytest.raises(UserError, match=r"hoodie\.keep\.min\.commits"):
            check_settings(services)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """A catalog with the table `sales.orders`, whose archive keeps 25 commits."""
    with Catalog(Database(f"sqlite:///{tmp_path}/catalog.db"), SystemClock()) as opened:
        opened.create_table(spec(tmp_path, "{archive: {min_commits: 25}}"))
        yield opened


def spec(home: Path, services: str) -> TableSpec:
    """Return the spec of `sales.orders` with these services."""
    text = f"table: sales.orders\nlocation: {home}/orders\nrecord_key: [id]\nservices: {services}\n"
    return parse_spec(text, source="orders.yaml")


def test_policies_are_checked_with_their_inherited_options(catalog: Catalog, tmp_path: Path) -> None:
    # 24 is valid for the namespace, whose minimum is 20, but not for the table.
    with pytest.raises(UserError, match=r"sales\.orders: .*keep\.min\.commits=25.*keep\.max\.commits=24"):
        catalog.set_policy("sales", "archive", {"max_commits": 24})
    with pytest.raises(UserError, match=r"sales\.orders: services\.archive leaves .*=25 .*=25"):
        catalog.set_policy("sales", "clean", {"commits_retained": 25})
    assert catalog.settings("sales.orders", "archive").options == {"hoodie.keep.min.commits": "25"}
    assert catalog.settings("sales.orders", "clean").options == {}, "a refused policy is not stored"
    # The policy of the table is only valid together with the inherited maximum.
    catalog.set_policy("sales", "archive", {"min_commits": 4, "max_commits": 60})
    catalog.set_policy("sales.orders", "archive", {"min_commits": 50})
    with pytest.raises(UserError, match="namespace sales: "):
        catalog.set_policy("sales", "archive", {"max_commits": 3})
    with pytest.raises(UserError, match=r"sales\.orders: .*=50.*=30"):
        catalog.remove_policy("sales", "archive")
    assert catalog.remove_policy("sales.orders", "archive") and catalog.remove_policy("sales", "archive")
    catalog.set_policy("sales.orders", "compaction", {"max_delta_commits": 3})
    with pytest.raises(UserError, match=r"'9' here and '3' in services\.compaction"):
        catalog.set_policy("sales.orders", "logcompaction", {"max_delta_commits": 9})


def test_spec_that_contradicts_the_policies_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    catalog.set_policy("sales.orders", "clean", {"commits_retained": 15})
    with pytest.raises(UserError, match=r"sales\.orders: services\.archive leaves .*=12 .*=15"):
        catalog.update_spec(spec(tmp_path, "{archive: {min_commits: 12}}"))
    assert catalog.update_spec(spec(tmp_path, "{archive: {min_commits: 16}}")) == 2


def test_catalog_keeps_the_order_of_the_columns(catalog: Catalog, tmp_path: Path) -> None:
    text = f"table: sales.items\nlocation: {tmp_path}/items\nrecord_key: [id]\nschema: {{z: int, id: string, a: int}}\n"
    catalog.create_table(parse_spec(text, source="items.yaml"))
    assert [*catalog.entry("sales.items").spec.schema] == ["z", "id", "a"]
