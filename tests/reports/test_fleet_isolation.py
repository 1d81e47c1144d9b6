"""A table, a policy or a stored value that cannot be read stops no other table of a pass of the fleet scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from lakehouse import load_catalog
from lakehouse.cli.main import main
from lakehouse.errors import SettingError, UserError
from lakehouse.model.display import time_text
from lakehouse.platform.alarms import evaluate as evaluate_module
from lakehouse.platform.alarms.judge import judge_by_time
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.entries import spec_yaml
from lakehouse.platform.catalog.models import PolicyRow, SpecRow, TableStateRow
from lakehouse.platform.catalog.spec_sync import SpecState, synchronise
from lakehouse.platform.services import look as look_module
from lakehouse.platform.services.fleet_pass import PassResult, PassSettings, run_pass
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.quantities import parse_duration, parse_size
from lakehouse.spec.table.folder import read_specs
from lakehouse.spec.table.service_settings import service_settings
from tests.bench.decisions import idle_and_busy, register_copies

#: The table that is damaged, and the one whose compaction is due.
BAD, GOOD = "bench.t1", "bench.t0"
RULES = load_rules({})
ALL = PassSettings(rules=RULES)


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return idle_and_busy(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def catalog(tmp_path: Path, sources: tuple[Path, Path]) -> Iterator[Catalog]:
    """Return a catalog of three tables."""
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as opened:
        register_copies(opened, tmp_path, 3, sources=sources)
        yield opened


def stored_policy(catalog: Catalog, scope: str, service: str, settings: dict[str, Any]) -> None:
    """Store a policy as an earlier version did, which did not check its values."""
    namespace, _, name = scope.partition(".")
    with catalog.database.session() as session:
        row = PolicyRow(namespace=namespace, name=name, pattern="", service=service, settings=settings, version=1)
        row.updated_ms, row.author = 1, "ada"
        session.add(row)


def good_is_chosen(result: PassResult) -> bool:
    chosen = {(choice.assessed.table, choice.assessed.service) for choice in result.choices if choice.chosen}
    return (GOOD, "compaction") in chosen and any(GOOD in job.tables for job in result.batches)


def codes(result: PassResult, table: str) -> dict[str, DecisionReason]:
    return {c.assessed.service: c.code for c in result.choices if c.assessed.table == table}


def alarms(catalog: Catalog, table: str = BAD) -> set[tuple[str, str]]:
    return {(alarm.rule, alarm.subject) for alarm in catalog.alarms.find(tables=[table])}


def chosen_now(catalog: Catalog) -> set[tuple[str, str]]:
    return {(c.assessed.table, c.assessed.service) for c in decide(catalog, ("compaction",)) if c.chosen}


STORED = {
    "hours": ("clean", {"policy": "KEEP_LATEST_BY_HOURS", "hours_retained": 99_999_999_999_999}),
    "deadline": ("compaction", {"deadline": "999999w"}),
    "priority": ("compaction", {"priority": "nan"}),
    "size": ("compaction", {"max_memory": "999999999999 PB"}),
    "digits": ("clean", {"max_runs": "9" * 5000}),
}


@pytest.mark.parametrize("name", STORED)
def test_pass_runs_other_tables_if_the_stored_policy_of_a_table_is_out_of_bounds(catalog: Catalog, name: str) -> None:
    """apache/airflow#28171, apache/airflow#34869: a value that overflows a date stops the scheduler for all DAGs."""
    service, settings = STORED[name]
    stored_policy(catalog, BAD, service, settings)
    assert chosen_now(catalog) == {(GOOD, "compaction")}
    result = run_pass(catalog, ALL)
    assert good_is_chosen(result)
    assert codes(result, BAD)[service] is DecisionReason.UNREADABLE
    assert "unreadable" in {rule for rule, _ in alarms(catalog)}
    # The next pass does not end, either, and a corrected policy is in force with it.
    catalog.set_policy(BAD, service, {"enabled": True}, replace=True)
    again = run_pass(catalog, ALL)
    assert codes(again, BAD)[service] is not DecisionReason.UNREADABLE
    assert "unreadable" not in {rule for rule, _ in alarms(catalog)}


