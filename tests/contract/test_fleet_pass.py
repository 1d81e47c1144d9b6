"""A pass of the fleet scheduler over many tables on SQLite and PostgreSQL: looks, requests, statements, decisions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lakehouse import load_catalog
from lakehouse.cli.backends.catalog_backend import policies_of
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import RunOutcome, RunState
from lakehouse.platform.catalog.run_records import LEASE_MS, RunKey, lease_key, record_end
from lakehouse.platform.catalog.table_states import LookLimits
from lakehouse.platform.services.candidates import CLAIM_MS, CLAIM_WITHOUT_NAME_MS
from lakehouse.platform.services.claims import release_claims
from lakehouse.platform.services.fleet_pass import PassResult, PassSettings, run_pass
from lakehouse.platform.services.job_batches import BatchSize
from lakehouse.platform.services.run import run_tables
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.fleet import ReleasedRun
from lakehouse.spec.contracts.job import IngestReport, JobReason, JobStatus
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.table.services import SERVICES
from tests.bench.data import orders
from tests.bench.decisions import counted, idle_and_busy, register_copies
from tests.contract.test_catalog import url
from tests.contract.test_table_states import counted_statements

__all__ = ["url"]
TABLES = 12
METADATA = ".hoodie/metadata"
ALL = PassSettings(rules=load_rules({}))


class MovedClock(SystemClock):
    """The clock of the machine, moved by a test."""

    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


@pytest.fixture
def clock() -> MovedClock:
    return MovedClock()


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return idle_and_busy(tmp_path_factory.mktemp("sources"))


@pytest.fixture
def catalog(url: str, clock: MovedClock, tmp_path: Path, sources: tuple[Path, Path]) -> Iterator[Catalog]:
    """Return a catalog of twelve tables; a compaction is due on `bench.t0` and `bench.t10`."""
    with load_catalog(url, clock=clock) as opened:
        register_copies(opened, tmp_path, TABLES, sources=sources)
        yield opened


def looked(result: PassResult) -> set[str]:
    return {seen.entry.identifier for seen in result.looks}


def chosen(result: PassResult) -> set[tuple[str, str]]:
    return {(choice.assessed.table, choice.assessed.service) for choice in result.choices if choice.chosen}


def code(result: PassResult, table: str, service: str = "compaction") -> DecisionReason:
    (found,) = [c for c in result.choices if (c.assessed.table, c.assessed.service) == (table, service)]
    return found.code


def test_pass_requests_and_statements_are_those_of_the_changed_tables(catalog: Catalog) -> None:
    with counted() as stores:
        first = run_pass(catalog, ALL)
    assert len(looked(first)) == TABLES == len(stores)
    assert chosen(first) == {(f"bench.t{number}", "compaction") for number in (0, 10)}
    with counted() as stores, counted_statements(catalog) as idle:
        assert looked(run_pass(catalog, ALL)) == set()
    assert stores == []
    changed = [f"bench.t{number}" for number in (3, 4)]
    catalog.states.mark_changed([catalog.entry(name).id for name in changed])
    with counted() as stores, counted_statements(catalog) as of_two:
        assert looked(run_pass(catalog, ALL)) == set(changed)
    assert len(stores) == 2
    requests_of_two = sum(sum(store.counts().values()) for store in stores)
    catalog.states.mark_changed([entry.id for entry in catalog.list_tables()])
    with counted() as stores, counted_statements(catalog) as of_all:
        assert len(looked(run_pass(catalog, ALL))) == TABLES
    requests_of_all = sum(sum(store.counts().values()) for store in stores)
    assert requests_of_two <= 2 * 20 and requests_of_all <= TABLES * 20
    # The metadata table is read, but its folder is listed once a day only.
    assert [place for store in stores for place in store.listed() if place == METADATA] == []
    # The statements do not grow with the tables.
    assert len(idle) <= len(of_two) <= 60
    assert len(of_all) <= len(of_two) + 5


def test_named_tables_are_the_only_ones_that_a_pass_looks_at(catalog: Catalog) -> None:
    with counted() as stores:
        result = run_pass(catalog, PassSettings(tables=("bench.t10",)))
    assert looked(result) == {"bench.t10"} and len(stores) == 1
    assert chosen(result) == {("bench.t10", "compaction")}
    # The next pass has the other tables.
    assert looked(run_pass(catalog, ALL)) == {e.identifier for e in catalog.list_tables()} - {"bench.t10"}


def test_started_run_is_not_started_again_until_it_ends_or_its_slot_is_lost(
    catalog: Catalog, clock: MovedClock
) -> None:
    settings = PassSettings(tables=("bench.t0",), services=("compaction",))
    (job,) = run_pass(catalog, settings).batches
    assert (job.service, job.tables) == ("compaction", ("bench.t0",))
    assert code(run_pass(catalog, settings), "bench.t0") is DecisionReason.SUBMITTED
    # The run begins and fails: the next one waits for the pause after a failure.
    table = catalog.entry("bench.t0").id
    clock.ahead_ms += 1000
    with catalog.leases.held(lease_key("bench.t0", "compaction"), "r1", LEASE_MS):
        catalog.history.start("r1", table, "compaction", {"seconds": 10.0})
        assert code(run_pass(catalog, settings), "bench.t0") is DecisionReason.ALREADY_RUNNING
        catalog.history.end("r1", table, "compaction", RunOutcome(state=RunState.FAILED, error="x"))
    result = run_pass(catalog, PassSettings(services=("compaction",)))
    assert "bench.t0" in looked(result) and code(result, "bench.t0") is DecisionReason.RETRY_LATER
    (waiting,) = [c for c in result.choices if c.assessed.table == "bench.t0"]
    assert waiting.starts_ms is not None and "next try after 5m" in waiting.reason
    clock.ahead_ms += 301_000
    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, settings))
    # A task that never began does not block the service for ever.
    clock.ahead_ms += CLAIM_WITHOUT_NAME_MS
    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, PassSettings(services=("compaction",))))


def test_runs_beyond_the_most_jobs_of_a_pass_wait_and_start_in_the_next_one(catalog: Catalog) -> None:
    settings = PassSettings(services=("compaction",), batch=BatchSize(tables=1, jobs=1))
    first = run_pass(catalog, settings)
    assert [job.tables for job in first.batches] == [(table,) for table, _ in sorted(chosen(first))]
    (waiting,) = {"bench.t0", "bench.t10"} - {table for table, _ in chosen(first)}
    assert code(first, waiting) is DecisionReason.JOB_LIMIT
    assert catalog.history.decisions(catalog.entry(waiting).id, "compaction")[0].code == "job_limit"
    assert chosen(run_pass(catalog, settings)) == {(waiting, "compaction")}


def test_chosen_runs_of_a_pass_that_ended_are_released_and_those_that_began_are_not(
    catalog: Catalog, clock: MovedClock
) -> None:
    settings = PassSettings(services=("compaction",), claim="services.schedule/first")
    assert len(chosen(run_pass(catalog, settings))) == 2
    later = replace(settings, claim="services.schedule/second")
    waiting = run_pass(catalog, later)
    assert (chosen(waiting), waiting.claims) == (set(), ("services.schedule/first",))
    # A name of a pass has no effect on the runs of others.
    assert release_claims(catalog, ["services.schedule/other"]) == ()
    clock.ahead_ms += 1000
    table = catalog.entry("bench.t10").id
    with catalog.leases.held(lease_key("bench.t10", "compaction"), "services.schedule/first/run", LEASE_MS):
        catalog.history.start("services.schedule/first/run", table, "compaction")
        found = release_claims(catalog, ["services.schedule/first"])
        assert found == (ReleasedRun(table="bench.t0", service="compaction", claim="services.schedule/first"),)
        (decision,) = catalog.history.decisions(catalog.entry("bench.t0").id, "compaction")
        assert (decision.code, decision.chosen) == ("released", False)
        after = run_pass(catalog, later)
        assert chosen(after) == {("bench.t0", "compaction")} and after.claims == ()


def test_chosen_run_of_a_failed_job_is_released_by_table_and_service_unless_it_began(
    catalog: Catalog, clock: MovedClock
) -> None:
    claim = "services.schedule/first"
    settings = PassSettings(services=("compaction",), claim=claim)
    assert chosen(run_pass(catalog, settings)) == {("bench.t0", "compaction"), ("bench.t10", "compaction")}
    for tables, services in ((["bench.t1"], []), (["bench.t0"], ["clean"])):
        assert release_claims(catalog, [claim], tables=tables, services=services) == ()
    clock.ahead_ms += 1000
    entry = catalog.entry("bench.t10").id
    catalog.history.start("first/run", entry, "compaction")
    catalog.history.end("first/run", entry, "compaction", RunOutcome(state=RunState.FAILED, error="no memory"))
    both = ["bench.t0", "bench.t10"]
    found = release_claims(catalog, [claim], tables=both, services=["compaction"])
    assert found == (ReleasedRun(table="bench.t0", service="compaction", claim=claim),)
    after = run_pass(catalog, PassSettings(services=("compaction",), claim="services.schedule/second"))
    assert chosen(after) == {("bench.t0", "compaction")}


def test_second_try_of_a_pass_chooses_the_runs_of_the_first_try_that_did_not_begin(catalog: Catalog) -> None:
    settings = PassSettings(services=("compaction",), claim="services.schedule/first")
    first = run_pass(catalog, settings)
    # The task ended before Airflow had its result; other passes still wait for its jobs.
    assert chosen(run_pass(catalog, replace(settings, claim="services.schedule/second"))) == set()
    again = run_pass(catalog, settings)
    assert (again.batches, again.claims) == (first.batches, ())
    assert len(first.batches) == 1


def test_claim_of_a_named_pass_expires_later_than_one_without_a_name(catalog: Catalog, clock: MovedClock) -> None:
    settings = PassSettings(services=("compaction",), claim="services.schedule/first")
    run_pass(catalog, settings)
    clock.ahead_ms += CLAIM_WITHOUT_NAME_MS
    assert chosen(run_pass(catalog, replace(settings, claim=""))) == set()
    clock.ahead_ms += CLAIM_MS - CLAIM_WITHOUT_NAME_MS
    assert len(chosen(run_pass(catalog, replace(settings, claim="")))) == 2
    clock.ahead_ms += CLAIM_WITHOUT_NAME_MS
    assert len(chosen(run_pass(catalog, settings))) == 2


def test_service_whose_run_had_nothing_to_do_waits_for_a_change_or_a_pause(
    catalog: Catalog, clock: MovedClock, tmp_path: Path
) -> None:
    settings = PassSettings(tables=("bench.t0",), services=("compaction",))
    nothing = IngestReport(
        status=JobStatus.NOTHING_TO_DO, table="bench.t0", reason="all is held", code=JobReason.NOT_DUE
    )

    def run_of(name: str, partitions: tuple[str, ...] = ()) -> None:
        command = ServiceCommand(service="compaction", table="bench.t0", run_id=name, partitions=partitions)
        (report,) = run_tables(catalog, ["bench.t0"], command, lambda table, given: nothing)
        assert report.status is JobStatus.NOTHING_TO_DO
        clock.ahead_ms += 1000

    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, settings))
    clock.ahead_ms += 1000
    # A run of one partition says nothing about the table.
    run_of("r1", ("20250101",))
    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, settings))
    clock.ahead_ms += 1000
    run_of("r2")
    (waits,) = run_pass(catalog, settings).choices
    assert (waits.code, waits.starts_ms is not None) == (DecisionReason.NOTHING_TO_DO, True)
    assert "had nothing to do; next try after a change of the table, or at" in waits.reason
    # A pass without a look at the table waits, too.
    assert code(run_pass(catalog, PassSettings(services=("compaction",))), "bench.t0") is DecisionReason.NOTHING_TO_DO
    clock.ahead_ms += 900_000
    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, settings))
    clock.ahead_ms += 1000
    run_of("r3")
    assert code(run_pass(catalog, settings), "bench.t0") is DecisionReason.NOTHING_TO_DO
    Table.open(str(tmp_path / "t0")).upsert(orders(np.arange(10), version=99))
    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, settings))


def test_waiting_services_are_decided_again_without_a_look(catalog: Catalog, clock: MovedClock) -> None:
    # Two slots: the long horizon admits all, a short one only as many runs as begin before the next pass.
    result = run_pass(catalog, PassSettings(services=("compaction",), slots=1, horizon_s=5.0))
    assert len(chosen(result)) == 1
    waiting = [choice for choice in result.choices if choice.code is DecisionReason.NO_SLOT]
    assert len(waiting) == 1 and all(choice.starts_ms is not None for choice in waiting)
    clock.ahead_ms += 3_600_000
    with counted() as stores:
        later = run_pass(catalog, PassSettings(services=("compaction",), slots=3))
    assert stores == [] and len(chosen(later)) == 2
    ids = {entry.identifier: entry.id for entry in catalog.list_tables()}
    decisions = catalog.history.decisions(ids[waiting[0].assessed.table], "compaction", limit=9)
    assert [decision.code for decision in decisions] == ["due", "no_slot"]


def test_requests_runs_and_policies_mark_their_tables_as_changed(catalog: Catalog) -> None:
    run_pass(catalog, ALL)
    ids = {entry.identifier: entry.id for entry in catalog.list_tables()}
    catalog.history.request(ids["bench.t1"], "clean")
    catalog.history.start("r", ids["bench.t2"], "clean")
    catalog.history.end("r", ids["bench.t2"], "clean", RunOutcome(state=RunState.COMMITTED, instant="1"))
    catalog.set_policy("bench.t3", "clean", {"priority": 2})
    result = run_pass(catalog, ALL)
    assert looked(result) == {"bench.t1", "bench.t2", "bench.t3"}
    assert ("bench.t1", "clean") in chosen(result) and code(result, "bench.t1", "clean") is DecisionReason.REQUESTED
    catalog.set_policy("bench", "clean", {"priority": 3})
    assert len(looked(run_pass(catalog, ALL))) == TABLES
    catalog.remove_policy("bench.t3", "clean")
    assert looked(run_pass(catalog, ALL)) == {"bench.t3"}


def test_external_writer_is_seen_by_the_rotation_of_a_bounded_number_of_tables(
    catalog: Catalog, clock: MovedClock, tmp_path: Path
) -> None:
    run_pass(catalog, ALL)
    table = Table.open(str(tmp_path / "t0"))
    assert table.services.compaction.run() is not None
    clock.ahead_ms += 25 * 3_600_000
    seen: list[str] = []
    for _ in range(TABLES // 4):
        result = run_pass(catalog, PassSettings(looks=LookLimits(rotation=4)))
        assert len(result.looks) == 4
        seen += looked(result)
    assert len(set(seen)) == TABLES
    assert catalog.states.of([catalog.entry("bench.t0").id])[catalog.entry("bench.t0").id].numbers.log_bytes == 0


def test_unreadable_table_is_recorded_and_looked_at_again_later(
    catalog: Catalog, clock: MovedClock, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    (tmp_path / "t5" / ".hoodie").rename(kept)
    result = run_pass(catalog, ALL)
    assert code(result, "bench.t5", "clean") is DecisionReason.UNREADABLE and len(looked(result)) == TABLES
    table = catalog.entry("bench.t5").id
    assert "UserError" in (catalog.states.of([table])[table].error or "")
    kept.rename(tmp_path / "t5" / ".hoodie")
    assert looked(run_pass(catalog, ALL)) == set()
    clock.ahead_ms += 700_000
    assert looked(run_pass(catalog, ALL)) == {"bench.t5"}
    assert catalog.states.of([table])[table].error is None


def test_budget_of_a_namespace_limits_runs_and_quiet_hours_name_their_end(catalog: Catalog, clock: MovedClock) -> None:
    catalog.set_policy("bench", "compaction", {"max_runs": 1})
    result = run_pass(catalog, PassSettings(services=("compaction",)))
    assert len(chosen(result)) == 1
    limited = next(choice for choice in result.choices if choice.code is DecisionReason.RUN_LIMIT)
    assert "compaction in namespace bench" in limited.reason
    catalog.set_policy("bench", "compaction", {"quiet_hours": "00:00-00:00"}, replace=True)
    clock.ahead_ms += CLAIM_WITHOUT_NAME_MS
    result = run_pass(catalog, PassSettings(services=("compaction",)))
    assert chosen(result) == set()
    quiet = next(choice for choice in result.choices if choice.code is DecisionReason.QUIET_HOURS)
    assert quiet.starts_ms is not None and quiet.starts_ms > clock.now_ms() and "after them:" in quiet.reason
    catalog.history.request(catalog.entry("bench.t0").id, "compaction")
    assert chosen(run_pass(catalog, PassSettings(services=("compaction",)))) == {("bench.t0", "compaction")}


def test_hourly_bytes_of_a_namespace_are_those_of_its_runs_and_of_started_ones(
    catalog: Catalog, clock: MovedClock
) -> None:
    catalog.set_policy("bench", "compaction", {"bytes_per_hour": "1MB"})
    spender, before = catalog.entry("bench.t5").id, clock.now_ms()
    catalog.history.start("r1", spender, "compaction")
    spent = RunOutcome(state=RunState.COMMITTED, actual={"bytes": 999_999})
    catalog.history.end("r1", spender, "compaction", spent)
    ended = clock.now_ms()
    result = run_pass(catalog, PassSettings(services=("compaction",)))
    assert chosen(result) == set()
    limited = next(choice for choice in result.choices if choice.code is DecisionReason.BYTE_LIMIT)
    assert "999999 of 1000000 bytes per hour of compaction in namespace bench are spent" in limited.reason
    assert limited.starts_ms is not None and before <= limited.starts_ms - 3_600_000 <= ended
    # The budget is that of the service: other services of the namespace have bytes of their own.
    catalog.history.request(catalog.entry("bench.t1").id, "archive")
    assert chosen(run_pass(catalog, PassSettings(services=("archive",)))) == {("bench.t1", "archive")}
    clock.ahead_ms += 3_601_000
    # The first run takes most of the bytes; it counts before its job begins.
    assert len(chosen(run_pass(catalog, PassSettings(services=("compaction",))))) == 1
    assert chosen(run_pass(catalog, PassSettings(services=("compaction",)))) == set()


def test_budget_of_all_services_of_a_namespace_counts_the_runs_of_each(catalog: Catalog) -> None:
    catalog.set_policy("bench", "all", {"max_runs": 2})
    for table in ("bench.t1", "bench.t2"):
        catalog.history.request(catalog.entry(table).id, "archive")
    # Two requested archives take the runs of the namespace, so no compaction starts.
    result = run_pass(catalog, ALL)
    assert chosen(result) == {("bench.t1", "archive"), ("bench.t2", "archive")}
    assert code(result, "bench.t0") is DecisionReason.RUN_LIMIT
    limited = next(choice for choice in result.choices if choice.code is DecisionReason.RUN_LIMIT)
    assert "2 runs of all services in namespace bench are active, and the limit is 2" in limited.reason
    catalog.set_policy("bench", "all", {"bytes_per_hour": "1MB"}, replace=True)
    catalog.history.start("r1", catalog.entry("bench.t5").id, "clean")
    spent = RunOutcome(state=RunState.COMMITTED, actual={"bytes": 1_000_000})
    catalog.history.end("r1", catalog.entry("bench.t5").id, "clean", spent)
    assert code(run_pass(catalog, ALL), "bench.t0") is DecisionReason.BYTE_LIMIT
    assert catalog.remove_policy("bench", "all")
    assert ("bench.t0", "compaction") in chosen(run_pass(catalog, ALL))


def test_policy_of_all_services_takes_limits_of_a_namespace_only(catalog: Catalog) -> None:
    with pytest.raises(UserError, match=r"priority cannot be set for all services .* max_runs and bytes_per_hour"):
        catalog.set_policy("bench", "all", {"priority": 2})
    with pytest.raises(UserError, match=r"max_runs='none' is not a number"):
        catalog.set_policy("bench", "all", {"max_runs": "none"})
    with pytest.raises(UserError, match="are for a namespace, not for the table t1"):
        catalog.set_policy("bench.t1", "all", {"max_runs": 1})
    catalog.set_policy("bench", "all", {"max_runs": 3}, author="ada")
    shown = policies_of(catalog, catalog.entry("bench.t1")).policies[-1]
    (setting,) = shown.settings
    assert (shown.service, setting.setting, setting.value, setting.author) == ("all", "max_runs", "3", "ada")


def test_state_of_a_looked_at_table_has_its_numbers(catalog: Catalog, tmp_path: Path) -> None:
    run_pass(catalog, PassSettings(tables=("bench.t0",)))
    entry = catalog.entry("bench.t0")
    numbers = catalog.states.of([entry.id])[entry.id].numbers
    health = catalog.load_table("bench.t0").health()
    assert (numbers.file_groups, numbers.log_bytes) == (health.file_groups, health.log_bytes) and health.log_bytes > 0
    assert numbers.last_commit_ms == health.newest_commit_ms and numbers.partitions == 20
    assert numbers.metadata_bytes and numbers.failed_plans == 0
    (point,) = catalog.states.points([entry.id], 0)[entry.id]
    assert point.numbers == numbers


def test_metadata_table_is_listed_once_a_day_for_a_bounded_number_of_tables(
    catalog: Catalog, clock: MovedClock
) -> None:
    ids = {entry.identifier: entry.id for entry in catalog.list_tables()}

    def measured(limit: int = 20) -> int:
        catalog.states.mark_changed(ids.values())
        with counted() as stores:
            run_pass(catalog, PassSettings(looks=LookLimits(measured=limit)))
        assert len(stores) == TABLES
        return sum(store.listed().count(METADATA) for store in stores)

    assert [measured(5), measured(5), measured(5), measured(5)] == [5, 5, 2, 0]
    sizes = {table: state.numbers.metadata_bytes or 0 for table, state in catalog.states.of(ids.values()).items()}
    assert len(sizes) == TABLES and min(sizes.values()) > 0
    # The event of a table measures it only if a day has passed.
    with counted() as stores:
        run_pass(catalog, PassSettings(tables=("bench.t0",)))
    assert METADATA not in stores[0].listed()
    assert catalog.states.of([ids["bench.t0"]])[ids["bench.t0"]].numbers.metadata_bytes == sizes[ids["bench.t0"]]
    clock.ahead_ms += 25 * 3_600_000
    assert measured() == TABLES


def test_conflicts_of_runs_of_the_last_day_are_a_number_and_raise_an_alarm(catalog: Catalog, clock: MovedClock) -> None:
    table = catalog.entry("bench.t1").id
    for run, conflicts in (("r1", 65), ("r2", 5), ("r3", 0)):
        catalog.history.start(run, table, "ingest")
        report = IngestReport(status=JobStatus.COMMITTED, table="bench.t1", instant=run, conflicts=conflicts)
        record_end(catalog, RunKey(run_id=run, table_id=table, service="ingest"), report)
    run_pass(catalog, ALL)
    state = catalog.states.of([table])[table]
    assert state.numbers.conflicts == 70
    (problem,) = [problem for problem in state.problems if problem.rule == "conflicts"]
    assert problem.subject == "ingest" and problem.value == 70 / 6
    assert [alarm.table for alarm in catalog.alarms.find() if alarm.rule == "conflicts"] == ["bench.t1"]
    clock.ahead_ms += 25 * 3_600_000
    run_pass(catalog, replace(ALL, tables=("bench.t1",)))
    state = catalog.states.of([table])[table]
    assert (state.numbers.conflicts, [one for one in state.problems if one.rule == "conflicts"]) == (0, [])


def test_pass_of_one_service_keeps_the_due_services_of_the_others(catalog: Catalog) -> None:
    run_pass(catalog, PassSettings(services=("compaction",)))
    run_pass(catalog, PassSettings(tables=("bench.t0",), services=("clean",)))
    table = catalog.entry("bench.t0").id
    assert "compaction" in catalog.states.of([table])[table].due
    assert code(run_pass(catalog, PassSettings(services=("compaction",))), "bench.t0") is DecisionReason.SUBMITTED


def test_all_services_have_a_decision_after_a_look(catalog: Catalog) -> None:
    result = run_pass(catalog, PassSettings(tables=("bench.t7",)))
    assert {choice.assessed.service for choice in result.choices} == set(SERVICES)
    table = catalog.entry("bench.t7").id
    assert all(catalog.history.decisions(table, service)[0].code for service in SERVICES)


def test_write_after_a_pass_is_seen_when_its_event_names_the_table(catalog: Catalog, tmp_path: Path) -> None:
    run_pass(catalog, ALL)
    table = Table.open(str(tmp_path / "t1"))
    for version in range(5):
        table.upsert(orders(np.arange(200), version=version))
    assert chosen(run_pass(catalog, ALL)) == set()
    result = run_pass(catalog, PassSettings(tables=("bench.t1",)))
    assert ("bench.t1", "compaction") in chosen(result)
