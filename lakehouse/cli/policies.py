"""`lakehouse policy set | remove | show`: the policies of services in a catalog."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

from lakehouse.cli import remote
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document, show_rows
from lakehouse.cli.specs import author
from lakehouse.cli.table import catalog_table
from lakehouse.core.operations.create.declare import stored_options
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.policy_view import PolicyFacts, table_policies
from lakehouse.platform.remote.client import api_client
from lakehouse.spec.contracts.catalog import PolicyChange
from lakehouse.spec.contracts.policies import PolicyOrigin, TablePolicies
from lakehouse.spec.yaml_section import read_value

logger = logging.getLogger(__name__)


def set_policy(given: Given) -> None:
    """Change settings of a service."""
    client = api_client()
    if client is not None:
        show_document(remote.set_policy(client, given, _pairs(given.set)), given.output)
        return
    name, scope = _scope(given)
    settings = _pairs(given.set)
    with load_catalog(name) as catalog:
        catalog.set_policy(scope, given.service, settings, pattern=given.pattern, author=author(os.environ))
        warnings = _without_effect(catalog, scope, given.service, given.pattern)
    result = PolicyChange(scope=scope, service=given.service, pattern=given.pattern, changed=True, warnings=warnings)
    show_document(result, given.output)


def remove_policy(given: Given) -> None:
    """Remove settings of a service."""
    client = api_client()
    if client is not None:
        show_document(remote.remove_policy(client, given), given.output)
        return
    name, scope = _scope(given)
    with load_catalog(name) as catalog:
        removed = catalog.remove_policy(scope, given.service, pattern=given.pattern)
    result = PolicyChange(scope=scope, service=given.service, pattern=given.pattern, changed=removed)
    show_document(result, given.output)


def show_policies(given: Given) -> None:
    """Print the settings of all services of a table with their origins, and the policies without effect."""
    client = api_client()
    if client is not None:
        found = remote.policies(client, given)
    else:
        name, table = catalog_table(given)
        with load_catalog(name) as catalog:
            found = policies_of(catalog, catalog.entry(table), partition=given.partition)
    if given.output == "json":
        return show_document(found, given.output)
    show_rows(_rows(found, defaults=given.defaults))
    for dead in found.dead:
        print(f"no effect: {dead.text}")
    if not found.partitions_known:
        print("the table cannot be read, so patterns were not compared with its partitions")
    return None


def policies_of(catalog: Catalog, entry: TableEntry, *, partition: str | None = None) -> TablePolicies:
    """Return the policies of a table in force; a table that cannot be read is described by its spec."""
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


def _of_table(catalog: Catalog, entry: TableEntry) -> dict[str, Any]:
    try:
        table = catalog.load_table(entry.identifier)
        return {"stored": stored_options(table.config), "partitions": table.partitions()}
    except LakehouseError as error:
        logger.warning("%s cannot be read, so patterns are not compared with it: %s", entry.identifier, error)
        return {}


def _without_effect(catalog: Catalog, scope: str, service: str, pattern: str) -> tuple[str, ...]:
    """Return why settings of the policy that was just set have no effect."""
    of_table = "." in scope
    entries = (catalog.entry(scope),) if of_table else catalog.list_tables(scope)[:1]
    origin = PolicyOrigin.PATTERN if pattern else PolicyOrigin.TABLE if of_table else PolicyOrigin.NAMESPACE
    return tuple(
        dead.text
        for entry in entries
        for dead in policies_of(catalog, entry).dead
        if (dead.service, dead.pattern, dead.origin) == (service, pattern, origin)
    )


def _rows(found: TablePolicies, *, defaults: bool) -> list[dict[str, Any]]:
    return [
        {
            "service": policy.service,
            "setting": setting.setting,
            "value": setting.value,
            "origin": setting.origin.value,
            "scope": setting.scope,
            "pattern": setting.pattern,
            "author": setting.author,
        }
        for policy in found.policies
        for setting in policy.settings
        if defaults or setting.origin is not PolicyOrigin.DEFAULT or setting.setting == "enabled"
    ]


def _scope(given: Given) -> tuple[str, str]:
    """Return the catalog and the scope of a policy: a namespace or a table."""
    if (given.table is None) == (given.namespace is None):
        raise UserError("a policy needs --table namespace.table, or --namespace for all its tables, and not both")
    return (given.catalog, given.namespace) if given.table is None else catalog_table(given)


def _pairs(settings: Sequence[str]) -> dict[str, Any]:
    wrong = next((setting for setting in settings if "=" not in setting), None)
    if wrong is not None:
        raise UserError(f"--set {wrong!r}: expected name=value", setting=wrong)
    pairs = (setting.partition("=") for setting in settings)
    return {name: read_value(value, source=name) for name, _, value in pairs}
