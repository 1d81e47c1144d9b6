"""Resize buckets by clustering: plans of consistent hashing, and the hashing metadata of their commits (MDT-12.5).

schedule   under the lock: groups that no other plan and no active write holds   <t>.clustering.requested
write      later writes also copy their rows for these groups to the groups that will replace them
run        new base files; under the lock: <t>.hashing_meta, <t>_<c>.replacecommit, then the marker <t>.commit

Executing tasks write one base file per new bucket. Rows are sorted within buckets if the layout requires it. They keep
the commit time and sequence number of the commit that wrote them, as in any clustering.

A crash between the last two steps is harmless: the next writer finds the replacecommit and creates the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_writer import BaseFileWriter, kept_schema
from lakehouse.core.files.base.clustering_writer import ClusteringContext, clustering_markers, slice_of, sorted_rows
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.markers import TaskMarkers
from lakehouse.core.files.stage.staging import KEY
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.timeline.clustering import RESIZE_BUCKETS, RESIZE_RING
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.index.write_tasks import StagingLayout
from lakehouse.core.operations.commit.clustering_conflicts import groups_of_active_writes, write_without_profile
from lakehouse.core.operations.load.pending import UnusablePlanError, planned_groups
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.bucket_rules import bucket_rules, store_changed_rules
from lakehouse.core.operations.placement.protocol import BucketSelection
from lakehouse.core.operations.placement.resizes import groups_with_open_copies, partitions_in_resize
from lakehouse.core.operations.placement.rings import load_rings, mark_valid, store_rings
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.planning.bucket_children import BucketChildren, children_of
from lakehouse.core.planning.clustering import LAYOUT_KEY, partitions_of
from lakehouse.core.planning.numbered_resize import (
    NumberedChange,
    changed_counts,
    decode_changes,
    encode_changes,
    plan_numbered,
    rules_after,
    sorted_changes,
)
from lakehouse.core.planning.ring_resize import RingLimits, plan_ring_resizes, resized_rings, ring_partitions
from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Instant
from lakehouse.spec.options.clustering import BUCKETS, SORT_COLUMNS
from lakehouse.spec.options.deletes import DELETE_RETENTION
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.bucket_rules import BucketRules

_CHILD = "\0child"


def plan_rings(table: LoadedTable, policies: Policies, selection: BucketSelection) -> ClusteringPlan | None:
    """Plan the buckets that must be split, merged or sorted. Return None if there are none.

    Also returns None while an active write has not yet recorded the file groups that it changes.
    """
    if write_without_profile(table, policies.transaction, None) is not None:
        return None
    slices = checked_slices(table, policies.write, selection.selected or None)
    wanted = _plannable(table, policies, selection, slices)
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
        is_unsorted=selection.is_unsorted,
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


def plan_numbers(table: LoadedTable, policies: Policies, selection: BucketSelection) -> ClusteringPlan | None:
    """Plan the partitions whose bucket count must change, and the buckets that must be sorted.

    Returns None if there are none, or while an active write has not yet recorded the file groups that it changes.

    Raises:
        UserError: The table has no partitions, or keeps tombstones, so that its bucket counts cannot change.
    """
    rules = bucket_rules(table, policies.index)
    _check_resizable(table, policies)
    if write_without_profile(table, policies.transaction, None) is not None:
        return None
    slices = checked_slices(table, policies.write, selection.selected or None)
    wanted = _plannable(table, policies, selection, slices)
    free = slices.filter(members(slices.partitions, wanted))
    active = groups_of_active_writes(table, policies.transaction)
    busy = planned_groups(table) | active | groups_with_open_copies(table, free)
    changes = _number_changes(free, policies, rules, busy, table.env.ids.uuid)
    rest = free.filter(~free.flags(members(free.partitions, sorted(changes))))
    new_uuid = table.env.ids.uuid
    changes |= sorted_changes(rest, rules, busy=busy, is_unsorted=selection.is_unsorted, new_uuid=new_uuid)
    groups = plan_numbered(free, changes, file_bytes=policies.write.max_file_bytes)
    if not groups:
        return None
    clustering = policies.clustering
    return ClusteringPlan(
        groups=groups,
        params={SORT_COLUMNS: clustering.sort_columns} if clustering.columns else {},
        strategy=RESIZE_BUCKETS,
        extra={LAYOUT_KEY: clustering.layout, **encode_changes(changes)},
    )


def _plannable(table: LoadedTable, policies: Policies, selection: BucketSelection, slices: FileSlices) -> list[str]:
    """Return the selected partitions that no resize holds and no policy excludes, sorted."""
    paths = pc.unique(slices.partitions).to_pylist()
    chosen = partitions_of(paths, policies.clustering, selection.hour, selection.selected)
    excluded = partitions_in_resize(table) | set(policies.partitions.switched_off("clustering", chosen))
    return sorted(set(chosen) - excluded)


def resize_context(write: WriteContext, policies: Policies) -> WriteContext:
    """Return the settings for tasks that distribute rows to buckets by key hash."""
    return replace(write, layout=StagingLayout(hash_fields=policies.index.hashed_fields))


def _number_changes(
    slices: FileSlices,
    policies: Policies,
    rules: BucketRules,
    busy: Collection[Group],
    new_uuid: Callable[[], str],
) -> dict[str, NumberedChange]:
    """Return the changes for partitions whose bucket count must change, if no other plan holds their groups."""
    index, largest = policies.index, policies.write.max_file_bytes
    if not policies.clustering.buckets:
        return {}
    counts = changed_counts(
        slices,
        rules,
        wanted=policies.clustering.buckets,
        split_bytes=largest * index.split_threshold,
        merge_bytes=largest * index.merge_threshold,
        bounds=(max(index.min_buckets, 1), index.max_buckets or None),
    )
    held = set(slices.in_groups(busy).partitions.to_pylist())
    return {
        partition: NumberedChange(before=rules.of(partition), after=count, uuid=new_uuid())
        for partition, count in sorted(counts.items())
        if partition not in held
    }


def _check_resizable(table: LoadedTable, policies: Policies) -> None:
    if not policies.clustering.buckets:
        return
    root = table.env.storage.root
    if not table.config.is_partitioned:
        raise UserError(
            f"{root}: the table has no partitions, and the number of buckets can be changed per partition only; create "
            f"the table with {BUCKET_ENGINE}={CONSISTENT_HASHING}, whose buckets split and merge",
            option=BUCKETS,
        )
    if policies.deletes.retention_ms:
        raise UserError(
            f"{root}: {BUCKETS}={policies.clustering.buckets} cannot be combined with {DELETE_RETENTION}: tombstones "
            "are stored by bucket; leave one of the options out",
            option=BUCKETS,
        )


def with_new_groups(now: LoadedTable, plan: ClusteringPlan, metadata: CommitMetadata) -> CommitMetadata:
    """Return the metadata of a resize that replaces all present groups of its partitions; call under the lock.

    Writes may have created buckets since the plan was made. These writes also copied their rows to the new buckets.
    """
    whole = sorted(partition for partition, change in decode_changes(plan).items() if change.is_resize)
    if not whole:
        return metadata
    replaced = dict(metadata.replaced)
    slices = load_slices(now, whole)
    for partition, file_id in zip(slices.partitions.to_pylist(), slices.file_ids.to_pylist(), strict=True):
        present = replaced.get(partition, ())
        if file_id not in present:
            replaced[partition] = (*present, file_id)
    return replace(metadata, replaced=replaced)


def store_new_rules(now: LoadedTable, policies: Policies, instant: Instant, plan: ClusteringPlan) -> None:
    """Write the new bucket counts of a resize, before its commit; they are valid when the commit is completed.

    Raises UnusablePlanError if the bucket count of a partition has changed since the plan was made.
    """
    changes = {name: change for name, change in decode_changes(plan).items() if change.is_resize}
    if not changes:
        return
    rules = bucket_rules(now, policies.index)
    for partition, change in changes.items():
        if rules.of(partition) != change.before:
            raise UnusablePlanError(f"partition {partition!r} has {rules.of(partition)} buckets, not {change.before}")
    store_changed_rules(now.env.storage, instant.requested, rules_after(rules, changes))


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
    """Create the markers for the hashing metadata that a committed resize wrote."""
    for ring in rings:
        mark_valid(now, ring)


def resize_group(context: ClusteringContext, attempt: Attempt, group: ClusteringGroup) -> list[WriteStat]:
    """Write the rows of the group's slices into the new buckets and return the write statistics of their files.

    A new bucket without rows gets no file.

    Raises:
        CorruptTableError: The plan contains no new buckets, or invalid file names.
    """
    children = children_of(group)
    if children is None:
        raise CorruptTableError(f"the clustering plan names no new buckets for {group.slices[0].file_id}")
    slices = [slice_of(piece) for piece in group.slices]
    schema = kept_schema(context.write.schema)
    rows: Iterator[pa.Table] = (r for piece in slices for _, r in read_slice(context.read, piece, schema))
    placed: Iterator[pa.Table] = (
        piece.append_column(_CHILD, pa.array(_places(context, children, piece))) for piece in rows
    )
    with ExitStack() as stack:
        if context.layout.columns:
            directory = Path(stack.enter_context(scratch_directory("lakehouse-resize-")))
            placed, _ = sorted_rows(context, slices, placed, directory, first=(_CHILD,))
        names = clustering_markers(context.write, attempt, group)
        markers = TaskMarkers(context.write, attempt, names)
        markers.mark(*names)
        writers: dict[int, BaseFileWriter] = {}
        for piece in placed:
            numbers = piece.column(_CHILD).to_numpy()
            data = piece.drop_columns([_CHILD])
            for number in np.unique(numbers).tolist():
                if number not in writers:
                    file_id = children.file_ids[number]
                    writers[number] = stack.enter_context(BaseFileWriter(markers, group.partition, file_id))
                writers[number].write_kept(data.filter(pa.array(numbers == number)), is_stored=False)
    return [writer.stat(inserts=writer.rows, updates=0, deletes=0) for _, writer in sorted(writers.items())]


def _places(context: ClusteringContext, children: BucketChildren, rows: pa.Table) -> npt.NDArray[np.int64]:
    write = context.write
    return children.places(
        rows.column(KEY), key_fields=write.keys.record_key_fields, hash_fields=write.layout.hash_fields
    )
