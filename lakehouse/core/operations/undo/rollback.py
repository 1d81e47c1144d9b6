"""Roll back a write: plan, delete files, delete instants; each step can be repeated (TL-7.3).

    R.rollback.requested (plan)   if X is completed, delete X_c.commit: X is pending again, and readers ignore it
    R.rollback.inflight  delete files  delete X's pending files
    R_c.rollback  delete markers, staged rows, heartbeat

A crash leaves R pending, and the next rollback continues it, unless X is still completed. The plan of a compaction is
kept: it becomes requested again, and an executor that was running it loses its claim.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.file_names import instant_of
from lakehouse.core.format.timeline.restore import decode_restore_plan
from lakehouse.core.format.timeline.rollback import encode_rollback_metadata, encode_rollback_plan
from lakehouse.core.metadata.change import MetadataChange, change_of_rollback
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.metadata.read.table import FILES
from lakehouse.core.metadata.write.rollback import roll_back_metadata
from lakehouse.core.operations.commit.cleanup import (
    check_rollback,
    clean_up,
    clean_up_ended_writes,
    delete_files,
    find_rollback,
    marked_files,
    read_rollback_plan,
)
from lakehouse.core.operations.commit.clustering_conflicts import clustering_plan
from lakehouse.core.operations.commit.completion import Completion, complete_action, drop_for_rebuild, rebuild_dropped
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.named_logs import deletable, own_files
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.bucket_rules import delete_bucket_rules
from lakehouse.core.operations.placement.rings import delete_rings
from lakehouse.core.operations.undo.slice_logs import (
    append_command_blocks,
    appended_slices,
    delete_unfinished_logs,
    planned_slices,
)
from lakehouse.core.operations.undo.undo_checks import (
    pending_action,
    plan_of_files,
    require_can_roll_back,
    require_own_logs,
    written_by,
)
from lakehouse.core.planning.bucket_children import resizes_buckets
from lakehouse.core.planning.restore import SERVICE_ACTIONS, UNDOABLE_ACTIONS
from lakehouse.core.state.data_files import file_paths, members
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.claims import claim
from lakehouse.core.timeline.file_deletions import LOG_INFIX
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.commit import RollbackMetadata, RollbackPlan
from lakehouse.model.display import Readable, Shown, sentence
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedWrites(Readable):
    """The requested times of the writes that were pending.

    Attributes:
        rolled_back: Failed writes that were rolled back.
        alive: Active writes, which were kept.
        refused: Ended writes that were not cleaned up, because their markers contain paths that must not be deleted.
    """

    rolled_back: tuple[str, ...]
    alive: tuple[str, ...]
    refused: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        counts = {"rolled back": self.rolled_back, "active": self.alive, "refused": self.refused}
        line = sentence(*(f"{len(times):,} {state}" for state, times in counts.items() if times))
        return Shown(f"failed writes: {line or 'none'}", counts)


def roll_back_failed_writes(table: LoadedTable, policy: TransactionPolicy, *, is_clean: bool = False) -> LoadedTable:
    """Prepare a table for its only writer: finish pending rollbacks and roll back failed writes.

    `is_clean` is whether no ended write can have left files. Returns the table with the current timeline. Raises
    RetryableError if another writer is active (several writers need a concurrency mode) or a restore is not finished;
    the message names the instant.
    """
    table.store.refuse_during_restore(table.timeline)
    pending = pending_writes(table)
    if not pending and not table.timeline.where(action=Action.ROLLBACK, pending=True):
        if not is_clean:
            clean_up_ended_writes(table, policy)
        return table
    alive = _finish_rollbacks(table, policy)
    for instant in pending:
        if instant.requested in alive:
            raise RetryableError(
                f"{table.env.storage.root}: the write {instant.requested} is active; "
                "wait for it, or delete its heartbeat .hoodie/.heartbeat/" + instant.requested + " if it has crashed",
                instant=instant.requested,
            )
        roll_back(table.reload(), policy, instant.requested)
    clean_up_ended_writes(table, policy)
    return table.reload()


def roll_back_expired_writes(table: LoadedTable, policy: TransactionPolicy, *, dry_run: bool = False) -> FailedWrites:
    """Roll back all failed writes, and finish pending rollbacks; active writes are kept.

    Raises RetryableError if a restore is not finished.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    before = {instant.requested for instant in pending_writes(table)}
    alive = active_writes(table.env, policy) if dry_run else _finish_rollbacks(table, policy)
    if dry_run:
        return FailedWrites(rolled_back=tuple(sorted(before - alive)), alive=tuple(sorted(before & alive)))
    for requested in sorted(before - alive):
        roll_back(table.reload(), policy, requested)
    refused = clean_up_ended_writes(table, policy)
    left = {instant.requested for instant in table.reload().timeline}
    return FailedWrites(rolled_back=tuple(sorted(before - left)), alive=tuple(sorted(before & alive)), refused=refused)


