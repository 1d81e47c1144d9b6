"""Record and read the identities of registered tables; an identity is unique in a catalog."""

from __future__ import annotations

import itertools

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.model.table_identity import TableIdentity
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import LONGEST_ID, RequestRow, TableRow
from lakehouse.platform.catalog.run_history import RequestState
from lakehouse.spec.table.table_spec import TableSpec

#: Namespace of tables without a namespace in their name.
DEFAULT_NAMESPACE = "default"


def recorded_identity(row: TableRow) -> TableIdentity | None:
    """Return the identity that an entry records; None if an earlier version wrote it."""
    if row.identity is None:
        return None
    return TableIdentity(name=row.identity["name"], record_key=tuple(row.identity["record_key"]), id=row.uid or "")


def record_identity(row: TableRow, identity: TableIdentity) -> None:
    """Record the identity of a registered table; raise UserError for an id that is longer than the column."""
    if len(identity.id) > LONGEST_ID:
        raise UserError(
            f"the table {identity.name} has an id of {len(identity.id)} characters, which begins with "
            f"{identity.id[:40]!r}; the catalog stores up to {LONGEST_ID}. Give the table a new id with --new-id",
            id=identity.id[:LONGEST_ID],
        )
    row.identity = {"name": identity.name, "record_key": list(identity.record_key)}
    row.uid = identity.id or None


def recorded_identities(database: Database, spec: TableSpec, location: str) -> dict[str, TableIdentity]:
    """Return the recorded identities of the tables that a spec or template declares, by table name."""
    if spec.is_template:
        below = f"{location.rstrip('/')}/"
        condition = TableRow.location.startswith(below, autoescape=True)
    else:
        namespace, _, name = spec.table.rpartition(".")
        condition = (TableRow.namespace == (namespace or DEFAULT_NAMESPACE)) & (TableRow.name == name)
    recorded = {}
    with database.session() as session:
        for row in session.scalars(select(TableRow).where(condition)):
            identity = recorded_identity(row)
            if identity is not None:
                recorded[f"{row.namespace}.{row.name}"] = identity
                if row.namespace == DEFAULT_NAMESPACE:
                    recorded[row.name] = identity
    return recorded


def refuse_registered(session: Session, identifier: tuple[str, str], location: str) -> None:
    """Raise UserError if the catalog contains a table with this name, or a table at, above or below this location."""
    namespace, name = identifier
    registered = session.scalar(select(TableRow).filter_by(namespace=namespace, name=name))
    if registered is not None:
        raise UserError(
            f"table {namespace}.{name} is already in this catalog, at {registered.location}; drop it first. If another "
            "table has replaced the one at this location, `lakehouse table accept --table "
            f"{namespace}.{name}` registers it",
            table=name,
        )
    place = location.rstrip("/")
    other = session.scalar(select(TableRow).where(TableRow.location.in_([location, place, f"{place}/"])))
    if other is not None:
        raise UserError(f"{location} is already in this catalog, as {other.namespace}.{other.name}", location=location)
    nested = table_around_or_inside(session, location)
    if nested is not None:
        raise UserError(
            f"{location} and {nested.location}, the location of {nested.namespace}.{nested.name}, are nested: "
            "services of one table would treat files of the other as its own. Choose a location outside of it.",
            location=location,
        )


def refuse_copy(session: Session, identifier: tuple[str, str], location: str, identity: TableIdentity) -> None:
    """Raise UserError if another entry has the id of a table, because one of the two tables is a copy."""
    if not identity.id:
        return
    namespace, name = identifier
    other = session.scalar(select(TableRow).where(TableRow.uid == identity.id))
    if other is None or (other.namespace, other.name) == identifier:
        return
    raise UserError(
        f"the table at {location} has the id {identity.id} of {other.namespace}.{other.name} at {other.location}: it "
        "is a copy of that table, or that table has moved here. Give a copy an id of its own with --new-id "
        f"(`lakehouse table register --table {namespace}.{name} --location {location} --new-id`, or `lakehouse table "
        f"accept --table {namespace}.{name} --new-id` for a registered location). If the table has moved, drop "
        f"{other.namespace}.{other.name} first, without --purge",
        location=location,
        id=identity.id,
    )


def replace_registered(session: Session, row: TableRow, identity: TableIdentity) -> None:
    """Record another table for an entry, and delete the open requests, which were made for the previous table.

    Raises UserError if another entry has the id.
    """
    refuse_copy(session, (row.namespace, row.name), row.location, identity)
    record_identity(row, identity)
    session.execute(delete(RequestRow).where(RequestRow.table_id == row.id, RequestRow.state == RequestState.OPEN))


def table_around_or_inside(session: Session, location: str) -> TableRow | None:
    """Return a registered table whose location is below or above `location`, or None if there is none."""
    lead = location.rstrip("/")
    above = [f"{part}{end}" for part in itertools.accumulate(lead.split("/"), "{}/{}".format) for end in ("", "/")]
    around = TableRow.location.in_(above) | TableRow.location.startswith(f"{lead}/", autoescape=True)
    for row in session.scalars(select(TableRow).where(around)):
        # SQLite compares prefixes case-insensitively.
        place = row.location.rstrip("/")
        if lead.startswith(f"{place}/") or place.startswith(f"{lead}/"):
            return row
    return None
