"""`lakehouse services due | explain | request | status | health`: decisions of the scheduler and their reasons."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from lakehouse.cli.arguments import catalog_argument
from lakehouse.cli.output import show, show_document
from lakehouse.cli.specs import spec_in_force, specs_in_force
from lakehouse.errors import LakehouseError, UserError, nearest
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.connect import DEFAULT
from lakehouse.platform.catalog.run_history import Decision, Run
from lakehouse.platform.services.choose import Choice, Limits, batches
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.run import lease_key, state_of
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.contracts.decisions import (
    DueServices,
    RecordedDecision,
    RecordedRun,
    ServiceDecision,
    ServiceExplanation,
    ServiceState,
    ServiceStates,
    TableExplanation,
    TableHealth,
    TablesHealth,
)
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.contracts.services import RecordedRequest
from lakehouse.spec.quantities import duration_text, parse_duration, parse_size
from lakehouse.spec.services import SERVICES

_VERBS = ("due", "explain", "request", "status", "health")


_HEALTH = (
    "file_groups",
    "base_bytes",
    "log_bytes",
    "small_files",
    "pending_plans",
    "pending_writes",
    "instants",
)


def services_command(words: Sequence[str]) -> int:
    """Run one command about the services of all tables."""
    verb = words[1] if len(words) > 1 else ""
    if verb not in _VERBS:
        known = ", ".join(_VERBS)
        raise UserError(f"lakehouse services {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS)}")
    return {"due": _due, "explain": _explain, "request": _request, "status": _status, "health": _health}[verb](
        words[2:]
    )


def _due(words: Sequence[str]) -> int:
    parser = _parser("services due")
    parser.add_argument("--service", action="append", choices=SERVICES, help="default: all")
    parser.add_argument("--table", action="append", default=[], help="namespace.table; default: all")
    parser.add_argument("--force", action="store_true", help="also run services that are not due")
    parser.add_argument("--max-runs", type=int, help="runs of a service at the same time")
    parser.add_argument("--bytes-per-hour", help="bytes that runs of a service may move in an hour, such as 500GB")
    parser.add_argument("--batch-tables", type=int, default=20, help="maximum number of tables per process")
    parser.add_argument("--batch-time", default="5m", help="maximum predicted duration of one process")
    given = parser.parse_args(words)
    services = given.service or list(SERVICES)
    budget = None if given.bytes_per_hour is None else parse_size("--bytes-per-hour", given.bytes_per_hour)
    limits = dict.fromkeys(services, Limits(runs=given.max_runs, bytes_per_hour=budget))
    seconds = float(parse_duration("--batch-time", given.batch_time))
    with load_catalog(given.catalog) as catalog, metrics() as measures:
        drift = specs_in_force(catalog, given.table)
        choices = decide(catalog, services, tables=given.table, limits=limits, force=given.force, drift=drift)
        measures.decisions(choices)
    if given.output == "text":
        show([_row(choice) for choice in choices], given.output)
        return 0
    packed = {
        service: batches(
            [c.assessed for c in choices if c.chosen and c.assessed.service == service],
            max_tables=given.batch_tables,
            max_seconds=seconds,
        )
        for service in services
    }
    show_document(DueServices(decisions=tuple(map(_decision, choices)), batches=packed), given.output)
    return 0


def _explain(words: Sequence[str]) -> int:
    parser = _parser("services explain")
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("--service", action="append", choices=SERVICES, help="default: all")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        found = TableExplanation(
            table=catalog.entry(given.table).identifier,
            spec=spec_in_force(catalog, given.table),
            services={service: _explained(catalog, given.table, service) for service in given.service or SERVICES},
        )
    if given.output == "json":
        show_document(found, given.output)
        return 0
    print("spec")
    show(_words(found.spec), given.output)
    for service, explained in found.services.items():
        print(f"\n{service}")
        fields = _words(explained)
        decision = fields.pop("decision")
        show({**(decision or {"decision": "none: `lakehouse services due` was not run yet"}), **fields}, given.output)
    return 0


def _words(value: object) -> dict[str, Any]:
    """Return the fields of a contract for people: with spaces instead of underscores."""
    return {name.replace("_", " "): part for name, part in encode(value).items()}


def _explained(catalog: Catalog, table: str, service: str) -> ServiceExplanation:
    entry = catalog.entry(table)
    settings = catalog.settings(table, service)
    decisions = catalog.history.decisions(entry.id, service)
    runs = catalog.history.runs(entry.id, service, limit=3)
    holder = catalog.leases.holder(lease_key(entry.identifier, service))
    return ServiceExplanation(
        settings={"enabled": settings.enabled, "priority": settings.priority, **settings.options},
        decision=_recorded(decisions[0]) if decisions else None,
        active_run=None if holder is None else holder.owner,
        requests=tuple(dict(wish.parameters) for wish in catalog.history.open_requests(entry.id, service)),
        last_runs=tuple(_run(state_of(run, holder)) for run in runs),
    )


def _request(words: Sequence[str]) -> int:
    parser = _parser("services request")
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--partition", action="append", default=[], help="only this partition; may be repeated")
    parser.add_argument("--by", default="", help="author of the request")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        entry = catalog.entry(given.table)
        parameters = {"partitions": given.partition} if given.partition else {}
        number = catalog.history.request(entry.id, given.service, parameters, requested_by=given.by)
    recorded = RecordedRequest(
        table=entry.identifier, service=given.service, request=number, partitions=tuple(given.partition)
    )
    show_document(recorded, given.output)
    return 0


def _status(words: Sequence[str]) -> int:
    given = _parser("services status").parse_args(words)
    with load_catalog(given.catalog) as catalog:
        rows = [
            _state(catalog, entry.identifier, entry.id, service)
            for entry in catalog.list_tables()
            for service in SERVICES
        ]
    found = ServiceStates(services=tuple(row for row in rows if row is not None))
    show_document(found, given.output, rows=[_words(row) for row in found.services])
    return 0


def _health(words: Sequence[str]) -> int:
    parser = _parser("services health")
    parser.add_argument("--table", action="append", default=[], help="namespace.table; default: all")
    given = parser.parse_args(words)
    rows = []
    with load_catalog(given.catalog) as catalog, metrics() as measures:
        for name in given.table or [entry.identifier for entry in catalog.list_tables()]:
            try:
                health = catalog.load_table(name).health()
            except LakehouseError as error:
                rows.append(TableHealth(table=name, error=f"{type(error).__name__}: {error}"))
                continue
            measures.table(name, health)
            lag = health.freshness_lag_s
            numbers = {what: getattr(health, what) for what in _HEALTH}
            rows.append(TableHealth(table=name, freshness_lag_s=None if lag is None else round(lag, 1), **numbers))
    found = TablesHealth(tables=tuple(rows))
    show_document(found, given.output, rows=[_words(row) for row in found.tables])
    return 0


def _state(catalog: Catalog, table: str, table_id: int, service: str) -> ServiceState | None:
    decisions, runs = catalog.history.decisions(table_id, service), catalog.history.runs(table_id, service, limit=1)
    if not decisions and not runs:
        return None
    last = state_of(runs[0], catalog.leases.holder(lease_key(table, service))) if runs else None
    return ServiceState(
        table=table,
        service=service,
        due=decisions[0].due if decisions else None,
        last_run=None if last is None else str(last.state),
        at=None if last is None else _time(last.started_ms),
        reason=decisions[0].reason if decisions else "",
    )


def _row(choice: Choice) -> dict[str, Any]:
    assessed = choice.assessed
    return {
        "table": assessed.table,
        "service": assessed.service,
        "due": assessed.assessment.due,
        "runs now": choice.chosen,
        "score": round(assessed.score, 3),
        "why": choice.reason,
    }


def _decision(choice: Choice) -> ServiceDecision:
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
        predicted={**asdict(assessed.assessment.cost), "seconds": round(assessed.seconds, 1)},
        deadline="" if assessed.deadline_ms is None else _time(assessed.deadline_ms),
    )


def _recorded(decision: Decision) -> RecordedDecision:
    return RecordedDecision(
        at=_time(decision.decided_ms),
        due=decision.due,
        runs_now=decision.chosen,
        reason=decision.reason,
        score=round(decision.priority, 3),
        deadline="" if decision.deadline_ms is None else _time(decision.deadline_ms),
        inputs=dict(decision.inputs),
        predicted=dict(decision.predicted),
    )


def _run(run: Run) -> RecordedRun:
    return RecordedRun(
        run=run.run_id,
        state=str(run.state),
        at=_time(run.started_ms),
        took=None if run.ended_ms is None else duration_text((run.ended_ms - run.started_ms) / 1000),
        tries=run.tries,
        instant=run.instant,
        predicted=dict(run.predicted),
        actual=dict(run.actual),
        error=run.error,
    )


def _time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lakehouse {command}")
    parser.add_argument("--catalog", type=catalog_argument, default=DEFAULT, help="name or URL of the catalog")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser
