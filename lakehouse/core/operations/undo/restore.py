"""Restore a table to a savepoint or a completed write; all later writes are rolled back (TL-7.5).

    R.restore.requested  under the lock: the instants to roll back, newest first; from here on writers are refused
    R.restore.inflight   for each of them, one after the other:
        r.rollback.requested (files)   delete X_c.commit, so readers ignore X   r.rollback.inflight
        delete files   delete X's pending files, markers, staged rows, heartbeat
    R_c.restore          the deleted files; then delete all rollbacks since the target, as Hudi does

At each moment readers see the table as it was after some write. A crash leaves R pending, and the next restore to the
same instant continues it. Two concurrent restores to the same instant are safe, because each step can be repeated.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from lakehouse.core.format.timeline.restore import decode_restore_plan, encode_restore_metadata, encode_restore_plan
from lakehouse.core.operations.commit.cleanup import (
    check_files_of_write,
    clean_up,
    delete_files,
    marked_files,
    read_rollback_plan,
)
from lakehouse.core.operations.commit.completion import Completion, complete_action, drop_for_rebuild, rebuild_dropped
from lakehouse.core.operations.commit.pins import require_unpublished
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.named_logs import deletable, keeps_logs
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.undo.rollback import (
    copies_of,
    delete_written,
    is_rollback_of_restore,
    rollback_metadata,
    stored_rollback_plan,
)
from lakehouse.core.operations.undo.slice_logs import Slices, appended_slices, planned_slices
from lakehouse.core.operations.undo.undo_checks import (
    completed_write,
    pending_action,
    plan_of_files,
    require_files,
    require_no_savepoint,
    require_own_logs,
    written_by,
)
from lakehouse.core.planning.restore import instants_to_roll_back
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.file_deletions import check_action
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError, UnsupportedError, UserError
from lakehouse.model.commit import RollbackMetadata, RollbackPlan
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.restore import RestoreMetadata, RestorePlan
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)
_COMPACTIONS = (Action.COMPACTION, Action.COMMIT)
#: Paths of the files with an instant in their names, by requested time of the instant.
Written = Mapping[str, list[str]]
#: The slices to which an instant appended log files, by requested time of the instant.
Appended = Mapping[str, Slices]
#: The instant of a rollback and its plan.
Rollback = tuple[Instant, RollbackPlan]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Readable):
    """The rollbacks of a restore to `target`, in order; `instant` is the completed restore, None for a dry run."""

    target: str
    rollbacks: tuple[RollbackPlan, ...]
    instant: Instant | None = None

    def _shown(self) -> Shown:
        verb = "dry run of a restore" if self.instant is None else f"restore {self.instant.requested}"
        files = sum(plan.files for plan in self.rollbacks)
        line = f"{verb} to {self.target}: {count_text(len(self.rollbacks), 'rollback')}, {count_text(files, 'file')}"
        rows = [{"rolled_back": plan.target, "action": plan.action, "files": plan.files} for plan in self.rollbacks]
        return Shown(line, {}, rows)


def restore(
    table: LoadedTable, policy: TransactionPolicy, to: str, *, dry_run: bool = False, force: bool = False
) -> Restored | NothingToDo:
    """Restore the table to the completed write `to`, or continue a pending restore to it.

    Args:
        table: The loaded table.
        policy: The options of locks and heartbeats.
        to: The requested time of a completed write.
        dry_run: Return the files that would be deleted, and write nothing.
        force: Roll back active writes, too.

    Raises:
        UserError: There is no such write, another restore is pending, a savepoint keeps a later write, or a clean
            removed files that the restored table needs.
        RetryableError: A writer is active.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    pending = table.timeline.pending_restore()
    if pending is not None:
        plan = _stored(table, pending, to)
        return _preview(table, plan, to) if dry_run else _execute(table, policy, pending, plan, to)
    plan = _plan(table, policy, to, force=force)
    if dry_run and plan.instants:
        return _preview(table, plan, to)
    _check_markers(table, plan)
    if not plan.instants:
        if not dry_run:
            _remove_rollbacks_of_finished(table, policy, to)
        return NothingToDo(
            code=NothingToDoReason.NO_CHANGES, reason=f"{to} is the newest completed write, and nothing is pending"
        )
    with table_lock(table.env, policy) as lock:
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        if now.timeline != table.timeline:
            plan = _plan(now, policy, to, force=force)
        else:
            # A publication may have been added in between; it does not change the timeline.
            stored = now.config.layout.stored_action
            require_unpublished(now, [i for i in now.timeline if (i.requested, stored(i.action)) in plan.instants])
        _refuse_during_clean(now, policy, to)
        lock.check()
        requested = now.store.request(now.timeline, Action.RESTORE, encode_restore_plan(plan))
    return _execute(now, policy, requested, plan, to)


