"""The settings of a table's services with the origin of each value, and the preview of a change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import PolicyRow, SpecRow, TableRow
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.contracts.pages import EffectiveSetting, PolicyPage, ServiceSettingsLine
from lakehouse.spec.options.policies import POLICIES
from lakehouse.spec.services import SERVICES, service_settings, service_spec

#: Settings of the scheduler, with their defaults.
_SCHEDULING: Mapping[str, Any] = {"enabled": True, "priority": 1.0, "deadline": None}


def policy_page(session: Session, identifier: str, now_ms: int) -> PolicyPage:
    """Return the settings of all services of a table with their origins; three queries."""
    table = table_row(session, identifier)
    spec = session.get(SpecRow, (table.id, table.spec_version))
    declared = {} if spec is None else spec.document.get("services") or {}
    rows = _policies(session, table)
    lines = tuple(service_line(table, declared, rows, service) for service in SERVICES)
    return PolicyPage(now_ms=now_ms, table=identifier, services=lines)


def service_line(
    table: TableRow, declared: Mapping[str, Any], rows: Sequence[PolicyRow], service: str
) -> ServiceSettingsLine:
    """Return the settings of one service: defaults, namespace, spec, table; and those of patterns apart."""
    merged = {name: EffectiveSetting(name=name, value=value, origin="default") for name, value in _defaults(service)}
    own = [row for row in rows if row.service == service]
    for row in own:
        if not row.name:
            merged |= _set(row, "namespace", row.namespace)
    for name, value in (declared.get(service) or {}).items():
        scope = f"version {table.spec_version}"
        merged[name] = EffectiveSetting(name=name, value=encode(value), origin="spec", scope=scope)
    for row in own:
        if row.name and not row.pattern:
            merged |= _set(row, "table", f"{row.namespace}.{row.name}")
    patterns = [setting for row in own if row.pattern for setting in _set(row, "pattern", row.pattern).values()]
    return ServiceSettingsLine(service=service, settings=tuple(merged.values()), patterns=tuple(patterns))


def policy_change(
    session: Session, identifier: str, service: str, settings: Mapping[str, Any], pattern: str = ""
) -> tuple[str, ...]:
    """Return the sentences that describe what a change of a table's policy would change; check the values.

    Raises UserError for an unknown setting and an invalid value.
    """
    service_settings(service, settings)
    table = table_row(session, identifier)
    spec = session.get(SpecRow, (table.id, table.spec_version))
    declared = {} if spec is None else spec.document.get("services") or {}
    line = service_line(table, declared, _policies(session, table), service)
    before = {setting.name: setting for setting in line.settings}
    if pattern:
        before |= {setting.name: setting for setting in line.patterns if setting.scope == pattern}
    where = f"partitions of {identifier} that match {pattern}" if pattern else identifier
    found = []
    for name, value in settings.items():
        old = before.get(name)
        if old is not None and str(old.value).lower() == str(value).lower():
            found.append(f"{service}.{name} of {where} stays {_shown(value)}, which comes from {_origin(old)}.")
        else:
            was = "unset" if old is None else f"{_shown(old.value)}, from {_origin(old)}"
            found.append(f"{service}.{name} of {where} becomes {_shown(value)}; it is {was}.")
    return tuple(found)


def _set(row: PolicyRow, origin: str, scope: str) -> dict[str, EffectiveSetting]:
    return {
        name: EffectiveSetting(
            name=name, value=value, origin=origin, scope=scope, author=row.author, updated_ms=row.updated_ms
        )
        for name, value in row.settings.items()
    }


def _policies(session: Session, table: TableRow) -> Sequence[PolicyRow]:
    names = PolicyRow.name.in_(("", table.name))
    query = select(PolicyRow).where(PolicyRow.namespace == table.namespace, names)
    return session.scalars(query.order_by(PolicyRow.id)).all()


def _defaults(service: str) -> list[tuple[str, Any]]:
    policy = POLICIES[service_spec(service).options]()
    return [*_SCHEDULING.items(), *((part.name, encode(getattr(policy, part.name))) for part in fields(policy))]


def _origin(setting: EffectiveSetting) -> str:
    return f"{setting.origin} {setting.scope}".strip()


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
