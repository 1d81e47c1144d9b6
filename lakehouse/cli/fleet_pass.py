"""`lakehouse services pass | release`: run one pass of the fleet scheduler, or release runs that did not start."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import catalog_tables
from lakehouse.model.display import time_text
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.table_states import LookLimits
from lakehouse.platform.services.budgets import Limits
from lakehouse.platform.services.choose import Choice
from lakehouse.platform.services.claims import release_claims
from lakehouse.platform.services.fleet_pass import PassResult, PassSettings, run_pass
from lakehouse.platform.services.job_batches import BatchSize
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.table_gauges import watch_tables
from lakehouse.spec.contracts.decisions import DecisionReason, ServiceDecision
from lakehouse.spec.contracts.fleet import FleetPass, ReleasedRuns
from lakehouse.spec.quantities import parse_duration, parse_size
from lakehouse.spec.table.services import SERVICES

#: Decisions that are not printed, because they contain nothing new for a user.
_QUIET = (DecisionReason.NOT_DUE, DecisionReason.DISABLED)


def run(given: Given) -> None:
    """Run a pass, and print its decisions and the jobs to start."""
    name, tables = catalog_tables(given)
    with load_catalog(name) as catalog, metrics() as measures:
        settings = _settings(given, tables)
        document = _document(run_pass(catalog, settings, measures))
        if settings.rules is not None and not tables:
            watch_tables(catalog, settings.rules, measures)
    rows = [_row(decision) for decision in document.decisions if decision.code not in _QUIET]
    show_document(document, given.output, rows=rows)


def release(given: Given) -> None:
    """Release the runs that ended passes chose and that did not start, and print them."""
    name, tables = catalog_tables(given)
    with load_catalog(name) as catalog:
        document = ReleasedRuns(runs=release_claims(catalog, given.claim, tables=tables, services=given.service))
    show_document(document, given.output, rows=[asdict(run) for run in document.runs])


def _settings(given: Given, tables: list[str]) -> PassSettings:
    budget = None if given.bytes_per_hour is None else parse_size("--bytes-per-hour", given.bytes_per_hour)
    services = tuple(given.service) or SERVICES
    return PassSettings(
        services=services,
        tables=tuple(tables),
        skip_unknown=given.skip_unknown,
        looks=LookLimits(changed=given.looks, rotation=given.rotation),
        limits=dict.fromkeys(services, Limits(runs=given.max_runs, bytes_per_hour=budget)),
        slots=given.slots,
        horizon_s=float(parse_duration("--horizon", given.horizon)),
        rules=load_rules(),
        claim=given.claim,
        batch=BatchSize(tables=given.batch_tables, seconds=float(parse_duration("--batch-time", given.batch_time))),
    )


def _document(result: PassResult) -> FleetPass:
    unreadable = {seen.entry.identifier: seen.error for seen in result.looks if seen.error is not None}
    return FleetPass(
        looked=tuple(seen.entry.identifier for seen in result.looks),
        decisions=tuple(map(service_decision, result.choices)),
        batches=result.batches,
        unreadable=unreadable,
        waiting=sum(choice.assessed.assessment.due and not choice.chosen for choice in result.choices),
        claims=result.claims,
    )


def service_decision(choice: Choice) -> ServiceDecision:
    """Convert a decision to the contract that commands print."""
    assessed = choice.assessed
    return ServiceDecision(
        table=assessed.table,
        service=assessed.service,
        due=assessed.assessment.due,
        runs_now=choice.chosen,
        requested=assessed.requested,
        code=choice.code,
        reason=choice.reason,
        score=round(assessed.score, 3),
        inputs=dict(assessed.assessment.inputs),
        predicted={**assessed.assessment.cost.numbers, "seconds": round(assessed.seconds, 1)},
        deadline="" if assessed.deadline_ms is None else time_text(assessed.deadline_ms),
        starts="" if choice.starts_ms is None else time_text(choice.starts_ms),
    )


def _row(decision: ServiceDecision) -> dict[str, Any]:
    return {
        "table": decision.table,
        "service": decision.service,
        "runs now": decision.runs_now,
        "score": decision.score,
        "starts": decision.starts or None,
        "why": decision.reason,
    }