def rollback(
    table: LoadedTable, policy: TransactionPolicy, requested: str, *, dry_run: bool = False, force: bool = False
) -> RollbackPlan | NothingToDo:
    """Roll back a pending write, or the newest completed write. The plan of a compaction is kept.

    Args:
        table: The loaded table.
        policy: The options of locks and heartbeats.
        requested: The requested time of the write.
        dry_run: Return the files that would be deleted, and write nothing.
        force: Roll back an active write, too.

    Returns:
        The files that were deleted, or would be deleted.

    Raises:
        UserError: There is no such instant, another write completed after it, a savepoint keeps it, or a clean removed
            files that the table needs without it.
        RetryableError: The writer is active.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    instant = table.timeline.find(requested)
    if instant is None or (instant.state is State.REQUESTED and instant.action in SERVICE_ACTIONS):
        return _finish(table, policy, requested, dry_run=dry_run)
    if instant.action not in UNDOABLE_ACTIONS:
        raise UserError(f"{table.env.storage.root}: {requested} is a {instant.action}; only writes can be rolled back")
    plan = plan_rollback(table, instant)
    require_can_roll_back(table, policy, instant, force=force)
    if dry_run:
        return plan
    with table_lock(table.env, policy) as lock:
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        current = now.timeline.current(instant)
        if current is None or current.is_completed != instant.is_completed:
            raise RetryableError(
                f"{table.env.storage.root}: {requested} was completed or rolled back meanwhile; check the timeline, "
                "then run again",
                instant=requested,
            )
        if now.timeline != table.timeline:
            require_can_roll_back(now, policy, current, force=force)
        lock.check()
        undoing, plan = _requested(now, plan)
        if Action(plan.action) in SERVICE_ACTIONS:
            claim(table.env, requested)
        if current.is_completed:
            # Check the lock again: storing the plan may have taken long, and a later commit may depend on this write.
            # If the check fails, the next rollback drops this one.
            now.store.revert(current, Action(plan.action), check=lock.check)
    _execute(table, policy, undoing, plan)
    return plan


def roll_back(
    table: LoadedTable, policy: TransactionPolicy, requested: str, *, is_own: bool = False
) -> RollbackPlan | None:
    """Roll back a pending write. Return None if it was rolled back or completed in between.

    `is_own` is whether this process wrote its files (see `plan_rollback`).
    """
    instant = table.timeline.find(requested)
    if instant is None or instant.is_completed:
        return None
    plan = plan_rollback(table, instant, is_own=is_own)
    with table_lock(table.env, policy) as lock:
        now = table.reload()
        current = now.timeline.find(requested)
        if current is None or current.is_completed:
            return None
        lock.check()
        undoing, plan = _requested(now, plan)
    _execute(table, policy, undoing, plan)
    return plan


def drop_plan(
    table: LoadedTable,
    policy: TransactionPolicy,
    instant: Instant,
    still_ours: Callable[[LoadedTable, Timeline], None],
    *,
    is_own: bool = True,
) -> None:
    """Roll back a service plan and delete it, because it can never be completed.

    `still_ours` is called under the lock and raises an error if another executor claimed the plan. After a crash the
    plan may still exist. `is_own` is whether all files of earlier executors are deleted already (see `plan_rollback`).
    """
    require_own_logs(table, (), dropped=[instant])
    plan = plan_rollback(table, instant, is_own=is_own)
    with table_lock(table.env, policy) as lock:
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        still_ours(now, now.timeline)
        lock.check()
        undoing, plan = _requested(now, plan)
    _execute(table, policy, undoing, plan, drop=True)


def plan_rollback(table: LoadedTable, instant: Instant, *, is_own: bool = False) -> RollbackPlan:
    """Return the plan to roll back `instant`: its files with markers, and other files of it that a listing finds.

    All or some markers may be missing: a copy or backup of a table seldom includes `.hoodie/.temp`, and it may have
    been made while the writer was running. Remaining files become visible when the archive passes their instant.
    With `is_own` this process wrote the files, so the markers are complete, and no listing is needed.
    """
    require_own_logs(table, [instant])
    requested = instant.requested
    files = list(marked_files(table, requested).values())
    slices = appended_slices(table, instant, files, is_own=is_own)
    files = deletable(table, requested, files)
    action = pending_action(table, instant) if instant.is_completed else instant.action
    if instant.is_completed:
        partitions = sorted({stat.partition for stat in table.store.commit(instant).stats})
        files += written_by(requested, table, action, partitions)
        files += deletable(table, requested, copies_of(table, instant))
    elif not is_own or (not files and instant.state is State.INFLIGHT):
        files += written_by(requested, table, action)
    if resize := _resize(table, instant):
        # The logs to which writes copied rows for the plan are deleted together with it.
        partitions = sorted({piece.partition for piece in resize.slices})
        files += written_by(requested, table, Action.CLUSTERING, partitions, copies=True)
    plan = plan_of_files(requested, action, files, slices)
    check_rollback(table, plan)
    return plan


def _resize(table: LoadedTable, instant: Instant) -> ClusteringPlan | None:
    """Return the plan of a bucket resize, None for other instants."""
    if instant.action not in (Action.CLUSTERING, Action.REPLACECOMMIT):
        return None
    plan = clustering_plan(table, instant)
    return plan if plan is not None and resizes_buckets(plan) else None


def copies_of(table: LoadedTable, instant: Instant) -> list[str]:
    """Return the logs to which a completed write copied rows for resizes; their names have another instant."""
    logs = [stat.path for stat in table.store.commit(instant).stats if LOG_INFIX in stat.path]
    return [path for path in logs if instant_of(path.rpartition("/")[2]) != instant.requested]


def _finish(
    table: LoadedTable, policy: TransactionPolicy, requested: str, *, dry_run: bool
) -> RollbackPlan | NothingToDo:
    """Continue a rollback whose target is already deleted, or is a plan that is requested again."""
    undoing = find_rollback(table, table.timeline, requested)
    if undoing is not None and not undoing.is_completed:
        plan = read_rollback_plan(table, undoing)
        assert plan is not None, "a rollback is known by its plan"
        plan = _with_unplanned_files(table, plan)
        if not dry_run:
            _execute(table, policy, undoing, plan)
        return plan
    if table.timeline.find(requested) is not None:
        return NothingToDo(
            code=NothingToDoReason.NO_CHANGES,
            reason=f"the plan {requested} is not being executed, so there is nothing to roll back",
        )
    if undoing is not None:
        return NothingToDo(
            code=NothingToDoReason.NO_CHANGES, reason=f"{requested} was rolled back already, by {undoing.requested}"
        )
    newest = table.timeline.writes().by_completion()[-1:]
    pending = [i.requested for i in table.timeline.where(action=UNDOABLE_ACTIONS, pending=True)]
    raise UserError(
        f"{table.env.storage.root}: there is no instant {requested}; the newest completed write is "
        f"{newest[0].requested if newest else 'none'}, pending are {', '.join(pending) or 'none'}"
    )


def _finish_rollbacks(table: LoadedTable, policy: TransactionPolicy) -> frozenset[str]:
    """Execute pending rollbacks, and return the active writes."""
    alive = active_writes(table.env, policy)
    for undoing in table.timeline.where(action=Action.ROLLBACK, pending=True):
        plan = read_rollback_plan(table, undoing)
        if plan is None or _was_part_of_a_restore(table, undoing, plan.target):
            table.store.remove_pending(undoing)
        elif not (plan.action in SERVICE_ACTIONS and plan.target in alive):
            _execute(table, policy, undoing, _with_unplanned_files(table, plan))
    return alive


def _with_unplanned_files(table: LoadedTable, plan: RollbackPlan) -> RollbackPlan:
    """Add files of the target that a listing finds to a stored plan.

    Hudi plans an empty rollback if the marker directory is missing. Also, the writer may have created files after the
    plan.
    """
    check_rollback(table, plan)
    action, target = Action(plan.action), table.store.load().find(plan.target)
    # `_execute` handles a completed target. A service plan that still exists may have a new executor. It has deleted
    # the files of earlier executors, so listed files may belong to the new executor.
    if target is not None and (target.is_completed or target.action in SERVICE_ACTIONS):
        return plan
    files = [path for request in plan.requests for path in request.files]
    slices = planned_slices([plan])
    if target is not None:
        marked = marked_files(table, plan.target).values()
        slices = {**slices, **appended_slices(table, target, marked, is_own=False)}
    return plan_of_files(plan.target, action, [*files, *written_by(plan.target, table, action)], slices)


def _was_part_of_a_restore(table: LoadedTable, undoing: Instant, target: str) -> bool:
    """Return whether a completed restore created this rollback and crashed before it deleted it."""
    restores = table.timeline.where(action=Action.RESTORE, state=State.COMPLETED)
    return any(is_rollback_of_restore(table, undoing, target, restore) for restore in restores)


def is_rollback_of_restore(table: LoadedTable, undoing: Instant, target: str | None, restore: Instant) -> bool:
    """Return whether a completed restore created this rollback of `target`.

    Without completion times, the plan of the restore decides about a pending rollback that was requested after it.
    """
    if undoing.requested < restore.requested or table.config.layout.has_completion_times:
        return restore.requested < undoing.requested < restore.completion
    plan = None if undoing.is_completed else table.store.read(restore, State.REQUESTED)
    return plan is not None and target in {requested for requested, _ in decode_restore_plan(plan).instants}


def _requested(table: LoadedTable, plan: RollbackPlan) -> tuple[Instant, RollbackPlan]:
    """Create the rollback instant, or return a pending one with the files of both plans."""
    check_rollback(table, plan)
    existing = find_rollback(table, table.timeline, plan.target)
    if existing is None or existing.is_completed:
        data = stored_rollback_plan(table, plan)
        return table.store.request(table.timeline, Action.ROLLBACK, data), plan
    earlier = read_rollback_plan(table, existing)
    plans = [plan] if earlier is None else [earlier, plan]
    files = [path for made in plans for request in made.requests for path in request.files]
    combined = plan_of_files(plan.target, Action(plan.action), files, planned_slices(plans))
    check_rollback(table, combined)
    return existing, combined


def stored_rollback_plan(table: LoadedTable, plan: RollbackPlan) -> bytes:
    """Return the content of a requested rollback."""
    stored = replace(plan, action=table.config.layout.stored_action(plan.action))
    return encode_rollback_plan(stored, base_path=table.env.storage.root)


def delete_written(
    table: LoadedTable, undoing: Instant, plan: RollbackPlan, *, drop_plan: bool
) -> dict[str, dict[str, int]]:
    """Start a rollback and delete the data files of its target, then the pending files of the target.

    Returns the log files with command blocks that roll back log files of the target, as sizes by path, by partition.
    """
    check_rollback(table, plan)
    store = table.store
    if undoing.state is State.REQUESTED:
        store.start(undoing, b"")
    for request in plan.requests:
        delete_files(table, plan.target, request.files)
    delete_unfinished_logs(table, plan.target, marked_files(table, plan.target).values())
    command_logs = append_command_blocks(table, undoing.requested, plan)
    target = Instant(requested=plan.target, action=Action(plan.action), state=State.INFLIGHT)
    if target.action in (Action.REPLACECOMMIT, Action.CLUSTERING):
        delete_bucket_rules(table.env.storage, plan.target)
        delete_rings(table.env.storage, plan.target)
    if target.action in SERVICE_ACTIONS and not drop_plan:
        store.delete_inflight(target)
    else:
        store.remove_pending(target)
    store.remove_unfinished(target.requested)
    return command_logs


def _execute(
    table: LoadedTable, policy: TransactionPolicy, undoing: Instant, plan: RollbackPlan, *, drop: bool = False
) -> None:
    env, store = table.env, table.store
    started = env.clock.now_ms()
    check_rollback(table, plan)
    target = store.load().find(plan.target)
    if target is not None and target.is_completed:
        if _drop(table, policy, undoing, plan):
            return
        target = store.load().find(plan.target)
    if target is not None:
        plan = replace(plan, action=str(target.action))
        # The rows that writes copied for a resize are deleted, so its plan cannot be executed any more.
        drop = drop or _resize(table, target) is not None
    _roll_back_metadata(table, policy, undoing, plan)
    command_logs = delete_written(table, undoing, plan, drop_plan=drop)
    metadata = rollback_metadata(plan, undoing, command_logs, seconds=(env.clock.now_ms() - started) / 1000)
    with table_lock(env, policy) as lock:
        timeline = store.load()
        current = timeline.current(undoing)
        if current is not None and not current.is_completed:
            stored = replace(metadata, action=table.config.layout.stored_action(metadata.action))
            data = encode_rollback_metadata(stored, base_path=env.storage.root)
            started_rollback = replace(undoing, state=State.INFLIGHT)
            completion = Completion(
                instant=started_rollback, timeline=timeline, data=data, change=_change_of_logs(table, metadata)
            )
            complete_action(table, completion, lock)
    rebuild_dropped(table, policy)
    if command_logs:
        clean_up(table, undoing.requested, staged=False)
    # The claims on a plan are kept, so that a stale executor of the plan is refused.
    clean_up(table, plan.target, staged=drop or Action(plan.action) not in SERVICE_ACTIONS)
    logger.info("%s: rolled back %s, %d files", env.storage.root, plan.target, sum(len(r.files) for r in plan.requests))


def rollback_metadata(
    plan: RollbackPlan, undoing: Instant, command_logs: Mapping[str, Mapping[str, int]], *, seconds: float
) -> RollbackMetadata:
    """Return the metadata of a rollback that executed a plan and wrote these log files with command blocks."""
    failed: dict[str, dict[str, int]] = {}
    for (partition, _, _), logs in planned_slices([plan]).items():
        paths = {f"{partition}/{name}".lstrip("/"): size for name, size in logs.items()}
        failed.setdefault(partition, {}).update(paths)
    return RollbackMetadata(
        start_time=undoing.requested,
        seconds=seconds,
        target=plan.target,
        action=plan.action,
        deleted={request.partition: request.files for request in plan.requests if not request.base_instant},
        command_logs=command_logs,
        failed_logs=failed,
    )


def _change_of_logs(table: LoadedTable, metadata: RollbackMetadata) -> MetadataChange | None:
    """Return the change that the metadata table records: the log files of both writes that are on storage (V6-9.6).

    None if the target appended to no log file that is named after its slice. A planned log file may have been deleted,
    because the write was killed before it completed the file.
    """
    if not metadata.command_logs or not table.config.metadata_partitions:
        return None
    named = {path for of in (metadata.failed_logs, metadata.command_logs) for sizes in of.values() for path in sizes}
    logs: dict[str, dict[str, int]] = {}
    for partition in sorted({*metadata.failed_logs, *metadata.command_logs}):
        files = table.env.storage.list_dir(partition)[0]
        logs[partition] = {file.path: file.size_bytes for file in files if file.path in named}
    return change_of_rollback(logs)


def _roll_back_metadata(table: LoadedTable, policy: TransactionPolicy, undoing: Instant, plan: RollbackPlan) -> None:
    """Remove the records of the target from the metadata table while the target is still pending (MDT-9)."""
    if not any(listed_partitions(read_properties(table.env.storage) or {})):
        return
    with table_lock(table.env, policy) as lock:
        lock.check()
        is_removed = roll_back_metadata(table.metadata, undoing.requested, plan.target, lock)
        if not is_removed or _lists_deleted_files(table.refresh(), plan):
            # The records belong to a compaction or build of the metadata table, or to commits that copied rows for a
            # resize. They cannot be removed one by one.
            drop_for_rebuild(table, lock)


def _lists_deleted_files(table: LoadedTable, plan: RollbackPlan) -> bool:
    """Return whether the metadata table lists files that a rollback deletes, while its target is pending."""
    paths = [path for request in plan.requests for path in request.files]
    partitions = [request.partition for request in plan.requests]
    listing = from_metadata(table, FILES, lambda metadata: metadata.listing(partitions)) if paths else None
    return listing is not None and bool(pc.any(members(file_paths(listing), pa.array(paths, pa.string()))).as_py())


def _drop(table: LoadedTable, policy: TransactionPolicy, undoing: Instant, plan: RollbackPlan) -> bool:
    """Drop a pending rollback if its target is completed, and return True.

    The rollback crashed before it deleted the completed file, or the target was executed again since. Files of the
    target in the rollback plan that it does not list are from an earlier execution and are deleted. Returns False if
    the process that planned the rollback is still running and has made the target pending meanwhile, under the lock.
    """
    with table_lock(table.env, policy) as lock:
        timeline = table.store.load()
        target = timeline.find(plan.target)
        if target is None or not target.is_completed:
            return False
        lock.check()
        named = {path for stat in table.store.commit(target).stats for path in (stat.path, *stat.cdc_files)}
        for request in plan.requests:
            # The plan contains the logs of the slices that the target created. They remain with the target.
            files = own_files(table, plan.target, request.files)
            delete_files(table, plan.target, [path for path in files if path not in named])
        table.store.remove_pending(undoing)
    logger.warning("%s: dropped rollback %s: %s is completed", table.env.storage.root, undoing.requested, plan.target)
    return True
