"""Load the pending bucket resizes that a write has to observe (MDT-12.5)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow.compute as pc

from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.index.hash.resizes import NumberedResize, RingResize
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.bucket_children import replacing_groups
from lakehouse.core.planning.numbered_resize import decode_changes, staged_counts
from lakehouse.core.planning.ring_resize import resized_rings, ring_partitions
from lakehouse.core.state.data_files import members, one_array
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.table.bucket_rules import BucketRules

_PLANS = frozenset({Action.CLUSTERING, Action.REPLACECOMMIT})


def pending_plans(table: LoadedTable) -> Iterator[tuple[Instant, ClusteringPlan]]:
    """Yield the pending clustering plans, with their instants."""
    for instant in table.timeline.where(action=_PLANS, pending=True):
        data = table.store.read(instant, State.REQUESTED)
        plan = decode_clustering_plan(data) if data else None
        if plan is not None:
            yield instant, plan


def ring_resizes(table: LoadedTable, rings: Mapping[str, Ring]) -> tuple[RingResize, ...]:
    """Return the pending resizes of the partitions in `rings`, which contains the current rings."""
    resizes = []
    for instant, plan in pending_plans(table):
        future = resized_rings(instant.requested, plan, rings)
        if future:
            resizes.append(RingResize(instant=instant.requested, rings=future, replacing=replacing_groups(plan)))
    return tuple(resizes)


def numbered_resizes(table: LoadedTable) -> tuple[NumberedResize, ...]:
    """Return the pending resizes of a simple bucket index."""
    resizes = []
    for instant, plan in pending_plans(table):
        changes = decode_changes(plan)
        if changes:
            replacing = replacing_groups(plan)
            resizes.append(NumberedResize(instant=instant.requested, changes=changes, replacing=replacing))
    return tuple(resizes)


def staged_rules(rules: BucketRules, table: LoadedTable) -> BucketRules:
    """Return the rules with the bucket numbers by which rows are staged while resizes are pending."""
    return replace(rules, staged=staged_counts(decode_changes(plan) for _, plan in pending_plans(table)))


def partitions_in_resize(table: LoadedTable) -> frozenset[str]:
    """Return the partitions of pending resizes."""
    return frozenset(
        partition for _, plan in pending_plans(table) for partition in (*ring_partitions(plan), *decode_changes(plan))
    )


def groups_with_open_copies(table: LoadedTable, slices: Iterable[FileSlice]) -> frozenset[Group]:
    """Return the file groups whose logs may contain blocks of writes that are still pending.

    A write copies rows to a log that is named after a resize. The resize may complete before the write does. Readers
    then skip the blocks, so a service that merges the log would lose them.
    """
    first = min((instant.requested for instant in table.timeline.where(pending=True)), default=None)
    if first is None:
        return frozenset()
    replaced = table.timeline.writes().where(action=Action.REPLACECOMMIT, completed_after=first)
    resizes = {instant.requested for instant in replaced}
    if not resizes:
        return frozenset()
    columns = FileSlices.of(slices)
    files = columns.files
    copies = pc.and_(files["is_log"], members(one_array(files["instant"]), sorted(resizes)))
    copied = columns.filter(columns.any_file(one_array(copies).to_numpy(zero_copy_only=False)))
    return frozenset(zip(copied.partitions.to_pylist(), copied.file_ids.to_pylist(), strict=True))
