"""Log compaction of the metadata table: the blocks of many log files of a group in one log file (MDT-10.2).

The new blocks name the instants of the blocks that they replace; the replaced files stay until a clean. Deletes come
before records, because a record may have been written after its key was deleted. It is off by default.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.writer import write_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block, scan_blocks
from lakehouse.core.format.log.delete_block import encode_deletes
from lakehouse.core.metadata.record_kinds import in_schema, record_kind, written_schema
from lakehouse.core.metadata.services.rewrite import Rewrite, RewriteKind, Rewritten
from lakehouse.core.metadata.services.slice_merge import LogLayer, merged_batches, read_layers
from lakehouse.core.metadata.write.files import log_headers, log_name, log_stat
from lakehouse.core.planning.compaction import plan_log_compaction
from lakehouse.model.commit import Operation
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action
from lakehouse.spec.options.compaction import CompactionPolicy


def _plan(slices: Sequence[FileSlice], policy: CompactionPolicy) -> CompactionPlan | None:
    return plan_log_compaction(slices, (), policy)


def _rewrite(rewrite: Rewrite, operation: CompactionOperation) -> Rewritten | None:
    """Write the log file of one group; None if its logs have no blocks."""
    state, store, partition = rewrite.state, rewrite.state.store, operation.partition
    storage, requested = store.inner.storage, rewrite.instant.requested
    paths = [log.path for log in rewrite.slice_of(operation).logs]
    layers = read_layers(storage, paths, lambda _requested: True)
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


LOG_COMPACTION = RewriteKind(action=Action.LOGCOMPACTION, operation=Operation.LOG_COMPACT, plan=_plan, task=_rewrite)
