"""Pending resizes: determine the file group of a row after a resize that is planned but not completed (MDT-12.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.core.index.hash.consistent_hashing import Ring


class PendingResize(Protocol):
    """A pending resize of buckets."""

    @property
    def instant(self) -> str:
        """The requested time of the resize."""
        ...

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions whose buckets are resized."""
        ...

    @property
    def replacing(self) -> Mapping[tuple[str, str], tuple[str, ...]]:
        """The ids of the groups that replace a group (partition, file id)."""
        ...

    @property
    def whole_partitions(self) -> frozenset[str]:
        """The partitions in which the resize replaces all groups, including groups created before it completes."""
        ...

    def child(self, partition: str, file_id: str, bucket: int) -> str | None:
        """Return the id of the group that will contain rows of `bucket`; None if they stay in the group `file_id`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RingResize:
    """A resize with consistent hashing: the future rings of its partitions.

    `replacing` are the ids of the groups that replace a group (partition, file id).
    """

    instant: str
    rings: Mapping[str, Ring]
    replacing: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions whose rings are resized."""
        return frozenset(self.rings)

    @property
    def whole_partitions(self) -> frozenset[str]:
        """None, because other ranges keep their groups."""
        return frozenset()

    def child(self, partition: str, file_id: str, bucket: int) -> str | None:
        """Return the id of the group that will contain the range of hash values that ends with `bucket`."""
        ring = self.rings.get(partition)
        future = None if ring is None else ring.node_of(bucket).file_id
        return None if future == file_id else future


class BucketChange(Protocol):
    """The change of one partition's buckets in a simple bucket index."""

    @property
    def is_resize(self) -> bool:
        """Whether the number of buckets changes."""
        ...

    def child(self, bucket: int) -> str | None:
        """Return the new file id for `bucket`, or None if its group stays."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedResize:
    """A resize of a simple bucket index: the change of each partition.

    `replacing` are the ids of the groups that replace a group (partition, file id).
    """

    instant: str
    changes: Mapping[str, BucketChange]
    replacing: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions whose buckets change."""
        return frozenset(self.changes)

    @property
    def whole_partitions(self) -> frozenset[str]:
        """The partitions whose bucket count changes."""
        return frozenset(partition for partition, change in self.changes.items() if change.is_resize)

    def child(self, partition: str, file_id: str, bucket: int) -> str | None:
        """Return the id of the group that will contain rows of `bucket`, a number modulo the staged bucket count."""
        change = self.changes.get(partition)
        return None if change is None else change.child(bucket)