def test_pass_runs_other_tables_if_a_timeline_has_a_file_with_an_impossible_time(
    catalog: Catalog, tmp_path: Path
) -> None:
    """apache/amoro#3662: an exception while one table is planned is repeated for ever and is seen in logs only."""
    timeline = tmp_path / "t1" / ".hoodie" / "timeline"
    (timeline / "20269999999999999_20269999999999999.deltacommit").write_bytes(b"{}")
    assert chosen_now(catalog) == {(GOOD, "compaction")}
    result = run_pass(catalog, ALL)
    assert good_is_chosen(result)
    (error,) = [look.error for look in result.looks if look.error is not None]
    assert "is not an instant time" in error and "20269999999999999" in error
    assert alarms(catalog) == {("unreadable", "")}


def test_pass_runs_other_tables_if_a_stored_spec_is_refused_and_a_corrected_file_is_put_in_force(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """datazip-inc/olake-fusion#16: one corrupted table keeps the services of healthy tables from being planned."""
    entry = catalog.entry(BAD)
    with catalog.database.session() as session:
        row = session.get(SpecRow, (entry.id, 1))
        assert row is not None
        row.document = {**row.document, "services": {"clean": {"max_runs": 0}}, "unknown_key": 1}
    assert chosen_now(catalog) == {(GOOD, "compaction")}
    result = run_pass(catalog, ALL)
    assert good_is_chosen(result) and set(codes(result, BAD).values()) == {DecisionReason.UNREADABLE}
    assert ("unreadable", "") in alarms(catalog)
    with pytest.raises(UserError, match=r"the stored spec of bench.t1 is refused.*lakehouse table sync"):
        catalog.entry(BAD)
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    assert main(["services", "status"]) == 0
    assert capsys.readouterr().out and main(["services", "health", "--output", "json"]) == 0
    health = {row["table"]: row["error"] for row in json.loads(capsys.readouterr().out)["tables"]}
    assert "is refused" in health.pop(BAD) and set(health.values()) == {None}
    file = tmp_path / "t1.yaml"
    file.write_text(spec_yaml(entry.spec.to_mapping()), encoding="utf-8")
    (status,) = synchronise(catalog, read_specs([file]), author="ada", tables=[BAD])
    assert (status.state, status.version) == (SpecState.CHANGED, 2)
    run_pass(catalog, ALL)
    assert alarms(catalog) == set()


def test_pass_runs_other_tables_if_the_assessment_of_a_service_raises_an_unexpected_error(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/airflow#18729: an exception of one user's code ends the process that schedules for all."""
    real = look_module.assess

    def failing(services: Any, name: str, *, force: bool = False) -> Any:
        if name == "archive" and services.table.env.storage.root.endswith("/t1"):
            raise ZeroDivisionError("a defect \x00 \udcff")
        return real(services, name, force=force)

    monkeypatch.setattr(look_module, "assess", failing)
    result = run_pass(catalog, ALL)
    assert good_is_chosen(result)
    unread = {service for service, code in codes(result, BAD).items() if code is DecisionReason.UNREADABLE}
    assert unread == {"archive"} and alarms(catalog) == {("unreadable", "archive")}
    (alarm,) = catalog.alarms.find(tables=[BAD])
    assert "the service archive cannot be read: ZeroDivisionError: a defect" in alarm.text


def test_pass_runs_other_tables_if_an_earlier_version_stored_numbers_that_are_none(catalog: Catalog) -> None:
    """apache/airflow#58949: a stored row that a new version does not expect stops the scheduler in a loop."""
    run_pass(catalog, PassSettings(rules=RULES, services=("clean",)))
    run_pass(catalog, PassSettings(rules=RULES, tables=(BAD,), services=("compaction",)))
    far = {"since_ms": 1, "code": "due", "reason": "due", "deadline_ms": 10**18, "bounds": {}}
    stored = {
        BAD: {"compaction": {**far, "priority": float("nan")}},
        "bench.t2": {"compaction": {**far, "code": "new"}},
    }
    for name, due in stored.items():
        with catalog.database.session() as session:
            table = TableStateRow.table_id == catalog.entry(name).id
            session.execute(update(TableStateRow).where(table).values(due=due, due_services=1, changed_ms=0))
    result = run_pass(catalog, PassSettings(rules=RULES, tables=(GOOD,)))
    assert good_is_chosen(result)
    assert codes(result, BAD) == {"compaction": DecisionReason.UNREADABLE}


def test_pass_runs_other_namespaces_and_prints_far_deadlines_if_a_stored_namespace_policy_is_refused(
    catalog: Catalog, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """apache/airflow#35135: what cannot be created for one DAG is caught and logged, and the loop goes on."""
    catalog.create_namespace("other")
    stored_policy(catalog, "other", "all", {"max_runs": "many"})
    stored_policy(catalog, "bench", "clean", {"deadline": "999w"})
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    assert main(["services", "pass", "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [job["tables"] for job in printed["batches"] if job["service"] == "compaction"] == [[GOOD]]
    assert time_text(10**18) == "1000000000000000000 ms after 1970"
    # A refused policy of all services allows no run, and the decision says why.
    stored_policy(catalog, "bench", "all", {"max_runs": "many"})
    catalog.states.mark_changed([catalog.entry(GOOD).id])
    result = run_pass(catalog, PassSettings(rules=RULES, services=("archive", "clean", "compaction"), claim="x"))
    assert not any(choice.chosen for choice in result.choices)


def test_rule_that_cannot_be_evaluated_is_a_problem_of_its_table_only(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/airflow#58560: the deadline of one DAG ends the scheduler."""
    real = evaluate_module.MEASURES["freshness_lag"].read

    def failing(facts: Any, rule: Any) -> Any:
        if facts.table == BAD:
            raise OverflowError("date value out of range")
        return real(facts, rule)

    measures = dict(evaluate_module.MEASURES)
    measures["freshness_lag"] = replace(measures["freshness_lag"], read=failing)
    monkeypatch.setattr(evaluate_module, "MEASURES", measures)
    rules = replace(RULES, rules=tuple(replace(rule, ingested_only=False) for rule in RULES.rules))
    assert good_is_chosen(run_pass(catalog, PassSettings(rules=rules)))
    judge_by_time(catalog, rules)
    texts = {alarm.rule: alarm.text for alarm in catalog.alarms.find(tables=[BAD])}
    assert texts["freshness"] == "the rule freshness cannot be evaluated: OverflowError: date value out of range"
    assert "freshness" not in {rule for rule, _ in alarms(catalog, GOOD)}


REFUSED_OPTIONS = {
    "hoodie.clean.hours.retained": "8760001",
    "lakehouse.clean.orphans.hours": "99999999999",
    "hoodie.compact.inline.max.delta.seconds": str(10**12),
    "hoodie.partition.ttl.strategy.days.retain": "365001",
    "hoodie.parquet.max.file.size": str(2**63),
    "hoodie.bucket.index.split.threshold": "inf",
    "hoodie.index.bloom.fpp": "nan",
    "lakehouse.ttl.partition.age": "52143w",
}


@pytest.mark.parametrize("key", REFUSED_OPTIONS)
def test_option_refuses_a_number_above_its_bound(key: str) -> None:
    """apache/airflow#28171: an upper bound where the value is declared keeps it from the arithmetic of dates."""
    with pytest.raises(SettingError) as refused:
        parse_options({key: REFUSED_OPTIONS[key]})
    assert key in str(refused.value) or "partition_age" in str(refused.value)


def test_durations_sizes_and_counts_have_bounds_and_accept_the_value_that_the_error_names() -> None:
    """apache/airflow#34869: durations that no date can be computed with are refused where they are declared."""
    assert parse_duration("age", "365000d") == 365_000 * 86_400
    with pytest.raises(SettingError, match=r"longer than 1,000 years.*365000d or less"):
        parse_duration("age", "365001d")
    assert parse_size("size", "9000PB") == 9000 * 10**15
    with pytest.raises(SettingError, match=r"larger than 9223372036854775807 bytes; write 9000PB or less"):
        parse_size("size", "10000PB")
    for value in ("²", "9" * 5000, "2147483648", "0", "-1"):
        with pytest.raises(SettingError, match="not a number from 1 to 2147483647"):
            service_settings("compaction", {"max_runs": value})
    for priority in ("nan", "inf", "-inf", "1e10"):
        with pytest.raises(SettingError, match="priority"):
            service_settings("compaction", {"priority": priority})
