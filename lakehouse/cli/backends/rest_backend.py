"""Backend over the REST API. It has the permissions of the token's user and needs no access to the database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.cli.backends.protocol import ActionRequest, DueQuery, PolicyScope
from lakehouse.errors import UserError
from lakehouse.model.display import time_text
from lakehouse.platform.remote.client import ApiClient
from lakehouse.spec.contracts.catalog import CatalogTable, CatalogTables, PolicyChange
from lakehouse.spec.contracts.decisions import (
    DecisionReason,
    DueServices,
    RecordedDecision,
    RecordedRun,
    ServiceDecision,
    ServiceExplanation,
    ServiceState,
    ServiceStates,
    SpecInForce,
    TableExplanation,
)
from lakehouse.spec.contracts.pages import (
    ActionRecord,
    ActionResult,
    ActionsPage,
    DecisionRecord,
    DueLine,
    RunRecord,
    ServiceLine,
)
from lakehouse.spec.contracts.policies import ServicePolicy, TablePolicies
from lakehouse.spec.contracts.services import RecordedRequest
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.table.services import SERVICES

_RUNS = 3


@dataclass(frozen=True, slots=True)
class RestBackend:
    """Backend that sends each read or change to the REST API of an Airflow deployment."""

    client: ApiClient

    def tables(self, namespace: str | None) -> CatalogTables:
        """Return the tables sorted by name. The API does not compare them with spec files."""
        rows = sorted(self.client.tables(namespace=namespace or ""), key=lambda row: row.table)
        return CatalogTables(
            tables=tuple(
                CatalogTable(
                    table=row.table,
                    type=row.type,
                    spec_version=row.spec_version,
                    author=row.author,
                    location=row.location,
                )
                for row in rows
            )
        )

    def states(self) -> ServiceStates:
        """Return the newest decision and last run of every service and table, with one HTTP request per table."""
        names = sorted(row.table for row in self.client.tables())
        lines = [(name, line) for name in names for line in self.client.table(name).services]
        return ServiceStates(services=tuple(_state(name, line) for name, line in lines if line.decision or line.run))

    def explanation(self, table: str, services: Sequence[str]) -> TableExplanation:
        """Explain for each service of a table why it runs or waits. The API does not compare the spec with its file."""
        page, policies = self.client.table(table), self.client.policies(table)
        settings = {policy.service: policy for policy in policies.policies}
        newest = page.specs[0] if page.specs else None
        spec = SpecInForce(
            spec_version=None if newest is None else newest.spec_version,
            author=None if newest is None else newest.author,
            file=None if newest is None else newest.source or None,
            since="" if newest is None else time_text(newest.created_ms),
        )
        explained = {
            line.service: self._explained(table, line, settings[line.service])
            for line in page.services
            if line.service in (services or SERVICES)
        }
        return TableExplanation(table=page.row.table, spec=spec, services=explained)

    def _explained(self, table: str, line: ServiceLine, policy: ServicePolicy) -> ServiceExplanation:
        why = self.client.decisions(table, line.service)
        active = [run.run for run in why.runs if run.state == "running"]
        return ServiceExplanation(
            settings={"enabled": policy.enabled, "priority": policy.priority, **policy.options},
            decision=None if line.decision is None else _decision(line.decision),
            active_run=active[0] if active else None,
            # The API of an earlier release returns only the number of requests.
            requests=why.requests or tuple({} for _ in range(line.requests)),
            last_runs=tuple(map(_run, why.runs[:_RUNS])),
        )

    def due(self, query: DueQuery) -> DueServices:
        """Return the recorded decisions on due services. The scheduler decides; the API only returns its decisions."""
        if query.force:
            raise UserError(
                "--force needs a new decision, but the API only returns recorded ones: use `lakehouse services request`"
            )
        lines = [line for name in query.tables or ("",) for line in self.client.due(search=name)]
        chosen = [line for line in lines if line.service in query.chosen_services]
        return DueServices(decisions=tuple(map(_due, chosen)))

    def request(self, table: str, service: str, partitions: Sequence[str], author: str) -> RecordedRequest:
        """Record a request to run a service. The author is the token's user; `author` is not sent."""
        del author
        parameters = {"partitions": list(partitions)} if partitions else {}
        record = self.client.act(table, "request_service", service=service, **parameters)
        return RecordedRequest(
            table=record.table, service=service, request=record.request or 0, partitions=tuple(partitions)
        )

    def policies(self, table: str, partition: str | None) -> TablePolicies:
        """Return the settings of all services."""
        return self.client.policies(table, partition)

    def set_policy(self, scope: PolicyScope, settings: Mapping[str, Any]) -> PolicyChange:
        """Change settings of a service."""
        record = self._change_policy(scope, "edit_policy", settings=dict(settings))
        warnings = tuple(map(str, record.result.get("warnings") or ()))
        return PolicyChange(
            scope=record.table, service=scope.service, pattern=scope.pattern, changed=True, warnings=warnings
        )

    def remove_policy(self, scope: PolicyScope) -> PolicyChange:
        """Remove settings of a service."""
        record = self._change_policy(scope, "remove_policy")
        changed = bool(record.result.get("changed"))
        return PolicyChange(scope=record.table, service=scope.service, pattern=scope.pattern, changed=changed)

    def _change_policy(self, scope: PolicyScope, action: str, **parameters: Any) -> ActionRecord:
        parameters |= {"service": scope.service, **({"pattern": scope.pattern} if scope.pattern else {})}
        if scope.table is None:
            return self.client.act_on_namespace(scope.name, action, **parameters)
        return self.client.act(scope.table, action, **parameters)

    def actions(self, table: str, limit: int) -> ActionsPage:
        """Return the newest actions of users."""
        records = self.client.actions(table, limit=limit)
        return ActionsPage(now_ms=0, total=len(records), offset=0, actions=records)

    def run_action(self, request: ActionRequest) -> tuple[int, ActionResult]:
        """Request an action in the name of the token's user. A DAG run executes it after this command has ended."""
        if request.id is not None:
            raise UserError("the DAG lakehouse.actions runs recorded actions; leave out --id, or unset LAKEHOUSE_API")
        if not request.table or not request.action:
            raise UserError("an action needs --table and --action; `lakehouse action run --help` lists the actions")
        return 0, ActionResult(action=self.client.act(request.table, request.action, **request.parameters))


