"""Compaction of one file slice: base and logs become the next base file (format: data.md 5.2; timeline.md 9.1)."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace

import pyarrow as pa

from lakehouse.errors import CorruptTableError
from lakehouse.format.names import parse_base_file, parse_log_file
from lakehouse.io.base_reader import REPEATED, REPEATING, BaseFileReader
from lakehouse.io.base_writer import FILE_NAME, BaseFileWriter
from lakehouse.io.context import WriteContext
from lakehouse.io.log_reader import SliceContext
from lakehouse.io.slice_reader import Origin, SliceCounts, read_slice
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.model.compaction import CompactionOperation
from lakehouse.model.files import FileSlice

_BLOOM_FOOTER = ("org.apache.hudi.bloomfilter", "hoodie_bloom_filter_type_code")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionContext:
    """What the tasks of one compaction are told: how to write, and how to read."""

    write: WriteContext
    read: SliceContext


def compact_slice(context: CompactionContext, attempt: Attempt, operation: CompactionOperation) -> WriteStat:
    """Write the base file that the operation asks for and return its stat.

    The new file has the compaction's instant; rows keep the commit that wrote them. Raises CorruptTableError for a plan
    whose names are not those of data files.
    """
    file_slice, counts = slice_of(operation), SliceCounts()
    with ExitStack() as stack:
        base = None
        if file_slice.base is not None:
            base = BaseFileReader(context.write.storage, file_slice.base.path)
            stack.callback(base.close)
        writer = stack.enter_context(
            BaseFileWriter(context.write, attempt, operation.partition, operation.file_id, file_slice.base)
        )
        table = context.read.table
        merged = read_slice(context.read, file_slice, _as_stored(table), counts, base)
        for number, (origin, rows) in enumerate(merged):
            if number == 0 and base is not None:
                # By now the logs are matched, and it is known how many keys the filter must still take.
                text, code = (base.footer(key) for key in _BLOOM_FOOTER)
                writer.bloom.inherit(text, code, counts.unmatched)
            writer.write_kept(_with_file_name(rows, table), known=origin is not Origin.INSERTED)
    stat = writer.stat(inserts=counts.inserted, updates=counts.updated, deletes=counts.deleted)
    return replace(
        stat,
        log_records=counts.log_entries,
        log_files_compacted=len(file_slice.logs),
        log_blocks=counts.log_blocks,
        updated_compacted=counts.updated,
        log_bytes_compacted=int(operation.metrics.get("TOTAL_LOG_FILES_SIZE", 0)),
    )


def slice_of(operation: CompactionOperation) -> FileSlice:
    """Return the slice that an operation of a plan names."""
    partition, file_id = operation.partition, operation.file_id
    base = None if operation.data_file is None else parse_base_file(operation.data_file, partition, 0)
    logs = [parse_log_file(name, partition, 0) for name in operation.log_files]
    known = [log for log in logs if log is not None]
    if (operation.data_file is not None and base is None) or len(known) < len(logs):
        raise CorruptTableError(f"the plan for file group {file_id} of {partition!r} names what is no data file")
    return FileSlice(
        partition=partition, file_id=file_id, base_instant=operation.base_instant, base=base, logs=tuple(known)
    )


def _as_stored(table: pa.Schema) -> pa.Schema:
    """Return the columns to read: all but the file name, which is new, those of few values as dictionaries."""
    fields = [field for field in table if field.name != FILE_NAME]
    return pa.schema([field.with_type(REPEATED) if field.name in REPEATING else field for field in fields])


def _with_file_name(rows: pa.Table, table: pa.Schema) -> pa.Table:
    """Return the rows with an empty column where the writer puts the name of the file."""
    return rows.add_column(table.get_field_index(FILE_NAME), FILE_NAME, pa.nulls(rows.num_rows, REPEATED))
