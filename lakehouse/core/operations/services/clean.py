"""Clean: files that no retained version of the table needs are deleted (TL-4.6, TL-9.3).

due        from the timeline and the last clean only
schedule   list the partitions written to; under the lock, if nothing was undone since: <t>.clean.requested
run        claim the plan, <t>.clean.inflight, delete its files, under the lock <t>_<c>.clean

A plan lists files that no retained version and no pending write reads. Later commits cannot need them again. Only a
return to an older version could need them: a restore waits for an active executor and drops a plan that no executor
has started. Neither a rollback nor a savepoint is possible while a plan is pending.

If an executor crashes, plan and claim stay. The next executor deletes the same files again; missing files are treated
as deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.file_names import is_partition_metadata
from lakehouse.core.format.timeline.clean import (
    decode_clean_metadata,
    decode_clean_plan,
    encode_clean_metadata,
    encode_clean_plan,
)
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.metadata.change import change_of_clean
from lakehouse.core.operations.commit.cleanup import delete_expired_tombstones
from lakehouse.core.operations.commit.completion import Completion, complete_action
from lakehouse.core.operations.commit.pins import read_pins
from lakehouse.core.operations.commit.results import NothingToDo, Totals
from lakehouse.core.operations.load.listing import list_columns, supported_data_files
from lakehouse.core.operations.load.metadata import known_files
from lakehouse.core.operations.load.savepoints import savepointed_paths
from lakehouse.core.operations.load.slices import groups_of, load_visible
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.services.plan_executor import (
    ClaimedPlan,
    execute_plan,
    pending_plan,
    plans_without_executor,
    still_pending,
)
from lakehouse.core.operations.services.service import DEFAULT_REQUEST, ServiceCost, ServiceRequest
from lakehouse.core.operations.undo.rollback import roll_back_expired_writes
from lakehouse.core.planning.clean import (
    PINS_KEY,
    CleanDue,
    CleanState,
    clean_due,
    horizon_of,
    plan_clean,
    still_holds,
    touched_since,
)
from lakehouse.core.state.data_files import file_objects, file_paths
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.claims import check_claim
from lakehouse.core.timeline.exported_views import exported_before
from lakehouse.core.timeline.file_deletions import check_data_files, check_partitions, delete_data_files
from lakehouse.core.timeline.table_lock import TableLock, table_lock
from lakehouse.model.attempt import Attempt
from lakehouse.model.clean import CleanMetadata, CleanPlan
from lakehouse.model.display import Readable, Shown, count_text
from lakehouse.model.files import LogFile
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.clean import CleanPolicy
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

#: Number of files per task; object stores delete at most this many files per request.
_BATCH = 1000
#: Number of tasks between two checks of the claim.
_ROUND = 64
_HOUR_MS = 3_600_000
_NOTHING = "every file is needed"
_LISTERS = 8
_MAY_WRITE = WRITE_ACTIONS | {Action.CLUSTERING, Action.COMPACTION, Action.LOGCOMPACTION}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaned(Readable):
    """The completed instant of a clean, and its metadata with the deleted files."""

    instant: Instant
    metadata: CleanMetadata

    @property
    def files(self) -> int:
        """The number of deleted files."""
        return len(self.metadata.deleted)

    @property
    def totals(self) -> Totals:
        """The number of deleted files, as the totals of the run."""
        return Totals(files=self.files)

    def _shown(self) -> Shown:
        rows = [{"partition": name, "files": len(part.deleted)} for name, part in self.metadata.partitions.items()]
        return Shown(f"clean {self.instant.requested}: {count_text(self.files, 'file')} deleted", {}, rows)


def due(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> CleanDue:
    """Return whether a clean is due, and why; reads the timeline and the metadata of the last clean."""
    del request  # pins keep files, but do not change whether a clean is due
    return clean_due(
        table.timeline, policies.clean, last_clean(table), _since(table, policies.clean), _exported(table, policies)
    )


def last_clean(table: LoadedTable) -> CleanMetadata | None:
    """Return the metadata of the newest completed clean; None if there is none on the timeline."""
    for instant in reversed(table.timeline.where(action=Action.CLEAN, state=State.COMPLETED).by_completion()):
        data = table.store.read(instant, State.COMPLETED)
        if data:
            return decode_clean_metadata(data)
    return None


def plan(table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST) -> CleanPlan | NothingToDo:
    """Return the plan that a run would execute: the oldest pending plan, or a new plan if due or forced.

    Writes nothing. Raises CorruptTableError if a pending plan contains other files than data files of the table.
    """
    for pending in table.timeline.where(action=Action.CLEAN, pending=True):
        stored = stored_clean_plan(table, pending)
        if stored is not None:
            _check_plan(table, pending.requested, stored)
            return stored
    refusal = _not_due(table, policies, request)
    return (
        refusal
        or _plan(table, policies, request.pinned)
        or NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_NOTHING)
    )


def schedule(
    table: LoadedTable, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Instant | NothingToDo:
    """Put a plan on the timeline if a clean is due or forced and there are files to delete.

    At most one plan may be pending, so nothing is scheduled while there is one.
    """
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    for pending in table.timeline.where(action=Action.CLEAN, pending=True):
        return NothingToDo(
            code=NothingToDoReason.ALREADY_PENDING, reason=f"the clean {pending.requested} is pending; run it first"
        )
    refusal = _not_due(table, policies, request)
    if refusal is not None:
        return refusal
    # A listing takes long, and the lock should be held only briefly. So the table is listed before the lock is taken,
    # and again only if an instant was undone or a version was published in between.
    published = read_pins(table.env)
    planned = _plan(table, policies, request.pinned)
    if planned is None:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_NOTHING)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        if not still_holds(table.timeline, now.timeline) or read_pins(table.env) != published:
            for pending in now.timeline.where(action=Action.CLEAN, pending=True):
                return NothingToDo(
                    code=NothingToDoReason.ALREADY_PENDING,
                    reason=f"another process scheduled the clean {pending.requested} ; run it",
                )
            planned = _plan(now, policies, request.pinned)
        if planned is None:
            return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_NOTHING)
        lock.check()
        data = encode_clean_plan(planned, base_path=table.env.storage.root)
        instant = table.store.request(now.timeline, Action.CLEAN, data)
    logger.info("%s: planned clean %s, %d files", table.env.storage.root, instant.requested, len(planned.paths))
    return instant


def run(
    table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest = DEFAULT_REQUEST
) -> Cleaned | NothingToDo:
    """Execute the plan of `request.instant`, otherwise all pending plans without executor and then a new plan if due.

    Files that the instants `request.pinned` need are kept, even if an older plan lists them. With the lazy policy for
    failed writes, failed writes are rolled back first. If the table keeps tombstones, the files of expired tombstones
    are deleted, too.

    Raises UserError if there is no such plan, and RetryableError if another executor works on it or took it over, or
    if a restore is not finished.
    """
    outcome = _run(table, engine, policies, request)
    if policies.deletes.retention_ms:
        delete_expired_tombstones(table)
    return outcome


def cost(table: LoadedTable, policies: Policies) -> ServiceCost:
    """Return the cost of a clean of the loaded table, even if it is not due.

    The benefit is the number of deleted files.
    """
    planned = plan(table, policies, ServiceRequest(force=True))
    if isinstance(planned, NothingToDo):
        return ServiceCost()
    return ServiceCost(files=len(planned.paths), benefit=len(planned.paths))


def _run(table: LoadedTable, engine: Engine, policies: Policies, request: ServiceRequest) -> Cleaned | NothingToDo:
    require_writable(table.config, table.env.storage.root)
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    pins = frozenset(request.pinned)
    if request.instant is not None:
        return _execute(table, engine, policies, pending_plan(table, Action.CLEAN, request.instant), pins)
    if not policies.transaction.eager:
        roll_back_expired_writes(table, policies.transaction)
        table = table.reload()
    outcome: Cleaned | NothingToDo | None = None
    for pending in plans_without_executor(table, policies.transaction, Action.CLEAN):
        outcome = _execute(table, engine, policies, pending, pins)
    planned = schedule(table, policies, request)
    if isinstance(planned, NothingToDo):
        return planned if outcome is None else outcome
    return _execute(table.reload(), engine, policies, planned, frozenset())


def _not_due(table: LoadedTable, policies: Policies, request: ServiceRequest) -> NothingToDo | None:
    answer = due(table, policies)
    return None if answer.due or request.force else NothingToDo(code=NothingToDoReason.NOT_DUE, reason=answer.reason)


def _written_to(table: LoadedTable, writes: Sequence[Instant]) -> tuple[str, ...]:
    """Return the sorted partitions in which the writes created files or replaced file groups."""
    partitions = set(pc.unique(table.store.files(writes)["partition"]).to_pylist())
    partitions |= {partition for _, metadata in table.store.summaries(writes) for partition in metadata.replaced}
    return tuple(sorted(partitions))


def _plan(table: LoadedTable, policies: Policies, pinned: Collection[str]) -> CleanPlan | None:
    """Return a new plan that keeps the files of published versions and `pinned` instants."""
    require_writable(table.config, table.env.storage.root)
    pins, published = frozenset(pinned), read_pins(table.env)
    all_pins = pins | published.names
    horizon = horizon_of(table.timeline, policies.clean, _since(table, policies.clean), _exported(table, policies))
    if horizon is None:
        return None
    visible = load_visible(table, completions=True)
    partitions: Sequence[str] | None = None
    if policies.clean.incremental:
        writes = touched_since(
            table.timeline, last_clean(table), horizon, all_pins, archived_before=visible.archived_before
        )
        partitions = None if writes is None else _written_to(table, writes)
    if partitions is not None and not partitions:
        return None

    def planned(*, on_storage: bool) -> CleanPlan | None:
        listing = known_files(table, partitions, on_storage=on_storage)
        files = supported_data_files(table, listing.files)
        changes = _change_logs(files)
        state = CleanState(
            timeline=table.timeline,
            visible=visible,
            groups=groups_of(table, files, visible).removable({(log.partition, log.file_id) for log in changes}),
            change_logs=changes,
            listed_paths=file_paths(files).to_pylist(),
            needed_from=_held(table),
            protected_paths=savepointed_paths(table) | _pinned(table, files, pins) | published.paths(table.env),
            pinned=all_pins,
        )
        new_plan = plan_clean(state, policies.clean, horizon)
        # The metadata table does not list files of pending writes, so storage decides whether a partition is empty.
        needs_listing = listing.from_metadata and new_plan is not None and bool(new_plan.partitions_to_delete)
        return planned(on_storage=True) if needs_listing else new_plan

    return planned(on_storage=False)


def _change_logs(files: pa.Table) -> list[LogFile]:
    logs = files.filter(pc.not_equal(files.column("suffix"), ""))
    return [file for file in file_objects(logs) if isinstance(file, LogFile)]


def stored_clean_plan(table: LoadedTable, pending: Instant) -> CleanPlan | None:
    """Return the plan of a pending clean; None if its file is empty because its writer crashed."""
    for state in (State.REQUESTED, State.INFLIGHT):
        data = table.store.read(pending, state)
        if data:
            return decode_clean_plan(data, base_path=table.env.storage.root)
    return None


def _check_plan(table: LoadedTable, requested: str, stored: CleanPlan) -> None:
    """Raise CorruptTableError if a plan contains other files than data files of this table."""
    source = f"the clean plan {requested}"
    check_partitions(table.env.storage, stored.partitions_to_delete, source)
    check_data_files(table.env.storage, stored.paths, source)


def _since(table: LoadedTable, policy: CleanPolicy) -> str:
    return table.store.time_text(table.env.clock.now_ms() - policy.hours_retained * _HOUR_MS)


def _exported(table: LoadedTable, policies: Policies) -> str | None:
    """Return the time from which on the declared views may lack writes; None without declared views."""
    return exported_before(table.env, policies.export.names) if policies.export.names else None


def _held(table: LoadedTable) -> dict[Group, str]:
    """Return the file groups of pending compactions, each with the base instant of the oldest needed slice."""
    held: dict[Group, str] = {}
    for instant in table.timeline.where(action={Action.COMPACTION, Action.LOGCOMPACTION}, pending=True):
        data = table.store.read(instant, State.REQUESTED)
        for operation in decode_compaction_plan(data).operations if data else ():
            group = (operation.partition, operation.file_id)
            held[group] = min(operation.base_instant, held.get(group, operation.base_instant))
    return held


def _pinned(table: LoadedTable, files: pa.Table, pins: frozenset[str]) -> frozenset[str]:
    paths: set[str] = set()
    for pin in pins:
        newest = groups_of(table, files, load_visible(table, as_of=pin)).latest()
        paths.update(file_paths(newest.files).to_pylist())
    return frozenset(paths)


def _sparing(table: LoadedTable, stored: CleanPlan, pins: frozenset[str]) -> CleanPlan:
    """Return an existing plan without the files that the pins keep."""
    if not pins:
        return stored
    pinned_paths = _pinned(table, supported_data_files(table, list_columns(table, stored.files)), pins)
    files = {partition: tuple(p for p in paths if p not in pinned_paths) for partition, paths in stored.files.items()}
    pinned = {*filter(None, stored.extra.get(PINS_KEY, "").split(",")), *pins}
    return replace(
        stored,
        files=files,
        partitions_to_delete=tuple(p for p in stored.partitions_to_delete if files.get(p) == stored.files.get(p)),
        extra={**stored.extra, PINS_KEY: ",".join(sorted(pinned))},
    )


def _execute(
    table: LoadedTable, engine: Engine, policies: Policies, pending: Instant, pins: frozenset[str]
) -> Cleaned | NothingToDo:
    stored = stored_clean_plan(table, pending)
    if stored is None:
        # The process that scheduled it crashed while it wrote the plan, so no file was deleted.
        with table_lock(table.env, policies.transaction) as lock:
            lock.check()
            table.store.remove_pending(pending)
        return NothingToDo(
            code=NothingToDoReason.PLAN_DROPPED, reason=f"the clean {pending.requested} had no plan and was dropped"
        )
    _check_plan(table, pending.requested, stored)
    started_ms = table.env.clock.now_ms()
    execution = CleanExecution(engine=engine, stored=stored, pins=pins, started_ms=started_ms)
    return execute_plan(table, policies, pending, execution)


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanWork:
    """The result of an executed plan.

    `empty` maps empty partitions to the paths of their partition metadata. `before` is the timeline before the listing
    that found them.
    """

    plan: CleanPlan
    before: Timeline
    empty: dict[str, list[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanExecution:
    """The execution of one clean plan on an engine. It creates no files; `stored` was read and checked before."""

    engine: Engine
    stored: CleanPlan
    pins: frozenset[str]
    started_ms: int
    writes_files: bool = False

    def start(self, table: LoadedTable, pending: Instant, _lock: TableLock) -> None:
        """Create the inflight file with the plan."""
        if pending.state is State.REQUESTED:
            # Hudi ignores an empty inflight file as never written, and Hudi 1.0 reads the plan from it.
            table.store.start(pending, encode_clean_plan(self.stored, base_path=table.env.storage.root))

    def load(self, claimed: ClaimedPlan) -> CleanPlan:
        """Return the plan without the files that the pins keep."""
        return _sparing(claimed.table, self.stored, self.pins)

    def partitions(self, plan: CleanPlan) -> Collection[str]:
        """Return no partitions, because a clean creates no files."""
        del plan
        return ()

    def execute(self, claimed: ClaimedPlan, plan: CleanPlan) -> CleanWork:
        """Delete the files of the plan, and find the partitions that are empty afterwards."""
        self._delete(claimed, plan)
        before = claimed.table.reload().timeline
        return CleanWork(plan=plan, before=before, empty=_empty_partitions(claimed.table, plan))

    def _delete(self, claimed: ClaimedPlan, plan: CleanPlan) -> None:
        table, paths, size = claimed.table, plan.paths, _BATCH
        if len(paths) < _BATCH * self.engine.parallelism:
            size = max(1, -(-len(paths) // self.engine.parallelism))
        batches = [paths[start : start + size] for start in range(0, len(paths), size)]
        with observed_stage(stage_of(table, "clean", "file", [0] * len(paths))) as running:
            for start in range(0, len(batches), _ROUND):
                if start:
                    # A stale executor must not continue, because a restore may need the files by now.
                    check_claim(table.env, claimed.instant.requested, claimed.claim)
                    still_pending(table.reload(), claimed.instant)
                tasks = batches[start : start + _ROUND]
                with running.tasks([0] * len(tasks), [len(task) for task in tasks]):
                    self.engine.run(partial(_delete_files, table.env.storage), tasks, light=True)

    def complete(
        self, claimed: ClaimedPlan, work: CleanWork, now: LoadedTable, lock: TableLock
    ) -> tuple[Cleaned, list[str]]:
        """Delete the empty partitions, and commit the clean."""
        env, plan, requested = now.env, work.plan, claimed.instant.requested
        current = still_pending(now, claimed.instant)
        lock.check()
        empty = work.empty if _no_write_since(work.before, now.timeline) else {}
        delete_data_files(env.storage, [path for paths in empty.values() for path in paths], "the clean plan")
        metadata = plan.metadata(requested, (env.clock.now_ms() - self.started_ms) / 1000, empty)
        removed = [name for name, cleaned in metadata.partitions.items() if cleaned.is_deleted]
        deleted = {name: cleaned.deleted for name, cleaned in metadata.partitions.items()}
        completion = Completion(
            instant=current,
            timeline=now.timeline,
            data=encode_clean_metadata(metadata),
            change=change_of_clean(deleted, removed),
        )
        completed = complete_action(now, completion, lock)
        logger.info("%s: cleaned %s, %d files", env.storage.root, requested, len(plan.paths))
        return Cleaned(instant=completed, metadata=metadata), []


def _delete_files(storage: Storage, _attempt: Attempt, paths: Sequence[str]) -> int:
    """Delete some files; missing ones are treated as deleted, because a task may run twice."""
    delete_data_files(storage, paths, "the clean plan")
    return len(paths)


def _empty_partitions(table: LoadedTable, stored: CleanPlan) -> dict[str, list[str]]:
    """Return the partitions of the plan that only contain partition metadata files, with the paths of these files."""
    candidates = [partition for partition in stored.partitions_to_delete if partition]
    with ThreadPoolExecutor(_LISTERS) as pool:
        listings = dict(zip(candidates, pool.map(table.env.storage.list_dir, candidates), strict=True))
    return {
        partition: [file.path for file in files]
        for partition, (files, directories) in listings.items()
        if not directories and all(is_partition_metadata(file.name) for file in files)
    }


def _no_write_since(before: Timeline, now: Timeline) -> bool:
    """Return whether no write is pending and none completed since `before`. Such a write may use an empty partition."""
    return not now.where(action=_MAY_WRITE, pending=True) and before.writes() == now.writes()
