"""`lakehouse fleet`: find the tables below a place, and register them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import cast

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.specs import author
from lakehouse.errors import UserError
from lakehouse.model.display import count_text
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.platform.catalog.connect import DEFAULT, is_configured
from lakehouse.platform.catalog.scans import record_scan
from lakehouse.platform.fleet_scan.metastore_tables import SCHEME, MetastoreListing, metastore_place, scan_metastore
from lakehouse.platform.fleet_scan.register import register_tables
from lakehouse.platform.fleet_scan.scan import ScanRequest
from lakehouse.platform.fleet_scan.scan import scan as scan_place
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.spec.contracts.fleet_scan import FleetScan, ScannedTable, TableKind
from lakehouse.spec.options.sync import SyncPolicy
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.services import SERVICES

#: Maximum number of table names to print for a reason.
_SHOWN = 5


def scan(given: Given) -> int:
    """Scan a place, print and record the result, and register the tables with `--register`."""
    if not given.place:
        raise UserError("give the place to scan: a folder or a URL, such as s3://bucket/lake")
    if given.option and not given.register:
        raise UserError("--option is for the tables that --register registers; give both, or none")
    place = resolve(given.place, os.environ, name="PLACE")
    with _catalog(given) as catalog:
        registered = {} if catalog is None else {e.identifier: e.location for e in catalog.registered().values()}
        result = _scanned(place, given, registered)
        if catalog is not None:
            record_scan(catalog.database, result, author(os.environ))
            if given.register:
                result = register_tables(catalog, result, author=author(os.environ), options=given.option)
                record_scan(catalog.database, result, author(os.environ))
    _show(result, given.output)
    failed = [table for table in result.tables if table.problem]
    if failed:
        count = count_text(len(failed), "folder")
        raise UserError(f"{count} cannot be used, such as {failed[0].location}: {failed[0].problem}")
    return 0


def _scanned(place: str, given: Given, registered: Mapping[str, str]) -> FleetScan:
    if not place.startswith(SCHEME):
        request = ScanRequest(place=place, depth=given.depth, sizes=given.sizes, namespace=given.namespace)
        return scan_place(request, registered)
    if given.sizes:
        raise UserError("--sizes lists the files below a folder or URL; leave it out for a metastore")
    metastore = open_metastore(SyncPolicy(), purpose="the scan", override=metastore_place(place).uris)
    with closing(metastore):
        listing = cast(MetastoreListing, metastore)
        return scan_metastore(place, listing, registered, namespace=given.namespace)


@contextmanager
def _catalog(given: Given) -> Iterator[Catalog | None]:
    """Open the catalog; None if none is configured and nothing is registered."""
    if given.catalog == DEFAULT and not given.register and not is_configured(os.environ):
        yield None
        return
    with load_catalog(given.catalog) as catalog:
        yield catalog


def _show(result: FleetScan, output: str) -> None:
    if output == "json":
        show_document(result, output)
        return
    show_document(result, output, rows=[_row(table, result.place) for table in result.tables])
    hudi = sum(table.kind is TableKind.HUDI for table in result.tables)
    print(f"{count_text(len(result.tables), 'table')}, {hudi} of Hudi, in {count_text(result.folders, 'folder')}")
    for title, folders in (("files of no table", result.other_folders), ("not scanned", result.cut_folders)):
        if folders:
            print(f"{title}: {count_text(len(folders), 'folder')}, such as {folders[0] or result.place}")
    _show_reasons(result)


def _show_reasons(result: FleetScan) -> None:
    """Print each reason of a refusal and of a policy once, with the operations and the number of tables."""
    tables: dict[str, dict[str, None]] = {}
    operations: dict[str, dict[str, None]] = {}
    for table in result.tables:
        refusals = [(refusal.reason, f"no {refusal.operation}") for refusal in table.refusals]
        policies = [(policy.reason, f"policy of {policy.service}") for policy in table.policies]
        for reason, operation in refusals + policies:
            tables.setdefault(reason, {})[_name(table, result.place)] = None
            operations.setdefault(reason, {})[operation] = None
    for reason, names in tables.items():
        shown = ", ".join(list(names)[:_SHOWN])
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        print(f"{', '.join(operations[reason])}: {reason}\n  {shown}{more}")


def _name(table: ScannedTable, place: str) -> str:
    return table.registered or table.table or table.location.removeprefix(place).strip("/") or table.location


def _row(table: ScannedTable, place: str) -> dict[str, object]:
    refused = {refusal.operation for refusal in table.refusals} & set(SERVICES)
    return {
        "table": _name(table, place),
        "kind": table.kind.value,
        "version": table.version,
        "type": {"COPY_ON_WRITE": "cow", "MERGE_ON_READ": "mor"}.get(table.type, table.type.lower()),
        "partitions": table.partitions,
        "size": table.bytes,
        "read": table.readable,
        "write": table.writable,
        "services": f"{len(table.services)} of {len(table.services) + len(refused)}" if table.services else "none",
        "policies": ", ".join(policy.service for policy in table.policies),
        "registered": bool(table.registered),
        "next": table.next[0] if table.next else "",
    }
