"""Compact one file slice: merge its base file and logs into the next base file (DATA-5.2; TL-9.1)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.base.base_writer import BaseFileWriter, kept_schema
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import RowOrigin, SliceCounts, read_slice
from lakehouse.core.files.stage.markers import TaskMarkers, compaction_markers
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.errors import CorruptTableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.model.compaction import CompactionOperation
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionContext:
    """The settings for the tasks of one compaction: how to write, and how to read."""

    write: WriteContext
    read: SliceContext


def compact_slice(context: CompactionContext, attempt: Attempt, operation: CompactionOperation) -> WriteStat:
    """Write the base file of a compaction operation and return its write statistics.

    The new file has the instant of the compaction; rows keep the commit that wrote them.

    Raises:
        CorruptTableError: The plan contains invalid names of data files.
    """
    file_slice, counts = slice_of(operation), SliceCounts()
    markers = TaskMarkers(context.write, attempt, compaction_markers(context.write, attempt, operation, logs=False))
    with ExitStack() as stack:
        base = None
        if file_slice.base is not None:
            base = BaseFileReader(context.write.storage, file_slice.base.path)
            stack.callback(base.close)
        writer = stack.enter_context(BaseFileWriter(markers, operation.partition, operation.file_id, file_slice.base))
        merged = read_slice(context.read, file_slice, kept_schema(context.write.schema), counts, base)
        for number, (origin, rows) in enumerate(merged):
            if number == 0 and base is not None and writer.bloom.enabled:
                # The logs are already matched here, so the number of keys to add to the filter is known.
                writer.bloom.inherit(base.bloom_filter(), counts.unmatched)
            writer.write_kept(rows, is_stored=origin is not RowOrigin.INSERTED)
    stat = writer.stat(inserts=counts.inserted, updates=counts.updated, deletes=counts.deleted)
    return replace(
        stat,
        log_records=counts.log_entries,
        log_files_compacted=len(file_slice.logs),
        log_blocks=counts.log_blocks,
        corrupt_blocks=counts.corrupt_blocks,
        updated_compacted=counts.updated,
        log_bytes_compacted=int(operation.metrics.get("TOTAL_LOG_FILES_SIZE", 0)),
    )


def slice_of(operation: CompactionOperation) -> FileSlice:
    """Return the file slice of a plan's operation. Raises CorruptTableError for invalid names."""
    partition, file_id = operation.partition, operation.file_id
    base = None if operation.data_file is None else parse_base_file(operation.data_file, partition, 0)
    sizes = operation.log_sizes or (0,) * len(operation.log_files)
    logs = [parse_log_file(name, partition, size) for name, size in zip(operation.log_files, sizes, strict=True)]
    valid_logs = [log for log in logs if log is not None]
    if (operation.data_file is not None and base is None) or len(valid_logs) < len(logs):
        raise CorruptTableError(
            f"the plan for file group {file_id} of {partition!r} names a file that is not a data file"
        )
    return FileSlice(
        partition=partition, file_id=file_id, base_instant=operation.base_instant, base=base, logs=tuple(valid_logs)
    )
