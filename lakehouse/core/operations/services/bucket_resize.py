"""Resize buckets by clustering: plans of consistent hashing, and the hashing metadata of their commits (MDT-12.5).

schedule   under the lock: groups that no other plan and no active write holds   <t>.clustering.requested
write      later writes copy the rows of these groups to the groups that will replace them
run        new base files; under the lock: <t>.hashing_meta, <t>_<c>.replacecommit, then the marker <t>.commit

A crash between the last two steps is harmless: the next writer finds the replacecommit and creates the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from lakehouse.core.format.timeline.clustering import RESIZE_RING
from lakehouse.core.index.consistent_hashing import Ring
from lakehouse.core.operations.commit.clustering_conflicts import groups_of_active_writes, write_without_profile
from lakehouse.core.operations.load.hashing import load_rings, mark_valid, store_rings
from lakehouse.core.operations.load.resizes import groups_with_open_copies, partitions_in_resize
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.services.plan_executor import UnusablePlanError
from lakehouse.core.operations.services.rewrite import planned_groups
from lakehouse.core.planning.clustering import LAYOUT_KEY, partitions_of
from lakehouse.core.planning.ring_resize import RingLimits, plan_ring_resizes, resized_rings, ring_partitions
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Instant
from lakehouse.spec.options.clustering import SORT_COLUMNS
from lakehouse.spec.options.policies import Policies


def plan_rings(
    table: LoadedTable,
    policies: Policies,
    *,
    selected: Sequence[str],
    hour: int,
    is_unsorted: Callable[[FileSlice], bool],
) -> ClusteringPlan | None:
    """Return the plan of the buckets that have to split, merge or be sorted; None if there are none.

    Returns None, too, while an active write has not recorded yet which file groups it changes.

    Args:
        table: The loaded table.
        policies: The options of the table and the call.
        selected: Partition paths to which the plan is limited; empty for all.
        hour: The current hour, for the partition mode DAY_ROLLING.
        is_unsorted: Returns whether the rows of a slice have to be sorted.
    """
    if write_without_profile(table, policies.transaction, None) is not None:
        return None
    slices = checked_slices(table, policies.write, selected or None)
    paths = partitions_of([piece.partition for piece in slices], policies.clustering, hour, selected)
    wanted = sorted(set(paths) - partitions_in_resize(table))
    index, largest = policies.index, policies.write.max_file_bytes
    limits = RingLimits(
        split_bytes=largest * index.split_threshold,
        merge_bytes=largest * index.merge_threshold,
        fewest=max(index.min_buckets or index.buckets, 1),
        most=index.max_buckets or None,
        file_bytes=largest,
    )
    groups = plan_ring_resizes(
        slices,
        load_rings(table, wanted),
        limits,
        busy=planned_groups(table)
        | groups_of_active_writes(table, policies.transaction)
        | groups_with_open_copies(table, slices),
        is_unsorted=is_unsorted,
        new_prefix=table.env.ids.uuid,
    )
    if not groups:
        return None
    most = policies.clustering.max_groups
    return ClusteringPlan(
        groups=groups[:most],
        params={SORT_COLUMNS: policies.clustering.sort_columns} if policies.clustering.columns else {},
        strategy=RESIZE_RING,
        extra={LAYOUT_KEY: policies.clustering.layout},
        missing_partitions=tuple(sorted({group.partition for group in groups[most:]})),
    )


def store_resized_rings(now: LoadedTable, instant: Instant, plan: ClusteringPlan) -> list[Ring]:
    """Write the hashing metadata of a resize, before its commit, and return the new rings.

    Raises UnusablePlanError if the ring of a partition has changed since the plan was made.
    """
    partitions = ring_partitions(plan)
    rings = resized_rings(instant.requested, plan, load_rings(now, partitions))
    for partition in partitions:
        if partition not in rings:
            raise UnusablePlanError(f"the buckets of partition {partition!r} have changed since the plan was made")
    store_rings(now, list(rings.values()))
    return list(rings.values())


def mark_resized_rings(now: LoadedTable, rings: Collection[Ring]) -> None:
    """Create the markers of the hashing metadata of a committed resize."""
    for ring in rings:
        mark_valid(now, ring)
