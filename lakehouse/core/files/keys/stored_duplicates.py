"""Find the staged rows whose keys the table contains, and drop them from their runs (insert policies)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.keys.key_lookup import entry_parts, staged_keys
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.staging import KEY, StagedReader, write_run_rows
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import StagedEntry, StagedRun, TagTask
from lakehouse.model.attempt import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKeys:
    """A file in the staging folder with the keys of the batch that a slice contains."""

    path: str
    partition: str
    rows: int
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRows:
    """A staged run without rows whose keys are stored, and the number of dropped rows."""

    run: StagedRun
    dropped: int


def stored_keys_of(context: WriteContext, read: SliceContext, attempt: Attempt, task: TagTask) -> StoredKeys | None:
    """Write the keys of the task's entries that its slice contains; None if there are none."""
    (file_slice,) = task.slices
    path = f"{context.staging}/duplicates/{file_slice.file_id}_{attempt.token}.arrow"
    columns, schema = pa.schema([read.table.field(KEY)]), pa.schema([pa.field(KEY, pa.string())])
    count, example = 0, ""
    with ExitStack() as stack:
        writer = None
        for part in entry_parts(task.entries, context.policy.memory_budget_bytes):
            keys = staged_keys(context, part).combine_chunks()
            for _, rows in read_slice(read, file_slice, columns):
                stored = rows.column(KEY).cast(pa.string())
                met = pa.table([stored.filter(pc.is_in(stored, value_set=keys))], schema=schema)
                if not met.num_rows:
                    continue
                if writer is None:
                    sink = stack.enter_context(context.storage.open_output(path))
                    writer = stack.enter_context(pa.ipc.new_file(sink, schema))
                    example = str(met.column(0)[0].as_py())
                writer.write_table(met)
                count += met.num_rows
    if not count:
        return None
    return StoredKeys(path=path, partition=file_slice.partition, rows=count, example=example)


def drop_stored(context: WriteContext, stored: Sequence[StoredKeys], attempt: Attempt, run: StagedRun) -> NewRows:
    """Rewrite the run without the rows whose keys are stored, if there are any."""
    dropped = _stored_rows(context, stored, run)
    if not len(dropped):
        return NewRows(run=run, dropped=0)
    keep = np.ones(run.rows, bool)
    keep[dropped] = False
    path, rows = f"{context.staging}/new-rows/{attempt.token}.arrow", np.flatnonzero(keep)
    with StagedReader(context, run.path) as reader:
        size = write_run_rows(context, path, reader, rows)
    entries = tuple(entry for e in run.entries if (entry := moved(e, dropped, path)).rows)
    return NewRows(run=replace(run, path=path, entries=entries, rows=len(rows), size_bytes=size), dropped=len(dropped))


def moved(entry: StagedEntry, dropped: np.ndarray, path: str) -> StagedEntry:
    """Return the entry in a run without the `dropped` rows, which are in ascending order."""
    before, upto = np.searchsorted(dropped, [entry.offset, entry.offset + entry.rows]).tolist()
    return replace(entry, run=path, offset=entry.offset - before, rows=entry.rows - (upto - before))


def _stored_rows(context: WriteContext, stored: Sequence[StoredKeys], run: StagedRun) -> np.ndarray:
    """Return the positions, ascending, of the run's upserts whose keys are stored."""
    rows: list[np.ndarray] = []
    with StagedReader(context, run.path) as reader:
        for entry in run.entries:
            files = [each for each in stored if context.layout.entries_for([entry], each.partition)]
            if not files or not entry.upserts:
                continue
            keys = reader.slice(entry.offset, entry.upserts, [KEY]).column(0)
            is_stored = np.zeros(entry.upserts, bool)
            for file in files:
                with context.storage.open_input(file.path) as source, pa.ipc.open_file(source) as reader_of_keys:
                    for number in range(reader_of_keys.num_record_batches):
                        batch = reader_of_keys.get_batch(number)
                        is_stored |= np.asarray(pc.is_in(keys, value_set=batch.column(0)))
            rows.append(entry.offset + np.flatnonzero(is_stored))
    ascending: np.ndarray = np.sort(np.concatenate(rows)) if rows else np.array([], np.int64)
    return ascending
