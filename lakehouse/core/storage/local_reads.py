"""Opening files and directories of a local store without leaving it.

A user who can write into a table can put a symbolic link there, and a reader with more rights would follow it.
So below the root of a table no link is followed: listing, reading or writing through one raises CorruptTableError
naming it. The root itself may be a link, for the caller named it. Only regular files are opened to be read: a pipe
would block the reader.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from stat import S_ISDIR, S_ISREG

from lakehouse.errors import CorruptTableError

#: No file that is read as a whole is as large; a sparse file of any size costs its maker nothing.
MAX_WHOLE_BYTES = 2 << 30
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)


def open_file(root: str, path: str, *, follow_links: bool) -> tuple[int, int]:
    """Return a descriptor of the regular file `path` below `root`, and its size; the caller closes it.

    Raises CorruptTableError for what is no regular file and for a path through a link, OSError as the kernel does.
    """
    descriptor = os.open(_join(root, path), _FLAGS)
    try:
        found = os.fstat(descriptor)
        if S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not S_ISREG(found.st_mode):
            raise CorruptTableError(
                f"{root}: {path!r} is no regular file but a pipe, a socket or a device; remove it", path=path
            )
        if not follow_links:
            check_place(descriptor, root, path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, found.st_size


def open_directory_to_read(root: str, path: str, *, follow_links: bool) -> int:
    """Return a descriptor of the directory `path` below `root` ("" is the root); the caller closes it.

    Raises CorruptTableError for a path through a link, OSError as the kernel does.
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
    """Return all bytes of an opened file; raise CorruptTableError if they are more than any file read as a whole."""
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
        "below a table are not followed: put the files there themselves, or mount their directory there.",
        path=link,
    )


def check_place(descriptor: int, root: str, path: str) -> None:
    """Raise CorruptTableError if an opened file is not at `path` below `root` itself, but behind a link."""
    # One system call tells where an opened file is, whatever links led there.
    expected = _join(_real_root(root), path)
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        found = ""  # no such files on this system
    if found == expected:
        return
    # The file may have been deleted or the root moved meanwhile, so the name itself decides.
    check_name(root, path)


def check_name(root: str, path: str) -> None:
    """Raise CorruptTableError if what exists of `path` below `root` leads through a link."""
    if os.path.realpath(_join(root, path)) != _join(os.path.realpath(root), path):
        raise refused_link(root, path)


@lru_cache(maxsize=256)
def _real_root(root: str) -> str:
    return os.path.realpath(root)


def _join(root: str, path: str) -> str:
    return f"{root.rstrip('/')}/{path}" if path else root
