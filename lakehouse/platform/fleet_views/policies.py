"""The settings of a table's services with the origin of each value, and the preview of a change.

The document is that of `lakehouse policy show`, without the facts that only the files of the table know: options in its
properties, and partitions to compare patterns with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import PolicyRow, SpecRow, TableRow
from lakehouse.platform.catalog.policies import ServicePolicies, ServicePolicy
from lakehouse.platform.catalog.policy_view import PolicyFacts, table_policies
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.spec.contracts.policies import PolicyOrigin, PolicySetting, TablePolicies
from lakehouse.spec.services import service_settings


def table_policy_page(session: Session, identifier: str, partition: str | None = None) -> TablePolicies:
    """Return the settings of all services of a table, or of a partition, with their origins; four queries."""
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
) -> tuple[str, ...]:
    """Return the sentences that describe what a change of a table's policy would change; check the values.

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
    return tuple(_change(f"{service}.{name} of {where}", value, before.get(name)) for name, value in settings.items())


def _change(what: str, value: Any, old: PolicySetting | None) -> str:
    new = str(value).lower() if isinstance(value, bool) else str(value)
    if old is None:
        return f"{what} becomes {new}; it is not set."
    origin = "the default" if old.origin is PolicyOrigin.DEFAULT else f"{old.origin} {old.pattern or old.scope}".strip()
    if old.value.lower() == new.lower():
        return f"{what} stays {new}, which comes from {origin}."
    return f"{what} becomes {new}; it is {old.value}, from {origin}."


def _declared(session: Session, namespace: str) -> dict[str, Mapping[str, Any]]:
    """Return the `services:` section of each table of a namespace, by name."""
    of_version = (SpecRow.table_id == TableRow.id) & (SpecRow.version == TableRow.spec_version)
    query = select(TableRow.name, SpecRow.document["services"]).join(SpecRow, of_version)
    rows = session.execute(query.where(TableRow.namespace == namespace))
    return {name: found or {} for name, found in rows}


def _policy(row: PolicyRow) -> ServicePolicy:
    return ServicePolicy(
        namespace=row.namespace,
        name=row.name,
        pattern=row.pattern,
        service=row.service,
        settings=dict(row.settings),
        author=row.author,
    )
