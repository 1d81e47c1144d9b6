"""The executor of pending plans: claim, heartbeat, execute, check, complete, release.

claim      under the lock: no other executor is active; the next fencing token; files of earlier executors are deleted;
           <t>.<action>.inflight
search     if an earlier executor may have run: its files without markers are deleted, found by a listing
execute    files under write tokens that contain the claim: no executor overwrites or deletes files of a later one
check      under the lock: the claim is still the newest one, and the plan is still pending
complete   under the same lock: the completed instant
release    markers, claims and the heartbeat are deleted

If the executor fails, the plan and the claim stay: the next executor deletes the files and executes the plan again. A
plan that can never be completed is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from lakehouse.core.files.stage.markers import is_marker_type, read_markers
from lakehouse.core.format.file_names import marked_file, write_token_of
from lakehouse.core.operations.commit.cleanup import clean_up, delete_files
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.pending import UnusablePlanError
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.undo.rollback import drop_plan
from lakehouse.core.operations.undo.undo_checks import written_by
from lakehouse.core.timeline.claims import check_claim, claim_as, claim_path, holds_claim, next_claim
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.transaction import TransactionPolicy

logger = logging.getLogger(__name__)

#: The claim is part of the write token: stage numbers of executor n begin at (n - 1) * _STAGES. A Spark application has
#: fewer stages than this.
_STAGES = 1_000_000

PlanT = TypeVar("PlanT")
WorkT = TypeVar("WorkT")
OutcomeT = TypeVar("OutcomeT")
OutcomeT_co = TypeVar("OutcomeT_co", covariant=True)


class RefusedPlanError(Exception):
    """The rows of a pending plan cannot be rewritten by any executor; `error` is the reason."""

    def __init__(self, error: UserError) -> None:
        super().__init__(error.message)
        self.error = error


@contextmanager
def rewritable_rows(table: LoadedTable) -> Iterator[None]:
    """Convert a UserError about stored rows to RefusedPlanError.

    Use it around the tasks of a plan only, not around checks of options, because a plan that an option refuses can be
    executed later. An UnsupportedError passes, because another engine may be able to execute the plan. So does every
    error of a table with a custom merger: its function can be missing on the workers of one engine, and can be
    corrected.
    """
    rule = table.config.merge_rule
    has_function = rule.merger is not None and not rule.groups
    try:
        yield
    except UnsupportedError:
        raise
    except UserError as error:
        if has_function:
            raise
        raise RefusedPlanError(error) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedPlan:
    """A pending plan that this process executes under a claim; the heartbeat is active.

    `is_first` is whether this process has scheduled the plan and no other executor has claimed it before.
    """

    table: LoadedTable
    policies: Policies
    instant: Instant
    claim: int
    heartbeat: Heartbeat
    is_first: bool = False


class PlanExecution(Protocol[PlanT, WorkT, OutcomeT_co]):
    """The steps of an execution that differ between services."""

    @property
    def writes_files(self) -> bool:
        """Whether tasks create data files, which must be deleted if the execution does not commit."""
        ...

    def start(self, table: LoadedTable, pending: Instant, lock: TableLock) -> None:
        """Create the inflight file of the plan if it is missing; called under the lock, after the claim."""
        ...

    def load(self, claimed: ClaimedPlan) -> PlanT | None:
        """Return the stored plan; None if its file is empty."""
        ...

    def partitions(self, plan: PlanT) -> Collection[str]:
        """Return the partitions in which the execution may create files."""
        ...

    def execute(self, claimed: ClaimedPlan, plan: PlanT) -> WorkT:
        """Do the work of the plan, without the lock.

        Raises UnusablePlanError if the plan must be dropped, and RefusedPlanError if the run must also fail.
        """
        ...

    def complete(
        self, claimed: ClaimedPlan, work: WorkT, now: LoadedTable, lock: TableLock
    ) -> tuple[OutcomeT_co, Collection[str]]:
        """Create the completed instant, under the lock; return the outcome and the markers to delete."""
        ...


def execute_plan(
    table: LoadedTable,
    policies: Policies,
    instant: Instant,
    execution: PlanExecution[PlanT, WorkT, OutcomeT],
    *,
    is_new: bool = False,
) -> OutcomeT | NothingToDo:
    """Execute a pending plan; return NothingToDo with the reason if the plan had to be dropped.

    `is_new` is whether this process has just scheduled the plan, so no earlier executor can have left files.

    Raises RetryableError if another executor is active or took the plan over, or if a restore is not finished. Raises
    UserError if the rows of the plan cannot be rewritten; the plan is dropped then, as it would block other services.
    """
    claimed = _claim(table, policies, instant, execution, is_new=is_new)
    partitions: Collection[str] | None = None
    try:
        if execution.writes_files:
            # Reload, because the claim deleted files and the inflight file may be new.
            claimed = replace(claimed, table=table.reload())
        plan = execution.load(claimed)
        if plan is None:
            return _drop_without_plan(claimed)
        partitions = execution.partitions(plan)
        if execution.writes_files and _may_have_earlier_files(claimed, is_new=is_new):
            _delete_files_without_markers(claimed, partitions)
        work = execution.execute(claimed, plan)
        with table_lock(table.env, policies.transaction) as lock:
            now = claimed.table.reload()
            check_executor(claimed, now.timeline)
            outcome, markers = execution.complete(claimed, work, now, lock)
    except CommitStateUnknownError:
        # The commit may still become visible, so its files must stay. Other executors wait until the heartbeat expires.
        claimed.heartbeat.stop()
        raise
    except UnusablePlanError as error:
        return _drop_unusable(claimed, partitions, error)
    except RefusedPlanError as refused:
        reason = _drop_unusable(claimed, partitions, refused).reason
        raise UserError(
            f"{reason}. It was dropped because no executor could complete it, and a pending plan blocks other services",
            **refused.error.facts,
        ) from refused
    except BaseException:
        if execution.writes_files:
            abandon_plan(claimed, partitions)
        else:
            claimed.heartbeat.discard()
        raise
    _release(claimed, markers)
    return outcome


def with_dropped(outcome: Committed | NothingToDo, dropped: Sequence[str]) -> Committed | NothingToDo:
    """Return the outcome of a run that dropped pending plans first; `dropped` are the reasons."""
    if not dropped:
        return outcome
    every = (*dropped, *outcome.dropped)
    if isinstance(outcome, Committed):
        return replace(outcome, dropped=every)
    return replace(outcome, dropped=every, reason="; ".join(dict.fromkeys((*dropped, outcome.reason))))


def pending_plan(table: LoadedTable, action: Action, requested: str) -> Instant:
    """Return the pending plan with a requested time; otherwise raise UserError with the list of pending plans."""
    plans = table.timeline.where(action=action, pending=True)
    for pending in plans:
        if pending.requested == requested:
            return pending
    current = table.timeline.find(requested)
    state = "is completed" if current is not None and current.is_completed else "does not exist"
    names = ", ".join(instant.requested for instant in plans) or "none"
    raise UserError(f"{table.env.storage.root}: the {action} {requested} {state}; pending plans: {names}")


def plans_without_executor(table: LoadedTable, policy: TransactionPolicy, action: Action) -> list[Instant]:
    """Return the pending plans that no active executor works on, oldest first."""
    pending = table.timeline.where(action=action, pending=True)
    active = active_writes(table.env, policy) if pending else frozenset()
    return [plan for plan in pending if plan.requested not in active]


def still_pending(table: LoadedTable, plan: Instant) -> Instant:
    """Return the current state of a plan; raise RetryableError if it is no longer pending."""
    current = table.timeline.find(plan.requested)
    if current is None or current.is_completed:
        state = "undone" if current is None else "completed"
        raise RetryableError(
            f"{table.env.storage.root}: another process has {state} the {plan.action} {plan.requested} meanwhile",
            instant=plan.requested,
        )
    return current


def check_executor(claimed: ClaimedPlan, timeline: Timeline) -> None:
    """Raise RetryableError unless the plan is pending and this executor has the newest claim.

    Call under the lock, with the timeline loaded under the lock.
    """
    instant = claimed.instant
    check_claim(claimed.table.env, instant.requested, claimed.claim)
    current = timeline.find(instant.requested)
    if current is None or current.is_completed:
        raise RetryableError(
            f"{claimed.table.env.storage.root}: another executor completed or dropped the {instant.action} "
            f"{instant.requested} after the heartbeat of this one expired; the files of this one are not used",
            instant=instant.requested,
        )


def abandon_plan(claimed: ClaimedPlan, partitions: Collection[str] | None) -> None:
    """Leave the plan to the next executor, which deletes the files that it finds under its own claim.

    A successor with a newer claim may have listed files before this executor wrote its last ones. This function then
    deletes them. `partitions` are the partitions of the plan; None means all.
    """
    claimed.heartbeat.stop()
    table, requested = claimed.table, claimed.instant.requested
    try:
        current = table.reload().timeline.find(requested)
        # A successor that crashed during its cleanup may have left only our claim of a completed plan.
        if current is not None and not current.is_completed and holds_claim(table.env, requested, claimed.claim):
            claimed.heartbeat.discard()
            return
        folders = None if partitions is None else sorted(partitions)
        action = claimed.instant.action
        if current is None:
            # The plan was dropped. No other process deletes files of this executor, or copies for the plan, that were
            # written later.
            paths = written_by(requested, table, action, folders, copies=True)
            delete_files(table, requested, paths)
            clean_up(table, requested)
            claimed.heartbeat.discard()
            return
        paths = written_by(requested, table, action, folders)
        committed = {stat.path for stat in table.store.commit(current).stats} if current.is_completed else set()
        ours = [path for path in paths if claim_of(path) == claimed.claim and path not in committed]
        delete_files(table, requested, ours)
    except LakehouseError as error:
        logger.warning("%s: files of %s were not deleted: %s", table.env.storage.root, requested, error)


def planned_attempt(task: int, number: int) -> Attempt:
    """Return the first attempt of a task under claim `number`. It is determined before the task starts."""
    return Attempt.planned(task, _stage_of(number))


def attempt_under_claim(attempt: Attempt, number: int) -> Attempt:
    """Return the attempt with a write token that no other executor of the plan uses."""
    return attempt.as_planned(_stage_of(number))


def claim_of(path: str) -> int:
    """Return the claim under which a file was written; 1 for files of other programs, which have no claims."""
    stage = (write_token_of(path) or "").split("-")[1:2]
    return int(stage[0]) // _STAGES + 1 if stage and stage[0].isascii() and stage[0].isdigit() else 1


def _refuse_if_active(table: LoadedTable, policies: Policies, plan: Instant) -> None:
    """Raise RetryableError if another executor of the plan has a valid heartbeat."""
    if plan.requested in active_writes(table.env, policies.transaction):
        raise RetryableError(
            f"{table.env.storage.root}: another executor, whose heartbeat is valid, runs the {plan.action} "
            f"{plan.requested}",
            instant=plan.requested,
        )


# parameters: the plan of a table, how to execute it, and whether it is new
def _claim(
    table: LoadedTable,
    policies: Policies,
    plan: Instant,
    execution: PlanExecution[PlanT, WorkT, OutcomeT],
    *,
    is_new: bool,
) -> ClaimedPlan:
    """Claim a plan and start its heartbeat; raise RetryableError if it cannot be claimed."""
    env, requested = table.env, plan.requested
    heartbeat = Heartbeat(env, policies.transaction)
    try:
        with table_lock(env, policies.transaction) as lock:
            number = next_claim(env, requested)
            is_first = is_new and number == 1
            if not is_first:
                _refuse_if_active(table, policies, plan)
            number = claim_as(env, requested, number)
            # Load the timeline after the claim: an executor that completes the plan later must have a newer claim.
            now = table.reload()
            # A restore deletes the timeline files of a plan one by one. A claim in between would recreate half of the
            # plan.
            now.store.refuse_during_restore(now.timeline)
            current = still_pending(now, plan)
            # No executor of this project has claimed the plan, and none of Hudi has started it.
            is_first = is_first and number == 1 and current.state is State.REQUESTED
            if is_new and not is_first:
                _refuse_if_active(table, policies, plan)
            lock.check_lease()
            heartbeat.start(requested)
            if execution.writes_files and not is_first:
                # Files of newer claims are kept: this executor may be suspended here and taken over.
                _delete_files_of_claims(table, requested, number)
            execution.start(now, current, lock)
    except BaseException:
        heartbeat.discard()
        raise
    return ClaimedPlan(
        table=table, policies=policies, instant=current, claim=number, heartbeat=heartbeat, is_first=is_first
    )


def _drop_without_plan(claimed: ClaimedPlan) -> NothingToDo:
    """Drop an instant without stored plan: its scheduler lost the lock while another process dropped the plan."""
    claimed.heartbeat.stop()
    instant = claimed.instant
    # Without the plan its partitions are unknown, so files of earlier executors were not searched.
    check = partial(_check_before_drop, claimed)
    drop_plan(claimed.table, claimed.policies.transaction, instant, check, is_own=False)
    reason = f"the {instant.action} {instant.requested} had no plan and was dropped"
    return NothingToDo(code=NothingToDoReason.PLAN_DROPPED, reason=reason, dropped=(reason,))


def _drop_unusable(
    claimed: ClaimedPlan, partitions: Collection[str] | None, error: UnusablePlanError | RefusedPlanError
) -> NothingToDo:
    """Drop a plan that can never be completed, and delete the files of its executor."""
    claimed.heartbeat.stop()
    table, plan = claimed.table, claimed.instant
    logger.info("%s: %s %s is dropped: %s", table.env.storage.root, plan.action, plan.requested, error)
    try:
        drop_plan(table.reload(), claimed.policies.transaction, plan, partial(_check_before_drop, claimed))
    finally:
        abandon_plan(claimed, partitions)
    reason = f"the {plan.action} {plan.requested} was dropped: {error}"
    return NothingToDo(code=NothingToDoReason.PLAN_DROPPED, reason=reason, dropped=(reason,))


def _check_before_drop(claimed: ClaimedPlan, _now: LoadedTable, timeline: Timeline) -> None:
    check_executor(claimed, timeline)


def _release(claimed: ClaimedPlan, markers: Collection[str]) -> None:
    """Delete markers, claims and the heartbeat of a completed plan. If this fails, later cleanups delete the rest."""
    claimed.heartbeat.stop()
    table, requested = claimed.table, claimed.instant.requested
    try:
        if claimed.is_first:
            # The only file in the folder is the claim, because index records were deleted after the commit.
            clean_up(table, requested, markers=[claim_path(requested, claimed.claim), *markers], staged=False)
        else:
            clean_up(table, requested, markers=markers)
    except LakehouseError as error:
        logger.warning("%s: the cleanup after %s is not finished: %s", table.env.storage.root, requested, error)
        claimed.heartbeat.discard()


def _stage_of(number: int) -> int:
    return (number - 1) * _STAGES


def _may_have_earlier_files(claimed: ClaimedPlan, *, is_new: bool) -> bool:
    """Return whether an earlier executor may have left files without markers.

    A table may have been copied while an executor was running. Then the copy contains new files of a plan that is only
    requested. Such files matter only for clustering, where they form new file groups.
    """
    began = claimed.claim > 1 or claimed.instant.state is State.INFLIGHT
    return began or (claimed.instant.action is Action.CLUSTERING and not is_new)


def _delete_files_without_markers(claimed: ClaimedPlan, partitions: Collection[str]) -> None:
    """Delete the files of earlier executors without markers, found by a listing of the plan's partitions.

    A copy or backup of a table seldom includes `.hoodie/.temp` and `.hoodie/.staging`. New file groups of an earlier
    execution would stay: the commit does not list them, but readers that list storage return their rows twice.
    """
    table, requested = claimed.table, claimed.instant.requested
    paths = written_by(requested, table, claimed.instant.action, sorted(partitions))
    stale = [path for path in paths if claim_of(path) <= claimed.claim]
    if stale:
        delete_files(table, requested, stale)
        root = table.env.storage.root
        logger.warning("%s: deleted %d files of earlier executors of %s", root, len(stale), requested)


def _delete_files_of_claims(table: LoadedTable, requested: str, number: int) -> None:
    """Delete the marked files, and the markers, of executors with claims up to `number`."""
    files, markers, newer_files = list[str](), list[str](), False
    for path, names in read_markers(table.env.storage, requested).items():
        marked = [marked_file(name) for name in names]
        stale = [file for file in marked if claim_of(file) <= number]
        files += stale
        newer_files = newer_files or len(stale) < len(marked)
        markers += [path] if len(stale) == len(marked) else []
    delete_files(table, requested, files)
    # The marker type file applies to all markers, so it stays while newer markers exist.
    delete_leftovers(table.env.storage, [path for path in markers if not (newer_files and is_marker_type(path))])
