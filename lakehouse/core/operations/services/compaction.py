"""Compaction: the log files of merge-on-read file groups become base files (TL-6.4, TL-9.1).

due        from the timeline alone
schedule   under the lock: the completed logs of groups that no other plan holds   <t>.compaction.requested
run        claim the plan, <t>.compaction.inflight, one task per group, under the lock <t>_<c>.commit
"""

from __future__ import annotations

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.log.compactor import CompactionContext, compact_slice
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.pending import planned_groups
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.resizes import groups_with_open_copies
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.services.compaction_execution import (
    CompactionExecution,
    CompactionKind,
    compaction_cost,
    compaction_policies,
    no_groups,
    require_merge_on_read,
    run_compaction,
    schedule_compaction,
)
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.planning.compaction import CompactionDue, compaction_due, plan_compaction
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.instant import Action, Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> CompactionDue:
    """Return whether a compaction is due, and why; reads the timeline only. Raises UnsupportedError without logs."""
    del request  # a compaction is due for the whole table
    require_merge_on_read(table)
    return compaction_due(table.timeline, policies.compaction, table.store.new_instant_time(table.timeline))


def plan(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> CompactionPlan | NothingToDo:
    """Return the plan that would be scheduled now; writes nothing."""
    refusal = _not_due(table, policies, request)
    return refusal or _plan(table, policies, request) or no_groups(policies, COMPACTION, request)


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Put a plan on the timeline if a compaction is due or forced; any process may execute it later."""
    require_merge_on_read(table)
    require_mergeable(table.config)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    refusal = _not_due(table, policies, request)
    return refusal or schedule_compaction(table, policies, COMPACTION, request)


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Committed | NothingToDo:
    """Execute the plan of `request.instant`, else the oldest pending one without executor, else a new one if due.

    Raises UserError if there is no such plan, and RetryableError if another executor works on it or took it over, or
    if a restore is not finished.
    """
    return run_compaction(table, policies, CompactionExecution(kind=COMPACTION, engine=engine), request, schedule)


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return the cost of a compaction of the table as loaded, due or not."""
    require_merge_on_read(table)
    return compaction_cost(_plan(table, policies, DEFAULT_REQUEST))


def _not_due(table: LoadedTable, policies: Policies, request: ServiceRequest) -> NothingToDo | None:
    if request.force:
        require_merge_on_read(table)
        return None
    answer = due(table, policies)
    return None if answer.due else NothingToDo(code=NothingToDoReason.NOT_DUE, reason=answer.reason)


def _plan(table: LoadedTable, policies: Policies, request: ServiceRequest) -> CompactionPlan | None:
    slices = checked_slices(table, policies.write)
    held = planned_groups(table) | groups_with_open_copies(table, slices)
    return plan_compaction(
        slices,
        held,
        policies.compaction,
        selected=request.partitions,
        now=table.store.new_instant_time(table.timeline),
        max_file_bytes=policies.write.max_file_bytes,
        policy_of=compaction_policies(policies, COMPACTION),
    )


def _compact(context: CompactionContext, attempt: Attempt, operation: CompactionOperation) -> list[WriteStat]:
    return [compact_slice(context, attempt, operation)]


COMPACTION = CompactionKind(
    action=Action.COMPACTION,
    operation=Operation.COMPACT,
    task=_compact,
    plan=_plan,
    no_groups="no file group has logs that the strategy takes and no other plan holds",
)
