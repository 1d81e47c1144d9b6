"""Evaluation of the rules of alarms on the facts of a catalog, on SQLite and PostgreSQL."""

from __future__ import annotations

from lakehouse.platform.alarms.judge import judge, judge_by_time
from lakehouse.platform.alarms.parse import load_rules, parse_rules
from lakehouse.platform.catalog.alarms import AlarmState
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.models import NamespaceRow, SpecRow, TableRow
from lakehouse.platform.catalog.run_history import RunOutcome, RunState
from lakehouse.spec.contracts.fleet import TableNumbers, TableState
from tests.contract.test_alarms import statements
from tests.contract.test_catalog import Clock, catalog, clock, url

__all__ = ["catalog", "clock", "url"]

HOUR, DAY, GB = 3_600_000, 86_400_000, 1_000_000_000
RULES = parse_rules(
    "rules:\n  freshness: {ingested_only: false, above: 2h}\n", source="alarms.yaml", base=load_rules({})
)


def enter(catalog: Catalog, number: int = 1) -> list[int]:
    """Insert tables `sales.t0`, ... with their specs and without files; return their ids."""
    with catalog.database.session() as session:
        session.add(NamespaceRow(name="sales", properties={}, created_ms=0))
        session.flush()
        rows = [
            TableRow(namespace="sales", name=f"t{n}", location=f"/lake/t{n}", spec_version=1, created_ms=0)
            for n in range(number)
        ]
        session.add_all(rows)
        session.flush()
        for row in rows:
            document = {"table": f"sales.{row.name}", "location": row.location, "record_key": ["id"]}
            session.add(SpecRow(table_id=row.id, version=1, document=document, author="", source="", created_ms=0))
        return [row.id for row in rows]


def numbers(clock: Clock, **more: int) -> TableState:
    given = {"last_commit_ms": clock.ms, "log_bytes": 0, **more}
    return TableState(numbers=TableNumbers(**given), looked_ms=clock.ms)


def look(catalog: Catalog, states: dict[int, TableState]) -> dict[int, list[str]]:
    """Judge and record states, as a pass of the scheduler does; return the names of the violated rules."""
    judged = judge(catalog, RULES, catalog.list_tables(), states)
    catalog.states.record(states)
    catalog.states.record_problems(judged.problems)
    return {table: [problem.rule for problem in found] for table, found in judged.problems.items()}


def rules_of(catalog: Catalog, state: AlarmState = AlarmState.OPEN) -> list[str]:
    return sorted(alarm.rule for alarm in catalog.alarms.find(state=state))


def test_evaluation_by_time_raises_and_resolves_an_alarm_of_freshness_from_stored_numbers(
    catalog: Catalog, clock: Clock
) -> None:
    (table,) = enter(catalog)
    catalog.states.record({table: numbers(clock)})
    assert judge_by_time(catalog, RULES).changes.raised == ()
    clock.ms += 3 * HOUR
    assert len(judge_by_time(catalog, RULES).changes.raised) == 1
    (problem,) = catalog.states.of([table])[table].problems
    assert problem.text == "no commit for 3h; the objective is 2h"
    assert catalog.states.of([table])[table].severity == problem.severity
    catalog.states.record({table: numbers(clock)})
    assert len(judge_by_time(catalog, RULES).changes.resolved) == 1
    assert catalog.states.of([table])[table].problems == () and rules_of(catalog) == []


def test_evaluation_by_time_keeps_problems_of_rules_that_need_a_look(catalog: Catalog, clock: Clock) -> None:
    (table,) = enter(catalog)
    assert look(catalog, {table: numbers(clock, file_groups=200, small_files=150)}) == {table: ["small_files"]}
    clock.ms += 3 * HOUR
    judge_by_time(catalog, RULES)
    assert [p.rule for p in catalog.states.of([table])[table].problems] == ["freshness", "small_files"]
    assert rules_of(catalog) == ["freshness", "small_files"]


