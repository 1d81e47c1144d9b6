"""Classify errors of object stores: the class of our error, and whether the request may have taken effect.

obstore returns the HTTP status in its error messages only. Only this module parses the message.
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

# Exceptions of obstore. For a missing object and an invalid path obstore raises builtin exceptions.
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
    """The possible effects of a conditional write that failed."""

    REFUSED = "the store reports that the object exists"
    BUSY = "the store reports a concurrent write of the object, which may or may not exist"
    NOT_SENT = "the request did not reach the store"
    ANSWERED = "the store reported a fault; the write may have taken effect, but will not take effect later"
    LOST = "there was no reply; the write may have taken effect, or may take effect later"


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status in an error message, or None if the store did not reply."""
    match = _STATUS.search(str(error))
    return int(match[1]) if match else None


def fate_of(error: BaseException) -> Fate:
    """Classify the failure of a create-if-absent request that was sent once, without hidden retries."""
    status = status_of(error)
    if isinstance(error, AlreadyExistsError):
        # S3 replies 409 during a delete or another conditional write. It does not mean that the object exists
        # (https://docs.aws.amazon.com/AmazonS3/latest/API/API_PutObject.html); obstore raises the same error for 412.
        return Fate.BUSY if status == 409 else Fate.REFUSED
    if status is not None:
        return Fate.ANSWERED
    return Fate.NOT_SENT if "kind: Connect" in str(error) else Fate.LOST


def is_passing(error: BaseException) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, (*_USERS_FAULT, FileNotFoundError)):
        return False
    status = status_of(error)
    return status is None or (status >= 500 and status != NOT_IMPLEMENTED) or status in _PASSING_STATUS


def translate(error: BaseException, path: str, root: str) -> LakehouseError:
    """Return the lakehouse error for an error of obstore."""
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
    """Raise lakehouse errors instead of obstore's inside the block."""
    try:
        yield
    except ObjectStoreErrors as error:
        raise translate(error, path, root) from error
