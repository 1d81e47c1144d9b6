"""Load and store the schema history of a table with column ids (DATA-11).

Each write of such a table stores the whole history as `.hoodie/.schema/<instant>.schemacommit` before its commit, as
in Hudi, so the history survives the archive of the commit that changed the schema. The newest file of a completed write
is valid; files of writes that failed or were undone are not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

import pyarrow as pa

from lakehouse.core.format.internal_schema import (
    LATEST_SCHEMA,
    decode_history,
    decode_schema,
    encode_history,
    encode_schema,
)
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.schema_history import SchemaHistory
from lakehouse.core.state.file_system_view import first_write
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.table_properties import read_properties, update_properties
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Instant, Timeline

logger = logging.getLogger(__name__)

_FOLDER, _SUFFIX = ".hoodie/.schema", ".schemacommit"
#: Number of history files that stay; Hudi and concurrent readers may still read the last ones.
_KEPT = 10


#: Property of tables with column ids that this package has written. Apache Hudi omits the ids of a commit without
#: hoodie.schema.on.read.enable; the history then continues by this property.
HISTORY_KEY = "lakehouse.schema.history"


def read_history(table: LoadedTable, commit: str, ids: str | None) -> SchemaHistory | None:
    """Return the schema history of a table up to a commit; None if it has none.

    Args:
        table: The loaded table.
        commit: The requested time of a commit.
        ids: The value of `latest_schema` in the commit, if it has column ids.

    Raises:
        CorruptTableError: The commit has column ids, but no file has their history.
    """
    latest = None if ids is None else decode_schema(ids)
    cached = table.store.schema_histories
    if latest is not None and latest.version in cached:
        return cached[latest.version]
    names = _newest_first(table, _names(table))
    for name in names:
        try:
            data = table.env.storage.get(f"{_FOLDER}/{name}")
        except NotFoundError:
            continue
        history = SchemaHistory(decode_history(data)).at(int(commit) if latest is None else latest.version)
        if latest is not None:
            # The commit that made the version is completed, so at most its own history file is missing.
            history = cached[latest.version] = history.with_version(latest)
        return history
    if latest is None:
        return None
    raise CorruptTableError(
        f"{table.env.storage.root}: the commit {commit} has the schema version {latest.version} with column ids, but "
        f"{_FOLDER} has no history of a completed commit, so columns of older files cannot be found. Restore the "
        "folder from a backup",
        version=latest.version,
    )


def _names(table: LoadedTable) -> list[str]:
    try:
        listed = table.env.storage.list_names(_FOLDER)
    except NotFoundError:
        return []
    return [name for name in listed if name.endswith(_SUFFIX) and not name.startswith(".")]


def _instant(name: str) -> str:
    return name.partition(".")[0].partition("_")[0]


def _newest_first(table: LoadedTable, names: Iterable[str]) -> list[str]:
    """Return the history files of completed writes, the newest first; those of archived writes are last."""
    completed = {instant.requested for instant in table.timeline.writes()}
    first = first_write(table.timeline)
    valid = [name for name in names if _instant(name) in completed or _instant(name) < first]
    return sorted(valid, reverse=True)


def ids_of_write(history: SchemaHistory, data: pa.Schema, instant: str) -> SchemaHistory:
    """Return the history after a write at `instant` whose data columns are `data`."""
    return history.with_version(history.after(data, int(instant)))


def ids_extra(history: SchemaHistory) -> dict[str, str]:
    """Return the extra metadata of a commit that stores the newest version of a history."""
    return {LATEST_SCHEMA: encode_schema(history.latest)}


def save_history(table: LoadedTable, instant: Instant, timeline: Timeline, history: SchemaHistory) -> None:
    """Store the history for a write that is about to complete; call under the table lock.

    Old files are deleted, except for the last ones. Files of pending writes stay.
    """
    storage = table.env.storage
    if HISTORY_KEY not in table.config.raw and HISTORY_KEY not in (read_properties(storage) or {}):
        update_properties(table.env, {HISTORY_KEY: "true"})
    name = f"{instant.requested}{_SUFFIX}"
    if table.config.layout.has_completion_times:
        name = f"{instant.requested}_{table.store.new_instant_time(timeline)}{_SUFFIX}"
    storage.put(f"{_FOLDER}/{name}", encode_history(history.versions))
    table.store.schema_histories[history.latest.version] = history
    older = [other for other in _names(table) if _instant(other) < instant.requested]
    pending = {other.requested for other in timeline if not other.is_completed}
    unneeded = [other for other in sorted(older, reverse=True)[_KEPT:] if _instant(other) not in pending]
    if unneeded:
        delete_leftovers(storage, [f"{_FOLDER}/{other}" for other in unneeded])
