"""Writing: the one walk of all verbs that bring or remove rows (TL-7.1; DATA-7).

request   under the lock: instant time, <t>.requested; heartbeat from just before
stage     incoming rows, keyed and combined, to where all tasks can read them        (bulk verbs: straight to files)
inflight  what the write is about to touch
filter    rows that are older than a remembered delete are left out              (operations.tombstones)
tag       which stored rows they hit          plan   which group takes what
write     marker, then file, per group
complete  duplicates of retried tasks deleted; who else committed since, then <t>_<c>.<action>     (operations.commit)
tidy      staged rows, markers, heartbeat
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.bulk_writer import write_shard
from lakehouse.core.files.file_group_writer import write_group
from lakehouse.core.files.key_lookup import tag_files
from lakehouse.core.files.log_reader import OPERATION, SliceContext
from lakehouse.core.files.log_writer import append_group
from lakehouse.core.files.markers import group_markers, read_markers
from lakehouse.core.files.slice_key_lookup import tag_slices
from lakehouse.core.files.staging import stage_shard
from lakehouse.core.files.write_context import WriteContext
from lakehouse.core.format.timeline.commit_metadata import encode_inflight, encode_requested_replace
from lakehouse.core.index.bucket import bucket_of
from lakehouse.core.index.protocol import Index, IndexSetup
from lakehouse.core.index.registry import create_index
from lakehouse.core.index.write_tasks import GroupTask, Sizing, StagedRun, TagResult, TagTask
from lakehouse.core.operations.commit.cleanup import (
    clean_up,
    delete_files,
    delete_unreported,
    find_rollback,
    marked_files,
)
from lakehouse.core.operations.commit.clustering_conflicts import groups_closed_by_clustering
from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.markers import WriteMarkers
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.pending import pending_clustering, pending_writes
from lakehouse.core.operations.load.slices import load_listing, load_slices, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import check_listing
from lakehouse.core.operations.read.event_time import event_time_extra
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.undo.rollback import roll_back, roll_back_failed_writes
from lakehouse.core.operations.write.early_conflict import AnnouncedWrite, early_conflict, uses_early_detection
from lakehouse.core.operations.write.prepare import Prepared, prepare, profile_stats
from lakehouse.core.operations.write.tombstones import AppliedDeletes, remembered_deletes
from lakehouse.core.operations.write.writer_priority import WriterPriority
from lakehouse.core.rows.record_merge import DELETED_COLUMN
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.drift import BatchColumns
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.instant import Action, Instant
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

_REPLACING = {Operation.INSERT_OVERWRITE, Operation.INSERT_OVERWRITE_TABLE, Operation.DELETE_PARTITION}
# Bytes that a task appends in some 0.1 s.
_LIGHT_BYTES = 4 * 1024 * 1024
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 5.0
_STAGED = {Operation.UPSERT, Operation.INSERT, Operation.DELETE}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """One write as the caller asks for it.

    Attributes:
        operation: The kind of write.
        frame: Rows, in a type that the engine accepts; None for DELETE_PARTITION.
        partitions: The partitions to delete, for DELETE_PARTITION.
        extra: Extra metadata of the commit.
        allow_empty: Commit even if no row changes.
        precondition: What must still hold at the commit; otherwise the write ends with a Conflict.
        columns: Which columns the source provided, if rows differ in that.
    """

    operation: Operation
    frame: Any = None
    partitions: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    allow_empty: bool = False
    precondition: Precondition | None = None
    columns: BatchColumns | None = None


def write(
    table: LoadedTable, engine: Engine, policies: Policies, request: WriteRequest
) -> Committed | NothingToDo | Conflict:
    """Run one write from request to commit; a write that fails is rolled back before the error is passed on.

    One of many writers that lost to another plans anew and tries again, with the rows it staged at first.
    Raises RetryableError naming the instant if another writer is at work or took this one for dead,
    CommitStateUnknownError if it cannot be known whether the commit happened; then nothing is deleted.
    """
    if policies.transaction.eager:
        table = roll_back_failed_writes(table, policies.transaction)
    tries = policies.transaction.conflict_retries + 1 if policies.transaction.many_writers else 1
    # Lost tries stay as they are, alive, until the end: the rows staged by the first are those of all.
    lost: list[tuple[Instant, Heartbeat]] = []
    runs: list[StagedRun] = []
    turn, took_ms = WriterPriority(table.env, policies.transaction), 0
    try:
        while True:
            turn.wait(len(lost), took_ms)
            table = table.reload() if lost else table
            began_ms = table.env.clock.now_ms()
            outcome, instant, heartbeat = _try(table, engine, policies, request, runs)
            if isinstance(outcome, Committed):
                return replace(outcome, conflicts=len(lost))
            if not isinstance(outcome, Conflict):
                return outcome
            lost.append((instant, heartbeat))
            logger.info("%s: %s lost: %s", table.env.storage.root, instant.requested, outcome.reason)
            # Rows that were not staged may be others when they are asked for again.
            repeats = runs or request.frame is None or engine.repeats(request.frame)
            if outcome.final or len(lost) == tries or not repeats:
                return replace(outcome, tries=len(lost))
            took_ms = table.env.clock.now_ms() - began_ms
            turn.ask(len(lost), took_ms)
            table.env.clock.sleep(_pause_seconds(table, len(lost)))
    except NotFoundError as error:
        staged = tuple(f".hoodie/.staging/{instant.requested}/" for instant, _ in lost)
        if not error.path.startswith(staged):
            raise
        raise RetryableError(
            f"{table.env.storage.root}: {lost[0][0].requested} was taken for dead while it was tried again, and the "
            "rows it had staged are gone; run the operation again",
            instant=lost[0][0].requested,
        ) from error
    finally:
        turn.end()
        for instant, heartbeat in reversed(lost):
            _abandon(table, policies, instant, heartbeat)


def _pause_seconds(table: LoadedTable, lost: int) -> float:
    """Return a time that grows with every loss and differs from writer to writer, so that not all return at once."""
    share = int(table.env.ids.uuid().replace("-", "")[:4], 16) / 0xFFFF
    return float(min(_PAUSE_S * 2**lost, _LONGEST_PAUSE_S) * (0.5 + share / 2))


def _try(
    table: LoadedTable, engine: Engine, policies: Policies, request: WriteRequest, runs: list[StagedRun]
) -> tuple[Committed | NothingToDo | Conflict, Instant, Heartbeat]:
    """Write once; `runs` are the staged rows, filled if there are none yet. After a conflict the caller tidies up."""
    prepared = prepare(table, engine, policies, request.operation, request.frame, request.columns)
    heartbeat = Heartbeat(table.env, policies.transaction)
    try:
        prepared, instant = _request(prepared, engine, policies, request, heartbeat)
    except BaseException:
        heartbeat.discard()
        raise
    table = prepared.table
    markers = WriteMarkers(table, instant.requested, policies.write)
    try:
        outcome = _write(table, engine, policies, request, prepared, instant, markers, runs)
    except CommitStateUnknownError:
        heartbeat.stop()
        raise
    except BaseException as error:
        taken = _abandon(table, policies, instant, heartbeat)
        if taken and isinstance(error, Exception) and not isinstance(error, RetryableError):
            # Files vanish under a write that is being rolled back, and what then fails is not the caller's fault.
            raise RetryableError(
                f"{table.env.storage.root}: {instant.requested} was taken for dead and rolled back by another writer; "
                "run the operation again",
                instant=instant.requested,
            ) from error
        raise
    if isinstance(outcome, NothingToDo):
        _abandon(table, policies, instant, heartbeat)
    elif isinstance(outcome, Conflict):
        if uses_early_detection(policies.transaction, prepared):
            markers.give_up()
    else:
        staged = _is_staged(policies, engine, request, prepared.template)
        _tidy(prepared, outcome, heartbeat, markers=markers.left, staged=staged)
    return outcome, instant, heartbeat


def _request(
    prepared: Prepared, engine: Engine, policies: Policies, request: WriteRequest, heartbeat: Heartbeat
) -> tuple[Prepared, Instant]:
    """Create the instant; what others committed since `prepared` was made is taken into account first."""
    before = prepared.table
    with table_lock(before.env, policies.transaction) as lock:
        table = before.reload()
        rivals = pending_writes(table) if policies.transaction.eager else ()
        if rivals:
            raise RetryableError(
                f"{table.env.storage.root}: another writer began {rivals[0].requested} at the same moment; try again "
                "when it is done",
                instant=rivals[0].requested,
            )
        # Of many writers somebody commits at any moment. They would all wait for us here, and the check before the
        # commit sees what was completed since.
        # What was undone since is another matter: nobody may build on it, and nobody undoes it under a pending write.
        known = {instant.requested for instant in table.timeline.writes()}
        gone = any(instant.requested not in known for instant in before.timeline.writes())
        # So is a clean: of a group that was compacted since, it may have removed the slice that was to be found, and
        # the next one was not known yet. From the instant on it spares what this write may read.
        cleans = {clean.requested for clean in before.timeline.where(action=Action.CLEAN)}
        gone = gone or any(c.requested not in cleans for c in table.timeline.where(action=Action.CLEAN))
        if gone or not policies.transaction.many_writers:
            if gone or writes_since(table, before.timeline, table.timeline):
                prepared = prepare(table, engine, policies, request.operation, request.frame, request.columns)
                table = prepared.table
            prepared = replace(prepared, table=table)

        # The heartbeat is there before the instant: nobody may take a write that has just begun for a dead one.
        def announce(requested: str) -> None:
            heartbeat.start(requested)
            # Two that both believe to have the lock may draw one time, and files of two actions do not collide.
            lock.check()

        action = _action(table, request.operation)
        data = encode_requested_replace() if request.operation in _REPLACING else b""
        try:
            instant = table.store.request(table.timeline, action, data, announce=announce)
        except BaseException:
            # Under the lock: afterwards the time, and a heartbeat of that name, may be those of another write.
            heartbeat.discard()
            raise
    return prepared, instant


def _action(table: LoadedTable, operation: Operation) -> Action:
    if operation in _REPLACING:
        return Action.REPLACECOMMIT
    return Action.DELTACOMMIT if table.config.is_merge_on_read else Action.COMMIT


def _write(
    table: LoadedTable,
    engine: Engine,
    policies: Policies,
    request: WriteRequest,
    prepared: Prepared,
    instant: Instant,
    markers: WriteMarkers,
    runs: list[StagedRun],
) -> Committed | NothingToDo | Conflict:
    context = prepared.context(instant.requested)
    replaces = request.operation in _REPLACING
    stats: list[WriteStat] = []
    touched: frozenset[tuple[str, str]] = frozenset()
    deletes = remembered_deletes(table, engine, policies.deletes, context, request.operation)
    applied = AppliedDeletes()
    if request.operation is Operation.DELETE_PARTITION:
        _start(table, instant, request.operation, ())
    elif _is_staged(policies, engine, request, context):
        if not runs:
            runs += engine.exchange(request.frame, partial(stage_shard, context), by=prepared.shard_by, hint="exact")
        if any(run.buckets != context.buckets for run in runs):
            raise RetryableError(
                f"{table.env.storage.root}: the buckets of partitions changed while this write was tried; run it again"
            )
        applied = AppliedDeletes(runs=runs) if deletes is None else deletes.applied(runs)
        prepared = replace(prepared, template=replace(prepared.template, ordered_deletes=applied.are_ordered))
        outcome = _write_staged(engine, policies, prepared, request, instant, markers, applied.runs)
        if isinstance(outcome, Conflict):
            return outcome
        empties = request.allow_empty or request.operation is Operation.INSERT_OVERWRITE_TABLE or bool(applied.files)
        if isinstance(outcome, NothingToDo) and not empties:
            return outcome if not applied.late else _only_late(applied.late)
        if isinstance(outcome, NothingToDo):
            _start(table, instant, request.operation, ())
        else:
            stats, touched = outcome
    else:
        _start(table, instant, request.operation, ())
        markers.begin()
        stats = engine.exchange(request.frame, partial(write_shard, context), by=prepared.partition_by, hint="balanced")
    replaced = _replaced(table, request, stats) if replaces else {}
    if not stats and not replaced and not request.allow_empty and not applied.files:
        return NothingToDo(reason="the batch has no rows and there is nothing to replace")
    rows = sum(run.rows for run in runs) if runs else sum(stat.num_writes for stat in stats)
    metadata = CommitMetadata(
        operation=request.operation.value,
        stats=tuple(sorted(stats, key=lambda s: (s.partition, s.file_id))),
        replaced=replaced,
        extra={**request.extra, **prepared.extra(stats, rows), **event_time_extra(table, policies.event_time, stats)},
    )
    if deletes is not None:
        metadata = replace(metadata, extra={**metadata.extra, **deletes.extra(applied, metadata)})
    markers.left = delete_unreported(table, instant.requested, metadata.stats, known=markers.known)
    # Keys that a delete did not find may have been inserted since.
    compared = runs if request.operation is Operation.DELETE else applied.runs
    candidate = _candidate(engine, prepared, request, instant, metadata, touched, compared)
    if deletes is not None:
        unmet = _unmet(applied.runs, touched) if context.buckets is not None else frozenset[tuple[str, int]]()
        candidate = replace(candidate, makes_late=partial(deletes.makes_late, applied.runs), unmet=unmet)
    return complete_commit(candidate, policies.transaction)


def _candidate(
    engine: Engine,
    prepared: Prepared,
    request: WriteRequest,
    instant: Instant,
    metadata: CommitMetadata,
    touched: frozenset[tuple[str, str]],
    runs: Sequence[StagedRun],
) -> PreparedCommit:
    context = prepared.context(instant.requested)
    return PreparedCommit(
        table=prepared.table,
        instant=instant,
        metadata=metadata,
        touched=touched,
        strategy=prepared.strategy,
        shared_columns=prepared.shared_columns,
        precondition=request.precondition,
        updates=prepared.updates,
        global_keys=context.global_keys,
        # Where the index finds no keys a key may be twice anyhow; buckets are compared as such.
        finds_keys=partial(_find_keys, engine, context, runs)
        if request.operation in (Operation.UPSERT, Operation.DELETE) and context.buckets is None
        else None,
        deleted_in=frozenset(e.partition for run in runs for e in run.entries if e.deletes or context.deletes_only),
    )


def _write_staged(
    engine: Engine,
    policies: Policies,
    prepared: Prepared,
    request: WriteRequest,
    instant: Instant,
    markers: WriteMarkers,
    runs: Sequence[StagedRun],
) -> tuple[list[WriteStat], frozenset[tuple[str, str]]] | NothingToDo | Conflict:
    table, context = prepared.table, prepared.context(instant.requested)
    entries = [entry for run in runs for entry in run.entries]
    if not entries:
        by_key = request.operation is Operation.DELETE and context.ordered_deletes
        return NothingToDo(reason="no stored row matches the batch" if by_key else "the batch has no rows")
    partitions = None if context.global_keys else sorted({entry.partition for entry in entries})
    listing = None if request.operation in _REPLACING else load_listing(table, partitions)
    slices = () if listing is None else listing.slices
    index, held = _index(table, prepared, context, request.operation), pending_clustering(table)
    refused = groups_closed_by_clustering(table, table.timeline, updates=prepared.updates) if held else {}
    lookups = index.lookups(entries, slices, parallelism=engine.parallelism, read_logs_of=_deep(table, context, slices))
    skips, budget = policies.write.skips_damage, context.policy.memory_budget_bytes
    read = slice_context(table, context.schema, budget=budget, skips_damage=skips)
    tags = [tag for found in engine.run(partial(_tag, context, read), lookups, light=True) for tag in found]
    tasks = index.groups(entries, slices, tags, in_clustering=frozenset(held), new_uuid=table.env.ids.uuid)
    if not tasks:
        return NothingToDo(reason="no stored row matches the batch")
    for task in tasks:
        prepared.refuse_if_held(refused, task.partition, task.file_id)
    if listing is not None:
        # A file group that is rewritten from an older file than the newest one loses what lies between them.
        rewritten = [task.base.instant for task in tasks if task.base and not task.appends]
        oldest = min(rewritten, default=None)
        check_listing(table, listing, skips=skips, completed_after=oldest)
    _start(table, instant, request.operation, tasks)
    tasks = tuple(sorted(tasks, key=lambda t: -(t.base.size_bytes if t.base else context.policy.max_file_bytes)))
    touched = frozenset((task.partition, task.file_id) for task in tasks if task.base or task.appends)
    planned = [(Attempt.planned(number), task) for number, task in enumerate(tasks)]
    names = [name for attempt, task in planned for name in group_markers(context, attempt, task)]
    looks = uses_early_detection(policies.transaction, prepared)
    markers.announce(names, each=looks)
    if looks:
        ours = AnnouncedWrite(
            prepared=prepared, instant=instant, operation=request.operation, markers=names, touched=touched
        )
        conflict = early_conflict(ours, policies.transaction)
        if conflict is not None:
            markers.withdraw()
            return conflict
    light = all(t.appends for t in tasks) and sum(run.size_bytes for run in runs) <= _LIGHT_BYTES * len(tasks)
    stats = [
        stat for written in engine.run(partial(_write_task, context, read), tasks, light=light) for stat in written
    ]
    if not stats:
        # Where the tasks made nothing there is nothing to roll back.
        markers.withdraw()
        return NothingToDo(reason="the batch changes nothing")
    return stats, touched


def _only_late(rows: int) -> NothingToDo:
    return NothingToDo(
        reason=f"all {rows} rows that would change something are older than a delete of their key",
        late_rows_dropped=rows,
    )


def _unmet(runs: Sequence[StagedRun], touched: frozenset[tuple[str, str]]) -> frozenset[tuple[str, int]]:
    """Return the buckets (partition, number) in which keys are deleted and that have no file group yet."""
    deleted = {(e.partition, e.bucket) for run in runs for e in run.entries if e.deletes}
    return frozenset(deleted - {(partition, bucket_of(file_id)) for partition, file_id in touched})


def _find_keys(
    engine: Engine, context: WriteContext, runs: Sequence[StagedRun], files: Sequence[BaseFile]
) -> BaseFile | None:
    """Return one of `files` that holds a key of the staged rows, None if there is none."""
    staged = [entry for run in runs for entry in run.entries]
    tasks = []
    for file in files:
        entries = tuple(e for e in staged if context.global_keys or e.partition == file.partition)
        if entries:
            tasks.append(TagTask(bases=(file,), entries=entries))
    # A row that is newer where it is stored is in the way all the same.
    context = replace(context, move_partitions=False)
    found = engine.run(partial(tag_files, context), tasks, light=True)
    return next(
        (tag.base for tags in found for tag in tags if tag.matched_rows and isinstance(tag.base, BaseFile)), None
    )


def _deep(table: LoadedTable, context: WriteContext, slices: Sequence[FileSlice]) -> frozenset[tuple[str, str]]:
    """Return the groups whose logs may have removed or added keys, or changed what decides between partitions."""
    logged = [s for s in slices if s.logs]
    if not logged:
        return frozenset()
    require_mergeable(table.config)
    marks = {DELETED_COLUMN, OPERATION, table.config.merge_rule.delete_field}
    if context.global_keys or marks & set(context.schema.names):
        return frozenset((s.partition, s.file_id) for s in logged)
    instants = {log.instant for s in logged for log in s.logs}
    commits = table.store.commits([i for i in table.timeline.writes() if i.requested in instants])
    stats = [stat for _, metadata in commits for stat in metadata.stats]
    # A log whose commit says that it only updates leaves all keys of its base file where they are.
    harmless = {stat.path for stat in stats if not stat.num_deletes and not stat.num_inserts}
    return frozenset((s.partition, s.file_id) for s in logged if any(log.path not in harmless for log in s.logs))


def _tag(context: WriteContext, read: SliceContext, attempt: Attempt, task: TagTask) -> list[TagResult]:
    return tag_slices(context, read, attempt, task) if task.slices else tag_files(context, attempt, task)


def _write_task(context: WriteContext, read: SliceContext, attempt: Attempt, task: GroupTask) -> list[WriteStat]:
    attempt = attempt.as_planned()
    if task.appends:
        return append_group(context, read, attempt, task)
    stat = write_group(context, attempt, task)
    return [] if stat is None else [stat]


def _index(table: LoadedTable, prepared: Prepared, context: WriteContext, operation: Operation) -> Index:
    """Return the index of this write."""
    fixed_ids = prepared.non_blocking and prepared.index_type.hashes_keys
    setup = IndexSetup(
        sizing=Sizing(
            rows_per_file=context.rows_per_file,
            bytes_per_row=context.bytes_per_row,
            max_file_bytes=context.policy.max_file_bytes,
            small_file_bytes=context.policy.small_file_bytes,
        ),
        looks_up=operation in (Operation.UPSERT, Operation.DELETE),
        appends=prepared.table.config.is_merge_on_read and operation not in _REPLACING,
        buckets=context.buckets,
        new_in_logs=prepared.new_buckets_in_logs,
        fixed_ids=fixed_ids,
        replaced=frozenset(load_visible(table).replaced) if fixed_ids else frozenset(),
    )
    return create_index(prepared.index_type, setup)


def _replaced(table: LoadedTable, request: WriteRequest, stats: list[WriteStat]) -> Mapping[str, tuple[str, ...]]:
    """Return the groups this write hides: of the partitions it wrote to, of those it was told, or of all."""
    wanted: Sequence[str] | None = sorted({stat.partition for stat in stats})
    if request.operation is Operation.DELETE_PARTITION:
        wanted = request.partitions
    if request.operation is Operation.INSERT_OVERWRITE_TABLE:
        wanted = None
    replaced: dict[str, tuple[str, ...]] = {}
    for file_slice in load_slices(table, wanted):
        replaced[file_slice.partition] = (*replaced.get(file_slice.partition, ()), file_slice.file_id)
    return replaced


def _start(table: LoadedTable, instant: Instant, operation: Operation, tasks: Sequence[GroupTask]) -> None:
    profile = CommitMetadata(operation=operation.value, stats=profile_stats(tasks))
    table.store.start(instant, encode_inflight(profile, table_version=table.config.version))


def _is_staged(policies: Policies, engine: Engine, request: WriteRequest, context: WriteContext) -> bool:
    if request.operation is Operation.DELETE_PARTITION:
        return False
    # An overwrite beside other writers may have to be tried again, with the same rows.
    pins = policies.transaction.many_writers and request.operation in _REPLACING and not engine.repeats(request.frame)
    return request.operation in _STAGED or context.buckets is not None or context.combine or pins


def _abandon(table: LoadedTable, policies: Policies, instant: Instant, heartbeat: Heartbeat) -> bool:
    """Undo a write that ended without a commit; return whether somebody else was there first.

    If it fails, the next writer does it: the heartbeat is gone.
    """
    heartbeat.stop()
    lost, is_clean = False, False
    left: Mapping[str, Sequence[str]] = {}
    try:
        table = table.reload()
        current = table.timeline.find(instant.requested)
        lost = current is None or find_rollback(table, table.timeline, instant.requested) is not None
        if not lost and current is not None and not current.is_completed:
            left = read_markers(table.env.storage, instant.requested)
        if any(left.values()):
            if roll_back(table, policies.transaction, instant.requested) is not None:
                is_clean = True
                return False
            # Somebody was faster, and may have listed our files before the last of them were written.
            table = table.reload()
            current = table.timeline.find(instant.requested)
            lost = current is None or not current.is_completed
        if current is None or (lost and not current.is_completed):
            # Somebody took us for dead and rolled us back; what we wrote since then has nobody else to delete it, and
            # neither has an instant that we started afterwards.
            # Whoever undid us took our markers and our sign of life, too: should we die here, it tells others to look.
            heartbeat.renew()
            written = list_data_files(table, change_logs=True)
            files = [file.path for file in written if file.instant == instant.requested]
            delete_files(table, instant.requested, [*files, *marked_files(table, instant.requested).values()])
            clean_up(table, instant.requested)
            if current is not None:
                with table_lock(table.env, policies.transaction) as lock:
                    lock.check()
                    table.store.remove_pending(current)
        elif not current.is_completed:
            # Nothing was written, so there is nothing for a rollback to tell others about. As soon as the instant is
            # gone its time may be drawn again, so what bears its name goes before.
            heartbeat.discard()
            clean_up(table, instant.requested, markers=left)
            with table_lock(table.env, policies.transaction) as lock:
                lock.check()
                table.store.remove_pending(current)
        is_clean = True
    except LakehouseError as error:
        logger.warning("%s: %s was not rolled back yet: %s", table.env.storage.root, instant.requested, error)
    finally:
        if is_clean or not lost:
            heartbeat.discard()
    return lost


def _tidy(
    prepared: Prepared, outcome: Committed, heartbeat: Heartbeat, *, markers: Sequence[str], staged: bool
) -> None:
    """Tidy up after a commit. It is true whatever happens here; what stays is swept up by the next write."""
    heartbeat.stop()
    table, requested = prepared.table, outcome.instant.requested
    try:
        clean_up(table, requested, markers=markers, staged=staged)
    except LakehouseError as error:
        logger.warning("%s: %s was not tidied up yet: %s", table.env.storage.root, requested, error)
        heartbeat.discard()
