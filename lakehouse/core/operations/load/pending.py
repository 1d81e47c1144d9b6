"""Find pending writes, and the file groups that pending service plans hold."""

from __future__ import annotations

from lakehouse.core.format.timeline.commit_metadata import decode_commit, decode_requested_replace
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.file_system_view import Group
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.commit import Operation
from lakehouse.model.instant import Action, Instant, State


class UnusablePlanError(Exception):
    """A pending plan can never be completed and must be dropped. The message contains the reason."""


def pending_writes(table: LoadedTable) -> tuple[Instant, ...]:
    """Return the pending instants of writers, without instants of table services."""
    # Compactions have their own action. A clustering may be a replacecommit, like a write.
    held = set(pending_clustering(table).values())
    writes = table.timeline.where(action={Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT}, pending=True)
    return tuple(instant for instant in writes if instant.requested not in held)


def pending_clustering(table: LoadedTable) -> dict[Group, str]:
    """Return the file groups (partition, file id) that pending clustering plans hold, each with the requested time."""
    held: dict[Group, str] = {}
    for instant in table.timeline.where(action={Action.CLUSTERING, Action.REPLACECOMMIT}, pending=True):
        plan = table.store.read(instant, State.REQUESTED)
        for partition, file_ids in (decode_requested_replace(plan) if plan else {}).items():
            held.update({(partition, file_id): instant.requested for file_id in file_ids})
    return held


def pending_compactions(table: LoadedTable) -> dict[Group, str]:
    """Return the file groups that pending compactions hold, log compactions included.

    The result maps (partition, file id) to the requested time. Raises CorruptTableError for a compaction without a
    plan, and RetryableError if it was rolled back in between.
    """
    held: dict[Group, str] = {}
    for instant in table.timeline.where(action={Action.COMPACTION, Action.LOGCOMPACTION}, pending=True):
        data = table.store.read(instant, State.REQUESTED)
        if not data:
            current = table.store.load().current(instant)
            if current is None or current.is_completed:
                raise RetryableError(
                    f"{table.env.storage.root}: {instant.action} {instant.requested} was rolled back or completed "
                    "while its plan was read; run again",
                    instant=instant.requested,
                )
            raise CorruptTableError(
                f"{table.env.storage.root}: {instant.action} {instant.requested} is pending but has no plan; "
                "restore its .requested file, or roll the instant back with Hudi",
                instant=instant.requested,
            )
        for operation in decode_compaction_plan(data).operations:
            held[(operation.partition, operation.file_id)] = instant.requested
    return held


def profiled_groups(table: LoadedTable, pending: Instant) -> frozenset[Group]:
    """Return the file groups that a pending write changes, by the profile in its inflight file; empty before it."""
    data = table.store.read(pending, State.INFLIGHT)
    stats = decode_commit(data).stats if data else ()
    return frozenset((stat.partition, stat.file_id) for stat in stats if stat.file_id)


def planned_groups(table: LoadedTable) -> frozenset[Group]:
    """Return the file groups that pending plans of compaction and clustering hold."""
    return frozenset(pending_compactions(table)) | frozenset(pending_clustering(table))


def log_compactions(table: LoadedTable) -> frozenset[str]:
    """Return the requested times of completed log compactions, which are delta commits on the timeline.

    Reads the metadata of every delta commit, so only the planner of log compactions should call it.
    """
    deltas = table.timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    return frozenset(
        instant.requested
        for instant, metadata in table.store.summaries(deltas)
        if metadata.operation == Operation.LOG_COMPACT
    )
