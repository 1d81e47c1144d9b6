"""The table of an entry: assign its id, compare its identity, adopt it, and delete its files.

    register, create     the table gets an id if it has none, and the entry records name, record key and id
    open                 the properties at the location are compared with the entry; a difference is an error
    adopt                an entry of an earlier version records the identity with its next write
    accept               `lakehouse table accept`: the entry records the table that is at its location now

The properties are read by every open, so the comparison needs no request. An id is written to the properties before it
is recorded: after a crash in between, the table has an id and the registration can be repeated.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from lakehouse.core.env import Env
from lakehouse.core.operations.services.partition_purge import purge_table
from lakehouse.core.state.table_config import TableConfig, identity_of, write_refusal
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import assign_table_id, read_properties
from lakehouse.errors import RetryableError, UnsupportedError, UserError
from lakehouse.model.table_identity import TableIdentity, is_name_of
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.catalog.existing_tables import PROPERTIES_SOURCE
from lakehouse.platform.catalog.identities import record_identity, recorded_identity, refuse_copy
from lakehouse.platform.catalog.models import TableRow

logger = logging.getLogger(__name__)


def assigned_identity(env: Env, config: TableConfig, *, new_id: bool = False) -> TableIdentity:
    """Return the identity of a table; a table without id gets one in its properties.

    Without write access, or if the table can only be read, the identity has no id, and a warning contains the reason.
    `new_id` replaces the id.

    Raises:
        RetryableError: Another writer is changing the properties.
        UserError: `new_id`, and the properties cannot be written.
    """
    identity, root = config.identity, env.storage.root
    if identity.id and not new_id:
        return identity
    refusal = write_refusal(config)
    if refusal is not None:
        if new_id:
            raise UnsupportedError(f"{root}: --new-id writes the id to the properties of the table, and {refusal}")
        logger.warning("%s can be read but neither written nor serviced: %s", root, refusal)
        return identity
    try:
        return replace(identity, id=assign_table_id(env, replaces=identity.id))
    except UserError as error:
        if new_id:
            raise
        logger.warning("%s gets no table id, so it is known by name and record key only: %s", root, error)
        return identity


def require_identity(entry: TableEntry, actual: TableIdentity) -> None:
    """Raise UserError if the table at the location of an entry is not the registered table.

    An entry of an earlier version records no identity: the name and the record key of its spec are compared.
    """
    recorded = entry.identity
    differences = _undeclared(entry, actual) if recorded is None else recorded.differences(actual)
    if differences:
        raise UserError(
            f"{entry.identifier}: the table at {entry.location} is not the one that the catalog registered: "
            f"{'; '.join(differences)}. Another table may have taken the location, or the catalog is older than the "
            "table, so nothing was done. If the table there is meant, `lakehouse table accept --table "
            f"{entry.identifier}` registers it; otherwise `lakehouse table drop --table {entry.identifier}` removes "
            "the entry and leaves the files",
            table=entry.identifier,
            location=entry.location,
        )


def adopt_identity(database: Database, entry: TableEntry, table: Table) -> None:
    """Record the identity of an opened table, which was compared with its entry, and assign an id if it has none.

    Raises UserError if another entry has the id.
    """
    env, config = table.services_as_loaded.table.env, table.config
    try:
        identity = assigned_identity(env, config)
    except RetryableError as error:
        logger.info("%s: the table id is assigned by a later write: %s", entry.identifier, error)
        identity = config.identity
    if identity == entry.identity:
        return
    with database.session() as session:
        row = session.get(TableRow, entry.id, with_for_update=True)
        if row is None:
            return
        recorded = recorded_identity(row)
        if recorded is not None and recorded.id:
            # Another process has recorded it concurrently.
            require_identity(replace(entry, identity=recorded), identity)
            return
        refuse_copy(session, (entry.namespace, entry.name), entry.location, identity)
        record_identity(row, identity)


def purge_registered(entry: TableEntry) -> tuple[str, ...]:
    """Delete the files of a registered table; return the paths below its location that are kept.

    Raises UserError, and deletes nothing, if the location contains another table.
    """
    storage = open_storage(entry.location, follow_links=True)
    raw = read_properties(storage)
    if raw is not None:
        require_identity(entry, identity_of(raw))
    return purge_table(storage)


def _undeclared(entry: TableEntry, actual: TableIdentity) -> tuple[str, ...]:
    """Return how a table differs from the spec of its entry."""
    # A table that was registered by its location may have any name.
    has_any_name = entry.source.startswith(PROPERTIES_SOURCE)
    name = actual.name if has_any_name or is_name_of(entry.spec.table, actual.name) else entry.spec.table
    return TableIdentity(name=name, record_key=entry.spec.record_key).differences(actual)