def _plan(table: LoadedTable, policy: TransactionPolicy, to: str, *, force: bool) -> RestorePlan:
    target = completed_write(table, to)
    undone = instants_to_roll_back(table.timeline, target, merge_on_read=table.config.is_merge_on_read)
    active = {i.requested for i in undone if not i.is_completed} & active_writes(table.env, policy)
    if active and not force:
        raise RetryableError(
            f"{table.env.storage.root}: the write {min(active)} is active; stop all writers before a restore, or roll "
            "them back with --force",
            instant=min(active),
        )
    require_no_savepoint(table, undone)
    require_unpublished(table, undone)
    _require_timeline(table, target)
    if not keeps_logs(table):
        require_own_logs(table, undone, dropped=undone)
    if undone:
        require_files(table, undone, f"the restore to {to}")
    layout = table.config.layout
    return RestorePlan(target=to, instants=tuple((i.requested, layout.stored_action(i.action)) for i in undone))


def _check_markers(table: LoadedTable, plan: RestorePlan) -> None:
    """Raise CorruptTableError if a marker of an instant in the plan contains a file of another write."""
    undone = {requested for requested, _ in plan.instants}
    for instant in table.timeline.where(pending=True):
        if instant.requested in undone:
            marked = deletable(table, instant.requested, marked_files(table, instant.requested).values())
            check_files_of_write(table, instant.requested, marked)


def _refuse_during_clean(table: LoadedTable, policy: TransactionPolicy, to: str) -> None:
    """Raise RetryableError if an active clean may be deleting files that the restored table needs."""
    cleans = table.timeline.where(action=Action.CLEAN, pending=True)
    active = active_writes(table.env, policy) if cleans else frozenset()
    for clean in cleans:
        if clean.requested > to and clean.requested in active:
            raise RetryableError(
                f"{table.env.storage.root}: the clean {clean.requested} is active; wait for it, then run again",
                instant=clean.requested,
            )


def _require_timeline(table: LoadedTable, target: Instant) -> None:
    """Raise UserError if writes that the restore would have to roll back are archived."""
    present = {instant.key for instant in table.timeline}
    later = [i for i in table.store.archived(completed_after=target.completion) if i.key in present]
    later += archived_writes(table, completed_after=target.completion)
    if later:
        raise UserError(
            f"{table.env.storage.root}: {target.requested} cannot be restored: {len(later)} writes that completed "
            f"after it are archived, such as {later[0].requested}",
            requested=target.requested,
        )


def _stored(table: LoadedTable, pending: Instant, to: str) -> RestorePlan:
    root, data = table.env.storage.root, table.store.read(pending, State.REQUESTED)
    plan = decode_restore_plan(data) if data else None
    if plan is None or plan.target is None:
        raise UnsupportedError(
            f"{root}: the pending restore {pending.requested} does not name its target; finish it with Hudi",
            instant=pending.requested,
        )
    if plan.target != to:
        raise UserError(
            f"{root}: the restore {pending.requested} to {plan.target} is not finished; finish it first with "
            f"`lakehouse restore run --table {root} --to {plan.target}`",
            instant=pending.requested,
            target=plan.target,
        )
    for _, action in plan.instants:
        check_action(table.env.storage, action, "a restore plan")
    return plan


def _preview(table: LoadedTable, plan: RestorePlan, to: str) -> Restored:
    written, appended, rollbacks = _written(table, plan), _appended(table, plan), []
    for requested, action in plan.instants:
        current = table.timeline.find(requested)
        name = Action(action) if current is None or not current.is_completed else pending_action(table, current)
        rollbacks.append(plan_of_files(requested, name, written[requested], appended.get(requested)))
    return Restored(target=to, rollbacks=tuple(rollbacks))


