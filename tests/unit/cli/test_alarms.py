"""`lakehouse alarms`: lists, rules, silences, the evaluation by time, and the claims of notifiers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import load_catalog
from lakehouse.cli.main import main
from lakehouse.platform.publish.unpublished import unpublished_since
from lakehouse.platform.services.look import LookRequest, look
from lakehouse.spec.contracts.fleet import TableNumbers, TableState
from lakehouse.spec.table.table_spec import parse_spec

Run = Callable[..., Any]

RULES = (
    "rules:\n  freshness: {ingested_only: false, above: 1h}\noverrides:\n  sales: {freshness: {severity: critical}}\n"
)
SPEC = """
table: sales.orders
location: orders
record_key: id
partition_by: day
ordering: ts
services:
  publish: {database: shop, ready: signal}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `lakehouse alarms` on a catalog with a table without commits for a day."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.setenv("LAKEHOUSE_ALARMS", str(tmp_path / "alarms.yaml"))
    (tmp_path / "alarms.yaml").write_text(RULES)
    with load_catalog() as catalog:
        entry = catalog.ensure_table(parse_spec(SPEC, source="test"))
        now = catalog.clock.now_ms()
        catalog.states.record({entry.id: TableState(numbers=TableNumbers(last_commit_ms=now - 86_400_000))})

    def call(*words: str, code: int = 0) -> Any:
        assert main(["alarms", *words, *(["--output", "json"] if not code else [])]) == code
        captured = capsys.readouterr()
        return captured.err if code else json.loads(captured.out)

    return call


def test_check_raises_an_alarm_that_list_shows_with_its_action(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("check") == {"version": 1, "raised": 1, "resolved": 0, "open": 1}
    (alarm,) = run("list", "--table", "sales.orders")["alarms"]
    assert (alarm["rule"], alarm["severity"], alarm["state"]) == ("freshness", 3, "open")
    assert main(["alarms", "list"]) == 0
    printed = capsys.readouterr().out
    assert "critical" in printed and "the objective is 1h" in printed and "lakehouse services explain" in printed


def test_rules_show_the_file_and_the_override_of_a_table(run: Run) -> None:
    found = run("rules", "--table", "sales.orders")
    assert found["file"].endswith("alarms.yaml")
    (rule,) = [rule for rule in found["rules"] if rule["rule"] == "freshness"]
    assert (rule["above"], rule["severity"]) == ("1h", "critical")
    (plain,) = [rule for rule in run("rules")["rules"] if rule["rule"] == "freshness"]
    assert plain["severity"] == "warning"


def test_silence_hides_an_alarm_from_notifiers_and_ends(run: Run) -> None:
    run("check")
    silence = run("silence", "--table", "sales.orders", "--for", "2h", "--reason", "full reload")
    assert (silence["scope"], silence["reason"]) == ("sales.orders", "full reload")
    assert [one["id"] for one in run("silences")["silences"]] == [silence["id"]]
    assert run("list")["alarms"][0]["silenced_until"] == silence["until"]
    assert run("claim", "--notifier", "slack", "--owner", "r1")["alarms"] == []
    assert run("unsilence", "--id", str(silence["id"]))["ended"]
    assert len(run("claim", "--notifier", "slack", "--owner", "r1")["alarms"]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rule", "freshnes"), r"no rule 'freshnes'. Did you mean 'freshness'?"),
        (("--namespace", "sale"), r"no namespace 'sale'. Did you mean 'sales'?"),
        (("--namespace", "sales", "--table", "sales.orders"), "not both"),
    ],
)
def test_silence_of_an_unknown_rule_or_scope_is_refused(run: Run, words: tuple[str, ...], message: str) -> None:
    assert message in run("silence", *words, "--for", "2h", "--reason", "x", code=64)


def test_settle_records_a_sending_and_gives_failed_ones_back(run: Run) -> None:
    run("check")
    claim = ("--notifier", "slack", "--owner", "r1")
    assert len(run("claim", *claim)["alarms"]) == 1
    assert run("settle", *claim, "--failed") == {"version": 1, "notifier": "slack", "alarms": 1, "sent": False}
    assert len(run("claim", *claim)["alarms"]) == 1
    assert run("settle", *claim)["alarms"] == 1
    assert run("claim", "--notifier", "slack", "--owner", "r2")["alarms"] == []


def test_oldest_ready_partition_that_is_not_published_has_a_time(run: Run, tmp_path: Path) -> None:
    from lakehouse.platform.publish.job import PublishJob
    from lakehouse.platform.publish.run import signal

    with load_catalog() as catalog:
        table, entry = catalog.load_table("sales.orders"), catalog.entry("sales.orders")
    table.upsert(pa.table({"id": ["a"], "day": ["1"], "ts": [1]}))
    assert unpublished_since(table, entry.spec) is None
    job: PublishJob = publish_job(table, entry.spec)
    signal(job, ["day=1"])
    since = unpublished_since(table, entry.spec)
    assert since is not None and since > 1_700_000_000_000
    with load_catalog() as catalog:
        seen = look(entry, catalog.policies(), LookRequest(services=(), now_ms=since))
    assert seen.numbers is not None and seen.numbers.unpublished_since_ms == since


def publish_job(table: Any, spec: Any) -> Any:
    from lakehouse.core.storage.locate import open_storage
    from lakehouse.platform.metastore.memory import MemoryMetastore
    from lakehouse.platform.publish.job import PublishJob
    from lakehouse.spec.options.parser import parse_options

    return PublishJob(
        table=table,
        policies=parse_options(spec.call_options()),
        spec=spec.publication(),
        metastore=MemoryMetastore(),
        place=open_storage(table.location),
    )
