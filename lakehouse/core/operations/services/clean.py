"""Clean: due, plan, run (TL-4.6, TL-9.3).

due    from the timeline and the last clean alone
plan   list the partitions written to; under the lock, if nothing was undone since: <t>.clean.requested
run    claim the plan, <t>.clean.inflight, delete its files, under the lock <t>_<c>.clean

A plan names files that no view within retention reads and no pending write may read, and nothing that happens later
makes them needed again, except going back: a restore waits for an executor that is alive and drops a plan that is not
carried out, and nobody rolls back or makes a savepoint under a pending plan. An executor that dies leaves plan and
claim; the next one deletes the same files again, and those that are gone already count as deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.file_names import is_partition_metadata
from lakehouse.core.format.timeline.clean import (
    decode_clean_metadata,
    decode_clean_plan,
    encode_clean_metadata,
    encode_clean_plan,
)
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.operations.commit.cleanup import clean_up
from lakehouse.core.operations.commit.pins import read_pins
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.create.create import drop_metadata_table
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.savepoints import savepointed_paths
from lakehouse.core.operations.load.slices import load_visible, slices_of
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.plan_executor import pending_plan, still_pending
from lakehouse.core.operations.undo.rollback import roll_back_dead_writes
from lakehouse.core.operations.write.tombstones import delete_expired_tombstones
from lakehouse.core.planning.clean import (
    PINS_KEY,
    CleanDue,
    CleanState,
    clean_due,
    horizon_of,
    partitions_of,
    plan_clean,
    still_holds,
    touched_since,
)
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.state.file_system_view import DataFile, Group
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.claims import check_claim, claim
from lakehouse.core.timeline.file_deletions import check_data_files, check_partitions, delete_data_files
from lakehouse.core.timeline.heartbeat import Heartbeat, active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clean import CleanedPartition, CleanMetadata, CleanPlan
from lakehouse.model.files import LogFile
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.spec.options.clean import CleanPolicy
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

#: Files per task: stores delete as many in one request.
_BATCH = 1000
#: Tasks between two looks at whether the plan is still ours to carry out.
_ROUND = 64
_HOUR_MS = 3_600_000
_NOTHING = "no file is there that nobody needs"
_LISTERS = 8
_MAY_WRITE = WRITE_ACTIONS | {Action.CLUSTERING, Action.COMPACTION, Action.LOGCOMPACTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned:
    """What a clean removed; it is true since `instant.completed`."""

    instant: Instant
    metadata: CleanMetadata

    @property
    def files(self) -> int:
        """Number of files that are gone."""
        return len(self.metadata.deleted)


def due(table: LoadedTable, policies: Policies) -> CleanDue:
    """Return whether a clean is due now, and why; reads the timeline and the metadata of the last clean."""
    return clean_due(table.timeline, policies.clean, last_clean(table), _since(table, policies.clean))


def last_clean(table: LoadedTable) -> CleanMetadata | None:
    """Return what the newest completed clean did."""
    for instant in reversed(table.timeline.where(action=Action.CLEAN, state=State.COMPLETED).by_completion()):
        data = table.store.read(instant, State.COMPLETED)
        if data:
            return decode_clean_metadata(data)
    return None


def propose(table: LoadedTable, policies: Policies, *, pinned: Collection[str] = ()) -> CleanPlan | None:
    """Return what would be planned now; writes nothing. Published files and slices as of `pinned` instants are kept."""
    require_writable(table.config, table.env.storage.root)
    pins, published = frozenset(pinned), read_pins(table.env)
    heeded = pins | published.names
    horizon = horizon_of(table.timeline, policies.clean, _since(table, policies.clean))
    if horizon is None:
        return None
    visible = load_visible(table, completions=True)
    partitions: Sequence[str] | None = None
    if policies.clean.incremental:
        writes = touched_since(
            table.timeline, last_clean(table), horizon, heeded, archived_before=visible.archived_before
        )
        partitions = None if writes is None else partitions_of(table.store.commits(writes))
    if partitions is not None and not partitions:
        return None
    files = list_data_files(table, partitions, change_logs=True)
    state = CleanState(
        timeline=table.timeline,
        visible=visible,
        groups=slices_of(table, files, visible),
        change_logs=[file for file in files if isinstance(file, LogFile) and file.suffix],
        found=[file.path for file in files],
        held=_held(table),
        kept=savepointed_paths(table) | _pinned(table, files, pins) | published.paths(table.env),
        pinned=heeded,
    )
    return plan_clean(state, policies.clean, horizon)


def preview(
    table: LoadedTable, policies: Policies, *, force: bool = False, pinned: Collection[str] = ()
) -> CleanPlan | NothingToDo:
    """Return what a run would remove: by the oldest pending plan, else by a new one if due (or by `force`)."""
    for pending in table.timeline.where(action=Action.CLEAN, pending=True):
        stored = stored_clean_plan(table, pending)
        if stored is not None:
            _check_plan(table, pending.requested, stored)
            return stored
    answer = due(table, policies)
    if not answer.due and not force:
        return NothingToDo(reason=answer.reason)
    return propose(table, policies, pinned=pinned) or NothingToDo(reason=_NOTHING)


def plan(
    table: LoadedTable, policies: Policies, *, force: bool = False, pinned: Collection[str] = ()
) -> Instant | NothingToDo:
    """Put a plan on the timeline if one is due (or by `force`) and there is something to remove.

    A plan that is pending is to be carried out first.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    for pending in table.timeline.where(action=Action.CLEAN, pending=True):
        return NothingToDo(reason=f"the clean {pending.requested} is planned already; run it first")
    answer = due(table, policies)
    if not answer.due and not force:
        return NothingToDo(reason=answer.reason)
    # Listing takes long and the lock is short, so files are listed before; if something was undone or published since,
    # once more.
    published = read_pins(table.env)
    proposed = propose(table, policies, pinned=pinned)
    if proposed is None:
        return NothingToDo(reason=_NOTHING)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        if not still_holds(table.timeline, now.timeline) or read_pins(table.env) != published:
            for pending in now.timeline.where(action=Action.CLEAN, pending=True):
                return NothingToDo(reason=f"the clean {pending.requested} was planned meanwhile; run it")
            proposed = propose(now, policies, pinned=pinned)
        if proposed is None:
            return NothingToDo(reason=_NOTHING)
        lock.check()
        data = encode_clean_plan(proposed, base_path=table.env.storage.root)
        instant = table.store.request(now.timeline, Action.CLEAN, data)
    logger.info("%s: planned clean %s, %d files", table.env.storage.root, instant.requested, len(proposed.paths))
    return instant


