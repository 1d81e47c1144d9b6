"""One executor for one plan: who claims it, what earlier ones left, what is done when it ends (see txn.claim).

claim   under the lock: nobody at it, the next number; files of lower numbers deleted; <t>.<action>.inflight
work    files under write tokens that tell the number, so no executor overwrites or deletes those of a later one
end     committed: tidied up; else the plan is left to the next one
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import partial

from lakehouse.core.files.markers import is_marker_type, read_markers
from lakehouse.core.format.file_names import marked_file, write_token_of
from lakehouse.core.operations.commit.cleanup import clean_up, delete_files
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.undo.rollback import drop_plan
from lakehouse.core.timeline.claims import check_claim, claim, holds_claim
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: No application has as many stages, so those of two executors of one plan are told apart.
_STAGES = 1_000_000


class UnusablePlanError(Exception):
    """A pending plan can never be completed and is to be dropped; the message says why."""


def pending_plan(table: LoadedTable, action: Action, requested: str) -> Instant:
    """Return the pending plan of this time; raise UserError naming those there are."""
    plans = table.timeline.where(action=action, pending=True)
    for pending in plans:
        if pending.requested == requested:
            return pending
    found = table.timeline.find(requested)
    state = "is completed" if found is not None and found.is_completed else "does not exist"
    known = ", ".join(instant.requested for instant in plans) or "none"
    raise UserError(f"{table.env.storage.root}: the {action} {requested} {state}; pending plans: {known}")


def claim_plan(table: LoadedTable, policy: TransactionPolicy, plan: Instant, heartbeat: Heartbeat) -> int:
    """Take a plan over and return the number of the claim; the heartbeat lives from here on.

    Raises RetryableError if another executor is at it, it is not pending any more, or a restore is not finished.
    """
    env, requested = table.env, plan.requested
    with table_lock(env, policy) as lock:
        if requested in active_writes(env, policy):
            raise RetryableError(
                f"{env.storage.root}: the {plan.action} {requested} is being run by another executor, which is alive",
                instant=requested,
            )
        number = claim(env, requested)
        # After the claim: who completes the plan from here on does so under a higher one.
        now = table.reload()
        # A restore takes plans away, file by file: begun meanwhile, the half that it took would come back.
        now.store.refuse_during_restore(now.timeline)
        current = still_pending(now, plan)
        lock.check()
        heartbeat.start(requested)
        # Suspended here and taken over, this one must spare what its successor, whose claim is higher, writes.
        _delete_earlier(table, requested, number)
        if current.state is State.REQUESTED:
            lock.check()
            table.store.start(current, b"")
    return number


def still_pending(table: LoadedTable, plan: Instant) -> Instant:
    """Return a plan that was pending a moment ago as it is now; raise RetryableError if it is not pending any more."""
    current = table.timeline.find(plan.requested)
    if current is None or current.is_completed:
        state = "undone" if current is None else "completed"
        raise RetryableError(
            f"{table.env.storage.root}: the {plan.action} {plan.requested} was {state} by somebody else meanwhile",
            instant=plan.requested,
        )
    return current


def check_executor(table: LoadedTable, timeline: Timeline, plan: Instant, number: int) -> None:
    """Raise RetryableError unless the plan is pending and still ours; call under the lock, with the timeline of now."""
    check_claim(table.env, plan.requested, number)
    current = timeline.find(plan.requested)
    if current is None or current.is_completed:
        raise RetryableError(
            f"{table.env.storage.root}: the {plan.action} {plan.requested} was completed or dropped by another "
            "executor, which took this one for dead; what this one wrote is not used",
            instant=plan.requested,
        )


def without_plan(
    table: LoadedTable, policy: TransactionPolicy, instant: Instant, number: int, heartbeat: Heartbeat
) -> NothingToDo:
    """Take away what is left of a plan: it was begun by who lost the lock, while somebody else took the plan back."""
    heartbeat.stop()
    drop_plan(table, policy, instant, partial(check_executor, plan=instant, number=number))
    return NothingToDo(reason=f"the {instant.action} {instant.requested} had no plan, and is gone")


def drop_unusable(
    table: LoadedTable,
    policy: TransactionPolicy,
    plan: Instant,
    number: int,
    heartbeat: Heartbeat,
    partitions: Iterable[str] | None,
    why: object,
) -> NothingToDo:
    """Drop a plan that can never be completed, and what its executor wrote; see `let_go` for `partitions`."""
    heartbeat.stop()
    logger.info("%s: %s %s is dropped: %s", table.env.storage.root, plan.action, plan.requested, why)
    try:
        drop_plan(table.reload(), policy, plan, partial(check_executor, plan=plan, number=number))
    finally:
        let_go(table, plan, number, heartbeat, partitions)
    return NothingToDo(reason=f"the {plan.action} {plan.requested} gave way: {why}")


def finish(table: LoadedTable, plan: Instant, heartbeat: Heartbeat, markers: Iterable[str]) -> None:
    """Tidy up after a plan that is committed. It is true whatever happens here; what stays is swept up later."""
    heartbeat.stop()
    try:
        clean_up(table, plan.requested, markers=markers)
    except LakehouseError as error:
        logger.warning("%s: %s was not tidied up yet: %s", table.env.storage.root, plan.requested, error)
        heartbeat.discard()


def let_go(
    table: LoadedTable, plan: Instant, number: int, heartbeat: Heartbeat, partitions: Iterable[str] | None
) -> None:
    """Leave the plan to the next executor, who deletes what it finds under its own claim.

    If there was one already, it looked for files before the last of ours were written: then we delete them, in the
    `partitions` of the plan (None: in all).
    """
    heartbeat.stop()
    try:
        found = table.reload().timeline.find(plan.requested)
        # A successor that died while it tidied up may have left our claim, and no other, beside a completed plan.
        if found is not None and not found.is_completed and holds_claim(table.env, plan.requested, number):
            heartbeat.discard()
            return
        wanted = None if partitions is None else sorted(partitions)
        left = [file.path for file in list_data_files(table, wanted) if file.instant == plan.requested]
        if found is None:
            # The plan was taken away, and what was written since has nobody else to delete it.
            delete_files(table, plan.requested, left)
            clean_up(table, plan.requested)
            heartbeat.discard()
            return
        named = {stat.path for stat in table.store.commit(found).stats} if found.is_completed else set()
        ours = [path for path in left if claim_of(path) == number and path not in named]
        delete_files(table, plan.requested, ours)
    except LakehouseError as error:
        logger.warning("%s: %s was not left in order: %s", table.env.storage.root, plan.requested, error)


def planned_try(task: int, number: int) -> Attempt:
    """Return the first try of a task, as all know it beforehand, of the executor with this claim."""
    return Attempt.planned(task, _stage_of(number))


def try_under(attempt: Attempt, number: int) -> Attempt:
    """Return this try under a write token that no other executor of the plan has."""
    return attempt.as_planned(_stage_of(number))


def claim_of(path: str) -> int:
    """Return the claim under which a file was written; files of other programs count as those of the first."""
    stage = (write_token_of(path) or "").split("-")[1:2]
    return int(stage[0]) // _STAGES + 1 if stage and stage[0].isascii() and stage[0].isdigit() else 1


def _stage_of(number: int) -> int:
    return (number - 1) * _STAGES


def _delete_earlier(table: LoadedTable, requested: str, number: int) -> None:
    """Delete what executors with claims up to this one made and marked."""
    earlier, markers, others = [], [], False
    for path, names in read_markers(table.env.storage, requested).items():
        files = [marked_file(name) for name in names]
        stale = [file for file in files if claim_of(file) <= number]
        earlier += stale
        others = others or len(stale) < len(files)
        markers += [path] if len(stale) == len(files) else []
    delete_files(table, requested, earlier)
    # How files are marked is said for all that are.
    delete_leftovers(table.env.storage, [path for path in markers if not (others and is_marker_type(path))])
