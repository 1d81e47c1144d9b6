"""Purge: delete all files of a table, and nothing that merely lies in its folder."""

from __future__ import annotations

import logging

from lakehouse.core.operations.load.table import PROPERTIES
from lakehouse.core.storage.nested_tables import HOODIE, nested_tables, without
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.file_deletions import foreign_directories, linked_directories
from lakehouse.errors import UserError

logger = logging.getLogger(__name__)


def purge_table(storage: Storage) -> tuple[str, ...]:
    """Delete the files of the table at the root of a store; return the directories that are left.

    These are tables inside its folder and symbolic links: what they lead to is not the table's. A store that follows no
    links refuses them before anything is deleted, so give one that does. Raises UserError where
    files lie that are no table's. The properties go last, so a purge that died is seen, and repeated.
    """
    files = storage.list("")
    paths = {file.path for file in files}
    if paths and not any(path.startswith(PROPERTIES) for path in paths):
        raise UserError(
            f"{storage.root} is no table any more, and {len(paths)} files are there, such as {min(paths)}. They may be "
            "files of another owner, so they are not deleted. Drop the table without purge, and delete them by hand.",
            location=storage.root,
        )
    nested = nested_tables(files)
    own = without(files, nested)
    directories = {file.path.rpartition("/")[0] for file in own}
    foreign = {**foreign_directories(storage, directories), **linked_directories(storage, directories)}
    going = [file.path for file in own if file.path.rpartition("/")[0] not in foreign]
    storage.delete_many(sorted(going, key=lambda path: (path.startswith(f"{HOODIE}/"), path.startswith(PROPERTIES))))
    left = tuple(sorted({*nested, *foreign}))
    if left:
        logger.warning("%s: %d directories are left, for they are not the table's: %s", storage.root, len(left), left)
    return left
