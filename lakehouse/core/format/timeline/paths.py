"""Convert between the absolute paths in timeline files and the relative paths in values.

A table may have been moved since its plan was created, or may be addressed with another scheme. So a path outside the
table's base path is accepted if its folder ends with the partition path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lakehouse.errors import CorruptTableError

_LOCAL_SCHEME = re.compile(r"file:/+")
_S3_SCHEME = re.compile(r"s3[an]://")


def absolute_paths(base_path: str, paths: Iterable[str]) -> list[str]:
    """Return relative paths as absolute paths below `base_path`; local ones without scheme, as Hudi writes them."""
    base = _plain(base_path).rstrip("/")
    return [f"{base}/{path}" for path in paths]


def relative_paths(base_path: str, partition: str, paths: Iterable[str], *, what: str) -> tuple[str, ...]:
    """Return absolute paths of files in `partition` as paths relative to `base_path`.

    Raises CorruptTableError for a file outside the partition; `what` is the kind of plan in the message.
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
    """Return `path` unchanged; raise CorruptTableError if it has a segment `..`.

    `what` is the origin of the path in the message.
    """
    if ".." in path and ".." in path.split("/"):
        raise CorruptTableError(
            f"the {what} names {path!r}, which points outside the table; the metadata is damaged or forged", path=path
        )
    return path


def _plain(path: str) -> str:
    return _LOCAL_SCHEME.sub("/", path, count=1) if path.startswith("file:") else path


def _canonical(path: str) -> str:
    """Return the path with one spelling for equivalent schemes: s3a and s3n become s3, local paths have none."""
    return _S3_SCHEME.sub("s3://", _plain(path), count=1)
