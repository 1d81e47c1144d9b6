"""Read and change hoodie.properties (TL-2)."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import CorruptTableError

PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = f"{PROPERTIES}.backup"
_NAME, _VERSION = "hoodie.table.name", "hoodie.table.version"


def read_properties(storage: Storage) -> dict[str, str] | None:
    """Return the properties, or those of the backup if an update is not complete (TL-2.2); None without a table.

    On file systems Hudi creates the new file empty and then writes it, so a reader may find a part of it.
    """
    data, _ = stored_properties(storage)
    return None if data is None else parse_properties(data)


def update_properties(env: Env, changes: Mapping[str, str | None]) -> None:
    """Set properties, or remove those with value None, in the order of Hudi: backup, main, delete backup (TL-2.2).

    Raises:
        NotFoundError: There is no table.
        CorruptTableError: The stored properties have no table name, so the others may be lost too.
    """
    storage = env.storage
    old, is_main = stored_properties(storage)
    if old is None:
        raise NotFoundError(f"{storage.root}/{PROPERTIES} does not exist", path=PROPERTIES)
    values = parse_properties(old)
    if not values.get(_NAME):
        raise CorruptTableError(
            f"{storage.root}/{PROPERTIES} has no {_NAME}, and there is no backup of it. Restore the file before the "
            "table is changed",
            path=PROPERTIES,
        )
    if not is_main:
        # An update crashed before it wrote the main file: the backup is valid.
        storage.put(PROPERTIES, old)
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    storage.put(PROPERTIES_BACKUP, old)
    storage.put(PROPERTIES, render_properties(values, comments=("Updated by lakehouse",)))
    delete_leftovers(storage, [PROPERTIES_BACKUP])


def stored_properties(storage: Storage) -> tuple[bytes | None, bool]:
    """Return the main file if it is complete, otherwise the backup, and whether it is the main file.

    Without both files the first value is None.
    """
    main = _get(storage, PROPERTIES)
    if main is not None and _is_complete(main):
        return main, True
    backup = _get(storage, PROPERTIES_BACKUP)
    if backup is not None and _is_complete(backup):
        return backup, False
    # An update deletes the backup after it has written the main file, so it may have ended between the two reads.
    newest = _get(storage, PROPERTIES)
    return (newest, True) if newest is not None else (backup, False)


def _get(storage: Storage, path: str) -> bytes | None:
    try:
        return storage.get(path)
    except NotFoundError:
        return None


def _is_complete(data: bytes) -> bool:
    """Return whether a file ends with a whole line and has the name and the version, which is one of the last keys."""
    if not data.endswith(b"\n"):
        return False
    try:
        return parse_properties(data).keys() >= {_NAME, _VERSION}
    except CorruptTableError:
        return False
