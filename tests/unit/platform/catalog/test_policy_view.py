"""`policy show`: the origin of each effective setting, and the declared settings without effect."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.spec.contracts.policies import DeadPolicyReason, PolicyOrigin, PolicySetting, TablePolicies
from lakehouse.spec.table.table_spec import parse_spec

NAME = "sales.orders"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Catalog]:
    """Return a catalog with a merge-on-read table that has the partitions day=1 and day=2."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    with load_catalog() as opened:
        text = (
            f"table: {NAME}\nlocation: {tmp_path}/orders\nrecord_key: [id]\npartition_by: [day]\n"
            "type: MERGE_ON_READ\nschema: {id: string, day: string}\nservices: {clean: {commits_retained: 7}}\n"
        )
        table = opened.create_table(parse_spec(text, source="orders.yaml"))
        table.upsert(pa.table({"id": ["a", "b"], "day": ["1", "2"]}))
        yield opened


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> TablePolicies:
    capsys.readouterr()
    assert main(["policy", "show", "--table", NAME, *words, "--output", "json"]) == 0
    return TablePolicies.from_json(capsys.readouterr().out)


def setting(found: TablePolicies, service: str, name: str, pattern: str = "") -> PolicySetting:
    (policy,) = (policy for policy in found.policies if policy.service == service)
    (one,) = (one for one in policy.settings if (one.setting, one.pattern) == (name, pattern))
    return one


def test_policy_show_names_the_origin_of_each_setting(catalog: Catalog, capsys: pytest.CaptureFixture[str]) -> None:
    catalog.set_policy("sales", "clean", {"hours_retained": 48, "commits_retained": 5})
    catalog.set_policy("sales", "compaction", {"max_delta_commits": 9}, author="ada")
    catalog.set_policy(NAME, "compaction", {"hoodie.compact.inline.max.delta.commits": 4}, author="bo")
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern="1")
    found = shown(capsys)
    origins = {
        ("clean", "hours_retained"): ("48", PolicyOrigin.NAMESPACE, "sales"),
        ("clean", "commits_retained"): ("7", PolicyOrigin.SPEC, "orders.yaml"),
        ("clean", "versions_retained"): ("3", PolicyOrigin.DEFAULT, ""),
        ("compaction", "max_delta_commits"): ("4", PolicyOrigin.TABLE, NAME),
        ("compaction", "enabled"): ("true", PolicyOrigin.DEFAULT, ""),
    }
    for (service, name), expected in origins.items():
        one = setting(found, service, name)
        assert (one.value, one.origin, one.scope) == expected, (service, name)
    assert setting(found, "compaction", "max_delta_commits").author == "bo"
    assert setting(found, "compaction", "enabled", "1").value == "false"
    assert found.partitions_known and found.partition is None


def test_policy_show_of_a_partition_merges_the_patterns_that_match_it(
    catalog: Catalog, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern="1")
    first, second = shown(capsys, "--partition", "1"), shown(capsys, "--partition", "2")
    assert setting(first, "compaction", "enabled", "1").origin is PolicyOrigin.PATTERN
    assert setting(second, "compaction", "enabled").origin is PolicyOrigin.DEFAULT
    by_service = {policy.service: policy.enabled for policy in first.policies}
    assert by_service["compaction"] is False and by_service["clean"] is True


DEAD: dict[str, tuple[list[tuple[str, str, dict[str, Any], str]], DeadPolicyReason, str]] = {
    "pattern without partition": (
        [(NAME, "compaction", {"enabled": False}, "3.*")],
        DeadPolicyReason.NO_PARTITION,
        "matches no partition",
    ),
    "table overridden by patterns": (
        [
            (NAME, "clustering", {"small_file_bytes": 10}, ""),
            (NAME, "clustering", {"small_file_bytes": 20}, "1"),
            (NAME, "clustering", {"small_file_bytes": 30}, "2"),
        ],
        DeadPolicyReason.OVERRIDDEN,
        "the patterns '1' and '2' set it for all its partitions",
    ),
    "pattern overridden by a later pattern": (
        [
            (NAME, "clustering", {"small_file_bytes": 20}, "1"),
            (NAME, "clustering", {"small_file_bytes": 30}, ".*"),
        ],
        DeadPolicyReason.OVERRIDDEN,
        "the patterns '.*' set it",
    ),
    "spec overridden by the table": (
        [(NAME, "clean", {"commits_retained": 9}, "")],
        DeadPolicyReason.OVERRIDDEN,
        "the policy of the table sets it to 9; remove it from the spec",
    ),
    "namespace overridden by all tables": (
        [("sales", "clean", {"commits_retained": 9}, "")],
        DeadPolicyReason.OVERRIDDEN,
        "each of the 1 tables of the namespace sets it itself",
    ),
}


@pytest.mark.parametrize(("policies", "reason", "text"), DEAD.values(), ids=DEAD)
def test_policy_without_effect_is_flagged_with_its_reason(
    catalog: Catalog,
    capsys: pytest.CaptureFixture[str],
    policies: list[tuple[str, str, dict[str, Any], str]],
    reason: DeadPolicyReason,
    text: str,
) -> None:
    assert shown(capsys).dead == ()
    for scope, service, settings, pattern in policies:
        catalog.set_policy(scope, service, settings, pattern=pattern)
    (dead,) = shown(capsys).dead
    assert dead.reason is reason and text in dead.text
    assert main(["policy", "show", "--table", NAME]) == 0
    assert f"no effect: {dead.text}" in capsys.readouterr().out


def test_policy_of_a_service_that_does_not_apply_to_the_table_is_flagged(
    catalog: Catalog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    Table.create(str(tmp_path / "plain"), name="plain", record_key="id").upsert(pa.table({"id": ["a"]}))
    catalog.register_table("sales.plain", str(tmp_path / "plain"))
    words = ["policy", "set", "--table", "sales.plain", "--output", "json"]
    assert main([*words, "--service", "compaction", "--set", "max_delta_commits=3"]) == 0
    assert "a copy-on-write table has no logs" in json.loads(capsys.readouterr().out)["warnings"][0]
    assert main([*words, "--service", "ttl", "--set", "partition_age=3d"]) == 0
    assert "a table without partitions" in json.loads(capsys.readouterr().out)["warnings"][0]


def test_policy_show_of_an_unreadable_table_says_that_patterns_were_not_compared(
    catalog: Catalog, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    catalog.set_policy(NAME, "compaction", {"enabled": False}, pattern="3.*")
    for path in (tmp_path / "orders" / ".hoodie").glob("hoodie.properties*"):
        path.unlink()
    found = shown(capsys)
    assert not found.partitions_known and found.dead == ()
    assert main(["policy", "show", "--table", NAME]) == 0
    assert "patterns were not checked" in capsys.readouterr().out


def test_policy_view_imports_neither_core_nor_pyarrow() -> None:
    program = (
        "import sys, lakehouse.platform.catalog.policy_view, lakehouse.platform.catalog.policy_rows\n"
        "print([n for n in sys.modules if n.split('.')[0] == 'pyarrow' or n.startswith('lakehouse.core')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
