"""Compaction of the metadata table: a new base file for every file group, with all completed logs (MDT-10.1).

    <t>.compaction.requested   <t>.compaction.inflight   base files   <t>_<c>.commit

The compaction runs under the lock of the data table. Readers ignore the base files until it is completed. A crash
leaves a pending compaction; the next commit deletes its base files and executes its plan again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.format.hfile.reader import HFile
from lakehouse.core.format.hfile.writer import HFileWriter
from lakehouse.core.format.metadata.schema import is_current
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.core.metadata.hfiles import open_hfile
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.metadata.read.layers import LayerReader
from lakehouse.core.metadata.read.slices import MetadataSlice
from lakehouse.core.metadata.read.validity import validity
from lakehouse.core.metadata.record_kinds import STATISTICS, RecordKind, in_schema, record_kind, written_schema
from lakehouse.core.metadata.services.group_files import (
    GroupFiles,
    completed_writes,
    delta_commits_since,
    groups_of,
    last_compaction,
    list_groups,
)
from lakehouse.core.metadata.services.slice_merge import LogLayer, UnorderedError, merged_batches, read_layers
from lakehouse.core.metadata.small.merge import small_merge
from lakehouse.core.metadata.store import MetadataStore, completions_of
from lakehouse.core.metadata.write.files import base_bytes, base_name, new_token
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline, instant_moment

logger = logging.getLogger(__name__)

#: File groups that are rewritten at the same time; each needs the memory of its logs and of a batch.
_WRITERS = 4
_MB = 1024 * 1024
#: Bytes of logs above which file groups are rewritten at the same time on a local disk, too. Threads that merge small
#: groups wait for each other, which nearly doubles the CPU time.
_PARALLEL_BYTES = 32 * _MB
#: Bytes of the files of a group up to which it is merged without kernels.
_FEW_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The metadata table as a service sees it, under the lock of the data table.

    Attributes:
        store: The metadata table.
        names: The usable index partitions. A partition that is being built gets its base files when its build is
            complete.
        definitions: The index definitions.
        timeline: The timeline of the metadata table.
        data: The timeline of the data table.
    """

    store: MetadataStore
    names: tuple[str, ...]
    definitions: Mapping[str, Definition]
    timeline: Timeline
    data: Timeline

    def reloaded(self) -> ServiceState:
        """Return the state with the present timeline of the metadata table; one listing."""
        return replace(self, timeline=self.store.timeline_store.load())

    def groups(self) -> list[GroupFiles]:
        """Return the file groups; their folders are listed if an instant of another process completed."""
        listed = self.store.folders(self.names, completions_of(self.timeline))
        return groups_of(zip(self.names, listed, strict=True))


def compaction_time(state: ServiceState, max_delta_commits: int) -> str | None:
    """Return the instant time of a compaction if it is due now; "" stands for a new time.

    A delta commit may be completed whose data instant is pending: after a crash, or in another process between the two.
    It must stay removable, so the compaction gets a time just before it. None if that time cannot be used.

    A compaction waits while an index is being built. The base files of the build have the time of the indexing, and a
    compaction writes base files of all usable partitions, so a later one would hide them, or miss the new partition.
    """
    if len(state.data.where(action=Action.INDEXING, pending=True)):
        return None
    compaction = last_compaction(state.timeline)
    if len(delta_commits_since(state.timeline, compaction)) < max_delta_commits:
        return None
    pending = {instant.requested for instant in state.data.where(pending=True)}
    deltas = state.timeline.where(action=Action.DELTACOMMIT, state=State.COMPLETED)
    ahead = min((delta.requested for delta in deltas if delta.requested in pending), default=None)
    if ahead is None:
        return ""
    time = _before(ahead)
    is_used = any(instant.requested == time for instant in state.timeline)
    is_older = compaction is not None and time <= compaction.requested
    has_logs = any(delta.completion < time for delta in delta_commits_since(state.timeline, compaction))
    return None if is_used or is_older or not has_logs else time


def compact(state: ServiceState, time: str, lock: TableLock) -> Instant:
    """Plan and execute a compaction with this instant time, or with a new one if it is ""."""
    store, groups = state.store, state.groups()
    lock.check()
    if time:
        plan = _plan(state, groups, time)
        instant = store.timeline_store.begin(time, Action.COMPACTION, encode_compaction_plan(plan))
    else:
        # No delta commit can complete under the lock, so the plan does not depend on the new time.
        plan = _plan(state, groups, "9" * 17)
        instant = store.timeline_store.request(state.timeline, Action.COMPACTION, encode_compaction_plan(plan))
    return _execute(state, instant, plan, groups, lock)


