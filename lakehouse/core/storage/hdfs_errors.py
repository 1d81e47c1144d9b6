"""Classify errors of hdfs-native: the class of our error, and whether the request may succeed later.

hdfs-native raises FileNotFoundError, FileExistsError, OSError if no namenode or datanode answers, and otherwise
RuntimeError with the Java class in its text. A defect of the library is a PanicException, which is no Exception. Only
this module parses the texts.
"""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import LakehouseError, RetryableError, UserError

USER_VARIABLE = "HADOOP_USER_NAME"
_RPC = re.compile(r'RPCError\("(?P<java>[\w.$]+)", "(?P<text>.*)', re.S)
_PANIC = "PanicException"
#: The namenode refuses the request now, and has not executed it.
_PASSING = ("SafeModeException", "StandbyException", "RetriableException", "ObserverRetryOnActiveException")
_SAFE_MODE = "is in safe mode"
_QUOTA = ("NSQuotaExceededException", "DSQuotaExceededException", "QuotaByStorageTypeExceededException")
_NO_DIRECTORY = "(is not a directory)"
_USERS_FAULT = ("InvalidPathException", "PathComponentTooLongException", "MaxDirectoryItemsExceededException")
_CUT = re.compile(r"disconnect|reset|abort|broken pipe|closed|eof", re.I)
_SIGN_IN = re.compile(r"SASL|GSS|gssapi|[Kk]erberos|AuthenticationException|authentication", re.S)


def is_hdfs_error(error: BaseException) -> bool:
    """Return whether hdfs-native raised the error."""
    return isinstance(error, (OSError, RuntimeError, ValueError)) or type(error).__name__ == _PANIC


def is_passing(error: BaseException) -> bool:
    """Return whether the namenode refused the request without executing it, and may execute it later."""
    return _java_class(error) in _PASSING or _SAFE_MODE in str(error)


def is_lost(error: BaseException) -> bool:
    """Return whether there was no reply, so that the request may have taken effect."""
    return isinstance(error, OSError) and not isinstance(error, (FileNotFoundError, FileExistsError))


def is_cut(error: BaseException) -> bool:
    """Return whether a connection broke; hdfs-native itself waits for a namenode that refuses connections."""
    return is_lost(error) and _CUT.search(str(error)) is not None


def is_absent(error: BaseException) -> bool:
    """Return whether the path does not exist, or a file is where the path needs a directory."""
    return isinstance(error, FileNotFoundError) or _NO_DIRECTORY in str(error)


def is_not_empty(error: BaseException) -> bool:
    """Return whether a directory was not deleted because it contains files."""
    return _java_class(error) == "PathIsNotEmptyDirectoryException"


def needs_parent(error: BaseException) -> bool:
    """Return whether a rename failed because the directory of its target does not exist."""
    return isinstance(error, FileNotFoundError) and "destination parent" in str(error)


def current_user() -> str:
    """Return the user of requests without Kerberos."""
    with suppress(OSError, KeyError):
        return os.environ.get(USER_VARIABLE) or getpass.getuser()
    return ""


def translate(error: BaseException, path: str, root: str, *, writing: bool) -> LakehouseError:
    """Return the lakehouse error for an error of hdfs-native."""
    java, reason = _java_class(error), _reason(error)
    if is_absent(error):
        if not writing:
            return NotFoundError(f"no file {path!r} in {root}", path=path)
        if not isinstance(error, FileNotFoundError):
            return UserError(f"{root}: {path!r} cannot be written, a file is in its place: {reason}", path=path)
        return RetryableError(f"{root}: {path!r} was removed while it was written ({reason}); run again", path=path)
    if is_passing(error):
        return RetryableError(
            f"{root} is not ready for {path!r}: {reason}. Run again when the namenode has left safe mode.", path=path
        )
    if java == "AccessControlException":
        return UserError(
            f"{root} refused {path!r} to the user {current_user()!r}: {reason}. Grant the permission, or set "
            f"{USER_VARIABLE} (Spark executors: spark.executorEnv.{USER_VARIABLE}).",
            path=path,
        )
    if java in _QUOTA:
        return RetryableError(
            f"{root}: the quota is exceeded at {path!r}: {reason}. Delete files or increase the quota, then run again.",
            path=path,
        )
    if java in _USERS_FAULT or reason.startswith("InvalidArgument"):
        return UserError(f"{root} refused {path!r}: {reason}", path=path)
    if _SIGN_IN.search(reason):
        return UserError(
            f"{root} refused to sign in: {reason}. Install the library libgssapi_krb5 of MIT Kerberos, get a ticket "
            "with kinit, and set hadoop.security.authentication in core-site.xml.",
            path=path,
        )
    if is_lost(error):
        return RetryableError(
            f"{root} does not answer: {reason}. Check the host, the port (of RPC, not of HTTP), and HADOOP_CONF_DIR if "
            "the name is a nameservice.",
            path=path,
        )
    return RetryableError(f"{root} failed at {path!r}: {java} {reason}".replace("  ", " "), path=path)


@contextmanager
def translated(path: str, root: str, *, writing: bool = False) -> Iterator[None]:
    """Raise lakehouse errors instead of hdfs-native's inside the block."""
    try:
        yield
    except BaseException as error:
        if not is_hdfs_error(error):
            raise
        raise translate(error, path, root, writing=writing) from error


def _java_class(error: BaseException) -> str:
    match = _RPC.search(str(error))
    return re.split(r"[.$]", match["java"])[-1] if match else ""


def _reason(error: BaseException) -> str:
    """Return the message without Java's stack trace."""
    match = _RPC.search(str(error))
    text = match["text"] if match else str(error)
    return re.split(r"\\n\\t?at |\n\s*at |\n|\\n", text.strip())[0].removesuffix('")').strip()
