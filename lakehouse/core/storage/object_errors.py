"""What an error of an object store means: whose fault it is, and whether the request may have taken effect.

obstore keeps the HTTP status in the text of its errors only, so the text is read here and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from lakehouse.core.storage.protocol import NotFoundError, RequestRefusedError
from lakehouse.errors import LakehouseError, RetryableError, UserError

# What obstore raises; a missing object and a bad path come as builtins.
ObjectStoreErrors = (BaseError, OSError, ValueError)

_STATUS = re.compile(r"status code: (\d{3})")
_USERS_FAULT = (
    PermissionDeniedError,
    UnauthenticatedError,
    InvalidPathError,
    NotSupportedError,
    UnknownConfigurationKeyError,
    ValueError,
)
_PASSING_STATUS = (408, 409, 425, 429)
RANGE_NOT_SATISFIABLE = 416
NOT_IMPLEMENTED = 501


class Fate(Enum):
    """What became of a conditional write that failed."""

    REFUSED = "the store says that the name is taken"
    BUSY = "the store says that somebody else is writing the name; it may or may not exist"
    NOT_SENT = "the store was never reached"
    ANSWERED = "the store reported a fault; the write may have landed, but will not land later"
    LOST = "there was no answer; the write may have landed, or may land later"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in the text of an error, None if the store did not answer."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def fate_of(error: BaseException) -> Fate:
    """Judge a failed create-if-absent, sent once and without hidden retries."""
    status = status_of(error)
    if isinstance(error, AlreadyExistsError):
        # S3 answers 409 when a delete or another conditional write is under way: that proves no object
        # (https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html), and obstore does not tell it from 412.
        return Fate.BUSY if status == 409 else Fate.REFUSED
    if status is not None:
        return Fate.ANSWERED
    return Fate.NOT_SENT if "kind: Connect" in str(error) else Fate.LOST


def is_passing(error: BaseException) -> bool:
    """Tell whether the same request may succeed later."""
    if isinstance(error, (*_USERS_FAULT, FileNotFoundError)):
        return False
    status = status_of(error)
    return status is None or (status >= 500 and status != NOT_IMPLEMENTED) or status in _PASSING_STATUS


def translate(error: BaseException, path: str, root: str) -> LakehouseError:
    """Return our error for one of obstore's."""
    text = str(error)
    reason = text.partition("\n\nDebug source:")[0].strip()
    if "NoSuchBucket" in text:
        return UserError(f"{root}: the bucket does not exist. Create it or correct the location.", path=path)
    if isinstance(error, FileNotFoundError):
        return NotFoundError(f"no file {path!r} in {root}", path=path)
    if is_passing(error):
        return RetryableError(f"{root} failed at {path!r} and kept failing: {reason}", path=path)
    return RequestRefusedError(
        f"{root} refused {path!r}: {reason}. Check the location, credentials and region.",
        path=path,
        status=status_of(error),
    )


@contextmanager
def translated(path: str, root: str) -> Iterator[None]:
    """Raise our errors instead of obstore's inside the block."""
    try:
        yield
    except ObjectStoreErrors as error:
        raise translate(error, path, root) from error
