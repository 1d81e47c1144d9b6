"""Nested tables: a directory with its own `.hoodie` inside a table's directory belongs to another table."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator

from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, Storage
from lakehouse.errors import LakehouseError

logger = logging.getLogger(__name__)

HOODIE = ".hoodie"
_PROPERTIES = f"{HOODIE}/hoodie.properties"
#: Maximum number of levels checked above a new table, and of requests below it.
_MAX_LEVELS = 16
_INSIDE = f"/{HOODIE}/"


def nested_tables(files: Iterable[FileInfo]) -> tuple[str, ...]:
    """Return the directories of tables nested in a table, sorted; `files` is the table's recursive listing.

    Of tables nested in each other, only the outermost one is returned. The table's own metadata table is not a nested
    table, so files below the table's `.hoodie` are ignored.
    """
    lead = f"{HOODIE}/"
    directories = sorted(
        {f.path.partition(_INSIDE)[0] for f in files if _INSIDE in f.path and not f.path.startswith(lead)}
    )
    outermost: list[str] = []
    for directory in directories:
        if not any(directory.startswith(f"{above}/") for above in outermost):
            outermost.append(directory)
    return tuple(outermost)


def table_above(storage: Storage) -> str | None:
    """Return the root of the table that encloses a store, or None; one request for each level.

    At most 16 levels are checked. A level without read access is skipped with a warning in the log. If the path of a
    local store contains symbolic links, the resolved path is checked, too.
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
    """Return the first of the directories that is a table; one request for each, at most 16."""
    return next(_tables_below(storage, directories), None)


def tables_below(storage: Storage, directories: Iterable[str]) -> tuple[str, ...]:
    """Return the directories that are tables; one request for each, at most 16."""
    return tuple(_tables_below(storage, directories))


def _tables_below(storage: Storage, directories: Iterable[str]) -> Iterator[str]:
    for directory in list(directories)[:_MAX_LEVELS]:
        if HOODIE in storage.list_dir(directory)[1]:
            yield f"{storage.root}/{directory}"


def _is_table(storage: Storage) -> bool:
    try:
        storage.get(_PROPERTIES)
    except NotFoundError:
        return False
    except LakehouseError as error:
        logger.warning("%s: cannot check whether this directory is a table: %s", storage.root, error)
        return False
    return True


def without(files: Iterable[FileInfo], directories: Iterable[str]) -> list[FileInfo]:
    """Return the files that are in none of the directories."""
    leads = tuple(f"{directory}/" for directory in directories)
    return [file for file in files if not file.path.startswith(leads)] if leads else list(files)
