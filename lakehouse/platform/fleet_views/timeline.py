"""The runs of the catalog that made instants of a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import RunRow
from lakehouse.platform.fleet_views.names import table_row

#: Maximum number of values in one condition; databases limit it.
_AT_ONCE = 500


def runs_of_instants(session: Session, identifier: str, instants: Sequence[str]) -> dict[tuple[str, str], str]:
    """Return the id of the newest run for each instant, by (requested time, service).

    Raises UnknownTableError for a table that is not in the catalog.
    """
    table = table_row(session, identifier)
    runs: dict[tuple[str, str], str] = {}
    wanted = list(dict.fromkeys(instants))
    for start in range(0, len(wanted), _AT_ONCE):
        chosen = RunRow.instant.in_(wanted[start : start + _AT_ONCE])
        query = select(RunRow.instant, RunRow.service, RunRow.run_id).where(RunRow.table_id == table.id, chosen)
        for instant, service, run_id in session.execute(query.order_by(RunRow.started_ms, RunRow.id)):
            runs[str(instant), service] = run_id
    return runs