def run(
    table: LoadedTable,
    engine: Engine,
    policies: Policies,
    *,
    instant: str | None = None,
    force: bool = False,
    pinned: Collection[str] = (),
) -> Cleaned | NothingToDo:
    """Carry out the plan of `instant`; else all pending ones nobody is at, then a new one if due (or by `force`).

    Files that instants in `pinned` need are spared, also by plans made before. Where dead writes are not undone by the
    next write, they are undone here first. Raises UserError if there is no such plan, RetryableError if another
    executor is at it or took it over, or a restore is not finished. Where deletes are remembered, the files of
    those that are forgotten by now go, too.
    """
    outcome = _run(table, engine, policies, instant=instant, force=force, pinned=pinned)
    if policies.deletes.retention_ms:
        delete_expired_tombstones(table)
    return outcome


def _run(
    table: LoadedTable,
    engine: Engine,
    policies: Policies,
    *,
    instant: str | None,
    force: bool,
    pinned: Collection[str],
) -> Cleaned | NothingToDo:
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    if instant is not None:
        return _execute(table, engine, policies, pending_plan(table, Action.CLEAN, instant), frozenset(pinned))
    if not policies.transaction.eager:
        roll_back_dead_writes(table, policies.transaction)
        table = table.reload()
    done: Cleaned | NothingToDo | None = None
    living = active_writes(table.env, policies.transaction)
    for pending in table.timeline.where(action=Action.CLEAN, pending=True):
        if pending.requested not in living:
            done = _execute(table, engine, policies, pending, frozenset(pinned))
    planned = plan(table, policies, force=force, pinned=pinned)
    if isinstance(planned, NothingToDo):
        return planned if done is None else done
    return _execute(table.reload(), engine, policies, planned, frozenset())


