"""Open files and directories of a local store without leaving its root.

A user with write access to a table can put a symbolic link into it, and a reader with more permissions would follow it.
Therefore links below the root are refused: listing, reading and writing through a link raise CorruptTableError with its
name. The root itself may be a link, because the caller chose it. Only regular files are opened for reading, because a
pipe would block the reader.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from stat import S_ISDIR, S_ISREG

from lakehouse.errors import CorruptTableError

#: Maximum size of files that are read as a whole, because an attacker can create a huge sparse file at no cost.
MAX_WHOLE_BYTES = 2 << 30
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)


def open_file(root: str, path: str, *, follow_links: bool) -> tuple[int, int]:
    """Return a descriptor of the regular file `path` below `root`, and its size; the caller closes it.

    Raises CorruptTableError if the file is not regular or `path` has a link (even if no file is there), and OSError.
    """
    try:
        descriptor = os.open(_join(root, path), _FLAGS)
    except FileNotFoundError:
        if not follow_links:
            check_name(root, path)  # report the link instead of a missing file
        raise
    try:
        status = os.fstat(descriptor)
        if S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not S_ISREG(status.st_mode):
            raise CorruptTableError(
                f"{root}: {path!r} is not a regular file but a pipe, a socket or a device; remove it", path=path
            )
        if not follow_links:
            check_place(descriptor, root, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status.st_size


def open_directory_to_read(root: str, path: str, *, follow_links: bool) -> int:
    """Return a descriptor of the directory `path` below `root` ("" is the root); the caller closes it.

    Raises CorruptTableError if a link leads to it, and OSError.
    """
    descriptor = os.open(_join(root, path), _FLAGS | os.O_DIRECTORY)
    try:
        if path and not follow_links:
            check_place(descriptor, root, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_whole(descriptor: int, size: int, root: str, path: str) -> bytes:
    """Return all bytes of an opened file; raise CorruptTableError if it is larger than MAX_WHOLE_BYTES."""
    if size > MAX_WHOLE_BYTES:
        raise CorruptTableError(
            f"{root}: {path!r} has {size} bytes; files that are read as a whole have at most {MAX_WHOLE_BYTES}",
            path=path,
        )
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        return file.readall()


def refused_link(root: str, link: str) -> CorruptTableError:
    """Return the error for a link below the root of a store."""
    return CorruptTableError(
        f"{root}: {link!r} is reached through a symbolic link, and its target may belong to another user. Links "
        "below a table are not followed: move the files into the table, or mount their directory there.",
        path=link,
    )


def check_place(descriptor: int, root: str, path: str) -> None:
    """Raise CorruptTableError if a symbolic link below `root` led to the opened file `path`."""
    # One system call returns the real path of an opened file.
    expected = _join(_real_root(root), path)
    try:
        actual = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        actual = ""  # this system has no /proc
    if actual == expected:
        return
    # The file may have been deleted or the root moved in the meantime, so check the path itself.
    check_name(root, path)


def check_name(root: str, path: str) -> None:
    """Raise CorruptTableError if an existing part of `path` below `root` is a symbolic link."""
    if os.path.realpath(_join(root, path)) != _join(os.path.realpath(root), path):
        raise refused_link(root, path)


@lru_cache(maxsize=256)
def _real_root(root: str) -> str:
    return os.path.realpath(root)


def _join(root: str, path: str) -> str:
    return f"{root.rstrip('/')}/{path}" if path else root
