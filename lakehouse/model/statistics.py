"""What is known of the partitions of a table without listing it: the files of its newest slices, and their history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.model.files import BaseFile, LogFile

#: (partition, file id).
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedFile:
    """A file of a newest slice: when its commit completed, and by how many rows it makes the slice longer."""

    file: BaseFile | LogFile
    completed: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLife:
    """Requested times of the first commit to a partition since it was last empty, and of the last that brought rows."""

    created: str
    modified: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatistics:
    """The newest slices of every file group, and the partitions that have any, as of `folded_up_to` (a completion).

    `instants` are the writes on the active timeline that it was made of, requested -> completed. Nothing that is not in
    it was requested before `anchor` and archived, as long as `anchor` is not archived; `latest` is the greatest time on
    the timeline then.
    """

    files: Mapping[Group, tuple[TrackedFile, ...]] = field(default_factory=dict)
    lives: Mapping[str, PartitionLife] = field(default_factory=dict)
    instants: Mapping[str, str] = field(default_factory=dict)
    folded_up_to: str = ""
    anchor: str = ""
    latest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatistics:
    """One partition. Sizes are those of the newest slices: base file and logs of each file group, no older versions.

    `created` and `modified` are instant times (see PartitionLife). `rows` is exact where there are no logs; a log
    counts by the inserts and deletes that its commit reports.
    """

    partition: str
    created: str
    modified: str
    size_bytes: int = 0
    rows: int = 0
    files: int = 0
