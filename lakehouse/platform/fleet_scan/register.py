"""Register the tables of a scan with their proposed policies.

Each table is entered in one transaction with its policies. After a crash some tables are registered completely; the
next call skips these and does the rest. Policies of registered tables are not changed.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from lakehouse.core.engine.progress import ProgressObserver, Stage, observed_stage
from lakehouse.errors import LakehouseError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.spec.contracts.fleet_scan import FleetScan, ScannedTable

logger = logging.getLogger(__name__)


def register_tables(
    catalog: Catalog, scan: FleetScan, *, author: str, options: Mapping[str, str] = MappingProxyType({})
) -> FleetScan:
    """Register the readable tables of a scan that the catalog does not contain, with the same `options` each.

    Returns the scan with the names of the registered tables. A table that is refused has the reason as its problem, and
    does not stop the others.
    """
    wanted = [table for table in scan.tables if table.table and not table.registered]
    stage = Stage(name="registration", table=scan.place, unit="table", total=len(wanted))
    registered = {}
    with observed_stage(stage) as running:
        for table in wanted:
            registered[table.location] = _registered(catalog, table, author, options)
            running.report(lambda observer: _advance(stage, observer))
    return replace(scan, tables=tuple(registered.get(table.location, table) for table in scan.tables))


def _registered(catalog: Catalog, table: ScannedTable, author: str, options: Mapping[str, str]) -> ScannedTable:
    policies = {policy.service: policy.settings for policy in table.policies}
    try:
        catalog.register_table(table.table, table.location, author=author, policies=policies, options=options)
    except LakehouseError as error:
        logger.warning("%s is not registered: %s", table.location, error)
        return replace(table, problem=error.message, next=(f"not registered: {error.message}",))
    return replace(table, registered=table.table, next=(f"lakehouse services explain --table {table.table}",))


def _advance(stage: Stage, observer: ProgressObserver) -> None:
    observer.advanced(stage, 1, 0)
