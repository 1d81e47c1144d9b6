"""Compaction: the log files of merge-on-read file groups become base files (TL-6.4, TL-9.1).

due        from the timeline only
schedule   under the lock: the completed logs of groups that no other plan holds   <t>.compaction.requested
run        claim the plan, <t>.compaction.inflight, one task per group, under the lock <t>_<c>.commit
"""

from __future__ import annotations

from dataclasses import replace

from lakehouse.core.files.log.compactor import CompactionContext, compact_slice
from lakehouse.core.format.timeline.compaction import encode_compaction_plan
from lakehouse.core.operations.commit.cleanup import marked_files
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.listing import parse_data_file
from lakehouse.core.operations.load.named_logs import keeps_logs
from lakehouse.core.operations.load.pending import pending_writes, planned_groups, profiled_groups
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.resizes import groups_with_open_copies
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.services.compaction_execution import (
    CompactionExecution,
    CompactionKind,
    compaction_cost,
    require_merge_on_read,
)
from lakehouse.core.operations.services.partition_policies import sections_by_partition
from lakehouse.core.operations.services.planned_files import with_sources
from lakehouse.core.operations.services.rewriting_service import RewritingService
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceRequest
from lakehouse.core.planning.compaction import CompactionDue, compaction_due, plan_compaction
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.storage.protocol import FileInfo
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


def _refusal(table: LoadedTable, policies: Policies, request: ServiceRequest) -> NothingToDo | None:
    if request.force:
        return None
    answer = due(table, policies)
    return None if answer.due else NothingToDo(code=NothingToDoReason.NOT_DUE, reason=answer.reason)


def _plan(table: LoadedTable, policies: Policies, request: ServiceRequest) -> CompactionPlan | None:
    slices = checked_slices(table, policies.write)
    held = planned_groups(table) | groups_with_open_copies(table, slices) | _groups_of_pending_writes(table)
    plan = plan_compaction(
        slices,
        held,
        policies.compaction,
        selected=request.partitions,
        now=table.store.new_instant_time(table.timeline),
        max_file_bytes=policies.write.max_file_bytes,
        policy_of=sections_by_partition(policies, "compaction", lambda own: own.compaction),
    )
    return None if plan is None else replace(plan, operations=with_sources(table, plan.operations))


def _groups_of_pending_writes(table: LoadedTable) -> frozenset[Group]:
    """Return the file groups that pending writes change, if log files are named after their slice.

    Rows that are committed after the plan to a log file of the older slice would be lost (V6-5.6). A write that has not
    begun sees the plan.
    """
    if not keeps_logs(table):
        return frozenset()
    return frozenset(group for pending in pending_writes(table) for group in _changed_groups(table, pending))


def _changed_groups(table: LoadedTable, pending: Instant) -> frozenset[Group]:
    """Return the file groups of the profile and of the markers of a pending write."""
    marked = marked_files(table, pending.requested).values()
    files = [parse_data_file(table, FileInfo(path=path, size_bytes=0, modified_ms=0), False) for path in marked]
    return profiled_groups(table, pending) | {(f.partition, f.file_id) for f in files if f is not None}


def _compact(context: CompactionContext, attempt: Attempt, operation: CompactionOperation) -> list[WriteStat]:
    return [compact_slice(context, attempt, operation)]


_KIND = CompactionKind(action=Action.COMPACTION, operation=Operation.COMPACT, task=_compact)
SERVICE = RewritingService(
    name="compaction",
    action=Action.COMPACTION,
    require=lambda table, _policies: require_merge_on_read(table),
    make_plan=_plan,
    no_groups="no file group has logs that the strategy takes and no other plan holds",
    encode=lambda planned, _root: encode_compaction_plan(planned),
    execution=lambda engine: CompactionExecution(kind=_KIND, engine=engine),
    cost_of=compaction_cost,
    refusal=_refusal,
)
plan, schedule, run, cost = SERVICE.plan, SERVICE.schedule, SERVICE.run, SERVICE.cost