def stored_clean_plan(table: LoadedTable, pending: Instant) -> CleanPlan | None:
    """Return the plan of a pending clean, None if it was never written whole."""
    for state in (State.REQUESTED, State.INFLIGHT):
        data = table.store.read(pending, state)
        if data:
            return decode_clean_plan(data, base_path=table.env.storage.root)
    return None


def _check_plan(table: LoadedTable, requested: str, stored: CleanPlan) -> None:
    """Raise CorruptTableError if a plan removes anything else than data files of this table."""
    source = f"the clean plan {requested}"
    check_partitions(table.env.storage, stored.partitions_to_delete, source)
    check_data_files(table.env.storage, stored.paths, source)


def _since(table: LoadedTable, policy: CleanPolicy) -> str:
    return table.store.time_text(table.env.clock.now_ms() - policy.hours_retained * _HOUR_MS)


def _held(table: LoadedTable) -> dict[Group, str]:
    """Return the groups of pending compactions, and the base instant from which on their slices are needed."""
    held: dict[Group, str] = {}
    for instant in table.timeline.where(action={Action.COMPACTION, Action.LOGCOMPACTION}, pending=True):
        data = table.store.read(instant, State.REQUESTED)
        for operation in decode_compaction_plan(data).operations if data else ():
            group = (operation.partition, operation.file_id)
            held[group] = min(operation.base_instant, held.get(group, operation.base_instant))
    return held


def _pinned(table: LoadedTable, files: Sequence[DataFile], pins: frozenset[str]) -> frozenset[str]:
    paths: set[str] = set()
    for pin in pins:
        view = load_visible(table, as_of=pin)
        for group, slices in slices_of(table, files, view).items():
            if group not in view.replaced:
                paths.update(slice_paths(slices[0]))
    return frozenset(paths)


def _sparing(table: LoadedTable, stored: CleanPlan, pins: frozenset[str]) -> CleanPlan:
    """Return a plan that was made before these pins, without what they keep."""
    if not pins:
        return stored
    kept = _pinned(table, list_data_files(table, stored.files), pins)
    left = {partition: tuple(p for p in paths if p not in kept) for partition, paths in stored.files.items()}
    pinned = {*filter(None, stored.extra.get(PINS_KEY, "").split(",")), *pins}
    return replace(
        stored,
        files=left,
        partitions_to_delete=tuple(p for p in stored.partitions_to_delete if left.get(p) == stored.files.get(p)),
        extra={**stored.extra, PINS_KEY: ",".join(sorted(pinned))},
    )


def _execute(
    table: LoadedTable, engine: Engine, policies: Policies, pending: Instant, pins: frozenset[str]
) -> Cleaned | NothingToDo:
    root, requested = table.env.storage.root, pending.requested
    stored = stored_clean_plan(table, pending)
    if stored is None:
        # Whoever wrote it died in the middle, so nothing was deleted by it.
        with table_lock(table.env, policies.transaction) as lock:
            lock.check()
            table.store.remove_pending(pending)
        return NothingToDo(reason=f"the clean {requested} had no plan, and is gone")
    _check_plan(table, requested, stored)
    heartbeat, started_ms = Heartbeat(table.env, policies.transaction), table.env.clock.now_ms()
    try:
        number = _claim(table, policies, pending, stored, heartbeat)
        stored = _sparing(table, stored, pins)
        _delete(table, engine, pending, number, stored)
        outcome = _complete(table, policies, pending, number, stored, started_ms)
    except CommitStateUnknownError:
        # It may have landed: nobody should carry the plan out again before the lease ends.
        heartbeat.stop()
        raise
    except BaseException:
        heartbeat.discard()
        raise
    heartbeat.stop()
    try:
        clean_up(table, requested, markers=())
    except LakehouseError as error:
        logger.warning("%s: %s was not tidied up yet: %s", root, requested, error)
        heartbeat.discard()
    return outcome


