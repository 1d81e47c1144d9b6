"""Policies of a table in a catalog: the settings in force, and the policies without effect."""

from __future__ import annotations

import logging
from typing import Any

from lakehouse.core.operations.load.table import stored_options
from lakehouse.errors import LakehouseError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.policy_view import PolicyFacts, table_policies
from lakehouse.spec.contracts.policies import PolicyOrigin, TablePolicies

logger = logging.getLogger(__name__)


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


def without_effect(catalog: Catalog, scope: str, service: str, pattern: str) -> tuple[str, ...]:
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


def _of_table(catalog: Catalog, entry: TableEntry) -> dict[str, Any]:
    try:
        table = catalog.load_table(entry.identifier)
        return {"stored": stored_options(table.config), "partitions": table.partitions()}
    except LakehouseError as error:
        logger.warning("%s cannot be read, so patterns are not compared with it: %s", entry.identifier, error)
        return {}
