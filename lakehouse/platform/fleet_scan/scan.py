"""Scan a place for tables: discover them, examine each, and propose names."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.engine.progress import ProgressObserver, Stage, observed_stage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.errors import LakehouseError
from lakehouse.platform.fleet_scan.discover import DEPTH, Place, discover
from lakehouse.platform.fleet_scan.examine import REGISTER, examine
from lakehouse.platform.fleet_scan.proposals import proposed_names
from lakehouse.spec.contracts.fleet_scan import FleetScan, ScannedTable, TableKind

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanRequest:
    """Parameters of a scan.

    Attributes:
        place: Path or URL of a folder.
        depth: Maximum number of levels below the place.
        sizes: List all files of each table, to report their number and size.
        namespace: Namespace of the proposed names; empty for the folder above each table.
    """

    place: str
    depth: int = DEPTH
    sizes: bool = False
    namespace: str = ""


def scan(request: ScanRequest, registered: Mapping[str, str] | None = None, *, clock: Clock | None = None) -> FleetScan:
    """Find and examine the tables below a place; nothing is written.

    Args:
        request: The place and the parameters.
        registered: Locations of the tables in a catalog, by name.
        clock: The clock; None for the clock of the system.

    Raises:
        UserError: The place is no location, or cannot be listed.
    """
    now = clock or SystemClock()
    started = now.now_ms()
    storage = open_storage(request.place)
    # An error of the place itself is the error of the command.
    storage.list_dir("")
    discovery = discover(storage, depth=request.depth)
    taken = registered or {}
    tables = _examined(storage, discovery.places, sizes=request.sizes)
    named = with_names(tables, proposed_names(_places(tables), storage.root, request.namespace, taken), taken)
    return FleetScan(
        place=storage.root,
        started_ms=started,
        seconds=round((now.now_ms() - started) / 1000, 3),
        folders=discovery.folders,
        tables=tuple(named),
        other_folders=discovery.others,
        cut_folders=discovery.cut,
    )


def _examined(storage: Storage, places: tuple[Place, ...], *, sizes: bool) -> list[ScannedTable]:
    stage = Stage(name="scan of tables", table=storage.root, unit="table", total=len(places))
    tables = []
    with observed_stage(stage) as running, ThreadPoolExecutor(_THREADS) as pool:
        for table in pool.map(partial(_examine, storage, sizes), places):
            tables.append(table)
            running.report(partial(_advance, stage))
    return tables


def _examine(storage: Storage, sizes: bool, place: Place) -> ScannedTable:
    try:
        return examine(storage, place, sizes=sizes)
    except LakehouseError as error:
        # One table that cannot be listed must not end the scan of the others.
        location = f"{storage.root.rstrip('/')}/{place.path}"
        return ScannedTable(location=location, kind=TableKind.UNREADABLE, problem=error.message)


def _advance(stage: Stage, observer: ProgressObserver) -> None:
    observer.advanced(stage, 1, 0)


def _places(tables: Sequence[ScannedTable]) -> dict[str, str]:
    return {table.location: table.table for table in tables if can_be_registered(table)}


def with_names(
    tables: Sequence[ScannedTable], names: Mapping[str, str], registered: Mapping[str, str]
) -> list[ScannedTable]:
    """Return the tables with their names for the catalog, by location, and the commands to run next."""
    locations = {location.rstrip("/"): name for name, location in registered.items()}
    named = []
    for table in tables:
        name = names.get(table.location, "")
        table = replace(table, table=name, registered=locations.get(table.location.rstrip("/"), ""))
        named.append(replace(table, next=_next(table)))
    return named


def can_be_registered(table: ScannedTable) -> bool:
    """Return whether a catalog accepts a table."""
    refused = any(refusal.operation == REGISTER for refusal in table.refusals)
    return table.kind is TableKind.HUDI and table.readable and not refused


def _next(table: ScannedTable) -> tuple[str, ...]:
    """Return the commands that take over a table, or the reason why there are none."""
    location = shlex.quote(table.location)
    if table.next:
        return table.next
    if not table.table:
        return tuple(f"not registered: {refusal.reason}" for refusal in table.refusals[-1:])
    if table.registered:
        return (f"lakehouse services explain --table {table.registered}",)
    register = f"lakehouse table register --table {table.table} --location {location}"
    if table.writable:
        return (f"lakehouse table validate --table {location} --deep", register)
    return (f"{register}  # to read it; it cannot be written",)
