"""Read and change hoodie.properties (TL-2)."""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import CorruptTableError, RetryableError, UserError
from lakehouse.model.table_identity import TABLE_ID

PROPERTIES = ".hoodie/hoodie.properties"
PROPERTIES_BACKUP = f"{PROPERTIES}.backup"
#: Attempts to assign an id while other writers change the properties.
_TRIES = 5
_PAUSE_S = 0.2
_NAME, _VERSION = "hoodie.table.name", "hoodie.table.version"


def read_properties(storage: Storage) -> dict[str, str] | None:
    """Return the properties, or the backup if an update is not complete (TL-2.2). Return None if there is no table.

    On file systems Hudi creates the new file empty and then writes it, so a reader may read an incomplete file.
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


def assign_table_id(env: Env, *, replaces: str = "") -> str:
    """Store a new table id in the properties, and return the id that they contain afterwards.

    The file is replaced by compare-and-swap, so a concurrent change of another property is not lost, and of several
    concurrent calls one assigns the id that all return. The file is never absent, so no backup is written.

    Args:
        env: Storage of the table, and the source of ids.
        replaces: The id that the new one replaces. If the properties contain another id, it is returned. The empty
            default assigns an id only to a table without one.

    Raises:
        RetryableError: Another writer is changing the properties.
        UserError: The user may not write them, or an update of them crashed.
    """
    storage, assigned, incomplete = env.storage, env.ids.uuid(), list[str]()
    for _ in range(_TRIES):
        try:
            data, tag = storage.get_tagged(PROPERTIES)
        except NotFoundError:
            data, tag = b"", ""
        if not _is_complete(data):
            # Hudi deletes the file and writes it again; the next try finds it complete.
            incomplete.append(tag)
            env.clock.sleep(_PAUSE_S)
            continue
        values = parse_properties(data)
        if values.get(TABLE_ID, "") != replaces:
            return values.get(TABLE_ID, "")
        changed = render_properties({**values, TABLE_ID: assigned}, comments=("Updated by lakehouse",))
        if storage.replace_if(PROPERTIES, changed, tag) is not None:
            return assigned
    if len(incomplete) == _TRIES and len(set(incomplete)) == 1 and stored_properties(storage)[0] is not None:
        # Readers use the backup, or the incomplete file. The file is not rewritten here, because lines at its end may
        # be missing.
        raise UserError(
            f"{storage.root}/{PROPERTIES} is missing or incomplete, and no writer completes it, so the table id is not "
            f"stored: an update crashed, or an editor removed the line break at its end. Copy {PROPERTIES_BACKUP} "
            "to it if that file exists; otherwise add the line break, after a check that its last line is complete",
            path=PROPERTIES,
        )
    raise RetryableError(
        f"{storage.root}/{PROPERTIES} was changed or replaced by another writer {_TRIES} times while the table id was "
        "stored; run the command again",
        path=PROPERTIES,
    )


def stored_properties(storage: Storage) -> tuple[bytes | None, bool]:
    """Return the content of the main file if it is complete, otherwise of the backup, and whether it is the main file.

    If neither file exists, the first value is None.
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
