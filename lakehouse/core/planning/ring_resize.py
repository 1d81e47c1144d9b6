"""Plan resizes of consistent hashing: buckets that split, merge, or are sorted (MDT-12.5).

    size > split threshold                     the range is divided in the middle: two new groups
    neighbours together < merge threshold      one new group with their united range
    not sorted by the requested columns        one new group with the same range

Sizes include base and log files, and thresholds are multiples of the maximum size of a base file. A partition with
a pending resize is not planned again, because each plan is based on the present ring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse.core.format.hashing_metadata import DELETE, REPLACE, HashingNode, decode_nodes, encode_nodes
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.planning.clustering import Unsorted, metrics_of
from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import CorruptTableError
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.files import FileSlice

_PARTITION, _NODES, _SEQUENCE = (
    "clustering.group.partition",
    "clustering.group.child.node",
    "clustering.group.sequence.no",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RingLimits:
    """Limits at which buckets split and merge: sizes in bytes, and bucket counts per partition.

    `most` None means no limit.
    """

    split_bytes: float
    merge_bytes: float
    fewest: int = 1
    most: int | None = None
    file_bytes: int


@dataclass(slots=True)
class _Partition:
    """The plan of one partition while it is built."""

    ring: Ring
    count: int
    groups: list[ClusteringGroup] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Buckets:
    """The free buckets of a partition: the positions of their slices by file id, and the sizes of all slices."""

    slices: FileSlices
    sizes: Sequence[int]
    numbers: Mapping[str, int]

    def __contains__(self, node: HashingNode) -> bool:
        return node.file_id in self.numbers

    def size(self, node: HashingNode) -> int:
        """Return the size of a bucket's files in bytes."""
        return self.sizes[self.numbers[node.file_id]]

    def pieces(self, nodes: Iterable[HashingNode]) -> list[FileSlice]:
        """Return the slices of buckets as objects."""
        return [self.slices[self.numbers[node.file_id]] for node in nodes]


# parameters: a planner takes each independent part of the table state
def plan_ring_resizes(
    slices: Iterable[FileSlice],
    rings: Mapping[str, Ring],
    limits: RingLimits,
    *,
    busy: Collection[tuple[str, str]],
    is_unsorted: Unsorted,
    new_prefix: Callable[[], str],
) -> tuple[ClusteringGroup, ...]:
    """Return the groups of a resize, in descending order of slice size; empty if no bucket has to change.

    Args:
        slices: The newest slices of the partitions.
        rings: The present rings of the partitions that may be resized.
        limits: When buckets split and merge.
        busy: File groups (partition, file id) of pending plans and writes, which stay as they are.
        is_unsorted: Returns whether the rows of a slice have to be sorted.
        new_prefix: Returns the prefix of a new file id.
    """
    newest = FileSlices.of(slices)
    free = newest.filter(newest.flags(members(newest.partitions, sorted(rings))) & ~newest.is_in_groups(busy))
    sizes, unsorted = free.sizes.tolist(), is_unsorted(free).tolist()
    numbers: dict[str, dict[str, int]] = {}
    for number, (partition, file_id) in enumerate(
        zip(free.partitions.to_pylist(), free.file_ids.to_pylist(), strict=True)
    ):
        numbers.setdefault(partition, {})[file_id] = number
    groups: list[ClusteringGroup] = []
    for partition, by_id in sorted(numbers.items()):
        buckets = _Buckets(slices=free, sizes=sizes, numbers=by_id)
        planned = _Partition(ring=rings[partition], count=len(rings[partition].metadata.nodes))
        _split(planned, buckets, limits, new_prefix)
        _merge(planned, buckets, limits, new_prefix)
        for node in planned.ring.metadata.nodes:
            if node in buckets and node.file_id not in planned.taken and unsorted[by_id[node.file_id]]:
                same = HashingNode(value=node.value, prefix=new_prefix(), tag=REPLACE)
                _add(planned, buckets.pieces([node]), [same], limits)
        groups += planned.groups
    return tuple(groups)


