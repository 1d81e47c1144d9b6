"""The merge modes of a table (format: data.md 5.1)."""

from __future__ import annotations

from enum import StrEnum


class MergeMode(StrEnum):
    """How a newer version of a record meets an older one."""

    COMMIT_TIME_ORDERING = "COMMIT_TIME_ORDERING"
    EVENT_TIME_ORDERING = "EVENT_TIME_ORDERING"
    CUSTOM = "CUSTOM"
