"""Pending resizes: which file group will hold a row after a resize that is planned but not completed (MDT-12.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lakehouse.core.index.consistent_hashing import Ring


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

    def child(self, partition: str, file_id: str, bucket: int) -> str | None:
        """Return the id of the group that will hold rows of `bucket`; None if they stay in group `file_id`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RingResize:
    """A resize with consistent hashing: the rings of its partitions as they will be.

    `replacing` are the ids of the groups that replace a group (partition, file id).
    """

    instant: str
    rings: Mapping[str, Ring]
    replacing: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    @property
    def partitions(self) -> frozenset[str]:
        """The partitions whose rings are resized."""
        return frozenset(self.rings)

    def child(self, partition: str, file_id: str, bucket: int) -> str | None:
        """Return the id of the group that will hold the range of hash values that ends with `bucket`."""
        ring = self.rings.get(partition)
        future = None if ring is None else ring.node_of(bucket).file_id
        return None if future == file_id else future
