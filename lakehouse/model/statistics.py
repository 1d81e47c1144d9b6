"""Statistics of partitions that are derived from commits, without a listing of the table."""

from __future__ import annotations

from dataclasses import dataclass

#: (partition, file id).
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLife:
    """Requested times of the first commit to a partition since it was last empty, and of the last commit with rows."""

    created: str
    modified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """Statistics of one partition. Sizes count the current slices, without older versions.

    `created` and `modified` are instant times (see PartitionLife). `rows` is exact without logs; for a log it counts
    the inserts and deletes of its commit.
    """

    partition: str
    created: str
    modified: str
    size_bytes: int = 0
    rows: int = 0
    files: int = 0
