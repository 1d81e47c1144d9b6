"""Make local files survive a crash of the machine: fsync of their bytes, then of their parent directories.

A writer syncs a data file before the commit that lists it, and the commit before the write returns. Temporary files of
a write are not synced: markers, heartbeats, staged rows, locks.
"""

from __future__ import annotations

import errno
import os
from typing import BinaryIO

from lakehouse.errors import UserError
from lakehouse.spec.table.location import HOME

#: The storage option, and the environment variable that applies to all local tables.
FSYNC_OPTION, FSYNC_VARIABLE = "lakehouse.storage.fsync", "LAKEHOUSE_STORAGE_FSYNC"
_PASSING = tuple(f".hoodie/{name}" for name in (".temp/", ".heartbeat/", ".staging/", ".locks/", "lock", "holder.json"))
_NOT_FOR_DIRECTORIES = (errno.EINVAL, errno.ENOTSUP)
_SPELLINGS = {"true": True, "1": True, "false": False, "0": False, "": False}


def parse_fsync(text: str | None) -> bool:
    """Return whether files are synced.

    None uses the environment variable. Its default is true if LAKEHOUSE_HOME is set, because then the deployment has
    one machine whose local disk has the only copy.
    """
    default = "true" if os.environ.get(HOME) else "false"
    value = os.environ.get(FSYNC_VARIABLE, default) if text is None else text
    try:
        return _SPELLINGS[value.strip().lower()]
    except KeyError:
        raise UserError(f"{FSYNC_OPTION}={value!r} is neither true nor false", option=FSYNC_OPTION) from None


def outlives_write(path: str) -> bool:
    """Return whether a file is part of the table, not a temporary file of a write."""
    return not path.startswith(_PASSING)


def sync_bytes(file: BinaryIO) -> None:
    """Wait until the bytes of an open file are on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_name(base: str, path: str, synced: dict[str, int]) -> None:
    """Wait until the name of a file, and the names of new directories between it and `base`, are on the disk.

    `synced` maps paths of directories whose names are synced to their inodes; new directories are added.
    """
    directory = path.rpartition("/")[0]
    while True:
        inode = _sync_directory(base + directory)
        if not directory or synced.get(directory) == inode:
            return
        synced[directory] = inode
        directory = directory.rpartition("/")[0]


def _sync_directory(directory: str) -> int:
    """Wait until the entries of a directory are on the disk, and return its inode."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems, mostly network file systems, cannot sync directories.
        if error.errno not in _NOT_FOR_DIRECTORIES:
            raise
    finally:
        inode = os.fstat(descriptor).st_ino
        os.close(descriptor)
    return inode
