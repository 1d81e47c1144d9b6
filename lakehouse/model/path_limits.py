"""The lengths of paths that a storage accepts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLimits:
    """Limits of a partition path, in bytes of UTF-8; None means no limit.

    Attributes:
        segment: The maximum length of a directory name.
        path: The maximum length of the whole path, relative to the table. Names of files below it still fit.
        forbidden: Characters that no directory name may contain.
    """

    segment: int | None = None
    path: int | None = None
    forbidden: str = ""
