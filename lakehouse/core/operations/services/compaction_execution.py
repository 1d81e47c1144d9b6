"""Execute compaction and log compaction. A CompactionKind holds their differences.

Writers continue during both. A log that completes after the requested time <t> of a plan belongs to the slice that
begins with <t>. Therefore a plan must contain every log of its groups that completed before <t>. It is made under the
lock, so that no write can complete at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.log.compactor import CompactionContext
from lakehouse.core.files.stage.markers import compaction_markers
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.schema import declared_at
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.load.write_settings import maintenance_context
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.services.partition_policies import (
    refuse_switched_off,
)
from lakehouse.core.operations.services.plan_executor import (
    ClaimedPlan,
    attempt_under_claim,
    planned_attempt,
    rewritable_rows,
)
from lakehouse.core.operations.services.planned_files import planned_files_exist, with_committed_log_sizes
from lakehouse.core.operations.services.rewrite import (
    RewrittenFiles,
    announce_markers,
    complete_rewrite,
    staging_of,
)
from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.core.planning.key_ranges import ranges_extra
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.instant import Action, Instant, State

logger = logging.getLogger(__name__)

_MB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionKind:
    """The differences between compaction and log compaction.

    `task` rewrites one file group.
    """

    action: Action
    operation: Operation
    task: Callable[[CompactionContext, Attempt, CompactionOperation], list[WriteStat]]

    @property
    def service(self) -> str:
        """The name of the service."""
        return "logcompaction" if self.merges_logs_only else "compaction"

    @property
    def merges_logs_only(self) -> bool:
        """Whether the result of a task is a log file, not a base file."""
        return self.action is Action.LOGCOMPACTION


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionExecution:
    """The execution of a compaction or log compaction plan on an engine."""

    kind: CompactionKind
    engine: Engine
    writes_files: bool = True

    def start(self, table: LoadedTable, pending: Instant, lock: TableLock) -> None:
        """Create an empty inflight file, as Hudi does."""
        if pending.state is State.REQUESTED:
            lock.check()
            table.store.start(pending, b"")

    def load(self, claimed: ClaimedPlan) -> CompactionPlan | None:
        """Read the plan from the requested file."""
        data = claimed.table.store.read(claimed.instant, State.REQUESTED)
        return decode_compaction_plan(data) if data else None

    def partitions(self, plan: CompactionPlan) -> Collection[str]:
        """Return the partitions of the planned file groups."""
        return {operation.partition for operation in plan.operations}

    def execute(self, claimed: ClaimedPlan, plan: CompactionPlan) -> RewrittenFiles:
        """Rewrite the planned file groups, in descending order of size."""
        kind, table, policies = self.kind, claimed.table, claimed.policies
        refuse_switched_off(policies, kind.service, self.partitions(plan))
        requested = claimed.instant.requested
        declared = declared_at(table, requested)
        if declared is None:
            raise UserError(f"{table.env.storage.root}: the {kind.action} {requested} is for a table without schema")
        schema = declared.schema
        operations = sorted(
            with_committed_log_sizes(table, plan.operations),
            key=lambda op: -op.metrics.get("TOTAL_IO_MB", float(len(op.log_files))),
        )
        write = maintenance_context(table, policies, schema, requested)
        # A task merges a slice while it writes the next base file, so merging may use half of the memory.
        budget = policies.write.memory_budget_bytes // 2
        read = slice_context(table, schema, budget=budget, skips_damage=policies.write.skips_damage)
        context = CompactionContext(write=write, read=read)
        attempts = [planned_attempt(task, claimed.claim) for task in range(len(operations))]
        logs = kind.merges_logs_only
        markers = announce_markers(
            claimed,
            [compaction_markers(write, a, op, logs=logs) for a, op in zip(attempts, operations, strict=True)],
        )
        with planned_files_exist(claimed, operations), rewritable_rows(claimed.table):
            stats = self._run_tasks(context, claimed, operations)
        metadata = CommitMetadata(
            operation=kind.operation.value,
            stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
            compacted=not logs,
            extra={"schema": write.avro_schema} | ranges_extra(stats, write.indexed) | declared.ids,
        )
        staged = staging_of(claimed, self.engine).stage(metadata)
        ran_once = isinstance(self.engine, LocalEngine) and self.engine.runs_once
        return RewrittenFiles(metadata=metadata, markers=markers, staged=staged, ran_once=ran_once)

    def _run_tasks(
        self, context: CompactionContext, claimed: ClaimedPlan, operations: Sequence[CompactionOperation]
    ) -> list[WriteStat]:
        sizes = [sum(operation.log_sizes) for operation in operations]
        name = "log compaction" if self.kind.merges_logs_only else "compaction"
        with observed_stage(stage_of(claimed.table, name, "file group", sizes)) as running, running.tasks(sizes):
            written = self.engine.run(partial(_task, self.kind, context, claimed.claim), operations)
        return [stat for of_task in written for stat in of_task]

    def complete(
        self, claimed: ClaimedPlan, work: RewrittenFiles, now: LoadedTable, lock: TableLock
    ) -> tuple[Committed, list[str]]:
        """Commit the new files."""
        done = complete_rewrite(claimed, work, now, lock)
        staging_of(claimed, self.engine).clean_up(work.staged)
        return done


def compaction_cost(plan: CompactionPlan, *, logs_only: bool = False) -> ServiceCost:
    """Return the cost of a plan; the benefit is the number of log files that readers no longer open."""
    logs = sum(len(operation.log_files) for operation in plan.operations)
    io_mb = sum(operation.metrics.get("TOTAL_IO_MB", 0.0) for operation in plan.operations)
    new_logs = len(plan.operations) if logs_only else 0
    bases = sum(operation.data_file is not None for operation in plan.operations)
    partitions = tuple(sorted({operation.partition for operation in plan.operations}))
    return ServiceCost(files=logs + bases, bytes=round(io_mb * _MB), benefit=logs - new_logs, partitions=partitions)


def require_merge_on_read(table: LoadedTable) -> None:
    """Raise UnsupportedError for a copy-on-write table, and for versions that this package does not compact."""
    if not table.config.is_merge_on_read:
        raise UnsupportedError(
            f"{table.env.storage.root} is a copy-on-write table: it has no logs, so there is nothing to compact"
        )
    require_writable(table.config, table.env.storage.root)


def _task(
    kind: CompactionKind, context: CompactionContext, claim: int, attempt: Attempt, operation: CompactionOperation
) -> list[WriteStat]:
    """Run one task with a write token that no other executor of the plan uses, so that no file is overwritten."""
    return kind.task(context, attempt_under_claim(attempt, claim), operation)
