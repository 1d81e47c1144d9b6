"""The page Fleet scan: the newest scans of places, and one page of the tables of one scan.

A page takes seven queries for any number of tables: the scans and their numbers of tables, the totals by format, the
registered tables, the matching rows, and their names in the catalog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import ScannedTableRow, TableRow
from lakehouse.platform.catalog.scans import scans as recorded_scans
from lakehouse.platform.catalog.scans import with_registrations
from lakehouse.platform.fleet_views.paging import Paging
from lakehouse.spec.contracts.document import decode, mirror
from lakehouse.spec.contracts.fleet_scan import ScannedTable, ScanPage, ScanSummary, ScanTotals, TableKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanQuery:
    """The place, a part of the location, the format (None: all), and the page of its tables.

    An empty place is the place of the newest scan.
    """

    place: str = ""
    search: str = ""
    kind: TableKind | None = None
    paging: Paging = field(default_factory=Paging)


def scan_page(session: Session, query: ScanQuery, now_ms: int) -> ScanPage:
    """Return one page of the tables of a scan; without a recorded scan of the place, the page has no tables."""
    scans = tuple(mirror(ScanSummary, scan) for scan in recorded_scans(session))
    chosen = next((scan for scan in scans if query.place in ("", scan.place)), None)
    if chosen is None:
        return ScanPage(now_ms=now_ms, scans=scans, place=query.place)
    matching: Any = select(ScannedTableRow).where(ScannedTableRow.place == chosen.place)
    if query.search:
        matching = matching.where(func.lower(ScannedTableRow.location).contains(query.search.lower(), autoescape=True))
    if query.kind is not None:
        matching = matching.where(ScannedTableRow.document["kind"].as_string() == query.kind.value)
    total = session.scalar(
        select(func.count()).select_from(matching.with_only_columns(ScannedTableRow.number).subquery())
    )
    paged = matching.order_by(ScannedTableRow.number).offset(query.paging.offset).limit(query.paging.limit)
    tables = [decode(ScannedTable, row.document) for row in session.scalars(paged)]
    return ScanPage(
        now_ms=now_ms,
        scans=scans,
        place=chosen.place,
        totals=_totals(session, chosen.place),
        total=total or 0,
        offset=query.paging.offset,
        tables=with_registrations(session, tables),
    )


def _totals(session: Session, place: str) -> ScanTotals:
    kind = ScannedTableRow.document["kind"].as_string()
    counts = select(kind, func.count()).where(ScannedTableRow.place == place).group_by(kind)
    kinds: dict[str, int] = dict(session.execute(counts).all())
    location = ScannedTableRow.location
    same = (TableRow.location == location) | (TableRow.location == location + "/")
    registered = select(func.count(ScannedTableRow.number.distinct())).where(ScannedTableRow.place == place)
    return ScanTotals(
        tables=sum(kinds.values()),
        hudi=kinds.get(TableKind.HUDI, 0),
        unreadable=kinds.get(TableKind.UNREADABLE, 0),
        registered=session.scalar(registered.join(TableRow, same)) or 0,
    )
