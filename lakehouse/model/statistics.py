"""Statistics of partitions that are derived from commits, without a listing of the table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.files import BaseFile, LogFile

#: (partition, file id).
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedFile:
    """A file of a newest slice: the completion time of its commit, and the number of rows that it adds to the slice."""

    file: BaseFile | LogFile
    completed: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLife:
    """Requested times of the first commit to a partition since it was last empty, and of the last commit with rows."""

    created: str
    modified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """The newest slices of all file groups and the times of their partitions, at one completion time.

    Attributes:
        files: The files of the newest slice of each file group.
        lives: The times of each partition that has files.
        instants: The writes on the active timeline that are included: requested time -> completion time.
        folded_up_to: The completion time of the statistics.
        anchor: While the instant with this requested time is not archived, every archived instant before it is
            included.
        latest: The largest time on the timeline.
    """

    files: Mapping[Group, tuple[TrackedFile, ...]] = field(default_factory=dict)
    lives: Mapping[str, PartitionLife] = field(default_factory=dict)
    instants: Mapping[str, str] = field(default_factory=dict)
    folded_up_to: str = ""
    anchor: str = ""
    latest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """Statistics of one partition. Sizes are those of the newest slices, without older versions.

    `created` and `modified` are instant times (see PartitionLife). `rows` is exact without logs; for a log it counts
    the inserts and deletes of its commit.
    """

    partition: str
    created: str
    modified: str
    size_bytes: int = 0
    rows: int = 0
    files: int = 0