def finish_compaction(state: ServiceState, pending: Instant, lock: TableLock) -> Instant | None:
    """Execute the plan of a compaction that a crash left; return None if it was removed instead.

    A plan whose files are gone cannot be executed. It is removed, which changes nothing: its logs are still merged by
    readers, and the next compaction contains them.
    """
    store = state.store
    store.remove_unfinished(state.names, pending.requested)
    groups = list_groups(store.inner.storage, state.names)
    written = [base for group in groups for base in group.bases if base.instant == pending.requested]
    if written:
        lock.check()
        store.remove_files(f"{base.partition}/{base.name}" for base in written)
    data = store.timeline_store.read(pending, State.REQUESTED)
    plan = decode_compaction_plan(data) if data else None
    if plan is None or not is_executable(plan, groups):
        logger.warning("%s: removed the compaction plan %s", store.inner.storage.root, pending.requested)
        lock.check()
        store.timeline_store.remove_pending(replace(pending, state=State.INFLIGHT))
        return None
    return _execute(state, pending, plan, groups, lock)


def is_executable(plan: CompactionPlan, groups: Iterable[GroupFiles]) -> bool:
    """Return whether all files of a plan exist among the file groups."""
    stored = {path for group in groups for path in group.paths()}
    return all(
        f"{operation.partition}/{name}" in stored
        for operation in plan.operations
        for name in (*operation.log_files, *([operation.data_file] if operation.data_file else ()))
    )


def current_logs(timeline: Timeline, group: GroupFiles, time: str = "9" * 17) -> tuple[BaseFile | None, list[LogFile]]:
    """Return the newest base file of a group before a time, and the logs that completed since then, before the time."""
    writes = completed_writes(timeline)
    first = min((instant.requested for instant in timeline), default="")
    # Instants before the timeline are archived, and only completed ones are.
    committed = frozenset(base.instant for base in group.bases if base.instant in writes or base.instant < first)
    base = group.base_at(committed, time)
    since = base.instant if base else ""
    return base, [log for log in group.logs if _is_between(writes.get(log.instant), since, time)]


def _is_between(delta: Instant | None, since: str, time: str) -> bool:
    return delta is not None and delta.action is Action.DELTACOMMIT and since <= delta.completion < time


def _plan(state: ServiceState, groups: Iterable[GroupFiles], time: str) -> CompactionPlan:
    """Return a plan of all file groups with the logs of delta commits that completed before a time."""
    operations = []
    for group in groups:
        base, logs = current_logs(state.timeline, group, time)
        if base is None and not logs:
            continue
        size = sum(log.size_bytes for log in logs)
        operations.append(
            CompactionOperation(
                partition=group.partition,
                file_id=group.file_id,
                base_instant=base.instant if base else logs[0].instant,
                data_file=base.name if base else None,
                log_files=tuple(log.name for log in logs),
                metrics={"TOTAL_LOG_FILES": float(len(logs)), "TOTAL_LOG_FILES_SIZE": size / _MB},
            )
        )
    return CompactionPlan(operations=tuple(operations))


# parameters: the plan with the listed files of its groups, and under which lock
def _execute(
    state: ServiceState, instant: Instant, plan: CompactionPlan, groups: Iterable[GroupFiles], lock: TableLock
) -> Instant:
    store = state.store
    timelines, storage = store.timeline_store, store.inner.storage
    if instant.state is State.REQUESTED:
        instant = timelines.start(instant, b"")
    token = new_token(store.env)
    files = {(group.partition, group.file_id): group for group in groups}
    rewrites = [
        partial(_rewrite, state, instant, operation, token, files[operation.partition, operation.file_id])
        for operation in plan.operations
    ]
    if sum(log.size_bytes for group in files.values() for log in group.logs) > _PARALLEL_BYTES:
        with ThreadPoolExecutor(_WRITERS) as pool:
            written = list(pool.map(lambda rewrite: rewrite(), rewrites))
    else:
        written = send_all(storage, lambda rewrite: rewrite(), rewrites)
    stats = [stat for stat, _ in written]
    metadata = CommitMetadata(
        operation=Operation.COMPACT,
        stats=tuple(sorted(stats, key=lambda stat: stat.path)),
        extra={"schema": store.records.commits},
        compacted=True,
    )
    data = store.config.layout.encode_commit(metadata)
    lock.check()
    timeline = Timeline((*(known for known in state.timeline if known.key != instant.key), instant))
    done = timelines.complete(instant, timeline, data, lock.below(METADATA))
    logger.info("%s: compacted %d file groups at %s", storage.root, len(stats), done.requested)
    store.keep_files(state.names, state.timeline, done, metadata.stats)
    for stat, records in written:
        base = parse_base_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes)
        if records is not None and base is not None:
            store.keep_base(done, base, records)
    return done


