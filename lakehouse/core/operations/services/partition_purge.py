"""Purge: delete all files of a table, but not those of other owners in its folder."""

from __future__ import annotations

import logging

from lakehouse.core.storage.nested_tables import HOODIE, nested_tables, without
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.file_deletions import foreign_directories, linked_directories
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.errors import UserError

logger = logging.getLogger(__name__)


def purge_table(storage: Storage) -> tuple[str, ...]:
    """Delete the files of the table at the root of a storage; return the directories that are kept.

    Directories are kept if they are tables inside the folder or symbolic links, because their files have another owner.
    Use a storage that follows links: others raise an error before any file is deleted. The table properties are deleted
    last, so a purge that crashed can be repeated.

    Raises UserError if the folder has files but no table properties.
    """
    files = storage.list("")
    paths = {file.path for file in files}
    if paths and not any(path.startswith(PROPERTIES) for path in paths):
        raise UserError(
            f"{storage.root} has no table properties, but {len(paths)} files, for example {min(paths)}. They may have "
            "another owner, so they are not deleted. Drop the table without purge, and delete them by hand.",
            location=storage.root,
        )
    nested = nested_tables(files)
    own = without(files, nested)
    directories = {file.path.rpartition("/")[0] for file in own}
    foreign = {**foreign_directories(storage, directories), **linked_directories(storage, directories)}
    deletions = [file.path for file in own if file.path.rpartition("/")[0] not in foreign]
    storage.delete_many(
        sorted(deletions, key=lambda path: (path.startswith(f"{HOODIE}/"), path.startswith(PROPERTIES)))
    )
    kept = tuple(sorted({*nested, *foreign}))
    if kept:
        logger.warning("%s: %d directories of other owners are kept: %s", storage.root, len(kept), kept)
    return kept
