"""Compaction and log compaction of the metadata table: the new files of one file group (MDT-10.1, MDT-10.2).

A compaction writes a base file for every file group, with all completed logs. A log compaction, which is off by
default, writes one log file with the blocks of many. Its blocks list the instants of the blocks that they replace; the
replaced files stay until a clean. Deletes come before records, because a record may have been written after its key was
deleted.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.writer import HFileWriter, write_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block, scan_blocks
from lakehouse.core.format.log.delete_block import encode_deletes
from lakehouse.core.format.metadata.schema import is_current, lacks_value_types
from lakehouse.core.metadata.hfiles import open_hfile
from lakehouse.core.metadata.read.layers import LayerReader
from lakehouse.core.metadata.record_kinds import STATISTICS, RecordKind, in_schema, record_kind, written_schema
from lakehouse.core.metadata.services.rewrite import Rewrite, RewriteKind, Rewritten
from lakehouse.core.metadata.services.slice_merge import LogLayer, UnorderedError, merged_batches, read_layers
from lakehouse.core.metadata.small.merge import small_merge
from lakehouse.core.metadata.write.files import base_bytes, base_name, log_headers, log_name, log_stat
from lakehouse.core.planning.compaction import plan_compaction, plan_log_compaction
from lakehouse.model.commit import Operation, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action
from lakehouse.spec.options.compaction import CompactionPolicy

#: Maximum size in bytes of a file group that is merged without Arrow kernels.
_FEW_BYTES = 1024 * 1024


def _plan(slices: Sequence[FileSlice], policy: CompactionPolicy) -> CompactionPlan | None:
    return plan_compaction(slices, (), policy, every_group=True)


def _rewrite(rewrite: Rewrite, operation: CompactionOperation) -> Rewritten:
    """Write the new base file of one file group."""
    return _rewrite_few(rewrite, operation) or _rewrite_many(rewrite, operation)


def _rewrite_few(rewrite: Rewrite, operation: CompactionOperation) -> Rewritten | None:
    """Write the new base file if the file group is small; otherwise write nothing and return None."""
    state, store, partition = rewrite.state, rewrite.state.store, operation.partition
    file_slice = rewrite.slice_of(operation)
    base, logs = file_slice.base, file_slice.logs
    if sum(log.size_bytes for log in logs) + (base.size_bytes if base else 0) > _FEW_BYTES:
        return None
    reader = LayerReader(store.inner.storage, store.cache, rewrite.validity.completions, store.config)
    layers = reader.layers(file_slice, rewrite.merges)
    kind = record_kind(partition, state.definitions.get(partition))
    schema = written_schema(partition, state.definitions, store.records)
    records = small_merge(layers, kind) if kind is not STATISTICS or _is_small_form(schema) else None
    if records is None:
        return None
    path = _new_path(rewrite, operation)
    data = base_bytes(in_schema(records, kind, schema), schema, store.env.clock.now_ms(), kind.layout)
    store.inner.storage.put(path, data)
    above = layers[1:] if base else layers
    stat = _stat(
        operation,
        path,
        len(data),
        (len(records), layers[0].count if base else None),
        (sum(layer.count if layer.has_entries else len(layer.deletes or ()) for layer in above), len(above)),
    )
    return Rewritten(stat=stat, records=records)


def _is_small_form(schema: str) -> bool:
    return is_current(schema) or lacks_value_types(schema)


def _rewrite_many(rewrite: Rewrite, operation: CompactionOperation) -> Rewritten:
    """Write the new base file for a file group of any size."""
    state, storage, partition = rewrite.state, rewrite.state.store.inner.storage, operation.partition
    kind = record_kind(partition, state.definitions.get(partition))
    file_slice = rewrite.slice_of(operation)
    decode = state.store.config.decode_deletes
    layers = read_layers(storage, [log.path for log in file_slice.logs], rewrite.merges, decode)
    base = None if file_slice.base is None else open_hfile(storage, file_slice.base.path)
    path = _new_path(rewrite, operation)
    try:
        size, count = _write(rewrite, path, kind, merged_batches(base, layers, kind))
    except UnorderedError:
        size, count = _write(rewrite, path, kind, merged_batches(base, layers, kind, at_once=True))
    records = sum(layer.entries.num_rows + len(layer.deletes) for layer in layers)
    before = None if base is None else base.count
    return Rewritten(stat=_stat(operation, path, size, (count, before), (records, len(layers))))


def _new_path(rewrite: Rewrite, operation: CompactionOperation) -> str:
    return f"{operation.partition}/{base_name(operation.file_id, rewrite.instant.requested, rewrite.token)}"


def _write(rewrite: Rewrite, path: str, kind: RecordKind, batches: Iterable[pa.Table]) -> tuple[int, int]:
    """Write a base file; return its size and the number of its entries."""
    state, store = rewrite.state, rewrite.state.store
    count, schema = 0, written_schema(path.partition("/")[0], state.definitions, store.records)
    created_ms = store.env.clock.now_ms()
    with store.inner.storage.open_output(path) as sink:
        writer = HFileWriter(sink.write, schema=schema, created_ms=created_ms, layout=kind.layout, bounds=True)
        for entries in batches:
            writer.add(in_schema(entries, kind, schema))
            count += entries.num_rows
        return writer.close(), count


# parameters: the plan, the new file, and the numbers of entries, log records and blocks
def _stat(
    operation: CompactionOperation, path: str, size: int, counts: tuple[int, int | None], logged: tuple[int, int]
) -> WriteStat:
    """Return the write statistic of a new base file.

    `counts` are its number of entries and that of the previous base file.
    """
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


def _plan_logs(slices: Sequence[FileSlice], policy: CompactionPolicy) -> CompactionPlan | None:
    return plan_log_compaction(slices, (), policy)


def _rewrite_logs(rewrite: Rewrite, operation: CompactionOperation) -> Rewritten | None:
    """Write the log file of one file group. Return None if its logs have no blocks."""
    state, store, partition = rewrite.state, rewrite.state.store, operation.partition
    storage, requested = store.inner.storage, rewrite.instant.requested
    paths = [log.path for log in rewrite.slice_of(operation).logs]
    layers = read_layers(storage, paths, lambda _requested: True, store.config.decode_deletes)
    replaced = sorted({block.instant for path in paths for block in scan_blocks(io.BytesIO(storage.get(path)))})
    if not replaced:
        return None
    kind = record_kind(partition, state.definitions.get(partition))
    schema = written_schema(partition, state.definitions, store.records)
    merged = (in_schema(batch, kind, schema) for batch in merged_batches(None, layers, kind))
    entries = pa.concat_tables([ENTRIES.empty_table(), *merged])
    deletes = _deleted(layers)
    headers = {
        **log_headers(requested, schema),
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
    name, data = log_name(operation.file_id, requested, rewrite.token), b"".join(blocks)
    storage.put(f"{partition}/{name}", data)
    counts = (entries.num_rows, len(deletes))
    stat = log_stat(partition, operation.file_id, name, requested, size_bytes=len(data), counts=counts)
    return Rewritten(stat=stat)


def _deleted(layers: Sequence[LogLayer]) -> pa.Array:
    """Return the keys that a log deletes, ascending."""
    parts = [layer.deletes for layer in layers if len(layer.deletes)]
    keys = pa.concat_arrays(parts).unique() if parts else pa.array([], pa.binary())
    return keys.take(pc.array_sort_indices(keys))


COMPACTION = RewriteKind(action=Action.COMPACTION, operation=Operation.COMPACT, plan=_plan, task=_rewrite)
LOG_COMPACTION = RewriteKind(
    action=Action.LOGCOMPACTION, operation=Operation.LOG_COMPACT, plan=_plan_logs, task=_rewrite_logs
)
