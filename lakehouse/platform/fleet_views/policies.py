"""The settings of a table's services with the origin of each value, and the preview of a change.

The document is the same as in `lakehouse policy show`, without facts that only the table files contain: options in the
properties, and partitions to compare with patterns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError, nearest
from lakehouse.model.display import some
from lakehouse.platform.catalog.models import NamespaceRow, PolicyRow, SpecRow, TableRow
from lakehouse.platform.catalog.policies import ServicePolicies, ServicePolicy
from lakehouse.platform.catalog.policy_view import PolicyFacts, table_policies
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.spec.actions import Effects
from lakehouse.spec.contracts.document import mirror
from lakehouse.spec.contracts.policies import PolicyOrigin, PolicySetting, TablePolicies
from lakehouse.spec.secrets import redact_text
from lakehouse.spec.table.scheduling import ALL_SERVICES, parse_common_limits
from lakehouse.spec.table.service_settings import service_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScope:
    """The scope of a policy: a namespace, one of its tables, or the partitions of a table that match a pattern."""

    namespace: str
    name: str = ""
    pattern: str = ""


def table_policy_page(session: Session, identifier: str, partition: str | None = None) -> TablePolicies:
    """Return the settings of all services on a table or a partition, with their origins; four queries."""
    table = table_row(session, identifier)
    spec = session.get(SpecRow, (table.id, table.spec_version))
    document: Mapping[str, Any] = {} if spec is None else spec.document
    facts = PolicyFacts(
        namespace=table.namespace,
        name=table.name,
        merge_on_read=document.get("type") == "MERGE_ON_READ",
        partitioned=bool(document.get("partition_by")),
        declared=document.get("services") or {},
        options=document.get("options") or {},
        spec="" if spec is None else spec.source,
        siblings=_declared(session, table.namespace),
    )
    return table_policies(facts, policies_of(session, table.namespace), partition=partition)


def policies_of(session: Session, namespace: str) -> ServicePolicies:
    """Return the policies of a namespace and its tables."""
    query = select(PolicyRow).where(PolicyRow.namespace == namespace).order_by(PolicyRow.id)
    return ServicePolicies(map(_policy, session.scalars(query)))


def policy_change(
    session: Session, identifier: str, service: str, settings: Mapping[str, Any], pattern: str = ""
) -> Effects:
    """Return the effects of changing a table's policy, and check the values.

    Raises UserError for an unknown setting and an invalid value.
    """
    service_settings(service, settings)
    page = table_policy_page(session, identifier)
    (line,) = [policy for policy in page.policies if policy.service == service]
    before = {
        name: setting for setting in line.settings if not setting.pattern for name in (setting.setting, setting.key)
    }
    before |= {setting.setting: setting for setting in line.settings if pattern and setting.pattern == pattern}
    where = f"partitions of {identifier} that match {pattern}" if pattern else identifier
    changes = [_change(f"{service}.{name} of {where}", value, before.get(name)) for name, value in settings.items()]
    return Effects(sentences=tuple(changes))


def namespace_policy_change(session: Session, namespace: str, service: str, settings: Mapping[str, Any]) -> Effects:
    """Return the effects of changing a namespace's policy, and check the values.

    Raises UserError for an unknown namespace or setting, and an invalid value.
    """
    if service == ALL_SERVICES:
        parse_common_limits(settings)
    else:
        service_settings(service, settings)
    own = _own_settings(session, namespace, "", service, "")
    where = f"all tables of {namespace}"
    changes = [_policy_text(f"{service}.{name} of {where}", value, own.get(name)) for name, value in settings.items()]
    declared = [
        name for name, spec in _declared(session, namespace).items() if set(spec.get(service) or {}) & {*settings}
    ]
    query = select(PolicyRow.name, PolicyRow.settings).filter_by(namespace=namespace, service=service)
    declared += [name for name, own_settings in session.execute(query) if name and set(own_settings) & {*settings}]
    tables = [f"{namespace}.{name}" for name in sorted({*declared})]
    exceptions = (f"Tables with a value of their own keep it: {some(tables)}.",) if tables else ()
    return Effects(sentences=(*changes, *exceptions))


def policy_removal(session: Session, scope: PolicyScope, service: str) -> Effects:
    """Return the effects of removing a policy; raise UserError for an unknown scope."""
    where = f"all tables of {scope.namespace}" if not scope.name else f"{scope.namespace}.{scope.name}"
    where += f", partitions that match {scope.pattern}" if scope.pattern else ""
    own = _own_settings(session, scope.namespace, scope.name, service, scope.pattern)
    if not own:
        return Effects.none(f"there is no policy of {service} for {where}")
    values = ", ".join(f"{name}={_value_text(value)}" for name, value in own.items())
    removed = f"The policy of {service} for {where} is removed: {values}."
    return Effects(sentences=(removed, "Settings of wider scopes apply again."))


def _own_settings(session: Session, namespace: str, name: str, service: str, pattern: str) -> dict[str, Any]:
    """Return the settings of exactly one scope."""
    if session.get(NamespaceRow, namespace) is None:
        namespaces = list(session.scalars(select(NamespaceRow.name)))
        raise UserError(
            f"no namespace {namespace!r} in this catalog.{nearest(namespace, namespaces)}", namespace=namespace
        )
    mine = {"namespace": namespace, "name": name, "service": service, "pattern": pattern}
    row = session.scalar(select(PolicyRow).filter_by(**mine))
    return {} if row is None else dict(row.settings)


def _policy_text(what: str, value: Any, old: Any) -> str:
    new = _value_text(value)
    if old is None:
        return f"{what} becomes {new}; the namespace does not set it."
    return f"{what} stays {new}." if _value_text(old) == new else f"{what} becomes {new}; it is {_value_text(old)}."


def _value_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else redact_text(str(value))


def _change(what: str, value: Any, old: PolicySetting | None) -> str:
    new = _value_text(value)
    if old is None:
        return f"{what} becomes {new}; it is not set."
    origin = "the default" if old.origin is PolicyOrigin.DEFAULT else f"{old.origin} {old.pattern or old.scope}".strip()
    if old.value.lower() == new.lower():
        return f"{what} stays {new}, which comes from {origin}."
    return f"{what} becomes {new}; it is {old.value}, from {origin}."


def _declared(session: Session, namespace: str) -> dict[str, Mapping[str, Any]]:
    """Return the `services:` section of each table in a namespace, by name."""
    of_version = (SpecRow.table_id == TableRow.id) & (SpecRow.version == TableRow.spec_version)
    query = select(TableRow.name, SpecRow.document["services"]).join(SpecRow, of_version)
    rows = session.execute(query.where(TableRow.namespace == namespace))
    return {name: services or {} for name, services in rows}


def _policy(row: PolicyRow) -> ServicePolicy:
    return mirror(ServicePolicy, row, settings=dict(row.settings))