def _claim(table: LoadedTable, policies: Policies, pending: Instant, stored: CleanPlan, heartbeat: Heartbeat) -> int:
    env, requested = table.env, pending.requested
    with table_lock(env, policies.transaction) as lock:
        if requested in active_writes(env, policies.transaction):
            raise RetryableError(
                f"{env.storage.root}: the clean {requested} is being run by another executor, which is alive",
                instant=requested,
            )
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        number = claim(env, requested)
        current = still_pending(now, pending)
        lock.check()
        heartbeat.start(requested)
        if current.state is State.REQUESTED:
            # Hudi takes an inflight file that is empty for one that was never written, and 1.0 reads the plan from it.
            now.store.start(current, encode_clean_plan(stored, base_path=env.storage.root))
        if now.config.metadata_partitions:
            # It lists the files that are about to go.
            drop_metadata_table(env)
    return number


def _delete(table: LoadedTable, engine: Engine, pending: Instant, number: int, stored: CleanPlan) -> None:
    paths, size = stored.paths, _BATCH
    if len(paths) < _BATCH * engine.parallelism:
        size = max(1, -(-len(paths) // engine.parallelism))
    batches = [paths[start : start + size] for start in range(0, len(paths), size)]
    for start in range(0, len(batches), _ROUND):
        if start:
            # Who was suspended for long and is thought dead must not go on beside whoever went back since.
            check_claim(table.env, pending.requested, number)
            still_pending(table.reload(), pending)
        engine.run(partial(_delete_files, table.env.storage), batches[start : start + _ROUND], light=True)


def _delete_files(storage: Storage, _attempt: Attempt, paths: Sequence[str]) -> int:
    """Delete some files; missing ones count, for a task may run twice."""
    delete_data_files(storage, paths, "the clean plan")
    return len(paths)


def _complete(
    table: LoadedTable, policies: Policies, pending: Instant, number: int, stored: CleanPlan, started_ms: int
) -> Cleaned:
    env, before, requested = table.env, table.reload().timeline, pending.requested
    empty = _empty_partitions(table, stored)
    with table_lock(env, policies.transaction) as lock:
        now = table.reload()
        check_claim(env, requested, number)
        current = still_pending(now, pending)
        lock.check()
        if not _nobody_writes(before, now.timeline):
            empty = {}
        delete_data_files(env.storage, [path for paths in empty.values() for path in paths], "the clean plan")
        metadata = CleanMetadata(
            start_time=requested,
            seconds=(env.clock.now_ms() - started_ms) / 1000,
            earliest="" if stored.earliest is None else stored.earliest.requested,
            last_completed=stored.last_completed,
            partitions={
                partition: CleanedPartition(
                    policy=stored.policy,
                    deleted=tuple(path.rpartition("/")[2] for path in paths),
                    is_deleted=partition in empty,
                )
                for partition, paths in stored.files.items()
            },
            extra=stored.extra,
        )
        completed = now.store.complete(current, now.timeline, encode_clean_metadata(metadata), lock)
    logger.info("%s: cleaned %s, %d files", env.storage.root, requested, len(stored.paths))
    return Cleaned(instant=completed, metadata=metadata)


def _empty_partitions(table: LoadedTable, stored: CleanPlan) -> dict[str, list[str]]:
    """Return those of the partitions to delete in which nothing is left but the files that make them partitions."""
    wanted = [partition for partition in stored.partitions_to_delete if partition]
    with ThreadPoolExecutor(_LISTERS) as pool:
        found = dict(zip(wanted, pool.map(table.env.storage.list_dir, wanted), strict=True))
    return {
        partition: [file.path for file in files]
        for partition, (files, directories) in found.items()
        if not directories and all(is_partition_metadata(file.name) for file in files)
    }


def _nobody_writes(before: Timeline, now: Timeline) -> bool:
    """Whether no write is pending, and none completed in between: it may count on partitions that were found empty."""
    return not now.where(action=_MAY_WRITE, pending=True) and before.writes() == now.writes()
