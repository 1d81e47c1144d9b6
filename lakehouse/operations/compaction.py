"""Compaction and log compaction: due, plan, run (format: timeline.md 6.4, 9.1).

due    from the timeline alone
plan   under the lock: the logs completed by now, of groups no other plan holds   <t>.compaction.requested
run    claim the plan, <t>.compaction.inflight, one task per group, under the lock <t>_<c>.commit

Writers go on meanwhile: a log that completes after <t> belongs to the slice that begins with <t>. So a plan must hold
every log of its groups that completed before <t>, and it is made where no other write can complete: under the lock. An
executor that dies leaves plan and claim; the next one deletes its files and does the work again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.engine.protocol import Engine
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UnsupportedError, UserError
from lakehouse.format.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.format.metadata import encode_commit
from lakehouse.format.names import parse_base_file, parse_log_file
from lakehouse.io.compactor import CompactionContext, compact_slice
from lakehouse.io.log_compactor import compact_logs
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.instant import Action, Instant, State
from lakehouse.operations.load import (
    LoadedTable,
    latest_extra,
    list_data_files,
    load_slices,
    log_compactions,
    pending_clustering,
    pending_compactions,
    table_schema,
)
from lakehouse.operations.prepare import maintenance_context
from lakehouse.operations.results import Committed, NothingToDo
from lakehouse.operations.scan import slice_context
from lakehouse.operations.tidy import delete_files, delete_unreported, marked_files, markers_of, tidy
from lakehouse.plan.compaction import Due, compaction_due, plan_compaction, plan_log_compaction
from lakehouse.plan.ranges import RANGES_KEY, encode_ranges
from lakehouse.spec.options import Policies
from lakehouse.state.table_config import require_mergeable
from lakehouse.txn.claim import check_claim, claim, holds_claim
from lakehouse.txn.heartbeat import Heartbeat, living_writes
from lakehouse.txn.lock import table_lock

logger = logging.getLogger(__name__)

#: No application has as many stages, so those of two executors of one plan are told apart.
_STAGES = 1_000_000


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
    return compaction_due(table.timeline, policies.compaction, table.store.draw(table.timeline))


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
    slices, largest = load_slices(table), policies.write.max_file_bytes
    if kind is LOG_COMPACTION:
        done = log_compactions(table)
        return plan_log_compaction(slices, held, policies.compaction, log_compactions=done, max_file_bytes=largest)
    now = table.store.draw(table.timeline)
    return plan_compaction(slices, held, policies.compaction, now=now, max_file_bytes=largest)


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
        return _execute(table, engine, policies, kind, _plan_of(table, kind, instant))
    living = living_writes(table.env, policies.transaction)
    for pending in table.timeline.where(action=kind.action, pending=True):
        if pending.requested not in living:
            return _execute(table, engine, policies, kind, pending)
    planned = plan(table, policies, kind=kind, force=force)
    if isinstance(planned, NothingToDo):
        return planned
    return _execute(table.reload(), engine, policies, kind, planned)


def _plan_of(table: LoadedTable, kind: Kind, requested: str) -> Instant:
    for pending in table.timeline.where(action=kind.action, pending=True):
        if pending.requested == requested:
            return pending
    found = table.timeline.find(requested)
    state = "is completed" if found is not None and found.is_completed else "does not exist"
    known = ", ".join(i.requested for i in table.timeline.where(action=kind.action, pending=True)) or "none"
    raise UserError(f"{table.env.storage.root}: the {kind.action} {requested} {state}; pending plans: {known}")


def _execute(
    table: LoadedTable, engine: Engine, policies: Policies, kind: Kind, instant: Instant
) -> Committed | NothingToDo:
    heartbeat = Heartbeat(table.env, policies.transaction)
    try:
        number = _claim(table, policies, kind, instant, heartbeat)
    except BaseException:
        heartbeat.discard()
        raise
    try:
        outcome = _rewrite(table.reload(), engine, policies, kind, instant, number)
    except CommitStateUnknownError:
        # The commit may land yet, so its files must stay: nobody may take the plan over before the lease ends.
        heartbeat.stop()
        raise
    except BaseException:
        _let_go(table, instant, number, heartbeat)
        raise
    heartbeat.stop()
    try:
        tidy(table, instant.requested, markers=markers_of(instant.requested, outcome.metadata.stats))
    except LakehouseError as error:
        logger.warning("%s: %s was not tidied up yet: %s", table.env.storage.root, instant.requested, error)
        heartbeat.discard()
    return outcome


def _let_go(table: LoadedTable, instant: Instant, number: int, heartbeat: Heartbeat) -> None:
    """Leave the plan to the next executor, who deletes what it finds under its own claim.

    If there was one already, it looked for files before the last of ours were written: then we delete them.
    """
    heartbeat.stop()
    try:
        # A successor that died while it tidied up may have left our claim, and no other, beside a completed plan.
        found = table.reload().timeline.find(instant.requested)
        if found is None:
            return
        if not found.is_completed and holds_claim(table.env, instant.requested, number):
            heartbeat.discard()
            return
        named = {stat.path for stat in table.store.commit(found).stats} if found.is_completed else set()
        data = table.store.read(instant, State.REQUESTED)
        partitions = {op.partition for op in decode_compaction_plan(data).operations} if data else set()
        left = [f for f in list_data_files(table, sorted(partitions)) if f.instant == instant.requested]
        ours = [file.path for file in left if _claim_of(file.path) == number and file.path not in named]
        delete_files(table, instant.requested, ours)
    except LakehouseError as error:
        logger.warning("%s: %s was not left in order: %s", table.env.storage.root, instant.requested, error)


def _claim_of(path: str) -> int:
    """Return the claim under which `_task` wrote a file; files of other programs count as those of the first."""
    partition, _, name = path.rpartition("/")
    file = parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
    return 1 if file is None else int(file.write_token.split("-")[1]) // _STAGES + 1


def _claim(table: LoadedTable, policies: Policies, kind: Kind, instant: Instant, heartbeat: Heartbeat) -> int:
    env, requested = table.env, instant.requested
    with table_lock(env, policies.transaction) as lock:
        if requested in living_writes(env, policies.transaction):
            raise RetryableError(
                f"{env.storage.root}: the {kind.action} {requested} is being run by another executor, which is alive",
                instant=requested,
            )
        number = claim(env, requested)
        # After the claim: who completes the plan from here on does so under a higher one.
        current = _plan_of(table.reload(), kind, requested)
        lock.check()
        heartbeat.start(requested)
        # Suspended here and taken over, this one must spare what its successor, whose claim is higher, writes.
        marked = {m: path for m, path in marked_files(table, requested).items() if _claim_of(path) <= number}
        delete_files(table, requested, list(marked.values()))
        env.storage.delete_many(marked)
        if current.state is State.REQUESTED:
            table.store.start(current, b"")
    return number


def _rewrite(
    table: LoadedTable, engine: Engine, policies: Policies, kind: Kind, instant: Instant, number: int
) -> Committed:
    requested = instant.requested
    data = table.store.read(instant, State.REQUESTED)
    schema = table_schema(table)
    if not data or schema is None:
        raise UserError(f"{table.env.storage.root}: the {kind.action} {requested} has no plan, or the table no schema")
    operations = sorted(
        decode_compaction_plan(data).operations, key=lambda op: -op.metrics.get("TOTAL_IO_MB", float(len(op.log_files)))
    )
    write = maintenance_context(table, policies, schema, requested)
    # A task merges a slice while it writes the next base file, so what merging may hold is halved.
    read = slice_context(table, schema, budget=policies.write.memory_budget_bytes // 2)
    context = CompactionContext(write=write, read=read)
    stats = [stat for written in engine.run(partial(_task, kind, context, number), operations) for stat in written]
    metadata = CommitMetadata(
        operation=kind.operation.value,
        stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
        compacted=kind is COMPACTION,
        extra={"schema": write.avro_schema, RANGES_KEY: encode_ranges(stats)},
    )
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        timeline = now.timeline
        check_claim(table.env, requested, number)
        current = timeline.find(requested)
        if current is None or current.is_completed:
            raise RetryableError(
                f"{table.env.storage.root}: the {kind.action} {requested} was completed by another executor, which "
                "took this one for dead; what this one wrote is not used",
                instant=requested,
            )
        # Only files of this claim: who is suspended here and taken over must not delete what the successor reports.
        delete_unreported(table, requested, metadata.stats, ours=lambda path: _claim_of(path) == number)
        # The newest commit tells the table's schema: what writers added meanwhile must stay.
        declared = latest_extra(now, "schema") or write.avro_schema
        metadata = replace(metadata, extra={**metadata.extra, "schema": declared})
        lock.check()
        started = Instant(requested=requested, action=kind.action, state=State.INFLIGHT)
        completed = table.store.complete(started, timeline, encode_commit(metadata, table_version=table.config.version))
    logger.info("%s: completed %s %s, %d files", table.env.storage.root, kind.action, requested, len(stats))
    return Committed(instant=completed, metadata=metadata)


def _task(
    kind: Kind, context: CompactionContext, claim: int, attempt: Attempt, operation: CompactionOperation
) -> list[WriteStat]:
    """Run one task under a write token that no other executor of the plan has: none overwrites a file of another."""
    return kind.task(context, replace(attempt, stage=attempt.stage + (claim - 1) * _STAGES), operation)


def _require_merge_on_read(table: LoadedTable) -> None:
    if not table.config.is_merge_on_read:
        raise UnsupportedError(
            f"{table.env.storage.root} is a copy-on-write table: it has no logs, so there is nothing to compact"
        )
    if table.config.version < 8:
        raise UnsupportedError(
            f"{table.env.storage.root}: tables of version {table.config.version} are read only here; upgrade with Hudi"
        )
