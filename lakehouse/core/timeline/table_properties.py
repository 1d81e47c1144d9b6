"""Read and change hoodie.properties (TL-2)."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers

PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = f"{PROPERTIES}.backup"


def read_properties(storage: Storage) -> dict[str, str] | None:
    """Return the properties, or those of the backup after an interrupted update (TL-2.2); None without a table."""
    for path in (PROPERTIES, PROPERTIES_BACKUP):
        try:
            return parse_properties(storage.get(path))
        except NotFoundError:
            continue
    return None


def update_properties(env: Env, changes: Mapping[str, str | None]) -> None:
    """Set properties, or remove those with value None, in the order of Hudi: backup, main, delete backup (TL-2.2)."""
    storage = env.storage
    try:
        old = storage.get(PROPERTIES)
    except NotFoundError:
        # An update crashed between the two files: the backup is valid.
        old = storage.get(PROPERTIES_BACKUP)
        storage.put(PROPERTIES, old)
    values = parse_properties(old)
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    storage.put(PROPERTIES_BACKUP, old)
    storage.put(PROPERTIES, render_properties(values, comments=("Updated by lakehouse",)))
    delete_leftovers(storage, [PROPERTIES_BACKUP])
