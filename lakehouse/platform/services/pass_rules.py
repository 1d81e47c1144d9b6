"""Derive the limits of a pass (active runs, budgets by scope, slots) from the history in the catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import OpenRun
from lakehouse.platform.catalog.run_records import lease_key
from lakehouse.platform.services.assess import log_fault
from lakehouse.platform.services.budgets import Budget, Limits, Slots, budget_keys
from lakehouse.platform.services.candidates import Candidate
from lakehouse.platform.services.choose import Rules, RunningService, RunStage
from lakehouse.spec.contracts.fleet import RunBounds
from lakehouse.spec.table.scheduling import ALL_SERVICES, parse_common_limits, parse_scheduling
from lakehouse.spec.table.services import SERVICES, VERSION_CHANGES

_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInputs:
    """The limits of a service on all tables, the slots and the horizon of the pass, and its candidates."""

    limits: Mapping[str, Limits] = field(default_factory=dict)
    slots: int | None = None
    horizon_s: float = 300.0
    candidates: Sequence[Candidate] = ()


def end_crashed_runs(catalog: Catalog, services: Sequence[str]) -> None:
    """Record runs without a lease as died, so that their requests are open again."""
    # Runs that begin after this moment are ignored, because their leases may not be listed below.
    before_ms = catalog.clock.now_ms()
    ended = {*services, *VERSION_CHANGES}
    open_runs = [run for run in catalog.history.open_runs() if run.service in ended]
    names = catalog.states.names({run.table_id for run in open_runs})
    keys = {lease_key(names[run.table_id], run.service): run for run in open_runs if run.table_id in names}
    for key in sorted(keys.keys() - catalog.leases.held_keys(keys)):
        run = keys[key]
        catalog.history.end_expired_runs(run.table_id, run.service, active_run=None, before_ms=before_ms)


def active_runs(catalog: Catalog) -> dict[tuple[str, str], OpenRun]:
    """Return the runs with a valid lease by (table, service)."""
    open_runs = catalog.history.open_runs()
    names = catalog.states.names({run.table_id for run in open_runs})
    keys = {lease_key(names[run.table_id], run.service): run for run in open_runs if run.table_id in names}
    return {(names[keys[key].table_id], keys[key].service): keys[key] for key in catalog.leases.held_keys(keys)}


def rules_of(catalog: Catalog, inputs: RuleInputs) -> Rules:
    """Return the rules for choosing runs, from active and started runs, the usage in the last hour, and policies."""
    now_ms, active = catalog.clock.now_ms(), active_runs(catalog)
    started = {(one.assessed.table, one.assessed.service): one.assessed for one in inputs.candidates if one.started}
    waiting = {key: assessed for key, assessed in started.items() if key not in active}
    budgets = _budgets(catalog, inputs)
    spent = [*_spent(catalog, now_ms), *((*key, now_ms, one.assessment.cost.bytes) for key, one in waiting.items())]
    for table, service, started_ms, size in spent:
        for budget in _of_scopes(budgets, table, service):
            budget.spent.append((started_ms, size))
    running = []
    for table, service in sorted(active.keys() | waiting.keys()):
        for budget in _of_scopes(budgets, table, service):
            budget.runs += 1
        candidate = started.get((table, service))
        partitions = () if candidate is None else candidate.assessment.cost.partitions
        stage = RunStage.ACTIVE if (table, service) in active else RunStage.SUBMITTED
        running.append(RunningService(table=table, service=service, partitions=partitions, stage=stage))
    left = [max(run.seconds - (now_ms - run.started_ms) / 1000, 1.0) for run in active.values()]
    busy = [*left, *(assessed.seconds for assessed in waiting.values())]
    slots = None if inputs.slots is None else Slots(inputs.slots, busy, inputs.horizon_s)
    return Rules(running=running, budgets=budgets, slots=slots)


def _spent(catalog: Catalog, now_ms: int) -> list[tuple[str, str, int, int]]:
    rows = catalog.history.spent_since(now_ms - _HOUR_MS)
    names = catalog.states.names({table for table, *_ in rows})
    return [(names[table], service, at, size) for table, service, at, size in rows if table in names]


def _budgets(catalog: Catalog, inputs: RuleInputs) -> dict[str, Budget]:
    """Return the budgets of services, of namespaces by their policies, and of tables by their candidates."""
    budgets = {
        service: Budget(scope=service, limits=limits) for service, limits in inputs.limits.items() if _limits(limits)
    }
    policies = catalog.policies()
    for namespace in catalog.list_namespaces():
        for service in (ALL_SERVICES, *SERVICES):
            what = "all services" if service == ALL_SERVICES else service
            settings = policies.settings_of(namespace, "", {}, service)
            budget = _budget_of_policy(f"{what} in namespace {namespace}", service, settings)
            if _limits(budget.limits):
                budgets[f"{namespace}/{service}"] = budget
    for one in inputs.candidates:
        bounds = RunBounds() if one.due is None else one.due.bounds
        limits = Limits(runs=bounds.max_runs, bytes_per_hour=bounds.bytes_per_hour)
        if _limits(limits):
            table, service = one.assessed.table, one.assessed.service
            budgets[f"{table}/{service}"] = Budget(scope=f"{service} of {table}", limits=limits)
    return budgets


def _budget_of_policy(scope: str, service: str, settings: Mapping[str, Any]) -> Budget:
    """Return the budget of a namespace's policy; an invalid policy allows no run, and its scope contains the reason.

    An error would stop the services in all other namespaces.
    """
    try:
        if service == ALL_SERVICES:
            limits = parse_common_limits(settings)
        else:
            limits = parse_scheduling(service, settings)
    except UserError as error:
        log_fault(f"the policy of {scope}", error)
        return Budget(scope=f"{scope}, whose policy is refused ({error})", limits=Limits(runs=0))
    return Budget(scope=scope, limits=Limits(runs=limits.max_runs, bytes_per_hour=limits.bytes_per_hour))


def _limits(limits: Limits) -> bool:
    return limits.runs is not None or limits.bytes_per_hour is not None


def _of_scopes(budgets: Mapping[str, Budget], table: str, service: str) -> list[Budget]:
    keys = service, *budget_keys(table, service)
    return [budgets[key] for key in keys if key in budgets]
