"""`lakehouse services`: decisions of the scheduler about table services, and their reasons."""

from __future__ import annotations

from typing import Any

from lakehouse.cli import remote
from lakehouse.cli.fleet_pass import service_decision
from lakehouse.cli.group import Given
from lakehouse.cli.output import show, show_document, show_rows
from lakehouse.cli.specs import spec_in_force, specs_in_force
from lakehouse.cli.table import catalog_table, catalog_tables
from lakehouse.errors import LakehouseError
from lakehouse.model.display import time_text
from lakehouse.model.texts import error_text
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.run_history import Decision, Run
from lakehouse.platform.remote.client import api_client
from lakehouse.platform.services.choose import Choice, Limits, batches
from lakehouse.platform.services.look import is_not_created
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.run import lease_key, state_of
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.contracts.decisions import (
    DueServices,
    RecordedDecision,
    RecordedRun,
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
from lakehouse.spec.table.services import SERVICES

_HEALTH = (
    "file_groups",
    "base_bytes",
    "log_bytes",
    "small_files",
    "pending_plans",
    "pending_writes",
    "instants",
)


def due(given: Given) -> None:
    """Decide which services run now, and print the decisions."""
    client = api_client()
    if client is not None:
        recorded = remote.due(client, given)
        show_document(recorded, given.output, rows=[_words(row) for row in recorded.decisions])
        return
    services = given.service or list(SERVICES)
    budget = None if given.bytes_per_hour is None else parse_size("--bytes-per-hour", given.bytes_per_hour)
    limits = dict.fromkeys(services, Limits(runs=given.max_runs, bytes_per_hour=budget))
    seconds = float(parse_duration("--batch-time", given.batch_time))
    name, tables = catalog_tables(given)
    with load_catalog(name) as catalog, metrics() as measures:
        drift = specs_in_force(catalog, tables)
        choices = decide(catalog, services, tables=tables, limits=limits, force=given.force, drift=drift)
        measures.decisions(choices)
    if given.output == "text":
        show_rows([_row(choice) for choice in choices])
        return
    packed = {
        service: batches(
            [c.assessed for c in choices if c.chosen and c.assessed.service == service],
            max_tables=given.batch_tables,
            max_seconds=seconds,
        )
        for service in services
    }
    show_document(DueServices(decisions=tuple(map(service_decision, choices)), batches=packed), given.output)


def explain(given: Given) -> None:
    """Print why services of a table run or wait."""
    client = api_client()
    found = _explanation(given) if client is None else remote.explanation(client, given.table, given.service)
    if given.output == "json":
        show_document(found, given.output)
        return
    print("spec")
    show(_words(found.spec), given.output)
    for service, explained in found.services.items():
        print(f"\n{service}")
        fields = _words(explained)
        decision = {name.replace("_", " "): part for name, part in (fields.pop("decision") or {}).items()}
        show({**(decision or {"decision": "none: `lakehouse services due` was not run yet"}), **fields}, given.output)


def _explanation(given: Given) -> TableExplanation:
    name, table = catalog_table(given)
    with load_catalog(name) as catalog:
        return TableExplanation(
            table=catalog.entry(table).identifier,
            spec=spec_in_force(catalog, table),
            services={service: _explained(catalog, table, service) for service in given.service or SERVICES},
        )


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


def request(given: Given) -> None:
    """Record the request of a service."""
    client = api_client()
    if client is not None:
        show_document(remote.request(client, given), given.output)
        return
    name, table = catalog_table(given)
    with load_catalog(name) as catalog:
        entry = catalog.entry(table)
        parameters = {"partitions": list(given.partition)} if given.partition else {}
        number = catalog.history.request(entry.id, given.service, parameters, requested_by=given.by)
    recorded = RecordedRequest(
        table=entry.identifier, service=given.service, request=number, partitions=tuple(given.partition)
    )
    show_document(recorded, given.output)


def status(given: Given) -> None:
    """Print the last decision and the last run of every service."""
    client = api_client()
    if client is not None:
        states = remote.states(client)
        show_document(states, given.output, rows=[_words(row) for row in states.services])
        return
    with load_catalog(given.catalog) as catalog:
        rows = [
            _state(catalog, entry.identifier, entry.id, service)
            for entry in catalog.registered().values()
            for service in SERVICES
        ]
    found = ServiceStates(services=tuple(row for row in rows if row is not None))
    show_document(found, given.output, rows=[_words(row) for row in found.services])


def health(given: Given) -> None:
    """Print the health of tables."""
    rows = []
    where, tables = catalog_tables(given)
    with load_catalog(where) as catalog, metrics() as measures:
        for name in tables or [entry.identifier for entry in catalog.registered().values()]:
            try:
                found = catalog.load_table(name).health()
            except Exception as error:
                # A fault of one table must not hide the health of the others.
                rows.append(
                    TableHealth(table=name, error=None if _is_not_created(catalog, name) else error_text(error))
                )
                continue
            measures.table(name, found)
            lag = found.freshness_lag_s
            numbers = {what: getattr(found, what) for what in _HEALTH}
            rows.append(TableHealth(table=name, freshness_lag_s=None if lag is None else round(lag, 1), **numbers))
    show_document(TablesHealth(tables=tuple(rows)), given.output, rows=[_words(row) for row in rows])


def _is_not_created(catalog: Catalog, table: str) -> bool:
    try:
        entry = catalog.registered_entry(table)
        return isinstance(entry, TableEntry) and is_not_created(entry)
    except LakehouseError:
        # The first error is the one to report.
        return False


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
        at=None if last is None else time_text(last.started_ms),
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


def _recorded(decision: Decision) -> RecordedDecision:
    return RecordedDecision(
        at=time_text(decision.decided_ms),
        due=decision.due,
        runs_now=decision.chosen,
        reason=decision.reason,
        score=round(decision.priority, 3),
        deadline="" if decision.deadline_ms is None else time_text(decision.deadline_ms),
        inputs=dict(decision.inputs),
        predicted=dict(decision.predicted),
    )


def _run(run: Run) -> RecordedRun:
    return RecordedRun(
        run=run.run_id,
        state=str(run.state),
        at=time_text(run.started_ms),
        took=None if run.ended_ms is None else duration_text((run.ended_ms - run.started_ms) / 1000),
        tries=run.tries,
        instant=run.instant,
        predicted=dict(run.predicted),
        actual=dict(run.actual),
        error=run.error,
    )
