"""Find registered tables whose locations are nested."""

from __future__ import annotations

import itertools

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import TableRow


def table_around_or_inside(session: Session, location: str) -> TableRow | None:
    """Return a registered table whose location is inside of `location` or contains it; None if there is none."""
    lead = location.rstrip("/")
    above = [f"{part}{end}" for part in itertools.accumulate(lead.split("/"), "{}/{}".format) for end in ("", "/")]
    around = TableRow.location.in_(above) | TableRow.location.startswith(f"{lead}/", autoescape=True)
    for row in session.scalars(select(TableRow).where(around)):
        # SQLite compares prefixes case-insensitively.
        place = row.location.rstrip("/")
        if lead.startswith(f"{place}/") or place.startswith(f"{lead}/"):
            return row
    return None
