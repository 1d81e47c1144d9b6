"""Purge: delete all files of a table, but no other files in its folder.

    data files           base files, log files and change logs in a partition: a folder with partition metadata
    partition metadata   after the data files, so that a retried purge finds the partitions
    .hoodie              after them; hoodie.properties last, so that a purge that crashed can be repeated

All other files are kept, and reported: files with other names, data files in a folder that is no partition, nested
tables, and targets of symbolic links.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable
from itertools import accumulate, groupby

from lakehouse.core.format.file_names import is_data_file, is_partition_metadata
from lakehouse.core.storage.nested_tables import HOODIE, nested_tables, without
from lakehouse.core.storage.protocol import FileInfo, Storage, is_temporary
from lakehouse.core.timeline.file_deletions import foreign_directories, linked_directories
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.errors import UserError

logger = logging.getLogger(__name__)

_CHECKSUM_SUFFIX = ".crc"


def purge_table(storage: Storage) -> tuple[str, ...]:
    """Delete the files of the table at the root of a storage; return the paths that are kept, sorted.

    A kept path is a file that does not belong to the table, a folder with such files only (with a slash at its end), or
    a directory that is another table or a symbolic link. Use a storage that follows links: others raise an error before
    any file is deleted. Two concurrent purges, or a retried one, are harmless.

    Raises UserError if the folder contains files but no table properties.
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
    inside = without(files, nested)
    directories = {_folder(file.path) for file in inside}
    foreign = {**foreign_directories(storage, directories), **linked_directories(storage, directories)}
    reachable = [file for file in inside if _folder(file.path) not in foreign]
    deletions = _own_files(reachable)
    # Object stores delete the files of one call in any order.
    for _, stage in groupby(sorted(deletions, key=_stage), key=_stage):
        storage.delete_many(sorted(stage))
    others = _shown([file.path for file in reachable if file.path not in deletions], deletions)
    remaining = tuple(sorted({*nested, *foreign, *others}))
    if remaining:
        logger.warning(
            "%s: %d files and directories of other owners are kept: %s", storage.root, len(remaining), remaining
        )
    return remaining


def _own_files(files: Iterable[FileInfo]) -> set[str]:
    """Return the paths of the files that belong to the table."""
    by_folder: dict[str, list[str]] = defaultdict(list)
    own: set[str] = set()
    for file in files:
        if file.path.startswith(f"{HOODIE}/"):
            own.add(file.path)
        else:
            by_folder[_folder(file.path)].append(file.path.rpartition("/")[2])
    for folder, names in by_folder.items():
        if any(is_partition_metadata(name) for name in names):
            lead = f"{folder}/" if folder else ""
            own.update(f"{lead}{name}" for name in names if _is_own(name))
    return own


def _is_own(name: str) -> bool:
    """Return whether a file of a partition belongs to the table: data, partition metadata, or a file of a writer."""
    if name.startswith(".") and name.endswith(_CHECKSUM_SUFFIX):
        # Hadoop writes the checksum of a local file to the same folder.
        name = name[1 : -len(_CHECKSUM_SUFFIX)]
    return is_data_file(name) or is_partition_metadata(name) or is_temporary(name)


def _shown(paths: Iterable[str], own: Iterable[str]) -> set[str]:
    """Return the kept files. A folder without files of the table is listed instead of its files."""
    own_folders = {""}
    for folder in {_folder(path) for path in own}:
        own_folders.update(accumulate(folder.split("/"), "{}/{}".format))
    shown = set()
    for path in paths:
        folders = accumulate(_folder(path).split("/"), "{}/{}".format)
        outermost = next((folder for folder in folders if folder not in own_folders), None)
        shown.add(path if outermost is None else f"{outermost}/")
    return shown


def _stage(path: str) -> int:
    """Return the position of a file in the order of deletion. Files that a retried purge needs come last."""
    if path.startswith(PROPERTIES):
        return 3
    if path.startswith(f"{HOODIE}/"):
        return 2
    return 1 if is_partition_metadata(path.rpartition("/")[2]) else 0


def _folder(path: str) -> str:
    return path.rpartition("/")[0]
