"""Compaction and log compaction: due, plan, run (TL-6.4, TL-9.1).

due    from the timeline alone
plan   under the lock: the logs completed by now, of groups no other plan holds   <t>.compaction.requested
run    claim the plan, <t>.compaction.inflight, one task per group, under the lock <t>_<c>.commit

Writers go on meanwhile: a log that completes after <t> belongs to the slice that begins with <t>. So a plan must hold
every log of its groups that completed before <t>, and it is made where no other write can complete: under the lock. An
executor that dies leaves plan and claim; the next one deletes its files and does the work again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.compactor import CompactionContext, compact_slice
from lakehouse.core.files.log_compactor import compact_logs
from lakehouse.core.files.markers import compaction_markers
from lakehouse.core.format.timeline.commit_metadata import encode_commit
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.core.operations.commit.cleanup import delete_unreported
from lakehouse.core.operations.commit.markers import WriteMarkers
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.commits import latest_extra
from lakehouse.core.operations.load.pending import log_compactions, pending_clustering, pending_compactions
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import checked_slices, planned_files_exist, with_stated_sizes
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.services.plan_executor import (
    UnusablePlanError,
    check_executor,
    claim_of,
    claim_plan,
    drop_unusable,
    finish,
    let_go,
    pending_plan,
    planned_try,
    try_under,
    without_plan,
)
from lakehouse.core.operations.write.prepare import maintenance_context
from lakehouse.core.planning.compaction import Due, compaction_due, plan_compaction, plan_log_compaction
from lakehouse.core.planning.key_ranges import RANGES_KEY, encode_ranges
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import CommitStateUnknownError, UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What sets compaction and log compaction apart."""

    action: Action
    operation: Operation
    task: Callable[[CompactionContext, Attempt, CompactionOperation], list[WriteStat]]
    nothing: str


def _compact(context: CompactionContext, attempt: Attempt, operation: CompactionOperation) -> list[WriteStat]:
    return [compact_slice(context, attempt, operation)]


COMPACTION = Kind(
    action=Action.COMPACTION,
    operation=Operation.COMPACT,
    task=_compact,
    nothing="no file group has logs that the strategy takes and no other plan holds",
)
LOG_COMPACTION = Kind(
    action=Action.LOGCOMPACTION,
    operation=Operation.LOG_COMPACT,
    task=compact_logs,
    nothing="no file group has enough log files, without another plan holding it",
)


def due(table: LoadedTable, policies: Policies) -> Due:
    """Return whether a compaction is due now, and why; reads nothing but the timeline."""
    _require_merge_on_read(table)
    return compaction_due(table.timeline, policies.compaction, table.store.new_instant_time(table.timeline))


def plan(
    table: LoadedTable, policies: Policies, *, kind: Kind = COMPACTION, force: bool = False
) -> Instant | NothingToDo:
    """Put a plan on the timeline if one is due (or by `force`); any process may run it, any time later."""
    _require_merge_on_read(table)
    require_mergeable(table.config)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    if kind is COMPACTION and not force:
        answer = due(table, policies)
        if not answer.due:
            return NothingToDo(reason=answer.reason)
    # Listing takes long and the lock is short, so files are listed before; if a write completed since, once more.
    proposed = propose(table, policies, kind=kind)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        if now.timeline != table.timeline:
            proposed = propose(now, policies, kind=kind)
        if proposed is None:
            return NothingToDo(reason=kind.nothing)
        lock.check()
        data = encode_compaction_plan(proposed, log_compaction=kind is LOG_COMPACTION)
        instant = table.store.request(now.timeline, kind.action, data)
    logger.info("%s: planned %s %s", table.env.storage.root, kind.action, instant.requested)
    return instant


def propose(table: LoadedTable, policies: Policies, *, kind: Kind = COMPACTION) -> CompactionPlan | None:
    """Return what would be planned now; writes nothing."""
    _require_merge_on_read(table)
    held = frozenset(pending_compactions(table)) | frozenset(pending_clustering(table))
    slices, largest = checked_slices(table, policies.write), policies.write.max_file_bytes
    if kind is LOG_COMPACTION:
        slices, done = _before_pending(table, slices), log_compactions(table)
        return plan_log_compaction(slices, held, policies.compaction, log_compactions=done, max_file_bytes=largest)
    now = table.store.new_instant_time(table.timeline)
    return plan_compaction(slices, held, policies.compaction, now=now, max_file_bytes=largest)


def _before_pending(table: LoadedTable, slices: Sequence[FileSlice]) -> tuple[FileSlice, ...]:
    """Return slices with those logs only that no log of a pending write can come to stand between.

        t1 (all columns)   t2 (pending, brings x)   t3 (brings y)      t1 and t3 merged stand where t3 did: x is lost

    A log stands where its request does, whenever it completes, and a merged log where the last of its parts stood.
    """
    pending = min((i.requested for i in table.timeline.where(action=Action.DELTACOMMIT, pending=True)), default=None)
    if pending is None:
        return tuple(slices)
    return tuple(replace(s, logs=tuple(log for log in s.logs if log.instant < pending)) for s in slices)


