"""Backend that reads and changes the fleet's state in a catalog database."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakehouse.cli.backends.catalog_actions import run_recorded
from lakehouse.cli.backends.protocol import ActionRequest, DueQuery, PolicyScope
from lakehouse.cli.fleet_pass import service_decision
from lakehouse.cli.specs import author, drift_warnings, spec_in_force, specs_in_force
from lakehouse.core.operations.load.table import stored_options
from lakehouse.errors import LakehouseError
from lakehouse.model.display import time_text
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.policy_view import PolicyFacts, table_policies
from lakehouse.platform.catalog.run_history import Decision, Run
from lakehouse.platform.catalog.run_records import lease_key
from lakehouse.platform.fleet_views.actions import actions_page
from lakehouse.platform.fleet_views.paging import MOST_ROWS, Paging
from lakehouse.platform.services.choose import Limits, batches
from lakehouse.platform.services.metrics import metrics
from lakehouse.platform.services.run import state_of
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.contracts.catalog import CatalogTable, CatalogTables, PolicyChange
from lakehouse.spec.contracts.decisions import (
    DueServices,
    RecordedDecision,
    RecordedRun,
    ServiceExplanation,
    ServiceState,
    ServiceStates,
    TableExplanation,
)
from lakehouse.spec.contracts.pages import ActionRecord, ActionResult, ActionsPage
from lakehouse.spec.contracts.policies import PolicyOrigin, TablePolicies
from lakehouse.spec.contracts.services import RecordedRequest
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.table.services import SERVICES

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CatalogBackend:
    """Backend on an open catalog. Changes are recorded with the user of the process as author."""

    catalog: Catalog

    def tables(self, namespace: str | None) -> CatalogTables:
        """Return the tables sorted by name, with their differences from the spec files."""
        drift = drift_warnings(self.catalog)
        return CatalogTables(
            tables=tuple(
                CatalogTable(
                    table=entry.identifier,
                    type=entry.spec.type,
                    spec_version=entry.spec_version,
                    author=entry.author,
                    location=entry.location,
                    drift=drift.get(entry.identifier),
                )
                for entry in self.catalog.list_tables(namespace)
            )
        )

    def states(self) -> ServiceStates:
        """Return the newest decision and the last run of every service and table."""
        entries = self.catalog.registered().values()
        states = (self._state(entry.identifier, entry.id, service) for entry in entries for service in SERVICES)
        return ServiceStates(services=tuple(state for state in states if state is not None))

    def _state(self, table: str, table_id: int, service: str) -> ServiceState | None:
        decisions = self.catalog.history.decisions(table_id, service)
        runs = self.catalog.history.runs(table_id, service, limit=1)
        if not decisions and not runs:
            return None
        last = state_of(runs[0], self.catalog.leases.holder(lease_key(table, service))) if runs else None
        return ServiceState(
            table=table,
            service=service,
            due=decisions[0].due if decisions else None,
            last_run=None if last is None else str(last.state),
            at=None if last is None else time_text(last.started_ms),
            reason=decisions[0].reason if decisions else "",
        )

    def explanation(self, table: str, services: Sequence[str]) -> TableExplanation:
        """Explain for each service of a table why it runs or waits."""
        return TableExplanation(
            table=self.catalog.entry(table).identifier,
            spec=spec_in_force(self.catalog, table),
            services={service: self._explained(table, service) for service in services or SERVICES},
        )

    def _explained(self, table: str, service: str) -> ServiceExplanation:
        catalog, entry = self.catalog, self.catalog.entry(table)
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

    def due(self, query: DueQuery) -> DueServices:
        """Decide which services run now, and record the decisions in the catalog."""
        services, tables = query.chosen_services, list(query.tables)
        limits = dict.fromkeys(services, Limits(runs=query.max_runs, bytes_per_hour=query.bytes_per_hour))
        with metrics() as measures:
            drift = specs_in_force(self.catalog, tables)
            choices = decide(self.catalog, services, tables=tables, limits=limits, force=query.force, drift=drift)
            measures.decisions(choices)
        packed = {
            service: batches(
                [choice.assessed for choice in choices if choice.chosen and choice.assessed.service == service],
                max_tables=query.batch_tables,
                max_seconds=query.batch_s,
            )
            for service in services
        }
        return DueServices(decisions=tuple(map(service_decision, choices)), batches=packed)

    def request(self, table: str, service: str, partitions: Sequence[str], author: str) -> RecordedRequest:
        """Record a request to run a service."""
        entry = self.catalog.entry(table)
        parameters = {"partitions": list(partitions)} if partitions else {}
        number = self.catalog.history.request(entry.id, service, parameters, requested_by=author)
        return RecordedRequest(table=entry.identifier, service=service, request=number, partitions=tuple(partitions))

    def policies(self, table: str, partition: str | None) -> TablePolicies:
        """Return the service settings of a table or partition, each with the place that declares it."""
        return policies_of(self.catalog, self.catalog.entry(table), partition=partition)

    def set_policy(self, scope: PolicyScope, settings: Mapping[str, Any]) -> PolicyChange:
        """Change settings of a service."""
        name, service, pattern = scope.name, scope.service, scope.pattern
        self.catalog.set_policy(name, service, settings, pattern=pattern, author=author(os.environ))
        warnings = without_effect(self.catalog, name, service, pattern)
        return PolicyChange(scope=name, service=service, pattern=pattern, changed=True, warnings=warnings)

    def remove_policy(self, scope: PolicyScope) -> PolicyChange:
        """Remove settings of a service."""
        changed = self.catalog.remove_policy(scope.name, scope.service, pattern=scope.pattern)
        return PolicyChange(scope=scope.name, service=scope.service, pattern=scope.pattern, changed=changed)

    def actions(self, table: str, limit: int) -> ActionsPage:
        """Return the newest actions of users."""
        now_ms, records = self.catalog.clock.now_ms(), list[ActionRecord]()
        with self.catalog.database.reading() as session:
            while True:
                paging = Paging(offset=len(records), limit=min(limit - len(records), MOST_ROWS))
                page = actions_page(session, paging, now_ms, table)
                records += page.actions
                if not page.actions or len(records) >= min(limit, page.total):
                    return replace(page, offset=0, actions=tuple(records))

    def run_action(self, request: ActionRequest) -> tuple[int, ActionResult]:
        """Run a recorded action in this process, or record a new one and run it."""
        return run_recorded(self.catalog, request)


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


def policies_of(catalog: Catalog, entry: TableEntry, *, partition: str | None = None) -> TablePolicies:
    """Return the effective policies of a table.

    If the table cannot be read, its spec is used instead of its properties.
    """
    siblings = {other.name: other.spec.services for other in catalog.list_tables(entry.namespace)}
    facts = PolicyFacts(
        namespace=entry.namespace,
        name=entry.name,
        merge_on_read=entry.spec.type == "MERGE_ON_READ",
        partitioned=bool(entry.spec.partition_by),
        declared=entry.spec.services,
        options=entry.spec.call_options(),
        spec=entry.source,
        siblings=siblings,
        **_of_table(catalog, entry),
    )
    return table_policies(facts, catalog.policies(entry.namespace), partition=partition)


def without_effect(catalog: Catalog, scope: str, service: str, pattern: str) -> tuple[str, ...]:
    """Explain why settings of a new policy have no effect; the result is empty if all have one."""
    of_table = "." in scope
    entries = (catalog.entry(scope),) if of_table else catalog.list_tables(scope)[:1]
    origin = PolicyOrigin.PATTERN if pattern else PolicyOrigin.TABLE if of_table else PolicyOrigin.NAMESPACE
    return tuple(
        dead.text
        for entry in entries
        for dead in policies_of(catalog, entry).dead
        if (dead.service, dead.pattern, dead.origin) == (service, pattern, origin)
    )


def _of_table(catalog: Catalog, entry: TableEntry) -> dict[str, Any]:
    try:
        table = catalog.load_table(entry.identifier)
        return {"stored": stored_options(table.config), "partitions": table.partitions()}
    except LakehouseError as error:
        logger.warning(
            "table %s cannot be read, so partition patterns are not checked against its partitions: %s",
            entry.identifier,
            error,
        )
        return {}
