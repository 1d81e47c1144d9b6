"""Decide conflicts between a clustering and writes to the file groups that it rewrites (TL-8.2, TL-9.2).

    plan P ....................... run ............ completes?
      │ a write that began after P and writes to file groups of P commits; with `reject` it is refused
    a write that began before P and writes to file groups of P commits

If the write commits, the clustering skips these file groups. A bucket resize aborts, because writes copied rows for all
of its groups. A plan that was made after a write began never makes that write fail. Hudi may execute its own plans
without this check, so writes to file groups in such plans are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lakehouse.core.format.file_names import instant_of
from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.pending import pending_clustering, pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.bucket_children import changed_files, copied_groups, overtaken
from lakehouse.core.planning.clustering import aborts_on_conflict
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

#: Operations that replace file groups without listing them in their inflight file.
_REPLACING = (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)


def clustering_plan(table: LoadedTable, instant: Instant) -> ClusteringPlan | None:
    """Return the plan of a pending or completed clustering.

    Return None if it is missing or the replacecommit is no clustering.
    """
    # In layout 1 the plan file of a clustering has the same name as that of any other replacecommit.
    action = Action.CLUSTERING if instant.action is Action.REPLACECOMMIT and instant.is_completed else instant.action
    data = table.store.read(replace(instant, action=action, completed=None), State.REQUESTED)
    return decode_clustering_plan(data) if data else None


def groups_closed_by_clustering(table: LoadedTable, now: Timeline, *, updates: str) -> dict[Group, str]:
    """Return the file groups that a write may not change because a pending clustering holds them.

    Args:
        table: The table as it was when the write began. Later plans do not refuse the write.
        now: The current timeline.
        updates: The option of the write: reject or give_way.

    Returns:
        (partition, file id) -> requested time of the clustering.
    """
    current = replace(table, timeline=now)
    held = pending_clustering(current)
    yielding = set()
    for requested in set(held.values()):
        planned = now.find(requested)
        if planned is not None and (updates == "give_way" or table.timeline.find(requested) is None):
            plan = clustering_plan(current, planned)
            if plan is not None and aborts_on_conflict(plan):
                yielding.add(requested)
    return {group: requested for group, requested in held.items() if requested not in yielding}


def conflicting_write(
    table: LoadedTable, policy: TransactionPolicy, instant: Instant, plan: ClusteringPlan
) -> str | None:
    """Return the reason why the clustering `instant` must abort, or None if it may complete.

    The reason is a write to a file group of the plan that completed after the plan was made, or that is active.
    """
    reason = overtaken(plan, _completed_since(table, instant, plan), instant.requested)
    if reason is not None:
        return reason
    planned = {(piece.partition, piece.file_id) for piece in plan.slices}
    for write, metadata in _active(table, policy):
        both = sorted(planned & _profile(metadata) - copied_groups(plan, _profile(metadata)))
        if both:
            return f"{write.requested}, which is pending, changes file group {both[0][1]} of {both[0][0]!r}"
    return None


def changed_by_writes(
    table: LoadedTable, policy: TransactionPolicy, instant: Instant, plan: ClusteringPlan
) -> dict[Group, str]:
    """Return the planned file groups that the clustering `instant` must skip, with the reason.

    Either a write that completed after the plan was made changed them, or an active write is about to change them.
    """
    planned = {(piece.partition, piece.file_id): piece.names for piece in plan.slices}
    reasons: dict[Group, str] = {}
    for write, metadata in _completed_since(table, instant, plan):
        changed, replaced = changed_files(planned, metadata)
        for group in sorted(changed | replaced):
            reasons.setdefault(group, f"{write.requested} changed file group {group[1]} of {group[0]!r} before")
    for write, metadata in _active(table, policy):
        for group in sorted(planned.keys() & _profile(metadata)):
            reasons.setdefault(group, f"{write.requested}, which is pending, changes file group {group[1]}")
    return reasons


def groups_of_active_writes(table: LoadedTable, policy: TransactionPolicy) -> frozenset[Group]:
    """Return the file groups in the inflight files of active writes."""
    return frozenset(group for _, metadata in _active(table, policy) for group in _profile(metadata))


def write_without_profile(table: LoadedTable, policy: TransactionPolicy, before: Instant | None) -> Instant | None:
    """Return an active write, requested at `before` or earlier, whose inflight file lists no file groups; or None.

    A clustering must not complete before such a write: the write could change any file group.
    """
    active = active_writes(table.env, policy)
    for write in pending_writes(table):
        if (before is not None and write.requested > before.requested) or write.requested not in active:
            continue
        metadata = _inflight(table, write)
        if metadata is None or metadata.operation in _REPLACING:
            return write
    return None


def _completed_since(
    table: LoadedTable, instant: Instant, plan: ClusteringPlan
) -> list[tuple[Instant, CommitMetadata]]:
    if not table.config.layout.has_completion_times:
        return _beside(table, plan)
    since = table.store.commits(table.timeline.writes().where(completed_after=instant.requested))
    # A write that began before the plan and completed after it may be archived already.
    archived = archived_writes(table, completed_after=instant.requested)
    return [*since, *table.store.archived_commits(archived.instants)]


def _beside(table: LoadedTable, plan: ClusteringPlan) -> list[tuple[Instant, CommitMetadata]]:
    """Return all writes, with the files that do not belong to earlier slices of the planned file groups.

    Without completion times, each write may have completed after the plan. A file of a planned slice, or of a later
    one, that the plan does not contain was then written after the plan.
    """
    first = {
        (piece.partition, piece.file_id): _instant_in(piece.data_file or min(piece.log_files)) for piece in plan.slices
    }
    commits = []
    for write, metadata in table.store.commits(table.timeline.writes()):
        later = tuple(
            stat for stat in metadata.stats if _instant_in(stat.path) >= first.get((stat.partition, stat.file_id), "")
        )
        commits.append((write, replace(metadata, stats=later)))
    return commits


def _instant_in(path: str) -> str:
    return instant_of(path.rpartition("/")[2]) or ""


def _active(table: LoadedTable, policy: TransactionPolicy) -> Iterator[tuple[Instant, CommitMetadata]]:
    pending = pending_writes(table)
    active = active_writes(table.env, policy) if pending else frozenset()
    for write in pending:
        metadata = _inflight(table, write) if write.requested in active else None
        if metadata is not None:
            yield write, metadata


def _inflight(table: LoadedTable, write: Instant) -> CommitMetadata | None:
    data = table.store.read(write, State.INFLIGHT) if write.state is State.INFLIGHT else None
    return decode_commit(data) if data else None


def _profile(metadata: CommitMetadata) -> frozenset[Group]:
    return frozenset((stat.partition, stat.file_id) for stat in metadata.stats if stat.file_id)
