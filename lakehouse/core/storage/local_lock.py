"""Compare-and-swap on a local disk: a process holds the kernel lock of a file while it changes it conditionally.

The lock (`flock`) is on the file itself, so no lock file remains; the kernel releases it when the process ends. When a
file is replaced, its lock refers to the old file. Therefore a process that gets the lock checks that the name still
refers to the same file, and otherwise tries again:

    A  open 1   lock 1   read, compare   rename 2 over 1   unlock 1
    B  open 1   ........................................   lock 1   the name means 2: open 2   lock 2   read, compare
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.core.system.clock import WaitClock
from lakehouse.errors import RetryableError, UnsupportedError

_PATIENCE_S = 10.0
_PAUSE_S = 0.002
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


@contextmanager
def exclusive(target: str, clock: WaitClock) -> Iterator[bytes | None]:
    """Lock the file `target` and yield its bytes, or None if it does not exist; raises OSError.

    Raises RetryableError if another process, for example a suspended one, holds the lock for long. Raises
    UnsupportedError if the file system has no locks.
    """
    deadline = clock.monotonic_s() + _PATIENCE_S
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
                    # A forked child process may have the file open, too; then closing it would not release the lock.
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                return
        finally:
            os.close(descriptor)
        if clock.monotonic_s() > deadline:
            raise RetryableError(f"another process holds the lock of {target!r} for too long; run again", path=target)
        clock.sleep(_PAUSE_S)


def _lock(descriptor: int, target: str) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise UnsupportedError(
                f"cannot change {target!r} safely: its file system has no locks ({error.strerror}); without them two "
                "writers could hold the table lock. Use another disk, s3://, or another lock provider "
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
