"""Log compaction: several log files of a file group become one log file (TL-6.4, TL-9.1).

due        from the timeline: enough delta commits for a file group to reach the threshold of log files
schedule   under the lock: the logs of groups with many logs              <t>.logcompaction.requested
run        claim the plan, one task per group, under the lock             <t>_<c>.deltacommit

Only the plan shows which file groups have enough log files, so `schedule` and `run` do not call `due`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lakehouse.core.files.log.log_compactor import compact_logs
from lakehouse.core.format.timeline.compaction import encode_compaction_plan
from lakehouse.core.operations.load.pending import log_compactions, planned_groups
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.resizes import groups_with_open_copies
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.services import compaction
from lakehouse.core.operations.services.compaction_execution import (
    CompactionExecution,
    CompactionKind,
    compaction_cost,
    require_merge_on_read,
)
from lakehouse.core.operations.services.partition_policies import sections_by_partition
from lakehouse.core.operations.services.rewriting_service import RewritingService
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceRequest
from lakehouse.core.planning.compaction import LogCompactionDue, log_compaction_due, plan_log_compaction
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import Operation
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action
from lakehouse.spec.options.policies import Policies


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> LogCompactionDue:
    """Return whether a log compaction should be planned; reads the timeline only."""
    _require(table)
    return log_compaction_due(compaction.due(table, policies, request), policies.compaction)


def _plan(table: LoadedTable, policies: Policies, request: ServiceRequest) -> CompactionPlan | None:
    slices = _with_own_names(table, checked_slices(table, policies.write))
    held = planned_groups(table) | groups_with_open_copies(table, slices)
    return plan_log_compaction(
        _before_pending_writes(table, slices),
        held,
        policies.compaction,
        log_compactions=log_compactions(table),
        selected=request.partitions,
        max_file_bytes=policies.write.max_file_bytes,
        policy_of=sections_by_partition(policies, "logcompaction", lambda own: own.compaction),
    )


def _with_own_names(table: LoadedTable, slices: Sequence[FileSlice]) -> Sequence[FileSlice]:
    """Return the slices without log files of version 6, which an upgrade of the table kept.

    A merged log lists the instants that it replaces, and the names of version 6 files do not contain their instants.
    """
    if not table.config.is_upgraded:
        return slices
    return [s for s in slices if all(log.instant != s.base_instant for log in s.logs)]


def _before_pending_writes(table: LoadedTable, slices: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
    """Return slices with only those logs that precede the requests of all pending writes.

        t1 (all columns)   t2 (pending, writes x)   t3 (writes y)      t1 and t3 merge into t3, and x of t2 is lost

    Logs are ordered by the requested times of their writes, and a merged log gets the position of its newest input. So
    no log of a pending write may lie between the inputs of a merged log.
    """
    pending = min((i.requested for i in table.timeline.where(action=Action.DELTACOMMIT, pending=True)), default=None)
    if pending is None:
        return tuple(slices)
    return tuple(replace(s, logs=tuple(log for log in s.logs if log.instant < pending)) for s in slices)


def _require(table: LoadedTable) -> None:
    """Raise UnsupportedError for a copy-on-write table, and for a version whose readers read a merged log twice."""
    require_merge_on_read(table)
    if table.config.layout.names_logs_by_slice:
        raise UnsupportedError(
            f"{table.env.storage.root}: Hudi 0.15 reads a merged log after all logs that were written before it, so "
            "rows that one of them deleted would return, and log compaction is not available for tables of version "
            f"{table.config.version}; run a compaction"
        )


_KIND = CompactionKind(action=Action.LOGCOMPACTION, operation=Operation.LOG_COMPACT, task=compact_logs)
SERVICE = RewritingService(
    name="logcompaction",
    action=Action.LOGCOMPACTION,
    require=lambda table, _policies: _require(table),
    make_plan=_plan,
    no_groups="no file group that is free of other plans has enough log files",
    encode=lambda planned, _root: encode_compaction_plan(planned, log_compaction=True),
    execution=lambda engine: CompactionExecution(kind=_KIND, engine=engine),
    cost_of=partial(compaction_cost, logs_only=True),
)
plan, schedule, run, cost = SERVICE.plan, SERVICE.schedule, SERVICE.run, SERVICE.cost
