"""The page of one table: state, services, spec versions, growth; and the decisions on one service.

Each document takes a fixed number of queries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import (
    DecisionRow,
    LeaseRow,
    RequestRow,
    RunRow,
    SpecRow,
    TablePointRow,
    TableRow,
    TableStateRow,
)
from lakehouse.platform.catalog.run_history import RequestState
from lakehouse.platform.fleet_views.fleet import fleet_row
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.platform.fleet_views.policies import policies_of
from lakehouse.platform.fleet_views.records import decision_record, run_record
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.contracts.pages import (
    DecisionRecord,
    GrowthPoint,
    ServiceLine,
    SpecChange,
    TablePage,
    TableRuns,
    WhyPage,
)
from lakehouse.spec.table.services import SERVICES, VERSION_CHANGES, service_spec

_SPECS, _RUNS, _DECISIONS, _ALL_RUNS = 50, 50, 50, 1000
_GROWTH_MS, _STEP_MS = 30 * 86_400_000, 4 * 3_600_000


def table_page(session: Session, identifier: str, now_ms: int) -> TablePage:
    """Return the document about a table; raise UnknownTableError for an unknown table."""
    table = table_row(session, identifier)
    spec = session.get(SpecRow, (table.id, table.spec_version))
    versions = select(SpecRow.version, SpecRow.author, SpecRow.source, SpecRow.created_ms).where(
        SpecRow.table_id == table.id
    )
    newest = versions.order_by(SpecRow.version.desc()).limit(_SPECS)
    document: Mapping[str, Any] = {} if spec is None else spec.document
    return TablePage(
        now_ms=now_ms,
        row=fleet_row(table, session.get(TableStateRow, table.id)),
        spec=document,
        specs=tuple(
            SpecChange(spec_version=version, author=author, source=source, created_ms=created_ms)
            for version, author, source, created_ms in session.execute(newest)
        ),
        services=_services(session, table, document, now_ms),
        points=_points(session, table.id, now_ms),
    )


def why_page(session: Session, identifier: str, service: str, now_ms: int) -> WhyPage:
    """Return the decisions and runs of a service on a table, newest first."""
    table, spec = table_row(session, identifier), service_spec(service)
    mine = {"table_id": table.id, "service": spec.name}
    decisions = select(DecisionRow).filter_by(**mine).order_by(DecisionRow.id.desc()).limit(_DECISIONS)
    runs = select(RunRow).filter_by(**mine).order_by(RunRow.started_ms.desc(), RunRow.id.desc()).limit(_RUNS)
    requests = select(RequestRow).filter_by(**mine, state=RequestState.OPEN).order_by(RequestRow.id)
    active = _active_runs(session, identifier, now_ms)
    return WhyPage(
        now_ms=now_ms,
        table=identifier,
        service=service,
        decisions=tuple(map(decision_record, session.scalars(decisions))),
        runs=tuple(
            run_record(row, identifier, has_lease=active.get(service) == row.run_id) for row in session.scalars(runs)
        ),
        requests=tuple(dict(row.parameters) for row in session.scalars(requests)),
    )


def table_runs(session: Session, identifier: str, now_ms: int) -> TableRuns:
    """Return the newest runs of a table."""
    table, active = table_row(session, identifier), _active_runs(session, identifier, now_ms)
    query = select(RunRow).where(RunRow.table_id == table.id).order_by(RunRow.started_ms.desc()).limit(_ALL_RUNS)
    rows = session.scalars(query)
    runs = tuple(run_record(row, identifier, has_lease=active.get(row.service) == row.run_id) for row in rows)
    return TableRuns(now_ms=now_ms, table=identifier, runs=runs)


def _services(session: Session, table: TableRow, spec: Mapping[str, Any], now_ms: int) -> tuple[ServiceLine, ...]:
    identifier = f"{table.namespace}.{table.name}"
    declared: Mapping[str, Any] = spec.get("services") or {}
    policies, active = policies_of(session, table.namespace), _active_runs(session, identifier, now_ms)
    newest = select(func.max(DecisionRow.id)).filter_by(table_id=table.id).group_by(DecisionRow.service)
    decided = select(DecisionRow).where(DecisionRow.id.in_(newest))
    decisions = {row.service: decision_record(row) for row in session.scalars(decided)}
    age = func.row_number().over(partition_by=RunRow.service, order_by=(RunRow.started_ms.desc(), RunRow.id.desc()))
    aged = select(RunRow.id, age.label("age")).where(RunRow.table_id == table.id).subquery()
    last = select(RunRow).join(aged, aged.c.id == RunRow.id).where(aged.c.age == 1)
    runs = {
        row.service: run_record(row, identifier, has_lease=active.get(row.service) == row.run_id)
        for row in session.scalars(last)
    }
    open_requests = select(RequestRow.service, func.count()).filter_by(table_id=table.id, state=RequestState.OPEN)
    requests: dict[str, int] = dict(session.execute(open_requests.group_by(RequestRow.service)).all())
    return tuple(
        ServiceLine(
            service=service,
            enabled=_enabled(service, policies.settings_of(table.namespace, table.name, declared, service)),
            applies=_applies(service, spec, decisions.get(service)),
            requests=requests.get(service, 0),
            decision=decisions.get(service),
            run=runs.get(service),
        )
        for service in SERVICES
    )


def _applies(service: str, spec: Mapping[str, Any], decision: DecisionRecord | None) -> bool:
    """Return whether a service supports the table, by the last decision or else by the declared table type."""
    if decision is not None:
        return decision.code != DecisionReason.NOT_APPLICABLE
    return not (service_spec(service).merge_on_read_only and spec.get("type") == "COPY_ON_WRITE")


def _enabled(service: str, settings: Mapping[str, Any]) -> bool:
    return str(settings.get("enabled", service_spec(service).enabled_by_default)).lower() != "false"


def _active_runs(session: Session, identifier: str, now_ms: int) -> dict[str, str]:
    """Return the runs that hold a lease on the table, by service."""
    keys = [f"{identifier}/{service}" for service in (*SERVICES, *VERSION_CHANGES)]
    query = select(LeaseRow.key, LeaseRow.owner).where(LeaseRow.key.in_(keys), LeaseRow.expires_ms > now_ms)
    return {key.rpartition("/")[2]: owner for key, owner in session.execute(query)}


def _points(session: Session, table_id: int, now_ms: int) -> tuple[GrowthPoint, ...]:
    query = select(TablePointRow).where(
        TablePointRow.table_id == table_id, TablePointRow.hour_ms >= now_ms - _GROWTH_MS
    )
    steps = {row.hour_ms // _STEP_MS: row for row in session.scalars(query.order_by(TablePointRow.hour_ms))}
    return tuple(GrowthPoint(hour_ms=row.hour_ms, numbers=dict(row.numbers or {})) for row in steps.values())
