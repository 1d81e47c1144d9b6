"""Compare and swap on a local disk: who changes a file conditionally holds the kernel's lock on it while it does.

The lock (`flock`) is on the file that has the name, not on one beside it, so nothing is left behind; the kernel drops
it when its process dies. A file that is replaced takes its lock along, so whoever gets one looks whether the name still
means the same file, and tries again if not:

    A  open 1   lock 1   read, compare   rename 2 over 1   unlock 1
    B  open 1   ........................................   lock 1   the name means 2: open 2   lock 2   read, compare
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.errors import RetryableError, UnsupportedError

_PATIENCE_S = 10.0
_PAUSE_S = 0.002
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def exclusive(target: str) -> Iterator[bytes | None]:
    """Hold the file `target` and give its bytes, None if there is none; raises OSError.

    Raises RetryableError if somebody else holds it for long (that process is suspended), and UnsupportedError where
    the file system knows no locks.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            descriptor = os.open(target, os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            yield None
            return
        try:
            if _lock(descriptor, target) and _is_still(descriptor, target):
                with open(descriptor, "rb", closefd=False) as file:
                    data = file.read()
                try:
                    yield data
                finally:
                    # A child forked meanwhile has the file open, too, and closing ours alone would not free it.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                return
        finally:
            os.close(descriptor)
        if time.monotonic() > deadline:
            raise RetryableError(f"{target!r} is being changed by a process that does not come to an end", path=target)
        time.sleep(_PAUSE_S)


def _lock(descriptor: int, target: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise UnsupportedError(
                f"cannot change {target!r} safely: its file system has no locks ({error.strerror}), and without them "
                "two writers could both believe they hold the table. Use another disk, s3://, or another lock provider "
                "(hoodie.write.lock.provider).",
                path=target,
            ) from error
        raise
    return True


def _is_still(descriptor: int, target: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(target))
    except FileNotFoundError:
        return False
