"""The new buckets of one group in a clustering plan that resizes buckets (MDT-12.5)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.core.format.hashing_metadata import REPLACE, HashingMetadata
from lakehouse.core.index.hash.consistent_hashing import Ring, key_hashes
from lakehouse.core.planning.numbered_resize import decode_changes, numbered_children
from lakehouse.core.planning.ring_resize import child_nodes
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Instant


class BucketChildren(Protocol):
    """The buckets that replace the buckets of a group."""

    @property
    def file_ids(self) -> tuple[str, ...]:
        """The ids of the new file groups."""
        ...

    def places(
        self, keys: pa.ChunkedArray, *, key_fields: tuple[str, ...], hash_fields: tuple[str, ...]
    ) -> npt.NDArray[np.int64]:
        """Return for each key the position of its new bucket in `file_ids`."""
        ...


@dataclass(frozen=True)
class RingChildren:
    """New nodes of a ring. They replace adjacent ranges, so the new nodes alone also form a ring."""

    ring: Ring

    @property
    def file_ids(self) -> tuple[str, ...]:
        """The ids of the new file groups, by value of their nodes."""
        return tuple(node.file_id for node in self.ring.metadata.nodes)

    def places(
        self, keys: pa.ChunkedArray, *, key_fields: tuple[str, ...], hash_fields: tuple[str, ...]
    ) -> npt.NDArray[np.int64]:
        """Return for each key the position of its new node."""
        return self.ring.places(key_hashes(keys, key_fields=key_fields, hash_fields=hash_fields))


def children_of(group: ClusteringGroup) -> BucketChildren | None:
    """Return the new buckets of a group; None if the group does not resize buckets."""
    numbered = numbered_children(group)
    if numbered is not None:
        return numbered
    nodes = sorted((node for node in child_nodes(group) if node.tag == REPLACE), key=lambda node: node.value)
    if not nodes:
        return None
    metadata = HashingMetadata(
        partition=group.partition, instant="", buckets=len(nodes), sequence=0, nodes=tuple(nodes)
    )
    return RingChildren(Ring(metadata))


def resizes_buckets(plan: ClusteringPlan) -> bool:
    """Return whether the plan is a bucket resize, for which writes copy rows."""
    return any(children_of(group) is not None for group in plan.groups)


def replacing_groups(plan: ClusteringPlan) -> dict[Group, tuple[str, ...]]:
    """Return the ids of the groups that replace each group (partition, file id) of a resize."""
    replacing: dict[Group, tuple[str, ...]] = {}
    for group in plan.groups:
        children = children_of(group)
        if children is not None:
            replacing |= {(piece.partition, piece.file_id): children.file_ids for piece in group.slices}
    return replacing


def copied_groups(plan: ClusteringPlan, written: Collection[Group]) -> frozenset[Group]:
    """Return the planned groups whose rows a write copied to the groups that replace them, by its files."""
    copied = set()
    for group in plan.groups:
        children = children_of(group)
        if children is not None and any((group.partition, file_id) in written for file_id in children.file_ids):
            copied |= {(piece.partition, piece.file_id) for piece in group.slices}
    return frozenset(copied)


def overtaken(plan: ClusteringPlan, commits: Iterable[tuple[Instant, CommitMetadata]], requested: str) -> str | None:
    """Return the conflict with a later commit that changed a file group of the plan; the plan must not complete.

    A commit that also wrote its rows to the new groups of the plan is no conflict. `requested` is the plan's time.
    """
    planned = {(piece.partition, piece.file_id): piece.names for piece in plan.slices}
    whole = {partition for partition, change in decode_changes(plan).items() if change.is_resize}
    for instant, metadata in commits:
        copied = {stat.partition for stat in metadata.stats if f"_{requested}.log." in stat.path}
        missed = sorted((whole & {stat.partition for stat in metadata.stats}) - copied)
        if missed:
            return f"{instant.requested} wrote to {missed[0]!r} without copying its rows to the new buckets"
        changed, replaced = changed_files(planned, metadata)
        copies = {(s.partition, s.file_id) for s in metadata.stats if f"_{requested}.log." in s.path}
        both = sorted((changed - copied_groups(plan, copies)) | replaced)
        if both:
            return f"{instant.requested} changed file group {both[0][1]} of {both[0][0]!r} before"
    return None


def changed_files(
    planned: Mapping[Group, frozenset[str]], metadata: CommitMetadata
) -> tuple[frozenset[Group], frozenset[Group]]:
    """Return the planned file groups that a commit changed, and those that it replaced.

    `planned` maps a file group to the names of its files in the plan: a commit of these files is no change.
    """
    replaced = frozenset((partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids)
    changed = frozenset(
        (stat.partition, stat.file_id)
        for stat in metadata.stats
        if stat.path.rpartition("/")[2] not in planned.get((stat.partition, stat.file_id), ())
    )
    return changed & planned.keys(), replaced & planned.keys()
