"""Open a registered table with the options that its spec and its policies declare."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.policies import ServicePolicies
from lakehouse.platform.catalog.registration import require_identity


def open_table(
    entry: TableEntry,
    policies: ServicePolicies,
    options: Mapping[str, str] | None = None,
    tables: OpenedTables | None = None,
) -> Table:
    """Open a table with the options of its spec and policies, overridden by `options`; does not query the catalog.

    `tables` are the tables that stay open between uses; None to open the table again. Raises UserError if the location
    does not contain the registered table.
    """
    declared = {**policies.options(entry.namespace, entry.name, entry.spec), **(options or {})}
    if tables is None:
        table = Table.open(entry.location, options=declared, allowed_functions=entry.spec.functions)
    else:
        env = tables.env(entry.location, {})
        table = tables.open(env, allowed_functions=entry.spec.functions).with_options(declared)
    require_identity(entry, table.config.identity)
    return table