# parameters: the operation with the listed files of its group, and what names the new file
def _rewrite(
    state: ServiceState, instant: Instant, operation: CompactionOperation, token: str, group: GroupFiles
) -> tuple[WriteStat, Mapping[bytes, bytes] | None]:
    """Write the new base file of one file group; return its records, too, if they are few."""
    few = _rewrite_few(state, instant, operation, token, group)
    return (_rewrite_many(state, instant, operation, token), None) if few is None else few


# parameters: as of `_rewrite`
def _rewrite_few(
    state: ServiceState, instant: Instant, operation: CompactionOperation, token: str, group: GroupFiles
) -> tuple[WriteStat, Mapping[bytes, bytes]] | None:
    """Write the new base file of a small file group; None for another file group."""
    store, partition = state.store, operation.partition
    wanted = set(operation.log_files)
    logs = tuple(log for log in group.logs if log.name in wanted)
    base = next((base for base in group.bases if base.name == operation.data_file), None)
    if sum(log.size_bytes for log in logs) + (base.size_bytes if base else 0) > _FEW_BYTES:
        return None
    seen = validity(state.timeline, state.data)
    reader = LayerReader(
        store.inner.storage, store.cache, seen.completions, appended=store.config.layout.appends_to_logs
    )
    layers = reader.layers(MetadataSlice(operation.file_id, base, logs), lambda time: time not in seen.pending)
    kind = record_kind(partition, state.definitions.get(partition))
    schema = written_schema(partition, state.definitions, store.records)
    records = None if kind is STATISTICS and not is_current(schema) else small_merge(layers, kind)
    if records is None:
        return None
    path = f"{partition}/{base_name(operation.file_id, instant.requested, token)}"
    data = base_bytes(records, schema, store.env.clock.now_ms(), kind.layout)
    store.inner.storage.put(path, data)
    above = layers[1:] if base else layers
    stat = _stat(
        operation,
        path,
        len(data),
        (len(records), layers[0].count if base else None),
        (sum(layer.count if layer.has_entries else len(layer.deletes or ()) for layer in above), len(above)),
    )
    return stat, records


# parameters: the plan, the new file, and the numbers of entries and of log records and blocks
def _stat(
    operation: CompactionOperation, path: str, size: int, counts: tuple[int, int | None], logged: tuple[int, int]
) -> WriteStat:
    """Return the statistic of a new base file; `counts` has its entries and those of the base file before, if any."""
    count, before = counts
    return WriteStat(
        partition=operation.partition,
        file_id=operation.file_id,
        path=path,
        prev_commit=operation.base_instant,
        num_writes=count,
        num_inserts=count if before is None else max(0, count - before),
        size_bytes=size,
        log_records=logged[0],
        log_blocks=logged[1],
        log_files_compacted=len(operation.log_files),
    )


def _rewrite_many(state: ServiceState, instant: Instant, operation: CompactionOperation, token: str) -> WriteStat:
    """Write the new base file of one file group."""
    store = state.store
    storage, partition = store.inner.storage, operation.partition
    kind = record_kind(partition, state.definitions.get(partition))
    pending = {known.requested for known in state.data.where(pending=True)}
    paths = [f"{partition}/{name}" for name in operation.log_files]
    layers = read_layers(storage, paths, lambda requested: requested not in pending)
    base = open_hfile(storage, f"{partition}/{operation.data_file}") if operation.data_file else None
    name = base_name(operation.file_id, instant.requested, token)
    created_ms = store.env.clock.now_ms()
    try:
        size, count = _write(state, (partition, name), created_ms, kind, (base, layers, False))
    except UnorderedError:
        size, count = _write(state, (partition, name), created_ms, kind, (base, layers, True))
    records = sum(layer.entries.num_rows + len(layer.deletes) for layer in layers)
    before = None if base is None else base.count
    return _stat(operation, f"{partition}/{name}", size, (count, before), (records, len(layers)))


# parameters: the partition and the name of a file, and what it contains
def _write(
    state: ServiceState,
    place: tuple[str, str],
    created_ms: int,
    kind: RecordKind,
    contents: tuple[HFile | None, list[LogLayer], bool],
) -> tuple[int, int]:
    """Write a base file; return its size and the number of its entries."""
    base, layers, at_once = contents
    count, schema = 0, written_schema(place[0], state.definitions, state.store.records)
    with state.store.inner.storage.open_output("/".join(place)) as sink:
        writer = HFileWriter(sink.write, schema=schema, created_ms=created_ms, layout=kind.layout, bounds=True)
        for entries in merged_batches(base, layers, kind, at_once=at_once):
            writer.add(in_schema(entries, kind, schema))
            count += entries.num_rows
        return writer.close(), count


def _before(time: str) -> str:
    """Return the instant time one millisecond before another one."""
    moment = instant_moment(time) + timedelta(milliseconds=int(time[14:17] or 0) - 1)
    return f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}"