def _state(table: str, line: ServiceLine) -> ServiceState:
    return ServiceState(
        table=table,
        service=line.service,
        due=None if line.decision is None else line.decision.due,
        last_run=None if line.run is None else line.run.state,
        at=None if line.run is None else time_text(line.run.started_ms),
        reason="" if line.decision is None else line.decision.reason,
    )


def _due(line: DueLine) -> ServiceDecision:
    decision = line.decision
    codes = {reason.value for reason in DecisionReason}
    return ServiceDecision(
        table=line.table,
        service=line.service,
        due=decision.due,
        runs_now=decision.chosen,
        requested=line.requested,
        code=DecisionReason(decision.code) if decision.code in codes else DecisionReason.DUE,
        reason=decision.reason,
        score=decision.score,
        inputs=decision.inputs,
        predicted=decision.predicted,
        deadline="" if decision.deadline_ms is None else time_text(decision.deadline_ms),
    )


def _decision(decision: DecisionRecord) -> RecordedDecision:
    return RecordedDecision(
        at=time_text(decision.decided_ms),
        due=decision.due,
        runs_now=decision.chosen,
        reason=decision.reason,
        score=decision.score,
        deadline="" if decision.deadline_ms is None else time_text(decision.deadline_ms),
        inputs=decision.inputs,
        predicted=decision.predicted,
    )


def _run(run: RunRecord) -> RecordedRun:
    return RecordedRun(
        run=run.run,
        state=run.state,
        at=time_text(run.started_ms),
        took=None if run.ended_ms is None else duration_text((run.ended_ms - run.started_ms) / 1000),
        tries=run.tries,
        instant=run.instant,
        predicted=run.predicted,
        actual=run.actual,
        error=run.error,
    )
