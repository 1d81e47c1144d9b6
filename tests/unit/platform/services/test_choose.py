"""The choice of services to run: order, limits and reasons, on values."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.platform.services.assess import Assessment
from lakehouse.platform.services.budgets import Budget, Refusal
from lakehouse.platform.services.choose import (
    AssessedService,
    Limits,
    Load,
    Rules,
    RunningService,
    RunStage,
    batches,
    choose,
    choose_runs,
)
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.table.services import service_spec

NOW = 1_000_000


def assessed(table: str, service: str = "clean", partitions: tuple[str, ...] = (), **more: object) -> AssessedService:
    size, benefit = int(str(more.pop("bytes", 100))), float(str(more.pop("benefit", 10)))
    cost = ServiceCost(files=10, bytes=size, benefit=benefit, partitions=partitions)
    due = bool(more.pop("due", True))
    assessment = Assessment(due=due, reason="12 commits", cost=cost)
    return AssessedService(table=table, service=service, assessment=assessment, **{"seconds": 10.0, **more})  # type: ignore[arg-type]


def chosen(*services_assessed: AssessedService, limits: Limits | None = None, load: Load | None = None) -> list[str]:
    services = {c.service for c in services_assessed}
    limited = dict.fromkeys(services, limits or Limits())
    return [c.assessed.table for c in choose(services_assessed, limited, load or Load(), now_ms=NOW) if c.chosen]


def reason(*services_assessed: AssessedService, limits: Limits | None = None, load: Load | None = None) -> str:
    limited = {c.service: limits or Limits() for c in services_assessed}
    return next(c.reason for c in choose(services_assessed, limited, load or Load(), now_ms=NOW) if not c.chosen)


def test_choose_orders_services_by_priority_and_benefit_per_second() -> None:
    small, great = assessed("a.small", benefit=5), assessed("a.great", benefit=50)
    slow, preferred = assessed("a.slow", benefit=50, seconds=1000.0), assessed("a.first", benefit=5, priority=100.0)
    assert chosen(small, slow, great, preferred) == ["a.first", "a.great", "a.small", "a.slow"]


def test_choose_runs_services_past_their_deadline_first() -> None:
    great = assessed("a.great", benefit=1e9)
    late, later = assessed("a.late", deadline_ms=NOW - 1), assessed("a.later", deadline_ms=NOW - 10_000)
    early = assessed("a.early", deadline_ms=NOW + 10_000)
    assert chosen(great, late, later, early) == ["a.later", "a.late", "a.great", "a.early"]


def test_choose_runs_requested_services_first_even_if_not_due_or_disabled() -> None:
    requested = assessed("a.requested", due=False, enabled=False, requested=True, benefit=0)
    assert chosen(assessed("a.late", deadline_ms=0), requested) == ["a.requested", "a.late"]


def test_choose_skips_services_that_are_not_due_or_disabled_with_a_reason() -> None:
    assert reason(assessed("a.b", due=False)) == "12 commits"
    assert reason(assessed("a.b", enabled=False)) == "switched off: services.clean.enabled is false"


def test_choose_starts_one_service_that_holds_file_groups_per_table() -> None:
    both = assessed("a.b", "compaction", benefit=9), assessed("a.b", "clustering", benefit=1)
    assert chosen(*both) == ["a.b"]
    assert reason(*both) == "compaction is chosen for this table in this pass, and both hold file groups"
    assert chosen(assessed("a.b", "compaction"), assessed("a.b", "clean")) == ["a.b", "a.b"]
    running = Load(running=[("a.b", "logcompaction")])
    assert "logcompaction runs" in reason(assessed("a.b", "clustering"), load=running)
    assert "a run of clean is active on this table" in reason(assessed("a.b"), load=Load(running=[("a.b", "clean")]))


def test_choose_starts_services_that_hold_disjoint_partitions_together() -> None:
    compaction = assessed("a.b", "compaction", ("day=1", "day=2"), benefit=9)
    assert chosen(compaction, assessed("a.b", "clustering", ("day=3",))) == ["a.b", "a.b"]
    assert chosen(compaction, assessed("a.b", "clustering", ("day=2", "day=3"))) == ["a.b"]
    # A plan without partitions may hold any file group.
    assert chosen(compaction, assessed("a.b", "clustering")) == ["a.b"]


def codes(rules: Rules, *services: AssessedService) -> dict[str, DecisionReason]:
    return {choice.assessed.service: choice.code for choice in choose_runs(services, rules, now_ms=NOW)}


def test_choose_keeps_file_groups_free_for_a_more_urgent_service_that_waits_for_a_limit() -> None:
    compaction = assessed("a.b", "compaction", ("day=1",), benefit=99)
    logs, other = assessed("a.b", "logcompaction", ("day=1",)), assessed("a.b", "clustering", ("day=2",))
    full = {"compaction": Budget(scope="compaction", limits=Limits(runs=1), runs=1)}
    assert codes(Rules(budgets=full), compaction, logs, other) == {
        "clustering": DecisionReason.DUE,
        "compaction": DecisionReason.RUN_LIMIT,
        "logcompaction": DecisionReason.FILE_GROUPS_WANTED,
    }
    # A less urgent service that waits holds nothing against a more urgent one.
    urgent = replace(logs, deadline_ms=NOW - 1)
    assert codes(Rules(budgets=full), compaction, urgent)["logcompaction"] is DecisionReason.OVERDUE
    # Quiet hours of the compaction do not stop the log compaction.
    quiet = replace(compaction, wait=Refusal(code=DecisionReason.QUIET_HOURS, text="quiet"))
    assert codes(Rules(), quiet, logs)["logcompaction"] is DecisionReason.DUE


def test_choose_holds_file_groups_for_a_submitted_run_and_names_its_stage() -> None:
    run = RunningService(table="a.b", service="compaction", partitions=("day=1",), stage=RunStage.SUBMITTED)
    found = codes(Rules(running=[run]), assessed("a.b", "compaction"), assessed("a.b", "clustering", ("day=1",)))
    assert found == {"compaction": DecisionReason.SUBMITTED, "clustering": DecisionReason.FILE_GROUPS_HELD}
    (waits,) = choose_runs([assessed("a.b", "clustering", ("day=1",))], Rules(running=[run]), now_ms=NOW)
    assert waits.reason.startswith("compaction was chosen for this table by an earlier pass, and its job has not begun")


def test_choose_starts_no_service_beside_a_change_of_the_table_version() -> None:
    run = RunningService(table="a.b", service="upgrade")
    (waits,) = choose_runs([assessed("a.b", "clean")], Rules(running=[run]), now_ms=NOW)
    assert (waits.chosen, waits.code) == (False, DecisionReason.FILE_GROUPS_HELD)
    assert waits.reason == "upgrade runs on this table, and no service runs beside a change of the table version"


def test_choose_respects_the_limits_of_runs_and_bytes() -> None:
    four = [assessed(f"a.t{n}", benefit=9 - n) for n in range(4)]
    assert chosen(*four, limits=Limits(runs=2)) == ["a.t0", "a.t1"]
    assert chosen(*four, limits=Limits(runs=2), load=Load(running=[("x.y", "clean")])) == ["a.t0"]
    assert chosen(*four, limits=Limits(bytes_per_hour=250)) == ["a.t0", "a.t1"]
    spent = Load(bytes_last_hour={"clean": 200})
    assert chosen(*four, limits=Limits(bytes_per_hour=250), load=spent) == []
    limits = Limits(bytes_per_hour=250)
    assert "200 of 250 bytes per hour of clean are spent" in reason(*four, limits=limits, load=spent)


def test_choose_runs_a_service_larger_than_the_hourly_budget_alone() -> None:
    huge = assessed("a.huge", bytes=10_000)
    assert chosen(huge, assessed("a.b", benefit=1), limits=Limits(bytes_per_hour=250)) == ["a.huge"]


def test_batches_put_small_tables_into_one_process() -> None:
    seconds = [10.0, 20.0, 400.0, 10.0, 10.0, 10.0]
    found = batches([assessed(f"a.t{n}", seconds=s) for n, s in enumerate(seconds)], max_tables=2, max_seconds=300)
    assert found == (("a.t0", "a.t1"), ("a.t2",), ("a.t3", "a.t4"), ("a.t5",))


services_assessed = st.builds(
    assessed,
    table=st.sampled_from(("a.a", "a.b", "a.c")),
    service=st.sampled_from(("compaction", "clustering", "clean", "logcompaction")),
    due=st.booleans(),
    requested=st.booleans(),
    enabled=st.booleans(),
    bytes=st.integers(0, 1000),
    benefit=st.integers(0, 50),
    deadline_ms=st.none() | st.integers(NOW - 100, NOW + 100),
)


@given(
    st.lists(services_assessed, max_size=8, unique_by=lambda c: (c.table, c.service)),
    st.integers(0, 3),
    st.integers(0, 2000),
)
def test_choices_respect_all_limits_and_conditions(found: list[AssessedService], runs: int, budget: int) -> None:
    limits = dict.fromkeys(
        ("compaction", "clustering", "clean", "logcompaction"), Limits(runs=runs, bytes_per_hour=budget)
    )
    choices = choose(found, limits, Load(), now_ms=NOW)
    assert sorted((c.assessed.table, c.assessed.service) for c in choices) == sorted(
        (c.table, c.service) for c in found
    )
    taken = [c.assessed for c in choices if c.chosen]
    for service in limits:
        mine = [c for c in taken if c.service == service]
        assert len(mine) <= runs
        assert (
            len(mine) <= 1
            or sum(c.assessment.cost.bytes for c in mine) <= budget
            or (sum(c.assessment.cost.bytes for c in mine[1:]) == 0 or mine[0].assessment.cost.bytes == 0)
        )
    for table in {c.table for c in taken}:
        services = {c.service for c in taken if c.table == table}
        assert sum(service_spec(service).holds_file_groups for service in services) <= 1
    assert all(c.requested or (c.assessment.due and c.enabled) for c in taken)
    assert all(choice.reason for choice in choices)
    assert choose(found[::-1], limits, Load(), now_ms=NOW)[: len(taken)] == choices[: len(taken)], (
        "the choice does not depend on the order of services"
    )
