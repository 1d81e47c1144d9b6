"""Find symbolic links below a local root, and delete files without following them.

Each directory of a path is opened relative to its parent, and links below the root are refused. The root itself may be
a link, because the caller chose it. A link that is created between the check and the deletion has no effect, because
the file is deleted relative to the opened directory.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable

from lakehouse.core.storage.local_reads import refused_link
from lakehouse.errors import CorruptTableError

_OPEN = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


def open_directory(root: str, directory: str) -> int:
    """Return a descriptor of `directory` below `root` (`""`: the root itself); the caller closes it.

    Raises CorruptTableError with the first symbolic link of the path, and OSError.
    """
    opened = os.open(root, _OPEN)
    walked = ""
    for segment in directory.split("/") if directory else ():
        walked = f"{walked}/{segment}" if walked else segment
        try:
            below = os.open(segment, _OPEN | os.O_NOFOLLOW, dir_fd=opened)
        except OSError as error:
            is_link = error.errno in (errno.ELOOP, errno.ENOTDIR) and _is_link(segment, opened)
            os.close(opened)
            if is_link:
                raise _refused(root, walked) from None
            raise
        os.close(opened)
        opened = below
    return opened


def outside(root: str, directories: Iterable[str]) -> dict[str, str]:
    """Return the directories that do not belong to the table at `root`, each with the reason.

    A directory does not belong to it if a symbolic link leads there, or if it is in a directory with its own `.hoodie`.
    """
    return _with_reason(root, directories, _own_reason)


def linked(root: str, directories: Iterable[str]) -> dict[str, str]:
    """Return the directories below `root` to which a symbolic link leads, each with the reason."""
    return _with_reason(root, directories, _link_reason)


def require_no_links(root: str, paths: Iterable[str]) -> None:
    """Raise CorruptTableError if a link leads to a file of the store at `root`; object stores have no links.

    This check is for readers that open the files themselves, such as Spark: they would follow the links.
    """
    if not root.startswith("/"):
        return
    for path in linked(root, paths):
        raise refused_link(root, path)


def _with_reason(root: str, directories: Iterable[str], judge: Callable[[str, str], str | None]) -> dict[str, str]:
    """Return the directories for which `judge` returns a reason, for the directory itself or for a parent."""
    reasons: dict[str, str | None] = {"": None}

    def reason(directory: str) -> str | None:
        # Iterative instead of recursive, because a path may have two thousand levels.
        unknown = []
        while directory not in reasons:
            unknown.append(directory)
            directory = directory.rpartition("/")[0]
        why = reasons[directory]
        for below in reversed(unknown):
            why = reasons[below] = why or judge(root, below)
        return why

    return {directory: why for directory in directories if (why := reason(directory)) is not None}


def _link_reason(root: str, directory: str) -> str | None:
    return f"{directory!r} is a symbolic link" if os.path.islink(f"{root}/{directory}") else None


def _own_reason(root: str, directory: str) -> str | None:
    is_table = os.path.isdir(f"{root}/{directory}/.hoodie")
    return _link_reason(root, directory) or (f"{directory!r} is another table" if is_table else None)


def _is_link(name: str, directory: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except OSError:
        return False


def _refused(root: str, link: str) -> CorruptTableError:
    return CorruptTableError(
        f"{root}: {link!r} is a symbolic link, and its target may belong to another table. Files behind links are not "
        "deleted. Replace the link by a directory, or delete the files at their own path.",
        path=link,
    )
