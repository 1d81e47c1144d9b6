"""Undoing a write that died: plan, files, instants, each step repeatable (format: timeline.md 7.3).

    R.rollback.requested (plan from the markers)  R.rollback.inflight  delete files  delete the dead instant's files
    R_c.rollback  delete markers, staged rows, heartbeat
A crash anywhere leaves R pending; the next rollback finds its plan and goes on.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from lakehouse.errors import RetryableError, UserError
from lakehouse.format.rollback import encode_rollback_metadata, encode_rollback_plan
from lakehouse.model.commit import RollbackMetadata, RollbackPlan, RollbackRequest
from lakehouse.model.instant import Action, Instant, State
from lakehouse.operations.load import LoadedTable, list_data_files, pending_writes
from lakehouse.operations.tidy import delete_files, marked_files, rollback_of, stored_plan, sweep, tidy
from lakehouse.spec.options import TransactionPolicy
from lakehouse.txn.heartbeat import living_writes
from lakehouse.txn.lock import table_lock

logger = logging.getLogger(__name__)


def roll_back_failed_writes(table: LoadedTable, policy: TransactionPolicy) -> LoadedTable:
    """Finish pending rollbacks, undo writes whose writers died, tidy up after them; return the table as it is then.

    Raises RetryableError naming the instant if another writer is alive: two writers need a concurrency mode.
    """
    pending = pending_writes(table)
    rollbacks = tuple(table.timeline.where(action=Action.ROLLBACK, pending=True))
    if not pending and not rollbacks:
        sweep(table, policy)
        return table
    alive = living_writes(table.env, policy)
    for rollback in rollbacks:
        plan = stored_plan(table, rollback)
        if plan is not None:
            _execute(table, policy, rollback, plan)
        else:
            table.store.remove_pending(rollback)
    for instant in pending:
        if instant.requested in alive:
            raise RetryableError(
                f"{table.env.storage.root}: a write is in flight since {instant.requested} and its writer is alive; "
                "wait for it, or delete its heartbeat .hoodie/.heartbeat/" + instant.requested + " if you know better",
                instant=instant.requested,
            )
        roll_back(table.reload(), policy, instant.requested)
    sweep(table, policy)
    return table.reload()


def roll_back(table: LoadedTable, policy: TransactionPolicy, requested: str) -> RollbackPlan | None:
    """Undo the pending write requested at this time; None if it is gone already.

    Raises UserError for a completed instant: what readers may have seen is undone by restore, not by rollback.
    """
    instant = table.timeline.find(requested)
    if instant is None:
        return None
    if instant.is_completed:
        raise UserError(f"instant {requested} is completed and cannot be rolled back as a failed write")
    plan = plan_rollback(table, instant)
    with table_lock(table.env, policy) as lock:
        timeline = table.store.load()
        current = timeline.find(requested)
        if current is None or current.is_completed:
            return None
        lock.check()
        rollback = rollback_of(table, timeline, requested)
        if rollback is None or rollback.is_completed:
            data = encode_rollback_plan(plan, base_path=table.env.storage.root)
            rollback = table.store.request(timeline, Action.ROLLBACK, data)
    _execute(table, policy, rollback, plan)
    return plan


def plan_rollback(table: LoadedTable, instant: Instant) -> RollbackPlan:
    """Return what undoing `instant` deletes: every file it left a marker for; without markers, every file it wrote."""
    marked = list(marked_files(table, instant.requested).values())
    if not marked and instant.state is State.INFLIGHT:
        written = list_data_files(table, change_logs=True)
        marked = [file.path for file in written if file.instant == instant.requested]
    files: dict[str, list[str]] = {}
    for path in marked:
        files.setdefault(path.rpartition("/")[0], []).append(path)
    requests = tuple(RollbackRequest(partition=p, files=tuple(sorted(names))) for p, names in sorted(files.items()))
    return RollbackPlan(target=instant.requested, action=instant.action.value, requests=requests)


def _execute(table: LoadedTable, policy: TransactionPolicy, rollback: Instant, plan: RollbackPlan) -> None:
    env, store = table.env, table.store
    started = env.clock.now_ms()
    if rollback.state is State.REQUESTED:
        rollback = store.start(rollback, b"")
    for request in plan.requests:
        delete_files(table, plan.target, request.files)
    dead = Instant(requested=plan.target, action=Action(plan.action), state=State.INFLIGHT)
    store.remove_pending(dead)
    store.remove_unfinished(dead.requested)
    metadata = RollbackMetadata(
        start_time=rollback.requested,
        seconds=(env.clock.now_ms() - started) / 1000,
        target=plan.target,
        action=plan.action,
        deleted={request.partition: request.files for request in plan.requests},
    )
    with table_lock(env, policy) as lock:
        timeline = store.load()
        current = timeline.find(rollback.requested)
        if current is not None and not current.is_completed:
            lock.check()
            data = encode_rollback_metadata(metadata, base_path=env.storage.root)
            store.complete(replace(rollback, state=State.INFLIGHT), timeline, data)
    tidy(table, plan.target)
    logger.info("%s: rolled back %s, %d files", env.storage.root, plan.target, sum(len(r.files) for r in plan.requests))
