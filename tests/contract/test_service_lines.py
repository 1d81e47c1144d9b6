"""Lines of services on the pages: which services a table can have, which are due, and what a run would do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.platform.alarms.describe import rules_page
from lakehouse.platform.alarms.parse import load_rules, parse_rules
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import DecisionRow
from lakehouse.platform.fleet_views.queue import QueueQuery, queue_page
from lakehouse.platform.fleet_views.summary import fleet_summary
from lakehouse.platform.fleet_views.table import table_page
from lakehouse.spec.contracts.pages import ServiceLine
from tests.support.fleet_rows import FleetTable, add_table

NOW = 1_800_000_000_000
PREDICTED = {"files": 12, "bytes": 2_100_000, "benefit": 9.0, "seconds": 10.0}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Database]:
    """A catalog with a table of each type: `a.cow` and `a.mor`."""
    database = Database(f"sqlite:///{tmp_path}/catalog.db")
    with database.session() as session:
        add_table(session, FleetTable(name="a.cow", spec={"type": "COPY_ON_WRITE"}), NOW)
        add_table(session, FleetTable(name="a.mor"), NOW)
    yield database
    database.close()


def decide(database: Database, table: int, service: str, **changed: Any) -> None:
    """Store a decision about a service of a table."""
    row = {"due": True, "chosen": False, "reason": "6 delta commits", "code": "file_groups_held", **changed}
    with database.session() as session:
        given = {"decided_ms": NOW, "priority": 1.0, "inputs": {}, "predicted": PREDICTED}
        session.add(DecisionRow(table_id=table, service=service, **given, **row))


def lines(database: Database, table: str) -> dict[str, ServiceLine]:
    """Return the services of a table by name."""
    with database.reading() as session:
        return {line.service: line for line in table_page(session, table, NOW).services}


def test_compaction_does_not_apply_to_a_copy_on_write_table(catalog: Database) -> None:
    assert not lines(catalog, "a.cow")["compaction"].applies
    assert lines(catalog, "a.cow")["clustering"].applies
    assert lines(catalog, "a.mor")["compaction"].applies


def test_service_that_is_off_by_default_is_not_shown_as_enabled(catalog: Database) -> None:
    found = lines(catalog, "a.mor")
    assert [name for name, line in found.items() if not line.enabled] == ["orphans", "validation"]


def test_newest_decision_says_whether_a_service_applies(catalog: Database) -> None:
    decide(catalog, 2, "sync", due=False, code="not_applicable", reason="the table declares no metastore")
    assert not lines(catalog, "a.mor")["sync"].applies
    decide(catalog, 2, "sync", due=False, code="not_due", reason="the newest write is synced")
    assert lines(catalog, "a.mor")["sync"].applies


def test_decision_has_a_sentence_about_the_work_of_a_run(catalog: Database) -> None:
    decide(catalog, 2, "compaction")
    decision = lines(catalog, "a.mor")["compaction"].decision
    assert decision is not None
    assert decision.work == "rewrites 2.1 MB in about 10 s; queries of these rows would open 3 files instead of 12"


def test_queue_and_summary_leave_out_services_that_are_switched_off(catalog: Database) -> None:
    decide(catalog, 2, "orphans", code="disabled", reason="switched off: services.orphans.enabled is false")
    decide(catalog, 2, "compaction")
    with catalog.reading() as session:
        queue, summary = queue_page(session, QueueQuery(), NOW), fleet_summary(session, NOW)
    assert [line.service for line in queue.due] == ["compaction"]
    assert summary.due == 1


def test_rules_page_names_the_limit_and_the_measure_of_each_rule_and_override() -> None:
    text = "overrides:\n  a.mor: {freshness: {above: 30m}}\n  b: {small_files: {enabled: false}}"
    page = rules_page(parse_rules(text, source="alarms.yaml", base=load_rules({})), "alarms.yaml")
    shown = [(line.rule, line.scope, line.limit) for line in page.rules if line.rule in ("freshness", "small_files")]
    assert shown == [
        ("freshness", "", "1d"),
        ("freshness", "a.mor", "30m"),
        ("small_files", "", "50%"),
        ("small_files", "b", "switched off"),
    ]
    assert "at least 10 file groups" in next(line.measures for line in page.rules if line.rule == "small_files")
    assert page.source == "alarms.yaml"
