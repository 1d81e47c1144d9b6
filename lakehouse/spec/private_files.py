"""Create files and folders that no other user of the host can read, replace or redirect.

They are used for reports and embedded databases. In a folder that all users can write to, such as /tmp, another user
may already have created a folder or a symbolic link with the same name. Owner, mode and type of a folder are therefore
checked before it is used, and files are opened without following links.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lakehouse.errors import UserError

_FOLDER, _FILE, _ABOVE = 0o700, 0o600, 0o755
_WRITABLE_BY_OTHERS = stat.S_IWOTH


def private_folder(root: Path, *parts: str) -> Path:
    """Create `root` and the nested folders `parts` below it for this user alone; return the innermost folder.

    `root` may exist with another mode, owned by this user or by root, if other users cannot replace files in it. Raises
    UserError for a folder of another user, and for a path that is not a folder.
    """
    make_parents(root)
    folder = root
    _make(folder)
    _check_root(folder)
    for part in parts:
        folder = folder / part
        _make(folder)
        _check_own(folder)
    return folder


def make_parents(path: Path) -> None:
    """Create the missing parent folders of a path so that no other user can replace files in them.

    The mode of `Path.mkdir(parents=True)` depends on the umask, which may let all users write.
    """
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    for folder in reversed(missing):
        folder.mkdir(mode=_ABOVE, exist_ok=True)


def own_folder(folder: Path) -> Path:
    """Create a folder with a predictable name for this user alone; raise UserError if it belongs to another user."""
    _make(folder)
    _check_own(folder)
    return folder


def private_file(path: Path) -> None:
    """Create an empty file that only this user can access, or remove the permissions of others from an existing file.

    An existing file is not opened: when a process closes a file, it loses all its locks on that file, including the
    locks of an SQLite connection. Another process would then delete the journal of that connection, which would read
    old data.

    Raises UserError for a symbolic link and for a path that is not a file.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _FILE))
    except FileExistsError:
        _restrict(path)
    except OSError as error:
        raise UserError(f"{path} cannot be used: {_why(path, error)}", path=str(path)) from None


def read_own_file(path: Path) -> str:
    """Return the content of this user's file as a string.

    Raises FileNotFoundError if the file does not exist, and UserError for a symbolic link or another user's file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_why(path, error)}", path=str(path)) from None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is not a file of this user, so it is not trusted", path=str(path))
        return file.read()


def _restrict(path: Path) -> None:
    status = os.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        kind = "a symbolic link" if stat.S_ISLNK(status.st_mode) else "not a file"
        raise UserError(f"{path} cannot be used: it is {kind}", path=str(path))
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) != _FILE:
        os.chmod(path, _FILE)


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=_FOLDER)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(f"{folder} cannot be created: {error.strerror}", path=str(folder)) from None


def _check_root(folder: Path) -> None:
    link = os.lstat(folder)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise _refused(folder, "it is a symbolic link of another user, which may lead to files of another user")
    # A link that this user or root owns is accepted, because deployments use one to move a folder to another disk.
    status = _folder(folder.resolve())
    exposed = bool(status.st_mode & _WRITABLE_BY_OTHERS) and not status.st_mode & stat.S_ISVTX
    if status.st_uid not in (0, os.geteuid()) or (exposed and status.st_uid != os.geteuid()):
        raise _refused(folder, f"it belongs to the user {status.st_uid}, which could replace files in it")
    if exposed:
        os.chmod(folder, stat.S_IMODE(status.st_mode) & ~_WRITABLE_BY_OTHERS)


def _check_own(folder: Path) -> None:
    status = _folder(folder)
    if status.st_uid != os.geteuid():
        raise _refused(folder, f"it belongs to the user {status.st_uid}, which could read and replace files in it")
    if stat.S_IMODE(status.st_mode) != _FOLDER:
        os.chmod(folder, _FOLDER)


def _folder(folder: Path) -> os.stat_result:
    status = os.lstat(folder)
    if stat.S_ISLNK(status.st_mode):
        raise _refused(folder, "it is a symbolic link, which may lead to files of another user")
    if not stat.S_ISDIR(status.st_mode):
        raise _refused(folder, "it is not a folder")
    return status


def _refused(folder: Path, why: str) -> UserError:
    return UserError(f"{folder} is not used: {why}. Remove it, or name another folder.", path=str(folder))


def _why(path: Path, error: OSError) -> str:
    return "it is a symbolic link" if path.is_symlink() else str(error.strerror)
