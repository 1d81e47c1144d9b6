"""Files and folders that no other user of the host may read, replace or redirect: reports, embedded databases.

A name in a folder that everybody writes to, such as that of temporary files, may be taken by another user before us,
as a folder of theirs or as a symbolic link to one of ours. Owner, mode and kind are looked at before such a folder is
used, and no link is followed where a file is opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lakehouse.errors import UserError

_FOLDER, _FILE, _ABOVE = 0o700, 0o600, 0o755
_WRITABLE_BY_OTHERS = stat.S_IWOTH


def private_folder(root: Path, *parts: str) -> Path:
    """Make `root` and the folders `parts` below it, one inside the other, for this user alone; return the last one.

    `root` may exist with a mode of its own, of this user or of root, as long as not everybody can replace what is in
    it. Raises UserError naming a folder that is another user's, or no folder.
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
    """Make the folders above a path that are missing, such that no other user may replace what is in them.

    `Path.mkdir(parents=True)` leaves their mode to the umask alone, and under some everybody may write to them.
    """
    missing = [folder for folder in path.parents if not os.path.lexists(folder)]
    for folder in reversed(missing):
        folder.mkdir(mode=_ABOVE, exist_ok=True)


def own_folder(folder: Path) -> Path:
    """Make a folder with a predictable name for this user alone; UserError if it belongs to another user."""
    _make(folder)
    _check_own(folder)
    return folder


def private_file(path: Path) -> None:
    """Make an empty file for this user alone, or take the rights of others to one of ours; no link is followed.

    Raises UserError for a symbolic link and for what is no file.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, _FILE)
    except OSError as error:
        raise UserError(f"{path} cannot be used: {_why(path, error)}", path=str(path)) from None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UserError(f"{path} cannot be used: it is no file", path=str(path))
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) != _FILE:
            os.fchmod(descriptor, _FILE)
    finally:
        os.close(descriptor)


def read_own_file(path: Path) -> str:
    """Return the text of a file of this user; no link is followed.

    Raises FileNotFoundError where there is none, UserError for a link and for a file of another user.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {_why(path, error)}", path=str(path)) from None
    with os.fdopen(descriptor, encoding="utf-8") as file:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or not stat.S_ISREG(found.st_mode):
            raise UserError(f"{path} is not a file of this user, so it is not believed", path=str(path))
        return file.read()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(mode=_FOLDER)
    except FileExistsError:
        pass
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}", path=str(folder)) from None


def _check_root(folder: Path) -> None:
    link = os.lstat(folder)
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise _refused(folder, "it is a symbolic link of another user, which may lead to files of another user")
    # A link of one's own, or of root, is the way in which a deployment moves a folder to another disk.
    found = _folder(folder.resolve())
    exposed = bool(found.st_mode & _WRITABLE_BY_OTHERS) and not found.st_mode & stat.S_ISVTX
    if found.st_uid not in (0, os.geteuid()) or (exposed and found.st_uid != os.geteuid()):
        raise _refused(folder, f"it belongs to the user {found.st_uid}, who could replace what is in it")
    if exposed:
        os.chmod(folder, stat.S_IMODE(found.st_mode) & ~_WRITABLE_BY_OTHERS)


def _check_own(folder: Path) -> None:
    found = _folder(folder)
    if found.st_uid != os.geteuid():
        raise _refused(folder, f"it belongs to the user {found.st_uid}, who could read and replace what is in it")
    if stat.S_IMODE(found.st_mode) != _FOLDER:
        os.chmod(folder, _FOLDER)


def _folder(folder: Path) -> os.stat_result:
    found = os.lstat(folder)
    if stat.S_ISLNK(found.st_mode):
        raise _refused(folder, "it is a symbolic link, which may lead to files of another user")
    if not stat.S_ISDIR(found.st_mode):
        raise _refused(folder, "it is no folder")
    return found


def _refused(folder: Path, why: str) -> UserError:
    return UserError(f"{folder} is not used: {why}. Remove it, or name another folder.", path=str(folder))


def _why(path: Path, error: OSError) -> str:
    return "it is a symbolic link" if path.is_symlink() else str(error.strerror)
