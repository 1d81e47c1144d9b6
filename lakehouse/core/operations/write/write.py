"""Write rows or delete partitions in one commit: the entry of all write verbs (TL-7.1; DATA-7).

request   under the lock: choose the instant time, create <t>.requested; the heartbeat starts before the instant
write     staged strategy: stage, filter by tombstones, look up keys, write file groups   (write/staged.py)
          direct strategy: write new files                                                (files/base/bulk_writer.py)
complete  delete files of retried tasks; conflict check; create <t>_<completion>.<action> (commit/complete.py)
cleanup   delete staged rows, markers and heartbeat

An attempt that loses a conflict is retried with the rows that the first attempt staged. Attempts that lost stay
pending, with a heartbeat, until the write ends, because the staged rows belong to the first of them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.bulk_writer import write_shard
from lakehouse.core.files.stage.near_files import NearFiles
from lakehouse.core.format.file_names import instant_of
from lakehouse.core.format.timeline.commit_metadata import encode_requested_replace
from lakehouse.core.index.write_tasks import StagedRun
from lakehouse.core.operations.commit.cleanup import (
    WriteMarkers,
    clean_up,
    delete_unreported,
    markers_of_single_tries,
)
from lakehouse.core.operations.commit.complete import (
    CommitCheck,
    FileGroupCheck,
    PreparedCommit,
    complete_commit,
    precondition_check,
)
from lakehouse.core.operations.commit.completion import needs_rebuild, rebuild_dropped
from lakehouse.core.operations.commit.index_staging import IndexStaging
from lakehouse.core.operations.commit.results import DROPPED_KEY, Committed, Conflict, NothingToDo
from lakehouse.core.operations.load.commits import KeyScope, writes_since
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.schema_history import ids_of_write
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.by_files import KeyCheck
from lakehouse.core.operations.placement.protocol import PreparedWrite, WriteRequest, WrittenRows
from lakehouse.core.operations.read.event_time import event_time_extra
from lakehouse.core.operations.write.attempt import AbandonReason, WriteAttempt, WriterPriority, abandon, start_writing
from lakehouse.core.operations.write.ended_writes import EndedWrites
from lakehouse.core.operations.write.insert_duplicates import insert_duplicates, unique_rows
from lakehouse.core.operations.write.prepare import commit_extra, prepare, shared_columns
from lakehouse.core.operations.write.slice_order import SliceOrderCheck
from lakehouse.core.operations.write.staged import stage, write_staged
from lakehouse.core.operations.write.tombstones import AppliedDeletes, RememberedDeletes, remembered_deletes
from lakehouse.core.planning.conflict import CONFLICTS_KEY, write_summary
from lakehouse.core.planning.spread_history import SPREAD_KEY
from lakehouse.core.state.file_system_view import Group
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.file_deletions import LOG_INFIX
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UnsupportedError
from lakehouse.model.commit import REWRITES, CommitMetadata, Operation, WriteStat
from lakehouse.model.instant import Action, Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.write import InsertDuplicates

logger = logging.getLogger(__name__)

_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_STAGED = {Operation.UPSERT, Operation.INSERT, Operation.DELETE}


def write(
    table: LoadedTable, engine: Engine, policies: Policies, request: WriteRequest
) -> Committed | NothingToDo | Conflict:
    """Run one write from request to commit; a write that fails is rolled back before the error is raised.

    After a conflict the write is planned and written again, up to `hoodie.write.num.retries.on.conflict.failures`
    times. With a single writer this is done only if a table service such as clustering committed first.

    Raises:
        RetryableError: Another writer is active where only one is allowed, or another process considered this write
            expired and rolled it back; the message names the instant.
        CommitStateUnknownError: It is unknown whether the commit happened; nothing was deleted.
    """
    ended = EndedWrites(table, policies.transaction)
    table = _with_ordering_property(ended.prepare(table), policies)
    if needs_rebuild(table):
        rebuild_dropped(table, policies.transaction)
        table = table.refresh()
    if request.operation is not Operation.DELETE:
        request = replace(request, frame=request.cut_times.watch(request.frame))
    if isinstance(engine, LocalEngine):
        request = replace(request, near=NearFiles(table.env.storage, policies.write.memory_budget_bytes))
    allowed = policies.transaction.conflict_retries + 1
    lost: list[WriteAttempt] = []
    staged: list[StagedRun] = []
    priority, took_ms = WriterPriority(table.env, policies.transaction), 0
    try:
        while True:
            priority.wait(len(lost), took_ms)
            table = table.reload() if lost else table
            began_ms = table.env.clock.now_ms()
            attempt = _request(table, engine, policies, request, lost)
            attempt = replace(attempt, staged=staged, ended=ended)
            outcome = _run(attempt)
            if isinstance(outcome, Committed):
                return replace(outcome, conflicts=len(lost))
            if not isinstance(outcome, Conflict):
                return outcome
            lost.append(attempt)
            logger.info("%s: %s lost: %s", table.env.storage.root, attempt.instant.requested, outcome.reason)
            # A frame that was not staged may return other rows when it is read again.
            repeats = staged or request.frame is None or engine.repeats(request.frame)
            retried = policies.transaction.many_writers or _is_service(table, outcome.winner)
            if outcome.final or len(lost) == allowed or not repeats or not retried:
                return replace(outcome, tries=len(lost))
            took_ms = table.env.clock.now_ms() - began_ms
            priority.request(len(lost), took_ms)
            table.env.clock.sleep(_pause_seconds(table, len(lost)))
    except NotFoundError as error:
        directories = tuple(f".hoodie/.staging/{attempt.instant.requested}/" for attempt in lost)
        if not error.path.startswith(directories):
            raise
        first = lost[0].instant.requested
        raise RetryableError(
            f"{table.env.storage.root}: {first} expired while it was tried again, and another process deleted its "
            "staged rows; run the operation again",
            instant=first,
        ) from error
    finally:
        priority.release()
        for attempt in reversed(lost):
            abandon(attempt, AbandonReason.CONFLICT)


def _with_ordering_property(table: LoadedTable, policies: Policies) -> LoadedTable:
    """Return the table, with its ordering column stored under the name that releases with its version read.

    Hudi 1.2 stores another name in tables of version 6, and Hudi 0.15 then lets every later row win (V6-11.8).
    """
    config, root = table.config, table.env.storage.root
    name = config.layout.ordering_property
    if config.layout.has_merge_modes or not config.ordering_fields or config.raw.get(name):
        return table
    require_writable(config, root)
    if len(config.ordering_fields) > 1:
        raise UnsupportedError(
            f"{root}: releases that read tables of version {config.version} order versions by one column, and the "
            f"table declares {', '.join(config.ordering_fields)}; write it with Apache Hudi 1.x"
        )
    with table_lock(table.env, policies.transaction) as lock:
        lock.check()
        update_properties(table.env, {name: config.ordering_fields[0]})
    logger.info("%s: stored %s=%s, which Hudi 0.15 reads", root, name, config.ordering_fields[0])
    return table.refresh()


def _is_service(table: LoadedTable, winner: Instant) -> bool:
    """Return whether the conflict is with a table service: its commit rewrote file groups, or its plan was undone."""
    current = table.reload().timeline.find(winner.requested)
    if current is None:
        return winner.action in (Action.CLUSTERING, Action.COMPACTION)
    if winner.action in (Action.COMPACTION, Action.ROLLBACK):
        return True
    return current.is_completed and table.store.commit(current).operation in REWRITES


def _pause_seconds(table: LoadedTable, lost: int) -> float:
    """Return a random pause that grows with each lost conflict, so that writers do not retry at the same time."""
    share = int(table.env.ids.uuid().replace("-", "")[:4], 16) / 0xFFFF
    return float(min(_PAUSE_S * 2**lost, _LONGEST_PAUSE_S) * (0.5 + share / 2))


def _request(
    table: LoadedTable, engine: Engine, policies: Policies, request: WriteRequest, lost: Sequence[WriteAttempt]
) -> WriteAttempt:
    """Prepare an attempt and create its instant; `lost` are the earlier attempts, which are still pending."""
    prepared = prepare(table, engine, policies, request)
    heartbeat = Heartbeat(table.env, policies.transaction)
    try:
        own = frozenset(attempt.instant.requested for attempt in lost)
        write, instant = _create_instant(prepared, heartbeat, own)
    except BaseException:
        heartbeat.discard()
        raise
    return WriteAttempt(
        write=write.at(instant.requested),
        instant=instant,
        heartbeat=heartbeat,
        markers=WriteMarkers(write.table, instant.requested, policies.write),
        staged=[],
        lost=len(lost),
    )


def _create_instant(write: PreparedWrite, heartbeat: Heartbeat, own: Collection[str]) -> tuple[PreparedWrite, Instant]:
    """Create the requested file under the lock. If a relevant timeline change occurred, prepare the write again.

    `own` are the requested times of earlier attempts.
    """
    policies, request = write.policies, write.request
    with table_lock(write.table.env, policies.transaction) as lock:
        table = write.table.reload()
        pending = pending_writes(table) if policies.transaction.eager else ()
        rivals = [instant for instant in pending if instant.requested not in own]
        if rivals:
            raise RetryableError(
                f"{table.env.storage.root}: another writer began {rivals[0].requested} at the same time; try again "
                "when it is done",
                instant=rivals[0].requested,
            )
        write = _current(write, table)

        # The heartbeat must exist before the instant; otherwise another process would consider the write expired.
        def announce(requested: str) -> None:
            heartbeat.start(requested)
            # Two processes that both believe to hold the lock may choose the same time, with different actions.
            lock.check_lease()

        data = encode_requested_replace() if request.replaces else b""
        try:
            instant = table.store.request(table.timeline, _action(table, request), data, announce=announce)
        except BaseException:
            # Discard under the lock, because after its release another write may use the same time and heartbeat.
            heartbeat.discard()
            raise
        try:
            lock.finish()
        except LakehouseError:
            # The lock was lost, so another write may use the same time: its heartbeat must stay. Ours expires.
            heartbeat.stop()
            table.store.remove_pending(instant)
            raise
    return write, instant


def _current(write: PreparedWrite, table: LoadedTable) -> PreparedWrite:
    """Return the write for the reloaded table; call under the lock.

    With several writers, new commits are ignored: preparing takes long while all writers wait for the lock, and the
    conflict check before the commit covers these commits. Two changes cannot be ignored:

    - A write was undone: this write must not be based on it.
    - A clean was requested: it may have removed a slice that this write would read. From our instant on, cleans keep
      the slices that this write may read.
    """
    before = write.table
    writes = {instant.requested for instant in table.timeline.writes()}
    is_stale = any(instant.requested not in writes for instant in before.timeline.writes())
    cleans = {clean.requested for clean in before.timeline.where(action=Action.CLEAN)}
    is_stale = is_stale or any(c.requested not in cleans for c in table.timeline.where(action=Action.CLEAN))
    if write.policies.transaction.many_writers and not is_stale:
        return write
    if is_stale or writes_since(table, before.timeline, table.timeline):
        return prepare(table, write.engine, write.policies, write.request)
    return replace(write, table=table)


def _action(table: LoadedTable, request: WriteRequest) -> Action:
    if request.replaces:
        return Action.REPLACECOMMIT
    return Action.DELTACOMMIT if table.config.is_merge_on_read else Action.COMMIT


def _run(attempt: WriteAttempt) -> Committed | NothingToDo | Conflict:
    """Write and commit. The attempt is abandoned unless it was committed or ended with a conflict."""
    try:
        outcome = _write(attempt)
    except CommitStateUnknownError:
        attempt.heartbeat.stop()
        raise
    except BaseException as error:
        rolled_back = abandon(attempt, AbandonReason.FAILED)
        if rolled_back and isinstance(error, Exception) and not isinstance(error, RetryableError):
            # Another process's rollback deleted files that this write uses. The resulting error is replaced by a
            # retryable one.
            raise RetryableError(
                f"{attempt.table.env.storage.root}: {attempt.instant.requested} expired and was rolled back by another "
                "writer; run the operation again",
                instant=attempt.instant.requested,
            ) from error
        raise
    if isinstance(outcome, NothingToDo):
        abandon(attempt, AbandonReason.NOTHING_TO_DO)
    elif isinstance(outcome, Conflict):
        if attempt.write.detects_early:
            attempt.markers.give_up()
    else:
        _clean_up_committed(attempt, outcome)
    return outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """The rows that a strategy has written, with the deletes that it applied; `attempt` is the attempt as it ended.

    `duplicates` is the number of rows that an insert dropped because their key existed already.
    """

    attempt: WriteAttempt
    rows: WrittenRows = field(default_factory=WrittenRows)
    applied: AppliedDeletes = field(default_factory=AppliedDeletes)
    duplicates: int = 0


def _write(attempt: WriteAttempt) -> Committed | NothingToDo | Conflict:
    write, request, table = attempt.write, attempt.write.request, attempt.table
    deletes = remembered_deletes(write) if write.policies.deletes.retention_ms else None
    written = _write_rows(attempt, deletes)
    if not isinstance(written, _Written):
        return written
    attempt, stats, applied = written.attempt, written.rows.stats, written.applied
    replaced = _replaced_groups(table, request, stats) if request.replaces else {}
    if not stats and not replaced and not request.allow_empty and not applied.files:
        return NothingToDo(
            code=NothingToDoReason.NO_CHANGES, reason="the batch has no rows and there is nothing to replace"
        )
    if request.replaces:
        write.placement.renew(write, {*replaced, *(stat.partition for stat in stats)})
    metadata = _commit_metadata(attempt, written.rows, replaced)
    if written.duplicates:
        metadata = replace(metadata, extra={**metadata.extra, DROPPED_KEY: str(written.duplicates)})
    if deletes is not None:
        metadata = replace(metadata, extra={**metadata.extra, **deletes.extra(applied, metadata)})
    markers = attempt.markers
    requested = attempt.instant.requested
    runs_once = isinstance(write.engine, LocalEngine) and write.engine.runs_once
    if runs_once and not write.policies.write.marks_each_file:
        markers.left = markers_of_single_tries(requested, metadata.stats, markers.known)
    else:
        markers.left = delete_unreported(table, requested, metadata.stats, created=markers.known)
    checks = _checks(written, metadata, deletes)
    return complete_commit(_prepared_commit(attempt, metadata, checks), write.policies.transaction)


def _write_rows(attempt: WriteAttempt, deletes: RememberedDeletes | None) -> _Written | NothingToDo | Conflict:
    """Write the rows by the strategy of the request."""
    request = attempt.write.request
    if request.operation is Operation.DELETE_PARTITION:
        start_writing(attempt, ())
        return _Written(attempt=attempt)
    if not _is_staged(attempt.write):
        return _Written(attempt=attempt, rows=WrittenRows(stats=_write_direct(attempt)))
    stage(attempt)
    unique = unique_rows(attempt.write, attempt.staged, request.incoming[0])
    applied = AppliedDeletes(runs=unique.runs) if deletes is None else deletes.applied(unique.runs)
    context = attempt.write.context.with_incoming(ordered_deletes=applied.are_ordered)
    attempt = replace(attempt, write=replace(attempt.write, context=context))
    outcome = write_staged(attempt, applied.runs)
    if isinstance(outcome, WrittenRows):
        return _Written(attempt=attempt, rows=outcome, applied=applied, duplicates=unique.dropped)
    if isinstance(outcome, Conflict):
        return outcome
    if request.allow_empty or request.operation is Operation.INSERT_OVERWRITE_TABLE or applied.files:
        start_writing(attempt, ())
        return _Written(attempt=attempt, applied=applied, duplicates=unique.dropped)
    if unique.dropped and not applied.late:
        return _only_duplicates(unique.dropped)
    return outcome if not applied.late else _only_late_rows(applied.late)


def _write_direct(attempt: WriteAttempt) -> list[WriteStat]:
    """Write all rows to new file groups without staging them, and return the stats of their files (bulk_insert).

    The driver does not know the file names before the tasks run, so each task creates the markers of its files.
    """
    write = attempt.write
    start_writing(attempt, (), attempt.markers.requests())
    by, least = write.context.keys.partition_fields, write.policies.spread.min_bytes
    task = partial(write_shard, write.context)
    return write.engine.exchange(write.request.frame, task, by=by, hint="balanced", least_bytes=least)


def _only_duplicates(rows: int) -> NothingToDo:
    return NothingToDo(
        code=NothingToDoReason.NO_CHANGES,
        reason=f"{rows} rows were dropped, because the table contains all keys of the batch",
        duplicates_dropped=rows,
    )


def _only_late_rows(rows: int) -> NothingToDo:
    return NothingToDo(
        code=NothingToDoReason.NO_CHANGES,
        reason=f"all {rows} rows that would change something are older than a delete of their key",
        late_rows_dropped=rows,
    )


def _commit_metadata(
    attempt: WriteAttempt, written: WrittenRows, replaced: Mapping[str, tuple[str, ...]]
) -> CommitMetadata:
    write, request, stats = attempt.write, attempt.write.request, written.stats
    rows = sum(run.rows for run in attempt.staged) if attempt.staged else sum(stat.num_writes for stat in stats)
    extra = commit_extra(write, stats, rows, request.cut_times.drift(write.context.schema))
    event_times = {}
    if write.policies.event_time.column:
        event_times = event_time_extra(write.table, write.policies.event_time, stats)
    return CommitMetadata(
        operation=request.operation.value,
        stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
        replaced=replaced,
        extra={
            **request.extra,
            **extra,
            **event_times,
            **_spread_extra(attempt, written),
            **({CONFLICTS_KEY: str(attempt.lost)} if attempt.lost else {}),
        },
    )


def _spread_extra(attempt: WriteAttempt, written: WrittenRows) -> dict[str, str]:
    """Return the extra metadata from which later writes learn the large values of the spread column."""
    history = attempt.write.spread
    if history is None:
        return {}
    rows: Counter[str] = Counter()
    for run in attempt.staged:
        rows.update(dict(run.values))
    small = attempt.write.context.policy.small_file_bytes
    return {SPREAD_KEY: history.after(rows, written.owners, written.stats, small).to_json()}


def _checks(written: _Written, metadata: CommitMetadata, deletes: RememberedDeletes | None) -> tuple[CommitCheck, ...]:
    """Return the checks whether the write may commit after other writes, cheapest first."""
    write, applied = written.attempt.write, written.applied
    shared, precondition = shared_columns(write), write.request.precondition
    policy = insert_duplicates(write.policies.write, write.request.operation)
    # Another writer may have inserted keys after a delete looked them up, so all keys of a delete are compared.
    compared = written.attempt.staged if write.request.operation is Operation.DELETE else applied.runs
    rows = replace(written.rows, runs=applied.runs, compared=compared, records_deletes=deletes is not None)
    groups = FileGroupCheck(
        table=write.table,
        instant=written.attempt.instant.requested,
        ours=write_summary(metadata, touched=rows.touched, shared_columns=shared),
        strategy=write.strategy,
        shared_columns=shared,
        updates=write.policies.clustering.updates,
        copied={resize.instant: resize.partitions for resize in rows.resizes},
    )
    return (
        *(() if precondition is None else (precondition_check(write.table, precondition),)),
        groups,
        *_order_checks(written, metadata),
        *write.placement.conflicts(write, rows),
        *((KeyCheck.of(write, rows),) if policy is not InsertDuplicates.NONE else ()),
        *(() if deletes is None else deletes.conflicts(applied.runs)),
    )


def _order_checks(written: _Written, metadata: CommitMetadata) -> tuple[CommitCheck, ...]:
    """Return the check that writes of one file group are in order, for tables that need it."""
    if not written.attempt.table.config.names_logs_by_slice:
        return ()
    named: dict[Group, str | None] = {}
    for stat in metadata.stats:
        is_log = LOG_INFIX in stat.path
        named[(stat.partition, stat.file_id)] = instant_of(stat.path.rpartition("/")[2]) if is_log else None
    return (SliceOrderCheck.of(written.attempt, named),)


def _prepared_commit(
    attempt: WriteAttempt, metadata: CommitMetadata, checks: tuple[CommitCheck, ...]
) -> PreparedCommit:
    write, precondition = attempt.write, attempt.write.request.precondition
    looks_up, scope = _looks_up_keys(write), write.key_scope
    staging = IndexStaging(
        table=write.table,
        engine=write.engine,
        policies=write.policies,
        instant=attempt.instant,
        is_shared=write.non_blocking,
        inserts=not looks_up,
        scope=scope,
    )
    return PreparedCommit(
        table=write.table,
        instant=attempt.instant,
        metadata=metadata,
        checks=checks,
        confirm=None if precondition is None else precondition.confirm,
        staging=staging,
        key_scope=scope if looks_up else KeyScope.NONE,
        history=None
        if write.history is None
        else ids_of_write(write.history, write.context.schema, attempt.instant.requested),
    )


def _looks_up_keys(write: PreparedWrite) -> bool:
    """Return whether the write adds only keys that it looked up before, or generated."""
    policy = insert_duplicates(write.policies.write, write.request.operation)
    generates = write.table.config.keys.generates_keys
    return write.request.looks_up_keys or policy is not InsertDuplicates.NONE or generates


def _replaced_groups(
    table: LoadedTable, request: WriteRequest, stats: Sequence[WriteStat]
) -> Mapping[str, tuple[str, ...]]:
    """Return the file groups that the commit replaces, by partition.

    These are all groups in the written partitions, in the requested partitions, or in the table.
    """
    partitions: Sequence[str] | None = sorted({stat.partition for stat in stats})
    if request.operation is Operation.DELETE_PARTITION:
        partitions = request.partitions
    if request.operation is Operation.INSERT_OVERWRITE_TABLE:
        partitions = None
    replaced: dict[str, list[str]] = {}
    slices = load_slices(table, partitions)
    for partition, file_id in zip(slices.partitions.to_pylist(), slices.file_ids.to_pylist(), strict=True):
        replaced.setdefault(partition, []).append(file_id)
    return {partition: tuple(file_ids) for partition, file_ids in replaced.items()}


def _is_staged(write: PreparedWrite) -> bool:
    """Return whether the rows are staged before they are written."""
    request, engine = write.request, write.engine
    if request.operation is Operation.DELETE_PARTITION:
        return False
    # An overwrite with several writers may be retried, and the retry must write the same rows.
    pins = write.policies.transaction.many_writers and request.replaces and not engine.repeats(request.frame)
    if pins or request.operation in _STAGED or write.context.incoming.combine:
        return True
    # Rows are staged by bucket, and rows with large values separately.
    return write.placement.fixes_groups or write.spread is not None


def _stages_in_storage(write: PreparedWrite) -> bool:
    """Return whether storage may contain staged rows of the write."""
    return _is_staged(write) and (write.request.near is None or write.request.near.spills)


def _clean_up_committed(attempt: WriteAttempt, outcome: Committed) -> None:
    """Delete the files that a committed attempt no longer needs.

    An error is logged, not raised, because the commit is already valid; the next write cleans up the rest.
    """
    attempt.heartbeat.stop()
    table, requested = attempt.table, outcome.instant.requested
    try:
        clean_up(table, requested, markers=attempt.markers.left, staged=_stages_in_storage(attempt.write))
        if attempt.ended is not None:
            attempt.ended.finish(table)
    except LakehouseError as error:
        logger.warning("%s: %s was not cleaned up yet: %s", table.env.storage.root, requested, error)
        attempt.heartbeat.discard()
