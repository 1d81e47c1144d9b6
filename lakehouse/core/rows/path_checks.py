"""Find partition paths that a storage cannot hold, before a write creates anything for them.

A path with NUL, or one that is too long, cannot exist on the storage. Two more kinds of paths could exist but make a
failed write impossible to roll back: markers are lines, so a path must not contain a line break, and files below a
directory `.hoodie` could belong to another table. Partitions that exist with such paths stay writable.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.model.path_limits import PathLimits

#: Java's reader of marker files ends a line at a carriage return, too.
_SUSPICIOUS = r"\x00|\n|\r|(^|/)\.hoodie(/|$)"
_METADATA_FOLDER = re.compile(r"(?:^|/)\.hoodie(?:/|$)")


def first_fault(paths: pa.Array, limits: PathLimits, exists: Callable[[str], bool]) -> int | None:
    """Return the position of the first path that must not be written; None if there is none.

    `exists` returns whether a partition has files. It is called for suspicious paths only.
    """
    limit = min((length for length in (limits.segment, limits.path) if length is not None), default=None)
    longest = pc.max(pc.binary_length(paths)).as_py() or 0
    if (limit is None or longest <= limit) and not pc.any(pc.match_substring_regex(paths, _SUSPICIOUS)).as_py():
        return None
    for position, path in enumerate(paths.to_pylist()):
        if path_fault(path, limits) is not None and ("\0" in path or not exists(path)):
            return position
    return None


def path_fault(path: str, limits: PathLimits) -> str | None:
    """Return why no partition with this path, or this part of a path, can be created; None if it can."""
    if "\0" in path:
        return "it contains NUL, which no file name can contain"
    widest = max(len(level.encode()) for level in path.split("/"))
    if limits.segment is not None and widest > limits.segment:
        return f"its directory name has {widest:,} bytes, and the file system allows {limits.segment}"
    length = len(path.encode())
    if limits.path is not None and length > limits.path:
        return (
            f"its path has {length:,} bytes, and the storage allows {limits.path:,} below this table, so that the "
            "names of files fit"
        )
    if "\n" in path or "\r" in path:
        return "it contains a line break, which the markers of a write cannot hold"
    if _METADATA_FOLDER.search(path):
        return "it contains a directory .hoodie, which is the metadata of a table"
    return None
