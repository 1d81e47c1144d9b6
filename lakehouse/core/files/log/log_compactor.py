"""Compact the logs of one file slice: write one log file that replaces several (DATA-4.6).

Its blocks name the instants that they replace (COMPACTED_BLOCK_TIMES), and readers skip the blocks of those instants.
The base file is not read. So a slice stays fast to read even if its logs grow faster than compactions run.

Partial updates that must be merged with their base row one after another are copied unchanged, each version of a key to
a separate file.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.log.compactor import CompactionContext, slice_of
from lakehouse.core.files.log.log_reader import KEY
from lakehouse.core.files.log.log_writer import LogWriter, delete_ordering
from lakehouse.core.files.log.slice_log_merge import LogMerge, LogPart
from lakehouse.core.files.stage.markers import TaskMarkers, compaction_markers
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.log.blocks import BlockType, LogBlock
from lakehouse.core.rows.log_entries import COLUMNS, CONTROL, DEFAULT, DELETE, KIND, RECORD, ColumnSets
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.model.compaction import CompactionOperation

_BATCH_ROWS = 32_768


def compact_logs(context: CompactionContext, attempt: Attempt, operation: CompactionOperation) -> list[WriteStat]:
    """Write the log file that replaces the operation's log files and return its write statistics."""
    file_slice = slice_of(operation)
    instants = tuple(dict.fromkeys(log.instant for log in file_slice.logs))
    sets, columns = ColumnSets(), context.read.table
    markers = TaskMarkers(context.write, attempt, compaction_markers(context.write, attempt, operation, logs=True))
    writer = LogWriter(markers, operation.partition, operation.file_id, is_new=False)
    writer.replace_blocks(instants)
    seen: list[LogBlock] = []
    try:
        with scratch_directory("lakehouse-logs-") as directory:
            merge = LogMerge(context.read, columns, sets, Path(directory), seen=seen)
            parts = merge.parts(file_slice.logs, iter(()))
            count = sum(part.entries.num_rows for part in parts)
            for part in parts:
                _append(context, writer, _merged_alone(part), sets)
            versions = [part.versions for part in parts if part.versions is not None]
            for number in range(max((several.most for several in versions), default=0)):
                if number:
                    # A file contains its deletes after its rows, so each version of a key needs a separate file.
                    writer.roll()
                for several in versions:
                    _append(context, writer, several.version(number), sets)
        stats = writer.finish()
    finally:
        writer.discard()
    if not stats:
        # None of these logs has a valid block, so there is nothing to replace.
        return []
    first = replace(
        stats[0],
        log_records=count,
        corrupt_blocks=sum(block.kind is BlockType.CORRUPT for block in seen),
        log_files_compacted=len(file_slice.logs),
        log_bytes_compacted=int(operation.metrics.get("TOTAL_LOG_FILES_SIZE", 0)),
    )
    return [first, *stats[1:]]


def _merged_alone(part: LogPart) -> pa.Table:
    """Return the entries for which readers need no older versions."""
    if part.versions is None:
        return part.entries
    single = part.versions.counts(np.arange(part.entries.num_rows)) == 0
    return part.entries.filter(pa.array(single))


def _append(context: CompactionContext, writer: LogWriter, entries: pa.Table, sets: ColumnSets) -> None:
    for start in range(0, entries.num_rows, _BATCH_ROWS):
        _append_batch(context, writer, entries.slice(start, _BATCH_ROWS), sets)


def _append_batch(context: CompactionContext, writer: LogWriter, entries: pa.Table, sets: ColumnSets) -> None:
    deletes = entries.filter(pc.equal(entries.column(KIND), DELETE))
    default = deletes.column(DEFAULT)
    writer.add_deletes(deletes.column(KEY).filter(default), None)
    ordered = deletes.filter(pc.invert(default))
    if ordered.num_rows:
        writer.add_deletes(ordered.column(KEY), delete_ordering(ordered, context.read.rule))
    rows = entries.filter(pc.not_equal(entries.column(KIND), DELETE))
    replacing = pc.and_(pc.equal(rows.column(KIND), RECORD), rows.column(DEFAULT))
    if pc.any(replacing).as_py():
        # A file contains its deletes after its rows, but readers must process these deletes before the records.
        writer.add_deletes(rows.column(KEY).filter(replacing), None)
        writer.roll()
    data = rows.drop_columns(CONTROL.names)
    for number in pc.unique(rows.column(COLUMNS)).to_pylist():
        provided = sets.sets[number]
        chosen = data.filter(pc.equal(rows.column(COLUMNS), number))
        if provided is not None:
            chosen = chosen.select([name for name in chosen.column_names if name in provided or name in META_COLUMNS])
        writer.add_stored(chosen)
