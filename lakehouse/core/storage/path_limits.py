"""The path lengths that each kind of storage accepts.

local            names: what the file system says, 255 bytes on most; paths: 4,095 bytes with the root
HDFS             names: 255 bytes, without `:`; paths: 8,000 bytes and 1,000 names with the root
object stores    keys: 1,024 bytes with the prefix of the table, on S3, GCS and Azure
memory           no limit
"""

from __future__ import annotations

import os
from contextlib import suppress

from lakehouse.model.path_limits import PathLimits

#: The usual limit of a file name, if the file system does not report one.
_NAME_BYTES = 255
#: Linux counts the terminating NUL, too.
_LOCAL_PATH_BYTES = 4096 - 1
_KEY_BYTES = 1024
_HDFS = ("hdfs://", "viewfs://")
_HDFS_PATH_BYTES, _HDFS_NAMES = 8000, 1000


def key_limit(root: str) -> int | None:
    """Return the maximum length in bytes of a path relative to `root`, or None if there is no limit."""
    if root.startswith("/"):
        return _LOCAL_PATH_BYTES - len(os.fsencode(root.rstrip("/"))) - 1
    scheme, _, place = root.partition("://")
    if scheme == "memory":
        return None
    prefix = place.partition("/")[2]
    if root.startswith(_HDFS):
        return _HDFS_PATH_BYTES - len(prefix.encode()) - 2
    return _KEY_BYTES - (len(prefix.encode()) + 1 if prefix else 0)


def partition_limits(root: str, reserved: int) -> PathLimits:
    """Return the limits of partition paths for the table at `root`.

    `reserved` is the maximum number of bytes that a file name adds to its partition path.
    """
    limit = key_limit(root)
    path = None if limit is None else max(limit - reserved, 0)
    if root.startswith(_HDFS):
        return PathLimits(segment=_NAME_BYTES, path=path, forbidden=":")
    if not root.startswith("/"):
        return PathLimits(path=path)
    names = _NAME_BYTES
    with suppress(OSError, ValueError):
        # 143 bytes on eCryptfs, for example; -1 if there is no limit.
        names = os.pathconf(root, "PC_NAME_MAX")
    return PathLimits(segment=names if names > 0 else None, path=path)


def path_problem(root: str, path: str) -> str | None:
    """Return why HDFS accepts no file or directory at a relative path, or None if it does."""
    if ":" in path:
        return "HDFS allows no ':' in names; set hoodie.datasource.write.partitionpath.urlencode=true for partitions"
    if len(path) <= _NAME_BYTES // 4:
        return None
    if any(len(name.encode()) > _NAME_BYTES for name in path.split("/")):
        return f"a name has at most {_NAME_BYTES} bytes on HDFS"
    limit = key_limit(root)
    if (limit is not None and len(path.encode()) > limit) or path.count("/") + root.count("/") > _HDFS_NAMES:
        return f"a path has at most {_HDFS_PATH_BYTES} bytes and {_HDFS_NAMES} names on HDFS"
    return None
