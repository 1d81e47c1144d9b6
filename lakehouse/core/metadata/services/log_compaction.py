"""Log compaction of the metadata table: the blocks of many log files of a group in one log file (MDT-10.2).

    <t>.logcompaction.requested   .inflight   .<group>_<t>.log.1_<token>   <t>_<c>.deltacommit

The new blocks name the instants of the blocks that they replace; the replaced files stay until a clean. Deletes come
before records, because a record may have been written after its key was deleted. It is off by default.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.reader import ENTRIES
from lakehouse.core.format.hfile.writer import write_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block, scan_blocks
from lakehouse.core.format.log.delete_block import encode_deletes
from lakehouse.core.format.timeline.compaction import decode_compaction_plan, encode_compaction_plan
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.metadata.record_kinds import in_schema, record_kind, written_schema
from lakehouse.core.metadata.services.compaction import ServiceState, current_logs, is_executable
from lakehouse.core.metadata.services.group_files import delta_commits_since, last_compaction, list_groups
from lakehouse.core.metadata.services.slice_merge import LogLayer, merged_batches, read_layers
from lakehouse.core.metadata.write.files import log_headers, log_name, log_stat, new_token
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.instant import Action, Instant, State, Timeline

logger = logging.getLogger(__name__)

_WRITERS = 4


def log_compaction_is_due(state: ServiceState, blocks: int) -> bool:
    """Return whether enough delta commits completed since the last compaction or log compaction.

    It waits while a delta commit is completed whose data instant is pending: that one must stay removable.
    """
    since = delta_commits_since(state.timeline, last_compaction(state.timeline))
    pending = {instant.requested for instant in state.data.where(pending=True)}
    if any(delta.requested in pending for delta in since):
        return False
    compacted = [delta for delta in since if state.store.is_log_compaction(delta)]
    last = max((delta.requested for delta in compacted), default="")
    return sum(delta.completion > last for delta in since if delta not in compacted) >= blocks


def compact_logs(state: ServiceState, blocks: int, lock: TableLock) -> Instant | None:
    """Plan and execute a log compaction of the groups with enough log files; None if there are none."""
    store = state.store
    operations = []
    for group in state.groups():
        base, logs = current_logs(state.timeline, group)
        if len(logs) >= blocks:
            operations.append(
                CompactionOperation(
                    partition=group.partition,
                    file_id=group.file_id,
                    base_instant=base.instant if base else logs[0].instant,
                    data_file=base.name if base else None,
                    log_files=tuple(log.name for log in logs),
                )
            )
    if not operations:
        return None
    plan = CompactionPlan(operations=tuple(operations))
    data = encode_compaction_plan(plan, log_compaction=True)
    lock.check()
    return _execute(state, store.timeline_store.request(state.timeline, Action.LOGCOMPACTION, data), plan, lock)


def finish_log_compaction(state: ServiceState, pending: Instant, lock: TableLock) -> Instant | None:
    """Execute the plan of a log compaction that a crash left; return None if it was removed instead."""
    store = state.store
    store.remove_unfinished(state.names, pending.requested)
    groups = list_groups(store.inner.storage, state.names)
    written = [log for group in groups for log in group.logs if log.instant == pending.requested]
    if written:
        lock.check()
        store.remove_files(log.path for log in written)
    data = store.timeline_store.read(pending, State.REQUESTED)
    plan = decode_compaction_plan(data) if data else None
    if plan is None or not is_executable(plan, groups):
        logger.warning("%s: removed the log compaction plan %s", store.inner.storage.root, pending.requested)
        lock.check()
        store.timeline_store.remove_pending(replace(pending, state=State.INFLIGHT))
        return None
    return _execute(state, pending, plan, lock)


def _execute(state: ServiceState, instant: Instant, plan: CompactionPlan, lock: TableLock) -> Instant:
    store = state.store
    timelines = store.timeline_store
    if instant.state is State.REQUESTED:
        instant = timelines.start(instant, b"")
    token = new_token(store.env)
    with ThreadPoolExecutor(_WRITERS) as pool:
        stats = list(pool.map(lambda operation: _rewrite(state, instant, operation, token), plan.operations))
    metadata = CommitMetadata(
        operation=Operation.LOG_COMPACT,
        stats=tuple(sorted((stat for stat in stats if stat is not None), key=lambda stat: stat.path)),
        extra={"schema": store.records.commits},
        compacted=True,
    )
    data = store.config.layout.encode_commit(metadata)
    lock.check()
    timeline = Timeline((*(known for known in state.timeline if known.key != instant.key), instant))
    done = timelines.complete(instant, timeline, data, lock.below(METADATA))
    store.keep_files(state.names, state.timeline, done, metadata.stats)
    logger.info("%s: compacted the logs of %d file groups", store.inner.storage.root, len(plan.operations))
    return done


def _rewrite(state: ServiceState, instant: Instant, operation: CompactionOperation, token: str) -> WriteStat | None:
    """Write the log file of one group; None if its logs have no blocks."""
    store, partition = state.store, operation.partition
    storage = store.inner.storage
    paths = [f"{partition}/{name}" for name in operation.log_files]
    layers = read_layers(storage, paths, lambda requested: True)
    replaced = sorted({block.instant for path in paths for block in scan_blocks(io.BytesIO(storage.get(path)))})
    if not replaced:
        return None
    kind = record_kind(partition, state.definitions.get(partition))
    schema = written_schema(partition, state.definitions, store.records)
    merged = (in_schema(batch, kind, schema) for batch in merged_batches(None, layers, kind))
    entries = pa.concat_tables([ENTRIES.empty_table(), *merged])
    deletes = _deleted(layers)
    headers = {
        **log_headers(instant.requested, schema),
        BlockHeader.COMPACTED_BLOCK_TIMES: ",".join(replaced),
    }
    blocks = []
    if len(deletes) or entries.num_rows == 0:
        ordering = pa.array([0], pa.int32()).take(pa.array([0] * len(deletes), pa.int32()))
        content = encode_deletes(deletes.cast(pa.string()), partition, ordering)
        blocks.append(encode_block(BlockType.DELETE, headers, content))
    if entries.num_rows:
        content = write_hfile(entries, schema=schema, created_ms=store.env.clock.now_ms())
        blocks.append(encode_block(BlockType.HFILE_DATA, headers, content))
    name, data = log_name(operation.file_id, instant.requested, token), b"".join(blocks)
    storage.put(f"{partition}/{name}", data)
    counts = (entries.num_rows, len(deletes))
    return log_stat(partition, operation.file_id, name, instant.requested, size_bytes=len(data), counts=counts)


def _deleted(layers: Sequence[LogLayer]) -> pa.Array:
    """Return the keys that a log deletes, ascending."""
    parts = [layer.deletes for layer in layers if len(layer.deletes)]
    keys = pa.concat_arrays(parts).unique() if parts else pa.array([], pa.binary())
    return keys.take(pc.array_sort_indices(keys))