def child_nodes(group: ClusteringGroup) -> tuple[HashingNode, ...]:
    """Return the nodes that replace the nodes of a group's slices; empty if the group does not resize a ring."""
    return decode_nodes(group.extra[_NODES]) if _NODES in group.extra else ()


def resized_rings(instant: str, plan: ClusteringPlan, rings: Mapping[str, Ring]) -> dict[str, Ring]:
    """Return the rings of the plan's partitions after the resize `instant`.

    `rings` are the present rings. A partition whose ring has changed since the plan was made is omitted.
    """
    children: dict[str, list[HashingNode]] = {}
    stale = set()
    for group in plan.groups:
        nodes = child_nodes(group)
        if not nodes:
            continue
        children.setdefault(group.partition, []).extend(nodes)
        ring = rings.get(group.partition)
        if ring is None or ring.metadata.sequence != _sequence(group):
            stale.add(group.partition)
    return {
        partition: rings[partition].resized(instant, nodes)
        for partition, nodes in children.items()
        if partition not in stale
    }


def ring_partitions(plan: ClusteringPlan) -> tuple[str, ...]:
    """Return the partitions whose rings the plan resizes."""
    return tuple(sorted({group.partition for group in plan.groups if _NODES in group.extra}))


def _sequence(group: ClusteringGroup) -> int:
    text = group.extra.get(_SEQUENCE, "")
    if not text.isdecimal():
        raise CorruptTableError(f"a group of a clustering plan has the sequence number {text!r}, not a number")
    return int(text)


def _split(planned: _Partition, buckets: _Buckets, limits: RingLimits, new_prefix: Callable[[], str]) -> None:
    large = [(buckets.size(node), node) for node in planned.ring.metadata.nodes if node in buckets]
    for size, node in sorted(large, key=lambda pair: (-pair[0], pair[1].value)):
        middle = planned.ring.middle(node)
        is_full = limits.most is not None and planned.count >= limits.most
        if size <= limits.split_bytes or middle is None or is_full:
            continue
        children = [HashingNode(value=value, prefix=new_prefix(), tag=REPLACE) for value in (middle, node.value)]
        _add(planned, buckets.pieces([node]), children, limits)
        planned.count += 1


def _merge(planned: _Partition, buckets: _Buckets, limits: RingLimits, new_prefix: Callable[[], str]) -> None:
    run: list[HashingNode] = []
    for node in (*planned.ring.metadata.nodes, None):
        joins = node is not None and node in buckets and node.file_id not in planned.taken
        size = sum(buckets.size(one) for one in (*run, node) if one is not None and joins)
        if joins and node is not None and size < limits.merge_bytes and planned.count - len(run) >= limits.fewest:
            run.append(node)
            continue
        if len(run) > 1:
            children = [HashingNode(value=one.value, prefix=one.prefix, tag=DELETE) for one in run[:-1]]
            children.append(HashingNode(value=run[-1].value, prefix=new_prefix(), tag=REPLACE))
            _add(planned, buckets.pieces(run), children, limits)
            planned.count -= len(run) - 1
        starts = joins and node is not None and buckets.size(node) < limits.merge_bytes
        run = [node] if starts and node is not None else []


def _add(planned: _Partition, pieces: list[FileSlice], children: list[HashingNode], limits: RingLimits) -> None:
    planned.taken |= {piece.file_id for piece in pieces}
    metadata = planned.ring.metadata
    planned.groups.append(
        ClusteringGroup(
            slices=tuple(ClusteredSlice.of(piece) for piece in pieces),
            outputs=sum(node.tag == REPLACE for node in children),
            metrics=metrics_of(pieces, limits.file_bytes),
            extra={
                _PARTITION: metadata.partition,
                _NODES: encode_nodes(children),
                _SEQUENCE: str(metadata.sequence),
            },
        )
    )
