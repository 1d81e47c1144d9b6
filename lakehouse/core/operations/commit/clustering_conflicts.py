"""Who was first: a clustering, or a write of the files that it rewrites (TL-8.2, TL-9.2).

    plan P ....................... run ............ completes?
      │ write after P, of files of P: refused, or with `give_way` the clustering yields to it
    write that began before P, of files of P: it commits, and the clustering yields to it

A write that cannot know of a plan never loses to it. Plans of Hudi are executed by who may not look for such writes, so
to those a write yields.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.pending import pending_clustering, pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.clustering import gives_way, overtaken
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.commit import CommitMetadata, Operation
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

#: What changes file groups that its inflight file does not name.
_WIPING = (Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION)


def clustering_plan(table: LoadedTable, instant: Instant) -> ClusteringPlan | None:
    """Return the plan of a clustering, pending or completed, None if it is another replacing write or its file is gone.

    Layout 1 names the plan as that of a replacecommit.
    """
    action = Action.CLUSTERING if instant.action is Action.REPLACECOMMIT and instant.is_completed else instant.action
    data = table.store.read(replace(instant, action=action, completed=None), State.REQUESTED)
    return decode_clustering_plan(data) if data else None


def groups_closed_by_clustering(table: LoadedTable, now: Timeline, *, updates: str) -> dict[Group, str]:
    """Return the groups that a write may not change at `now` because a plan holds them: group -> instant of the plan.

    `table` is what the write saw when it began: of plans that came later it could not know. `updates` is the writer's
    option, reject or give_way.
    """
    current = replace(table, timeline=now)
    held = pending_clustering(current)
    yielding = set()
    for requested in set(held.values()):
        planned = now.find(requested)
        if planned is not None and (updates == "give_way" or table.timeline.find(requested) is None):
            plan = clustering_plan(current, planned)
            if plan is not None and gives_way(plan):
                yielding.add(requested)
    return {group: requested for group, requested in held.items() if requested not in yielding}


def conflicting_write(
    table: LoadedTable, policy: TransactionPolicy, instant: Instant, plan: ClusteringPlan
) -> str | None:
    """Return which write was, or is about to be, faster than the clustering `instant`, and where; None if none was."""
    since = table.store.commits(table.timeline.writes().where(completed_after=instant.requested))
    # What began before the plan and completed after it may be archived already.
    archived = archived_writes(table, completed_after=instant.requested)
    reason = overtaken(plan, [*since, *table.store.archived_commits(archived.instants)])
    if reason is not None:
        return reason
    planned = {(piece.partition, piece.file_id) for piece in plan.slices}
    for write, metadata in _living(table, policy):
        both = sorted(planned & _profile(metadata))
        if both:
            return f"{write.requested}, which is in flight, changes file group {both[0][1]} of {both[0][0]!r}"
    return None


def groups_of_active_writes(table: LoadedTable, policy: TransactionPolicy) -> frozenset[Group]:
    """Return the groups that living writes said they would change."""
    return frozenset(group for _, metadata in _living(table, policy) for group in _profile(metadata))


def write_without_profile(table: LoadedTable, policy: TransactionPolicy, before: Instant | None) -> Instant | None:
    """Return a living write, begun before this clustering, that has not said which groups it changes; None if none."""
    living = active_writes(table.env, policy)
    for write in pending_writes(table):
        if (before is not None and write.requested > before.requested) or write.requested not in living:
            continue
        metadata = _inflight(table, write)
        if metadata is None or metadata.operation in _WIPING:
            return write
    return None


def _living(table: LoadedTable, policy: TransactionPolicy) -> Iterator[tuple[Instant, CommitMetadata]]:
    pending = pending_writes(table)
    living = active_writes(table.env, policy) if pending else frozenset()
    for write in pending:
        metadata = _inflight(table, write) if write.requested in living else None
        if metadata is not None:
            yield write, metadata


def _inflight(table: LoadedTable, write: Instant) -> CommitMetadata | None:
    data = table.store.read(write, State.INFLIGHT) if write.state is State.INFLIGHT else None
    return decode_commit(data) if data else None


def _profile(metadata: CommitMetadata) -> frozenset[Group]:
    return frozenset((stat.partition, stat.file_id) for stat in metadata.stats if stat.file_id)