def _written(table: LoadedTable, plan: RestorePlan) -> Written:
    """Return the files of each instant in the plan, from one listing and the markers of pending instants."""
    written: dict[str, list[str]] = {requested: [] for requested, _ in plan.instants}
    # Log files that are named after a compaction contain rows of later writes, which the restore rolls back, too. If
    # they stayed, they would be a slice without base file.
    is_compaction = _COMPACTIONS if table.config.is_merge_on_read and not keeps_logs(table) else ()
    compactions = {requested for requested, action in plan.instants if action in is_compaction}
    for file in list_data_files(table, change_logs=True):
        # A compaction writes base files only. Log files with its time are of version 6.
        if file.instant in written and (isinstance(file, BaseFile) or file.instant not in compactions):
            written[file.instant].append(file.path)
    for instant in table.timeline.where(pending=True):
        if instant.requested in written:
            marked = marked_files(table, instant.requested).values()
            written[instant.requested] += deletable(table, instant.requested, marked)
    for instant in table.timeline.writes():
        if instant.requested in written and table.config.is_merge_on_read:
            written[instant.requested] += deletable(table, instant.requested, copies_of(table, instant))
    return written


def _appended(table: LoadedTable, plan: RestorePlan) -> Appended:
    """Return the slices to which the instants of the plan appended log files."""
    if not keeps_logs(table):
        return {}
    return {
        requested: appended_slices(table, current, marked_files(table, requested).values(), is_own=False)
        for requested, _ in plan.instants
        if (current := table.timeline.find(requested)) is not None
    }


