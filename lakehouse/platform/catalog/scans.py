"""Record the results of scans in a catalog, and load them for the pages; a place has its newest scan only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import ScannedTableRow, ScanRow, TableRow
from lakehouse.spec.contracts.document import decode, encode
from lakehouse.spec.contracts.fleet_scan import FleetScan, ScannedTable

_OTHERS, _CUT = "other_folders", "cut_folders"
_LONGEST_AUTHOR = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedScan:
    """The newest scan of a place without its tables; `tables` is their number."""

    place: str
    author: str
    started_ms: int
    seconds: float
    folders: int
    tables: int


def record_scan(database: Database, scan: FleetScan, author: str) -> None:
    """Replace the recorded scan of a place, in one transaction.

    Raises RetryableError if another process records a scan of the place at the same time.
    """
    with database.session() as session:
        row = session.get(ScanRow, scan.place, with_for_update=True)
        if row is None:
            row = ScanRow(place=scan.place)
            session.add(row)
        row.author, row.started_ms, row.seconds = author[:_LONGEST_AUTHOR], scan.started_ms, scan.seconds
        row.folders = scan.folders
        row.facts = {_OTHERS: list(scan.other_folders), _CUT: list(scan.cut_folders)}
        session.flush()
        session.execute(delete(ScannedTableRow).where(ScannedTableRow.place == scan.place))
        for number, table in enumerate(scan.tables):
            document = encode(table)
            session.add(ScannedTableRow(place=scan.place, number=number, location=table.location, document=document))


def recorded_scans(database: Database) -> tuple[RecordedScan, ...]:
    """Return the recorded scans, the newest first."""
    with database.session() as session:
        return scans(session)


def scans(session: Session) -> tuple[RecordedScan, ...]:
    """Return the recorded scans of a session, the newest first."""
    counts = select(ScannedTableRow.place, func.count()).group_by(ScannedTableRow.place)
    tables = {place: count for place, count in session.execute(counts)}
    rows = session.scalars(select(ScanRow).order_by(ScanRow.started_ms.desc(), ScanRow.place))
    return tuple(
        RecordedScan(
            place=row.place,
            author=row.author,
            started_ms=row.started_ms,
            seconds=row.seconds,
            folders=row.folders,
            tables=tables.get(row.place, 0),
        )
        for row in rows
    )


def recorded_tables(
    database: Database, place: str, *, offset: int = 0, limit: int | None = None
) -> tuple[ScannedTable, ...]:
    """Return tables of the recorded scan of a place, with the names that they have in the catalog now."""
    with database.session() as session:
        query = select(ScannedTableRow).filter_by(place=place).order_by(ScannedTableRow.number).offset(offset)
        tables = [decode(ScannedTable, row.document) for row in session.scalars(query.limit(limit))]
        return with_registrations(session, tables)


def with_registrations(session: Session, tables: Sequence[ScannedTable]) -> tuple[ScannedTable, ...]:
    """Return scanned tables with the names that they have in the catalog now."""
    places = [end for table in tables for end in _spellings(table.location)]
    registered = {
        row.location.rstrip("/"): f"{row.namespace}.{row.name}"
        for row in session.scalars(select(TableRow).where(TableRow.location.in_(places)))
    }
    return tuple(replace(table, registered=registered.get(table.location.rstrip("/"), "")) for table in tables)


def _spellings(location: str) -> tuple[str, str]:
    plain = location.rstrip("/")
    return plain, f"{plain}/"
