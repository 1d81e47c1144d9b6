"""Tables inside a table's folder: a directory with a `.hoodie` of its own, and its files, are another table's."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, Storage
from lakehouse.errors import LakehouseError

logger = logging.getLogger(__name__)

HOODIE = ".hoodie"
_PROPERTIES = f"{HOODIE}/hoodie.properties"
#: Levels that are looked at above and requests that are spent below a new table.
_MAX_LEVELS = 16
_INSIDE = f"/{HOODIE}/"


def nested_tables(files: Iterable[FileInfo]) -> tuple[str, ...]:
    """Return the directories of other tables that a recursive listing of a table shows, sorted; outermost ones alone.

    Files below the table's own `.hoodie` are not looked at: its metadata table is its own.
    """
    lead = f"{HOODIE}/"
    found = sorted({f.path.partition(_INSIDE)[0] for f in files if _INSIDE in f.path and not f.path.startswith(lead)})
    outermost: list[str] = []
    for directory in found:
        if not any(directory.startswith(f"{above}/") for above in outermost):
            outermost.append(directory)
    return tuple(outermost)


def table_above(storage: Storage) -> str | None:
    """Return the root of the table in whose folder a store lies, None if there is none: a request for each level.

    At most 16 levels are looked at. A level that may not be read is passed over, and the log says so. Where the path of
    a local store leads through symbolic links, the place that they lead to is looked at, too.
    """
    real = os.path.realpath(storage.root) if storage.root.startswith("/") else storage.root
    return _table_above(storage) or (_table_above(LocalStorage(real)) if real != storage.root else None)


def _table_above(storage: Storage) -> str | None:
    above = storage.above()
    for _ in range(_MAX_LEVELS):
        if above is None:
            return None
        if _is_table(above):
            return above.root
        above = above.above()
    return None


def table_below(storage: Storage, directories: Iterable[str]) -> str | None:
    """Return the first of some directories of a store that is a table itself; a request for each, at most 16."""
    for directory in list(directories)[:_MAX_LEVELS]:
        if HOODIE in storage.list_dir(directory)[1]:
            return f"{storage.root}/{directory}"
    return None


def _is_table(storage: Storage) -> bool:
    try:
        storage.get(_PROPERTIES)
    except NotFoundError:
        return False
    except LakehouseError as error:
        logger.warning("%s: whether a table lies there is not known: %s", storage.root, error)
        return False
    return True


def without(files: Iterable[FileInfo], directories: Iterable[str]) -> list[FileInfo]:
    """Return the files that lie in none of some directories."""
    leads = tuple(f"{directory}/" for directory in directories)
    return [file for file in files if not file.path.startswith(leads)] if leads else list(files)