def _execute(table: LoadedTable, policy: TransactionPolicy, pending: Instant, plan: RestorePlan, to: str) -> Restored:
    env, started = table.env, table.env.clock.now_ms()
    if pending.state is State.REQUESTED:
        pending = table.store.start(pending, b"")
    with table_lock(env, policy) as lock:
        # The metadata table lists the files that will be deleted.
        _require_pending(table, table.store.load().current(pending), pending)
        drop_for_rebuild(table, lock)
    _drop_cleans(table, policy, pending, to)
    run = _Run(
        table=table,
        policy=policy,
        pending=pending,
        written=_written(table, plan),
        appended=_appended(table, plan),
        rollbacks=_rollbacks(table),
    )
    _check(run, plan)
    undone = {requested: done for requested, _ in plan.instants if (done := _roll_back(run, requested))}
    metadata = RestoreMetadata(
        start_time=pending.requested,
        seconds=(env.clock.now_ms() - started) / 1000,
        instants=plan.instants,
        rollbacks={requested: (done,) for requested, (_, done) in undone.items()},
    )
    with table_lock(env, policy) as lock:
        timeline = table.store.load()
        _require_pending(table, timeline.current(pending), pending)
        data = encode_restore_metadata(metadata, base_path=env.storage.root)
        inflight = replace(pending, state=State.INFLIGHT)
        completed = complete_action(table, Completion(instant=inflight, timeline=timeline, data=data), lock)
    _remove_rollbacks(table, to, completed)
    rebuild_dropped(table, policy)
    logger.info("%s: restored to %s, %d instants undone", env.storage.root, to, len(plan.instants))
    return Restored(target=to, rollbacks=tuple(made for made, _ in undone.values()), instant=completed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One execution of a restore: the pending instant, the files of its instants, and rollbacks that exist already.

    `appended` are the slices to which the instants appended log files that are not deleted.
    """

    table: LoadedTable
    policy: TransactionPolicy
    pending: Instant
    written: Written
    appended: Appended
    rollbacks: Mapping[str, Rollback]


def _check(run: _Run, plan: RestorePlan) -> None:
    """Raise CorruptTableError, before files are deleted, if a plan or marker contains files of other writes."""
    for requested, _ in plan.instants:
        files = list(run.written[requested])
        if requested in run.rollbacks:
            files += [path for request in run.rollbacks[requested][1].requests for path in request.files]
        check_files_of_write(run.table, requested, files)


def _roll_back(run: _Run, requested: str) -> tuple[RollbackPlan, RollbackMetadata] | None:
    """Roll back one instant, and return the plan and the result. Return None if both are already deleted."""
    table, store, done = run.table, run.table.store, run.rollbacks.get(requested)
    with table_lock(table.env, run.policy) as lock:
        timeline = store.load()
        _require_pending(table, timeline.current(run.pending), run.pending)
        current = timeline.find(requested)
        if current is not None:
            lock.check()
            name = pending_action(table, current) if current.is_completed else current.action
            done = _request_rollback(run, timeline, requested, name)
            if current.is_completed:
                store.revert(current, name, check=lock.check)
    command_logs: Mapping[str, Mapping[str, int]] = {}
    if current is not None and done is not None:
        command_logs = delete_written(table, *done, drop_plan=True)
    else:
        store.remove_unfinished(requested)
    # A writer that is still running may have created files since the listing.
    delete_files(table, requested, deletable(table, requested, marked_files(table, requested).values()))
    clean_up(table, requested)
    if done is None:
        return None
    undoing, plan = done
    plan = replace(plan, action=table.config.layout.stored_action(plan.action))
    if command_logs:
        clean_up(table, undoing.requested, staged=False)
    return plan, rollback_metadata(plan, undoing, command_logs, seconds=0.0)


def _request_rollback(run: _Run, timeline: Timeline, requested: str, action: Action) -> Rollback:
    """Create the rollback instant, or return a pending rollback.

    Its files are those in its plan, and newly listed files.
    """
    table, files, existing = run.table, run.written[requested], run.rollbacks.get(requested)
    if keeps_logs(table):
        # The rollbacks of later writes appended command blocks to log files that are named after this instant.
        files = [*files, *written_by(requested, table, Action.COMMIT)]
    if existing is None or existing[0].is_completed:
        plan = plan_of_files(requested, action, files, run.appended.get(requested))
        return table.store.request(timeline, Action.ROLLBACK, stored_rollback_plan(table, plan)), plan
    planned = [path for request in existing[1].requests for path in request.files]
    slices = {**planned_slices([existing[1]]), **run.appended.get(requested, {})}
    return existing[0], plan_of_files(requested, action, [*planned, *files], slices)


def _require_pending(table: LoadedTable, current: Instant | None, pending: Instant) -> None:
    if current is None or current.is_completed:
        raise RetryableError(
            f"{table.env.storage.root}: the restore {pending.requested} was finished by another process meanwhile",
            instant=pending.requested,
        )


def _rollbacks(table: LoadedTable) -> dict[str, Rollback]:
    """Return the newest rollback with a plan, by the requested time of its target."""
    rollbacks = {}
    for undoing in table.timeline.where(action=Action.ROLLBACK):
        plan = read_rollback_plan(table, undoing)
        if plan is not None:
            rollbacks[plan.target] = (undoing, plan)
    return rollbacks


def _drop_cleans(table: LoadedTable, policy: TransactionPolicy, pending: Instant, to: str) -> None:
    """Delete the pending cleans after the target; the restored table may need the files that they would remove."""
    cleans = [clean for clean in table.timeline.where(action=Action.CLEAN, pending=True) if clean.requested > to]
    if not cleans:
        return
    with table_lock(table.env, policy) as lock:
        _require_pending(table, table.store.load().current(pending), pending)
        lock.check()
        for clean in cleans:
            table.store.remove_pending(clean)


def _remove_rollbacks(table: LoadedTable, target: str, completed: Instant) -> None:
    """Delete the rollbacks after the target: rollbacks of this restore, and older ones without a target."""
    for undoing in table.store.load().where(action=Action.ROLLBACK):
        is_between = target < undoing.requested < completed.completion
        plan = None if is_between or undoing.is_completed else read_rollback_plan(table, undoing)
        if is_between or (plan is not None and is_rollback_of_restore(table, undoing, plan.target, completed)):
            table.store.remove(undoing)
            if keeps_logs(table):
                # The markers of its log files, if an earlier execution of the restore crashed.
                clean_up(table, undoing.requested, staged=False)


def _remove_rollbacks_of_finished(table: LoadedTable, policy: TransactionPolicy, to: str) -> None:
    """Delete rollbacks that remain because the newest restore crashed at its end, if it restored to `to`."""
    restores = table.timeline.where(action=Action.RESTORE, state=State.COMPLETED).by_completion()[-1:]
    for completed in restores:
        data = table.store.read(completed, State.REQUESTED)
        if data and decode_restore_plan(data).target == to:
            with table_lock(table.env, policy) as lock:
                lock.check()
                _remove_rollbacks(table, to, completed)