def test_look_measures_the_growth_of_log_files_from_the_hourly_numbers(catalog: Catalog, clock: Clock) -> None:
    (table,) = enter(catalog)
    look(catalog, {table: numbers(clock, log_bytes=GB)})
    clock.ms += 7 * HOUR
    assert look(catalog, {table: numbers(clock, log_bytes=3 * GB)}) == {table: ["compaction_backlog"]}
    clock.ms += 7 * HOUR
    assert look(catalog, {table: numbers(clock, log_bytes=3 * GB)}) == {table: []}
    assert rules_of(catalog, AlarmState.RESOLVED) == ["compaction_backlog"]


def test_evaluation_by_time_finds_services_that_failed_and_resolves_after_a_success(
    catalog: Catalog, clock: Clock
) -> None:
    (table,) = enter(catalog)
    for _ in range(3):
        catalog.history.start("r1", table, "clean")
        catalog.history.end("r1", table, "clean", RunOutcome(state=RunState.FAILED, error="OSError: full"))
    judge_by_time(catalog, RULES)
    (alarm,) = catalog.alarms.find()
    assert (alarm.rule, alarm.subject) == ("failed_runs", "clean") and "failed 3 times in a row" in alarm.text
    clock.ms += 1
    catalog.history.start("r2", table, "clean")
    catalog.history.end("r2", table, "clean", RunOutcome(state=RunState.COMMITTED))
    judge_by_time(catalog, RULES)
    assert rules_of(catalog) == []


def test_evaluation_by_time_finds_a_run_that_died_and_a_lease_that_was_not_released(
    catalog: Catalog, clock: Clock
) -> None:
    (table,) = enter(catalog)
    catalog.leases.acquire("sales.t0/compaction", "r1", 60_000)
    catalog.history.start("r1", table, "compaction")
    clock.ms += HOUR
    catalog.history.end_expired_runs(table, "compaction", active_run=None, before_ms=clock.ms)
    judge_by_time(catalog, RULES)
    assert rules_of(catalog) == ["died_runs", "expired_lease"]
    lease = catalog.leases.acquire("sales.t0/compaction", "r2", 60_000)
    assert lease is not None
    catalog.leases.release(lease)
    judge_by_time(catalog, RULES)
    assert rules_of(catalog) == ["died_runs"]
    clock.ms += DAY
    judge_by_time(catalog, RULES)
    assert rules_of(catalog) == []


def test_look_measures_conflicts_and_bad_records_of_runs(catalog: Catalog, clock: Clock) -> None:
    (table,) = enter(catalog)
    catalog.history.start("r1", table, "ingest")
    actual = {"rows": 900, "bad_records": 100, "conflicts": 70}
    catalog.history.end("r1", table, "ingest", RunOutcome(state=RunState.COMMITTED, actual=actual))
    assert sorted(look(catalog, {table: numbers(clock)})[table]) == ["bad_records", "conflicts"]
    clock.ms += 2 * DAY
    assert look(catalog, {table: numbers(clock)}) == {table: []}


def test_unreadable_table_keeps_the_alarms_of_its_numbers(catalog: Catalog, clock: Clock) -> None:
    (table,) = enter(catalog)
    look(catalog, {table: numbers(clock, file_groups=200, small_files=150)})
    found = look(catalog, {table: TableState(error="CorruptTableError: no properties", looked_ms=clock.ms)})
    assert found[table][0] == "unreadable"
    assert rules_of(catalog) == ["small_files", "unreadable"]
    look(catalog, {table: numbers(clock)})
    assert rules_of(catalog) == []


def test_number_of_queries_does_not_depend_on_the_number_of_tables(catalog: Catalog, clock: Clock) -> None:
    ids = enter(catalog, 1000)
    counts = []
    for some in (ids[:10], ids):
        states = {table: numbers(clock, file_groups=200, small_files=150) for table in some}
        catalog.states.record(states)
        entries = [entry for entry in catalog.list_tables() if entry.id in states]
        clock.ms += 3 * HOUR
        with statements(catalog) as executed:
            judge(catalog, RULES, entries, states)
            judge_by_time(catalog, RULES)
        counts.append(len([text for text in executed if text.split()[0] in ("SELECT", "UPDATE", "WITH")]))
    # The second evaluation also resolves and refreshes the alarms of the first.
    assert counts[0] <= counts[1] <= counts[0] + 2 <= 16