def run(
    table: LoadedTable,
    engine: Engine,
    policies: Policies,
    *,
    kind: Kind = COMPACTION,
    instant: str | None = None,
    force: bool = False,
) -> Committed | NothingToDo:
    """Run the plan of `instant`, else the oldest pending plan nobody is at, else a new one if due (or by `force`).

    Raises UserError if there is no such plan, RetryableError if another executor is at it or took it over, or a
    restore is not finished.
    """
    _require_merge_on_read(table)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    if instant is not None:
        return _execute(table, engine, policies, kind, pending_plan(table, kind.action, instant))
    living = active_writes(table.env, policies.transaction)
    for pending in table.timeline.where(action=kind.action, pending=True):
        if pending.requested not in living:
            outcome = _execute(table.reload(), engine, policies, kind, pending)
            if isinstance(outcome, Committed):
                return outcome
    planned = plan(table, policies, kind=kind, force=force)
    if isinstance(planned, NothingToDo):
        return planned
    return _execute(table.reload(), engine, policies, kind, planned)


def _execute(
    table: LoadedTable, engine: Engine, policies: Policies, kind: Kind, instant: Instant
) -> Committed | NothingToDo:
    heartbeat, partitions = Heartbeat(table.env, policies.transaction), None
    try:
        number = claim_plan(table, policies.transaction, instant, heartbeat)
    except BaseException:
        heartbeat.discard()
        raise
    try:
        table = table.reload()
        data = table.store.read(instant, State.REQUESTED)
        if not data:
            return without_plan(table, policies.transaction, instant, number, heartbeat)
        found = decode_compaction_plan(data)
        partitions = {operation.partition for operation in found.operations}
        outcome, markers = _rewrite(table, engine, policies, kind, instant, found, number)
    except CommitStateUnknownError:
        # The commit may land yet, so its files must stay: nobody may take the plan over before the lease ends.
        heartbeat.stop()
        raise
    except UnusablePlanError as error:
        return drop_unusable(table, policies.transaction, instant, number, heartbeat, partitions, error)
    except BaseException:
        let_go(table, instant, number, heartbeat, partitions)
        raise
    finish(table, instant, heartbeat, markers)
    return outcome


def _rewrite(
    table: LoadedTable,
    engine: Engine,
    policies: Policies,
    kind: Kind,
    instant: Instant,
    found: CompactionPlan,
    number: int,
) -> tuple[Committed, list[str]]:
    """Carry out the plan; return the commit, and the markers that are to go."""
    requested, schema = instant.requested, table_schema(table)
    if schema is None:
        raise UserError(f"{table.env.storage.root}: the {kind.action} {requested} is of a table that has no schema")
    operations = sorted(
        with_stated_sizes(table, found.operations),
        key=lambda op: -op.metrics.get("TOTAL_IO_MB", float(len(op.log_files))),
    )
    write = maintenance_context(table, policies, schema, requested)
    # A task merges a slice while it writes the next base file, so what merging may hold is halved.
    budget = policies.write.memory_budget_bytes // 2
    read = slice_context(table, schema, budget=budget, skips_damage=policies.write.skips_damage)
    context = CompactionContext(write=write, read=read)
    markers = WriteMarkers(table, requested, policies.write)
    tries = [planned_try(task, number) for task in range(len(operations))]
    logs = kind is LOG_COMPACTION
    marked = [compaction_markers(write, a, op, logs=logs) for a, op in zip(tries, operations, strict=True)]
    markers.announce([name for names in marked for name in names])
    with planned_files_exist(table, instant, number, operations, skips=policies.write.skips_damage):
        stats = [stat for written in engine.run(partial(_task, kind, context, number), operations) for stat in written]
    metadata = CommitMetadata(
        operation=kind.operation.value,
        stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
        compacted=kind is COMPACTION,
        extra={"schema": write.avro_schema, RANGES_KEY: encode_ranges(stats)},
    )
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        check_executor(table, now.timeline, instant, number)
        # Not of later claims: who is suspended here and taken over must not delete what the successor reports.
        left = delete_unreported(
            table, requested, metadata.stats, ours=lambda path: claim_of(path) <= number, known=markers.known
        )
        # The newest commit tells the table's schema: what writers added meanwhile must stay.
        declared = latest_extra(now, "schema") or write.avro_schema
        metadata = replace(metadata, extra={**metadata.extra, "schema": declared})
        lock.check()
        started = Instant(requested=requested, action=kind.action, state=State.INFLIGHT)
        completed = table.store.complete(
            started, now.timeline, encode_commit(metadata, table_version=table.config.version), lock
        )
    logger.info("%s: completed %s %s, %d files", table.env.storage.root, kind.action, requested, len(stats))
    return Committed(instant=completed, metadata=metadata), left


def _task(
    kind: Kind, context: CompactionContext, claim: int, attempt: Attempt, operation: CompactionOperation
) -> list[WriteStat]:
    """Run one task under a write token that no other executor of the plan has: none overwrites a file of another."""
    return kind.task(context, try_under(attempt, claim), operation)


def _require_merge_on_read(table: LoadedTable) -> None:
    if not table.config.is_merge_on_read:
        raise UnsupportedError(
            f"{table.env.storage.root} is a copy-on-write table: it has no logs, so there is nothing to compact"
        )
    if table.config.version < 8:
        raise UnsupportedError(
            f"{table.env.storage.root}: tables of version {table.config.version} are read only here; upgrade with Hudi"
        )
