"""Commands that use the REST API instead of the database, if `LAKEHOUSE_API` is set; the results are the same."""

from __future__ import annotations

from typing import Any

from lakehouse.cli.group import Given
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
from lakehouse.spec.contracts.pages import ActionRecord, ActionResult, ActionsPage, DecisionRecord, DueLine, RunRecord
from lakehouse.spec.contracts.policies import TablePolicies
from lakehouse.spec.contracts.services import RecordedRequest
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.table.services import SERVICES

_RUNS = 3


def tables(client: ApiClient, namespace: str | None) -> CatalogTables:
    """Return the tables of a namespace, or of all, by name."""
    rows = sorted(client.tables(namespace=namespace or ""), key=lambda row: row.table)
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


def states(client: ApiClient) -> ServiceStates:
    """Return the newest decision and the last run of every service and table, with one request per table."""
    names = sorted(row.table for row in client.tables())
    found = [(name, line) for name in names for line in client.table(name).services if line.decision or line.run]
    return ServiceStates(
        services=tuple(
            ServiceState(
                table=name,
                service=line.service,
                due=None if line.decision is None else line.decision.due,
                last_run=None if line.run is None else line.run.state,
                at=None if line.run is None else time_text(line.run.started_ms),
                reason="" if line.decision is None else line.decision.reason,
            )
            for name, line in found
        )
    )


def explanation(client: ApiClient, table: str, services: list[str] | tuple[str, ...]) -> TableExplanation:
    """Return why services of a table run or wait."""
    page, policies = client.table(table), client.policies(table)
    settings = {policy.service: policy for policy in policies.policies}
    newest = page.specs[0] if page.specs else None
    explained = {}
    for line in (line for line in page.services if line.service in (services or SERVICES)):
        why, policy = client.decisions(table, line.service), settings[line.service]
        active = [run.run for run in why.runs if run.state == "running"]
        explained[line.service] = ServiceExplanation(
            settings={"enabled": policy.enabled, "priority": policy.priority, **policy.options},
            decision=None if line.decision is None else _decision(line.decision),
            active_run=active[0] if active else None,
            requests=tuple({} for _ in range(line.requests)),
            last_runs=tuple(map(_run, why.runs[:_RUNS])),
        )
    spec = SpecInForce(
        spec_version=None if newest is None else newest.spec_version,
        author=None if newest is None else newest.author,
        file=None if newest is None else newest.source or None,
        since="" if newest is None else time_text(newest.created_ms),
    )
    return TableExplanation(table=page.row.table, spec=spec, services=explained)


def due(client: ApiClient, given: Given) -> DueServices:
    """Return the recorded decisions on due services; the scheduler decides, the API only shows."""
    if given.force:
        raise UserError("--force decides, and the API only shows decisions: use `lakehouse services request`")
    found = [line for name in given.table or [""] for line in client.due(search=name)]
    wanted = [line for line in found if line.service in (given.service or SERVICES)]
    return DueServices(decisions=tuple(map(_due, wanted)))


def request(client: ApiClient, given: Given) -> RecordedRequest:
    """Record the request of a service with the name of the token's user."""
    partitions = {"partitions": list(given.partition)} if given.partition else {}
    record = client.act(given.table, "request_service", service=given.service, **partitions)
    return RecordedRequest(
        table=record.table, service=given.service, request=record.request or 0, partitions=tuple(given.partition)
    )


def set_policy(client: ApiClient, given: Given, settings: dict[str, Any]) -> PolicyChange:
    """Change settings of a service of a table or a namespace."""
    record = _change_policy(client, given, "edit_policy", settings=settings)
    warnings = tuple(map(str, record.result.get("warnings") or ()))
    return PolicyChange(
        scope=record.table, service=given.service, pattern=given.pattern, changed=True, warnings=warnings
    )


def remove_policy(client: ApiClient, given: Given) -> PolicyChange:
    """Remove settings of a service of a table or a namespace."""
    record = _change_policy(client, given, "remove_policy")
    changed = bool(record.result.get("changed"))
    return PolicyChange(scope=record.table, service=given.service, pattern=given.pattern, changed=changed)


def _change_policy(client: ApiClient, given: Given, action: str, **parameters: Any) -> ActionRecord:
    if (given.table is None) == (given.namespace is None):
        raise UserError("a policy needs --table namespace.table, or --namespace for all its tables, and not both")
    parameters |= {"service": given.service, **({"pattern": given.pattern} if given.pattern else {})}
    if given.table is None:
        return client.act_on_namespace(given.namespace, action, **parameters)
    return client.act(given.table, action, **parameters)


def policies(client: ApiClient, given: Given) -> TablePolicies:
    """Return the settings of all services of a table with their origins."""
    return client.policies(given.table, given.partition)


def actions(client: ApiClient, given: Given) -> ActionsPage:
    """Return the newest actions of users."""
    found = client.actions(given.table or "", limit=min(given.limit, 200))
    return ActionsPage(now_ms=0, total=len(found), offset=0, actions=found)


def run_action(client: ApiClient, given: Given, parameters: dict[str, Any]) -> ActionResult:
    """Request an action with the name of the token's user; a DAG run does it after this command has ended."""
    if given.id is not None:
        raise UserError("the DAG lakehouse.actions does recorded actions; leave out --id, or unset LAKEHOUSE_API")
    if not given.table or not given.action:
        raise UserError("an action needs --table and --action; `lakehouse action run --help` lists the actions")
    return ActionResult(action=client.act(given.table, given.action, **parameters))


def _due(line: DueLine) -> ServiceDecision:
    decision = line.decision
    known = {reason.value for reason in DecisionReason}
    return ServiceDecision(
        table=line.table,
        service=line.service,
        due=decision.due,
        runs_now=decision.chosen,
        requested=line.requested,
        code=DecisionReason(decision.code) if decision.code in known else DecisionReason.DUE,
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
