"""Translate errors of the operating system; storage and scratch directories raise no bare OSError.

full disk, quota             RetryableError: free space, then run again
no access, wrong path        UserError: correct the permissions or the path
absent, when reading         NotFoundError, also for a name that is too long
absent, when writing         RetryableError: another process removed the directory or the unfinished file
other errors (EIO, EINTR)    RetryableError with the cause
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import LakehouseError, RetryableError, UserError

#: Error codes that mean that the file does not exist; a file whose name is too long cannot exist.
ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_USERS_FAULT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTEMPTY)


def translate(error: OSError, path: str, *, writing: bool) -> LakehouseError:
    """Return the lakehouse error for an OSError."""
    # The root path of a store is empty.
    path = path or str(error.filename or "/")
    if error.errno in ABSENT and not writing:
        return NotFoundError(f"no file {path!r} ({error})", path=path)
    if error.errno in _FULL:
        return RetryableError(
            f"the disk is full at {path!r}: {error}. Free space or increase the quota, then run again.",
            path=path,
            errno=error.errno,
        )
    if error.errno == errno.ENOENT:
        # Directories are created as needed, so another process removed the temporary file or its directory.
        return RetryableError(
            f"{path!r} was removed while it was written ({error}); run the operation again",
            path=path,
            errno=error.errno,
        )
    if error.errno in (*_USERS_FAULT, *ABSENT):
        return UserError(
            f"cannot access {path!r}: {error}. Check the path and its permissions.", path=path, errno=error.errno
        )
    return RetryableError(f"local storage failed at {path!r}: {error}", path=path, errno=error.errno)


@contextmanager
def translated(path: str, *, writing: bool = False) -> Iterator[None]:
    """Raise lakehouse errors instead of OSError inside the block."""
    try:
        yield
    except OSError as error:
        raise translate(error, path, writing=writing) from error


@contextmanager
def scratch_directory(prefix: str) -> Iterator[str]:
    """Yield a temporary directory for data that does not fit into memory, and delete it at the end.

    TMPDIR defines its parent. OSErrors inside the block are translated, with the directory as their path.
    """
    with translated(tempfile.gettempdir(), writing=True), tempfile.TemporaryDirectory(prefix=prefix) as directory:
        yield directory
