"""Find tables by their names."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError, nearest
from lakehouse.platform.catalog.models import TableRow


class UnknownTableError(UserError):
    """The catalog contains no table with this name."""


def table_row(session: Session, identifier: str) -> TableRow:
    """Return the row of the table `namespace.table`; raise UnknownTableError with a similar name."""
    namespace, _, name = identifier.rpartition(".")
    row = session.scalar(select(TableRow).filter_by(namespace=namespace, name=name))
    if row is None:
        names = [f"{space}.{table}" for space, table in session.execute(select(TableRow.namespace, TableRow.name))]
        raise UnknownTableError(
            f"no table {identifier!r} in this catalog.{nearest(identifier, names)}", table=identifier
        )
    return row
