"""`lakehouse services`: decisions of the scheduler about table services, and their reasons."""

from __future__ import annotations

from typing import Any

from lakehouse.cli.backends.open import open_backend
from lakehouse.cli.backends.protocol import DueQuery
from lakehouse.cli.group import Given
from lakehouse.cli.output import show, show_document
from lakehouse.cli.table import catalog_table, catalog_tables
from lakehouse.errors import LakehouseError
from lakehouse.model.texts import error_text
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.services.look import is_not_created
from lakehouse.platform.services.metrics import metrics
from lakehouse.spec.contracts.decisions import (
    ServiceDecision,
    TableHealth,
    TablesHealth,
)
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.quantities import parse_duration, parse_size

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
    """Print decisions on services that may run now."""
    name, tables = catalog_tables(given)
    query = DueQuery(
        services=tuple(given.service),
        tables=tuple(tables),
        force=given.force,
        max_runs=given.max_runs,
        bytes_per_hour=None if given.bytes_per_hour is None else parse_size("--bytes-per-hour", given.bytes_per_hour),
        batch_tables=given.batch_tables,
        batch_s=float(parse_duration("--batch-time", given.batch_time)),
    )
    with open_backend(name) as backend:
        decisions = backend.due(query)
    show_document(decisions, given.output, rows=[_row(decision) for decision in decisions.decisions])


def explain(given: Given) -> None:
    """Print why the services of a table run or wait."""
    name, table = catalog_table(given)
    with open_backend(name) as backend:
        explanation = backend.explanation(table, given.service)
    if given.output == "json":
        show_document(explanation, given.output)
        return
    print("spec")
    show(_words(explanation.spec), given.output)
    for service, explained in explanation.services.items():
        print(f"\n{service}")
        fields = _words(explained)
        decision = {name.replace("_", " "): part for name, part in (fields.pop("decision") or {}).items()}
        show({**(decision or {"decision": "none: `lakehouse services due` has not run yet"}), **fields}, given.output)


def _words(value: object) -> dict[str, Any]:
    """Return the fields of a contract by name, with spaces instead of underscores."""
    return {name.replace("_", " "): part for name, part in encode(value).items()}


def request(given: Given) -> None:
    """Record a request to run a service."""
    name, table = catalog_table(given)
    with open_backend(name) as backend:
        recorded = backend.request(table, given.service, given.partition, given.by)
    show_document(recorded, given.output)


def status(given: Given) -> None:
    """Print the last decision and the last run of every service."""
    with open_backend(given.catalog) as backend:
        states = backend.states()
    show_document(states, given.output, rows=[_words(row) for row in states.services])


def health(given: Given) -> None:
    """Print the health of tables."""
    rows = []
    where, tables = catalog_tables(given)
    with load_catalog(where) as catalog, metrics() as measures:
        for name in tables or [entry.identifier for entry in catalog.registered().values()]:
            try:
                numbers_of_table = catalog.load_table(name).health()
            except Exception as error:
                # An error of one table must not hide the health of the others.
                rows.append(
                    TableHealth(table=name, error=None if _is_not_created(catalog, name) else error_text(error))
                )
                continue
            measures.table(name, numbers_of_table)
            lag = numbers_of_table.freshness_lag_s
            numbers = {what: getattr(numbers_of_table, what) for what in _HEALTH}
            rows.append(TableHealth(table=name, freshness_lag_s=None if lag is None else round(lag, 1), **numbers))
    show_document(TablesHealth(tables=tuple(rows)), given.output, rows=[_words(row) for row in rows])


def _is_not_created(catalog: Catalog, table: str) -> bool:
    try:
        entry = catalog.registered_entry(table)
        return isinstance(entry, TableEntry) and is_not_created(entry)
    except LakehouseError:
        # The caller reports the first error, so this second one is dropped.
        return False


def _row(decision: ServiceDecision) -> dict[str, Any]:
    return {
        "table": decision.table,
        "service": decision.service,
        "due": decision.due,
        "runs now": decision.runs_now,
        "score": decision.score,
        "why": decision.reason,
    }
