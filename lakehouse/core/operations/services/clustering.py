"""Clustering: small files become large ones, and rows are sorted, so that queries skip files (TL-6.5, TL-9.2).

due        from the timeline only
schedule   under the lock: slices of groups that no other plan holds     <t>.clustering.requested
run        claim the plan, <t>.clustering.inflight, one task per group, under the lock <t>_<c>.replacecommit

The commit replaces the planned file groups by new ones; no row changes. Writes have priority: file groups that a write
changed since the plan was made are skipped, together with the files that were made from them. The commit lists only the
groups that it replaced, and releases all groups. A plan is dropped if no group remains, or if writes changed groups of
a bucket resize, because they copied rows for all of it (see `commit.clustering_conflicts`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.clustering_writer import ClusteringContext, cluster_group, clustering_markers
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.timeline.clustering import RESIZE_BUCKETS, RESIZE_RING, SORT_AND_SIZE, encode_clustering_plan
from lakehouse.core.operations.commit.clustering_conflicts import (
    clustering_plan,
    groups_of_active_writes,
    write_without_profile,
)
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.pending import planned_groups
from lakehouse.core.operations.load.schema import declared_at, table_schema
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.load.write_settings import maintenance_context
from lakehouse.core.operations.placement.bucket_resize import (
    mark_resized_rings,
    resize_context,
    resize_group,
    store_new_rules,
    store_resized_rings,
    with_new_groups,
)
from lakehouse.core.operations.placement.protocol import BucketPlanner, BucketSelection
from lakehouse.core.operations.placement.registry import placement_of
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.services.clustering_work import (
    ClusteringWork,
    prepared,
    unchanged_groups,
    unchanged_work,
)
from lakehouse.core.operations.services.partition_policies import (
    refuse_switched_off,
    sections_by_partition,
)
from lakehouse.core.operations.services.plan_executor import (
    ClaimedPlan,
    attempt_under_claim,
    planned_attempt,
    rewritable_rows,
)
from lakehouse.core.operations.services.planned_files import (
    planned_files_exist,
    with_committed_log_sizes,
    with_sources,
)
from lakehouse.core.operations.services.rewrite import (
    RewrittenFiles,
    announce_markers,
    complete_rewrite,
    staging_of,
)
from lakehouse.core.operations.services.rewriting_service import RewritingService
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.planning.bucket_children import children_of, resizes_buckets
from lakehouse.core.planning.clustering import (
    LAYOUT_KEY,
    ClusteringDue,
    Layout,
    PolicyOf,
    clustering_due,
    layout_from_metadata,
    layout_of,
    plan_clustering,
)
from lakehouse.core.rows.space_filling_curves import is_sortable
from lakehouse.core.state.data_files import members
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.table_config import require_mergeable, require_writable
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import RetryableError, UnsupportedError, UserError, nearest
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.clustering import BUCKETS, SORT_COLUMNS
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

_HOUR = slice(8, 10)
_MB = 1024 * 1024
NO_GROUPS = "every file group is large and sorted already, held by another plan, or being changed by a write"


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> ClusteringDue:
    """Return whether a clustering is due, and why; reads the timeline only."""
    del request  # a clustering is due for the whole table
    require_clusterable(table, policies)
    replaced = table.timeline.where(action=Action.REPLACECOMMIT, state=State.COMPLETED).by_completion()
    last = next((instant for instant in reversed(replaced) if _was_clustering(table, instant)), None)
    return clustering_due(table.timeline, last, policies.clustering)


def _cost(planned: ClusteringPlan) -> ServiceCost:
    """Return the cost of a plan; the benefit is the reduction of files."""
    files = sum(len(group.slices) for group in planned.groups)
    io_mb = sum(group.metrics.get("TOTAL_IO_MB", 0.0) for group in planned.groups)
    benefit = files - sum(group.outputs for group in planned.groups)
    partitions = tuple(sorted({held.partition for held in planned.slices}))
    return ServiceCost(files=files, bytes=round(io_mb * _MB), benefit=benefit, partitions=partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringExecution:
    """The execution of one clustering plan on an engine."""

    engine: Engine
    writes_files: bool = True

    def start(self, table: LoadedTable, pending: Instant, lock: TableLock) -> None:
        """Create an empty inflight file, as Hudi does."""
        if pending.state is State.REQUESTED:
            lock.check()
            table.store.start(pending, b"")

    def load(self, claimed: ClaimedPlan) -> ClusteringPlan | None:
        """Read the plan from the requested file."""
        return clustering_plan(claimed.table, claimed.instant)

    def partitions(self, plan: ClusteringPlan) -> Collection[str]:
        """Return the partitions of the planned file groups."""
        return {piece.partition for piece in plan.slices}

    def execute(self, claimed: ClaimedPlan, plan: ClusteringPlan) -> ClusteringWork:
        """Write the new file groups, in descending order of size."""
        table, policies, instant = claimed.table, claimed.policies, claimed.instant
        refuse_switched_off(policies, "clustering", self.partitions(plan))
        # Check for conflicts before the tasks run.
        numbered, left_out = unchanged_groups(claimed, table, plan)
        plan = replace(plan, groups=tuple(numbered.values()))
        require_recorded_writes(table, policies, instant)
        if table_schema(table) is None:
            raise UserError(
                f"{table.env.storage.root}: the clustering {instant.requested} is for a table without schema"
            )
        context = _context(table, policies, instant, plan)
        sizes = iter(with_committed_log_sizes(table, plan.slices))
        sized = {n: replace(group, slices=tuple(next(sizes) for _ in group.slices)) for n, group in numbered.items()}
        tasks = sorted(sized.items(), key=lambda task: -task[1].metrics.get("TOTAL_IO_MB", float(len(task[1].slices))))
        markers = announce_markers(
            claimed,
            [clustering_markers(context.write, planned_attempt(n, claimed.claim), group) for n, group in tasks],
        )
        inputs, unsized = [len(group.slices) for _, group in tasks], [0] * len(tasks)
        stage = stage_of(table, "clustering", "file group", unsized, units=inputs)
        with (
            planned_files_exist(claimed, plan.slices),
            rewritable_rows(claimed.table),
            observed_stage(stage) as running,
            running.tasks(unsized, inputs),
        ):
            written = self.engine.run(partial(_task, context, _file_sizes(policies, plan), claimed.claim), tasks)
        done = ClusteringWork(
            plan=replace(plan, groups=tuple(group for _, group in tasks)),
            context=context,
            stats=tuple(map(tuple, written)),
            files=RewrittenFiles(metadata=CommitMetadata(operation=Operation.CLUSTER.value), markers=markers),
            left_out=left_out,
        )
        # Writes continued in the meantime, so changed groups are excluded again. Index records are prepared here,
        # before the lock is taken.
        done = unchanged_work(claimed, table.reload(), done)
        with rewritable_rows(claimed.table):
            return prepared(done, staging_of(claimed, self.engine))

    def complete(
        self, claimed: ClaimedPlan, work: ClusteringWork, now: LoadedTable, lock: TableLock
    ) -> tuple[Committed, list[str]]:
        """Commit the new file groups, except groups with an input that a write changed."""
        staging, unchanged = staging_of(claimed, self.engine), unchanged_work(claimed, now, work)
        if unchanged is not work:
            staging.clean_up(work.files.staged)
            work = prepared(unchanged, staging)
        rings = store_resized_rings(now, claimed.instant, work.plan)
        store_new_rules(now, claimed.policies, claimed.instant, work.plan)
        files = replace(work.files, metadata=with_new_groups(now, work.plan, work.files.metadata))
        committed, markers = complete_rewrite(claimed, files, now, lock)
        mark_resized_rings(now, rings)
        staging.clean_up(work.files.staged)
        return replace(committed, left_out=work.left_out), markers


def _refusal(table: LoadedTable, policies: Policies, request: ServiceRequest) -> NothingToDo | None:
    answer = due(table, policies)
    if request.force or answer.commits >= max(policies.clustering.max_commits, 1):
        return None
    return NothingToDo(code=NothingToDoReason.NOT_DUE, reason=answer.reason)


def _check_before_plan(table: LoadedTable, policies: Policies, request: ServiceRequest) -> None:
    """Raise RetryableError before there is a plan, because a pending plan blocks other writes."""
    if request.force or due(table, policies).commits >= policies.clustering.max_commits:
        require_recorded_writes(table, policies, None)


def _plan(table: LoadedTable, policies: Policies, request: ServiceRequest) -> ClusteringPlan | None:
    require_clusterable(table, policies)
    require_sortable(table, policies.clustering.columns)
    planner = placement_of(policies.index.index_type).bucket_planner
    if planner is not None:
        return _plan_buckets(table, policies, request, planner)
    held = planned_groups(table)
    selected = request.partitions or policies.clustering.selected_partitions
    slices = checked_slices(table, policies.write, selected or None)
    plan = plan_clustering(
        slices,
        held | groups_of_active_writes(table, policies.transaction),
        policies.clustering,
        selected=selected,
        hour=int(table.store.new_instant_time(table.timeline)[_HOUR]),
        laid_out=_laid_out(table, _made_by(slices)) if policies.clustering.columns else {},
        max_file_bytes=policies.write.max_file_bytes,
        policy_of=_policies_of(policies),
    )
    if plan is None:
        return None
    groups = tuple(replace(group, slices=with_sources(table, group.slices)) for group in plan.groups)
    return replace(plan, groups=groups)


def _plan_buckets(
    table: LoadedTable, policies: Policies, request: ServiceRequest, planner: BucketPlanner
) -> ClusteringPlan | None:
    """Return the plan for a table with a bucket index, in which rows stay together with their bucket."""
    clustering = policies.clustering
    layout = Layout(columns=clustering.columns, curve=clustering.layout)
    selected = request.partitions or clustering.selected_partitions
    made_by: dict[str, Layout] = {}
    if clustering.columns:
        made_by = _laid_out(table, _made_by(checked_slices(table, policies.write, selected or None)))

    def is_unsorted(slices: FileSlices) -> np.ndarray[Any, Any]:
        if not clustering.columns:
            return np.zeros(len(slices), bool)
        in_layout = [instant for instant, made_in in made_by.items() if made_in == layout]
        flags: np.ndarray[Any, Any] = ~slices.flags(members(slices.base_instants, in_layout)) | (slices.log_counts > 0)
        return flags

    hour = int(table.store.new_instant_time(table.timeline)[_HOUR])
    return planner(table, policies, BucketSelection(selected=selected, hour=hour, is_unsorted=is_unsorted))


def _policies_of(policies: Policies) -> PolicyOf:
    return sections_by_partition(policies, "clustering", lambda own: own.clustering)


def _made_by(slices: FileSlices) -> set[str]:
    """Return the instants that wrote the base files of slices."""
    return set(pc.unique(slices.base_instants).to_pylist())


def _laid_out(table: LoadedTable, instants: set[str]) -> dict[str, Layout]:
    """Return the row layouts of the instants that were clusterings, including archived ones."""
    writes = table.timeline.writes()
    old = instants - {instant.requested for instant in writes}
    commits = table.store.commits(i for i in writes.where(action=Action.REPLACECOMMIT) if i.requested in instants)
    if old:
        archived = archived_writes(table, requested_from=min(old), requested_up_to=max(old))
        commits += table.store.archived_commits([i for i in archived if i.requested in old], LAYOUT_KEY)
    layouts = {instant.requested: layout_from_metadata(metadata) for instant, metadata in commits}
    return {requested: layout for requested, layout in layouts.items() if layout is not None}


def require_recorded_writes(table: LoadedTable, policies: Policies, before: Instant | None) -> None:
    """Raise RetryableError if a pending write has not yet recorded its file groups, because it may change any of them.

    Only writes that precede the plan `before` are checked; None checks all.
    """
    unknown = write_without_profile(table, policies.transaction, before)
    if unknown is not None:
        raise RetryableError(
            f"{table.env.storage.root}: the write {unknown.requested} is pending and has not recorded yet which files "
            "it changes; run the clustering again after it",
            instant=unknown.requested,
        )


def _was_clustering(table: LoadedTable, instant: Instant) -> bool:
    """Return whether a completed replacecommit was planned as a clustering, as the names of its timeline files show.

    Without an action of its own, its metadata shows it.
    """
    if not table.config.layout.has_clustering_action:
        return table.store.summary(instant).operation == Operation.CLUSTER
    return any(pending.action is Action.CLUSTERING for pending in table.store.pending_files(instant))


def _context(table: LoadedTable, policies: Policies, instant: Instant, plan: ClusteringPlan) -> ClusteringContext:
    declared = declared_at(table, instant.requested)
    assert declared is not None, "a table with files has a schema"
    schema = declared.schema
    if plan.strategy not in ("", SORT_AND_SIZE, RESIZE_RING, RESIZE_BUCKETS):
        raise UnsupportedError(
            f"{table.env.storage.root}: the clustering {instant.requested} has the strategy {plan.strategy}; only "
            "plans that sort and size files or resize buckets can be executed here. Execute it or roll it back with "
            "Hudi",
            strategy=plan.strategy,
        )
    if placement_of(policies.index.index_type).fixes_groups and not resizes_buckets(plan):
        raise UnsupportedError(
            f"{table.env.storage.root}: the clustering {instant.requested} moves rows to other file groups, where the "
            "bucket index would not find them. Roll it back with Hudi",
            strategy=plan.strategy,
        )
    layout = layout_of(plan, policies.clustering.layout)
    require_sortable(table, layout.columns)
    sized = replace(policies.write, max_file_bytes=policies.clustering.target_file_bytes)
    write = maintenance_context(table, replace(policies, write=sized), schema, instant.requested)
    write = resize_context(write, policies)
    # The rows to sort are in memory while slices are merged, so merging may use half of the memory.
    budget = policies.write.memory_budget_bytes // 2
    read = slice_context(table, schema, budget=budget, skips_damage=policies.write.skips_damage)
    return ClusteringContext(write=write, read=read, layout=layout, ids=declared.ids)


def _file_sizes(policies: Policies, plan: ClusteringPlan) -> Mapping[str, int]:
    """Return the maximum file size for partitions in which a policy sets a different size than the table."""
    of = _policies_of(policies)
    by_partition = {partition: of(partition) for partition in {piece.partition for piece in plan.slices}}
    usual = policies.clustering.target_file_bytes
    sizes = {partition: usual if own is None else own.target_file_bytes for partition, own in by_partition.items()}
    return {partition: size for partition, size in sizes.items() if size != usual}


# parameters: values for all tasks, then values for one task; the engine passes the last two
def _task(
    context: ClusteringContext,
    file_sizes: Mapping[str, int],
    claim: int,
    attempt: Attempt,
    task: tuple[int, ClusteringGroup],
) -> list[WriteStat]:
    number, group = task
    # File ids are derived from the position in the stored plan, so that they do not depend on groups that an executor
    # skips.
    attempt = replace(attempt, partition=number)
    if group.partition in file_sizes:
        sized = replace(context.write.policy, max_file_bytes=file_sizes[group.partition])
        context = replace(context, write=replace(context.write, policy=sized))
    rewrite = cluster_group if children_of(group) is None else resize_group
    return rewrite(context, attempt_under_claim(attempt, claim), group)


def require_clusterable(table: LoadedTable, policies: Policies) -> None:
    """Raise UnsupportedError for a table whose file groups cannot be replaced by new ones."""
    root = table.env.storage.root
    require_writable(table.config, root)
    require_mergeable(table.config)
    placement = placement_of(policies.index.index_type)
    if not placement.fixes_groups and policies.clustering.buckets:
        raise UserError(
            f"{root}: {BUCKETS}={policies.clustering.buckets} is for the bucket index; the index of the table is "
            f"{policies.index.type}",
            option=BUCKETS,
        )
    placement.check(table, policies)


def require_free_groups(table: LoadedTable, policies: Policies) -> None:
    """Raise UnsupportedError for a table with the bucket index, whose rows cannot move to other file groups."""
    require_clusterable(table, policies)
    if placement_of(policies.index.index_type).fixes_groups:
        raise UnsupportedError(
            f"{table.env.storage.root}: the bucket index finds the file group of a row by the hash of its key, so rows "
            "are not moved to other file groups, where writes would not find them"
        )


def require_sortable(table: LoadedTable, columns: tuple[str, ...]) -> None:
    """Raise UserError for a sort column that the table does not have, or by which rows cannot be ordered."""
    schema = table_schema(table) if columns else None
    if schema is None:
        return
    fields = {name: None for name in META_COLUMNS[:4]} | {field.name: field.type for field in schema}
    for name in columns:
        if name not in fields:
            raise UserError(
                f"option {SORT_COLUMNS}: column {name!r} is not in {table.env.storage.root}.{nearest(name, fields)}",
                column=name,
            )
        kind = fields[name]
        if kind is not None and not is_sortable(kind):
            raise UserError(
                f"option {SORT_COLUMNS}: column {name!r} has the type {kind}, by which rows cannot be ordered",
                column=name,
            )


#: Writes have priority, so file groups that a write changed first are skipped. If none remains, the plan is dropped and
#: made again once. More attempts would not help if writes are faster than the clustering.
SERVICE = RewritingService(
    name="clustering",
    action=Action.CLUSTERING,
    require=require_clusterable,
    make_plan=_plan,
    no_groups=NO_GROUPS,
    encode=lambda planned, root: encode_clustering_plan(planned, base_path=root),
    execution=lambda engine: ClusteringExecution(engine=engine),
    cost_of=_cost,
    refusal=_refusal,
    check_before_plan=_check_before_plan,
    repeated_plans=1,
)
plan, schedule, run, cost = SERVICE.plan, SERVICE.schedule, SERVICE.run, SERVICE.cost
