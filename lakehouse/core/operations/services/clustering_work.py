"""The work of a clustering, in which writes have priority: changed file groups are skipped, the rest is committed.

    before the tasks    changed file groups are not read
    after the tasks     files that were made from changed file groups are not committed; they have markers, so the
                        commit deletes them
    under the lock      the same check again, for writes since then

The commit lists only the file groups that it replaced. It completes the plan, which therefore releases all file groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakehouse.core.files.base.clustering_writer import ClusteringContext
from lakehouse.core.operations.commit.clustering_conflicts import changed_by_writes, conflicting_write
from lakehouse.core.operations.commit.index_staging import IndexStaging
from lakehouse.core.operations.load.pending import UnusablePlanError
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.plan_executor import ClaimedPlan
from lakehouse.core.operations.services.rewrite import RewrittenFiles
from lakehouse.core.planning.bucket_children import resizes_buckets
from lakehouse.core.planning.clustering import LAYOUT_KEY, layout_of, layout_text
from lakehouse.core.planning.clustering_changes import unchanged_tasks, without_changed_slices
from lakehouse.core.planning.key_ranges import ranges_extra
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.display import count_text
from lakehouse.model.instant import Instant


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringWork:
    """The result of an executed plan.

    Attributes:
        plan: The plan without the skipped groups.
        context: The settings with which the files were written.
        stats: The new files by group of the plan.
        files: The metadata of the commit and the index records.
        left_out: The reasons for which parts of the plan were skipped.
    """

    plan: ClusteringPlan
    context: ClusteringContext
    stats: tuple[tuple[WriteStat, ...], ...]
    files: RewrittenFiles
    left_out: tuple[str, ...] = ()


def unchanged_groups(
    claimed: ClaimedPlan, now: LoadedTable, plan: ClusteringPlan
) -> tuple[dict[int, ClusteringGroup], tuple[str, ...]]:
    """Return the planned groups without changed file groups, by position, and the reasons for skipped ones.

    Raises UnusablePlanError if nothing remains.
    """
    changed = _changed(claimed, now, plan)
    if not changed:
        return dict(enumerate(plan.groups)), ()
    sorts = bool(layout_of(plan, claimed.policies.clustering.layout).columns)
    remaining = without_changed_slices(plan, changed, sorts=sorts)
    if not remaining:
        raise UnusablePlanError(next(iter(changed.values())))
    count = len(plan.slices) - sum(len(group.slices) for group in remaining.values())
    return remaining, (_left_out(claimed.instant, count, changed),)


def unchanged_work(claimed: ClaimedPlan, now: LoadedTable, work: ClusteringWork) -> ClusteringWork:
    """Return the work without files that were made from file groups that a write has changed meanwhile.

    Raises UnusablePlanError if nothing remains.
    """
    changed = _changed(claimed, now, work.plan)
    if not changed:
        return work
    remaining = unchanged_tasks(work.plan, changed)
    if not remaining:
        raise UnusablePlanError(next(iter(changed.values())))
    plan = replace(work.plan, groups=tuple(work.plan.groups[number] for number in remaining))
    reason = _left_out(claimed.instant, len(work.plan.slices) - len(plan.slices), changed)
    stats = tuple(work.stats[number] for number in remaining)
    return replace(work, plan=plan, stats=stats, left_out=(*work.left_out, reason))


def prepared(work: ClusteringWork, staging: IndexStaging) -> ClusteringWork:
    """Return the work with the metadata of its commit and the records of indexes."""
    context, stats = work.context, [stat for of_group in work.stats for stat in of_group]
    metadata = CommitMetadata(
        operation=Operation.CLUSTER.value,
        stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
        replaced=work.plan.replaced,
        extra={"schema": context.write.avro_schema, **context.ids}
        | ranges_extra(stats, context.write.indexed)
        | ({LAYOUT_KEY: layout_text(context.layout)} if context.layout.columns else {}),
    )
    return replace(work, files=replace(work.files, metadata=metadata, staged=staging.stage(metadata)))


def _changed(claimed: ClaimedPlan, now: LoadedTable, plan: ClusteringPlan) -> Mapping[Group, str]:
    """Return the planned file groups that a write changed, or is about to change, with the reason.

    Raises UnusablePlanError if a part of the plan must not be committed. In a bucket resize, rows that writes copied
    would become visible. If an earlier executor is still active, the files that it creates late would belong to no
    committed group.
    """
    policy, instant = claimed.policies.transaction, claimed.instant
    if resizes_buckets(plan):
        reason = conflicting_write(now, policy, instant, plan)
        if reason is not None:
            raise UnusablePlanError(reason)
        return {}
    changed = changed_by_writes(now, policy, instant, plan)
    if changed and claimed.claim > 1:
        raise UnusablePlanError(next(iter(changed.values())))
    return changed


def _left_out(instant: Instant, count: int, changed: Mapping[Group, str]) -> str:
    return (
        f"the clustering {instant.requested} left out {count_text(count, 'file group')} for writes: "
        f"{next(iter(changed.values()))}"
    )
