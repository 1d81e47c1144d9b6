"""Paths inside the plans of the timeline: absolute in files, relative to the table's base in values.

A table may have been moved, or be reached by another scheme, since its plan was made, so a path is also accepted if its
folder ends with the partition.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lakehouse.errors import CorruptTableError

_LOCAL_SCHEME = re.compile(r"file:/+")
_S3_SCHEME = re.compile(r"s3[an]://")


def absolute_paths(base_path: str, paths: Iterable[str]) -> list[str]:
    """Return relative paths as paths below `base_path`; a local one has no scheme, as Hudi writes it."""
    base = _plain(base_path).rstrip("/")
    return [f"{base}/{path}" for path in paths]


def relative_paths(base_path: str, partition: str, paths: Iterable[str], *, what: str) -> tuple[str, ...]:
    """Return absolute paths of files of `partition` as relative ones.

    Raises CorruptTableError, which says `what` named it, for a file that is not in the partition.
    """
    base = _canonical(base_path).rstrip("/")
    expected = f"{base}/{partition}".rstrip("/")
    relative = []
    for path in paths:
        require_inside(path, what=what)
        folder, _, name = _canonical(path).rpartition("/")
        is_elsewhere = not f"{folder}/".startswith(f"{base}/")
        was_moved = is_elsewhere and (not partition or folder.endswith(f"/{partition}"))
        if not name or not (folder == expected or was_moved):
            raise CorruptTableError(f"file {path!r} of the {what} is not in partition {partition!r} of {base_path!r}")
        relative.append(f"{partition}/{name}" if partition else name)
    return tuple(relative)


def require_inside(path: str, *, what: str) -> str:
    """Return a path, or several segments of one, that `what` names; raise CorruptTableError if it leads upwards."""
    if ".." in path and ".." in path.split("/"):
        raise CorruptTableError(
            f"the {what} names {path!r}, which leads out of the table; the metadata is damaged or forged", path=path
        )
    return path


def _plain(path: str) -> str:
    return _LOCAL_SCHEME.sub("/", path, count=1) if path.startswith("file:") else path


def _canonical(path: str) -> str:
    """Return one spelling for the schemes that mean the same place."""
    return _S3_SCHEME.sub("s3://", _plain(path), count=1)
