"""Finding incoming keys in base files: one pass over the key column, hashed against the staged keys.

The answer stays where the data is: a hits file per base file, with one row per stored row that is touched,

    base_row int64 (position in the base file, ascending) | run dictionary<string> | row int64 (position in the run) |
    kind int8: IN_PLACE, MOVED_OUT (the incoming row goes to another partition), LOST (the stored row is newer)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.errors import UnsupportedError
from lakehouse.format.avro_schema import META_COLUMNS
from lakehouse.io.base_reader import BaseFileReader, convert
from lakehouse.io.context import WriteContext
from lakehouse.io.staging import StagedReader
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.plan.write import StagedEntry, TagResult, TagTask
from lakehouse.rows.keys import record_keys
from lakehouse.rows.merge import incoming_wins

KEY = META_COLUMNS[2]
IN_PLACE, MOVED_OUT, LOST = 0, 1, 2
_KEY_BYTES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Matches between one base file and staged rows, ordered by `base_row`; arrays of one length."""

    base_row: np.ndarray
    run: np.ndarray
    row: np.ndarray
    kind: np.ndarray
    runs: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.base_row)


def tag_files(context: WriteContext, attempt: Attempt, task: TagTask) -> list[TagResult]:
    """Look the task's keys up in its base files; write the hits of each beside the staged rows."""
    hits: dict[str, list[Hits]] = {base.path: [] for base in task.bases}
    readers = {base.path: BaseFileReader(context.storage, base.path) for base in task.bases}
    for part in entry_parts(task.entries, context.policy.memory_budget_bytes):
        keys = staged_keys(context, part)
        bounds = pc.min_max(keys)
        for base in task.bases:
            if _may_hold(readers[base.path], bounds):
                hits[base.path].append(find(context, base, readers[base.path], part, keys))
    results = []
    for base in task.bases:
        readers[base.path].close()
        results.append(write_hits(context, attempt, base, task.entries, hits[base.path]))
    return results


def find(
    context: WriteContext,
    base: BaseFile,
    reader: BaseFileReader,
    entries: tuple[StagedEntry, ...],
    keys: pa.ChunkedArray,
) -> Hits:
    """Return which rows of `base` carry one of `keys`, the keys of `entries` in order."""
    base_row, staged = _positions(context, reader, keys)
    starts = np.concatenate([[0], np.cumsum([entry.rows for entry in entries])])
    entry = np.searchsorted(starts, staged, side="right") - 1
    runs = tuple(sorted({e.run for e in entries}))
    run_of_entry = np.array([runs.index(e.run) for e in entries], np.int32)
    offsets = np.array([e.offset for e in entries], np.int64)
    row = staged - starts[entry] + offsets[entry]
    kind = np.full(len(base_row), IN_PLACE, np.int8)
    if context.move_partitions and len(base_row):
        kind = _kinds(context, base, reader, entries, entry, row - offsets[entry], base_row)
    return Hits(base_row=base_row, run=run_of_entry[entry] if len(entry) else entry, row=row, kind=kind, runs=runs)


def _positions(context: WriteContext, reader: BaseFileReader, keys: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the file whose key is among `keys`, and the position of that key."""
    value_set = keys.combine_chunks()
    base_rows, positions, start = [np.array([], np.int64)], [np.array([], np.int64)], 0
    for stored in stored_keys(context, reader):
        found = pc.index_in(stored, value_set=value_set)
        base_rows.append(np.flatnonzero(np.asarray(pc.is_valid(found))) + start)
        positions.append(found.drop_null().to_numpy(zero_copy_only=False).astype(np.int64))
        start += len(stored)
    return np.concatenate(base_rows), np.concatenate(positions)


def stored_keys(context: WriteContext, reader: BaseFileReader) -> Iterator[pa.Array]:
    """Yield the record keys of a base file, in pieces of an eighth of the budget."""
    size = max(context.policy.memory_budget_bytes // 8 // _KEY_BYTES, 1024)
    if KEY in reader.schema.names and reader.has_values(KEY):
        yield from reader.column_batches(KEY, size)
        return
    for rows in reader.batches(pa.schema([f for f in context.schema if f.name in _roots(context)]), size):
        keys = record_keys(rows, context.keys)
        yield from keys.chunks if isinstance(keys, pa.ChunkedArray) else [keys]


def staged_keys(context: WriteContext, entries: tuple[StagedEntry, ...]) -> pa.ChunkedArray:
    """Return the keys of the entries' rows, in order."""
    chunks: list[pa.Array] = []
    for entry in entries:
        with StagedReader(context.storage, entry.run) as reader:
            chunks.extend(reader.slice(entry.offset, entry.rows, [KEY]).column(0).chunks)
    return pa.chunked_array(chunks, pa.string())


def read_hits(context: WriteContext, path: str) -> Hits:
    """Return the hits of one hits file."""
    with context.storage.open_input(path) as source, pa.ipc.open_file(source) as reader:
        table = reader.read_all().combine_chunks()
    if table.num_rows == 0:
        empty = np.array([], np.int64)
        return Hits(base_row=empty, run=empty, row=empty, kind=empty, runs=())
    run = table.column("run").chunk(0)
    return Hits(
        base_row=table.column("base_row").to_numpy(),
        run=run.indices.to_numpy(),
        row=table.column("row").to_numpy(),
        kind=table.column("kind").to_numpy(),
        runs=tuple(run.dictionary.to_pylist()),
    )


def _roots(context: WriteContext) -> set[str]:
    return {name.split(".")[0] for name in context.keys.record_key_fields}


def entry_parts(entries: tuple[StagedEntry, ...], budget: int) -> list[tuple[StagedEntry, ...]]:
    """Cut the entries into parts whose keys fit a quarter of the budget with their hash table."""
    limit, parts, rows = max(budget // 4 // _KEY_BYTES, 1), [[]], 0  # type: tuple[int, list[list[StagedEntry]], int]
    for entry in entries:
        if parts[-1] and rows + entry.rows > limit:
            parts.append([])
            rows = 0
        parts[-1].append(entry)
        rows += entry.rows
    return [tuple(part) for part in parts if part]


def _may_hold(reader: BaseFileReader, bounds: pa.StructScalar) -> bool:
    low, high = reader.footer("hoodie_min_record_key"), reader.footer("hoodie_max_record_key")
    first, last = bounds["min"].as_py(), bounds["max"].as_py()
    if first is None:
        return False
    return low is None or high is None or (first <= high and last >= low)


def _kinds(
    context: WriteContext,
    base: BaseFile,
    reader: BaseFileReader,
    entries: tuple[StagedEntry, ...],
    entry: np.ndarray,
    position: np.ndarray,
    base_row: np.ndarray,
) -> np.ndarray:
    """Tell rows that leave this partition from those that stay (format: data.md 7.2)."""
    elsewhere = np.array([e.partition != base.partition for e in entries])[entry]
    deletes = position >= np.array([e.upserts for e in entries])[entry]
    moving = np.flatnonzero(elsewhere & ~deletes)
    kind = np.full(len(base_row), IN_PLACE, np.int8)
    kind[moving] = MOVED_OUT
    if len(moving):
        refuse_moves(context, len(moving))
    if context.rule.compared and len(moving):
        stored = pa.table({name: _stored(context, reader, name) for name in context.rule.compared})
        incoming = staged_ordering(context, entries, entry[moving], position[moving])
        wins = incoming_wins(context.rule, stored.take(pa.array(base_row[moving])), incoming, None)
        kind[moving[~wins]] = LOST
    return kind


def refuse_moves(context: WriteContext, rows: int) -> None:
    """Raise UnsupportedError if a row that goes to another partition would have to take values along."""
    if context.rule.mixes or context.brought is not None:
        raise UnsupportedError(
            f"{context.storage.root}: {rows} stored rows would move to another partition, and this write merges "
            "values of the stored row into the new one, which is not supported across partitions. Set "
            "hoodie.simple.index.update.partition.path=false to update rows where they are, or bring whole rows to a "
            "table without merger and partial updates."
        )


def _stored(context: WriteContext, reader: BaseFileReader, name: str) -> pa.ChunkedArray:
    wanted = context.schema.field(name).type
    if name not in reader.schema.names:
        return pa.chunked_array([pa.nulls(reader.rows, wanted)])
    return convert(reader.column(name), wanted)


def staged_ordering(
    context: WriteContext, entries: tuple[StagedEntry, ...], entry: np.ndarray, position: np.ndarray
) -> pa.Table:
    """Return the ordering columns of staged rows, named by entry and position in it."""
    names = list(context.rule.compared)
    tables, order = [], []
    for number in np.unique(entry):
        chosen = np.flatnonzero(entry == number)
        with StagedReader(context.storage, entries[number].run) as reader:
            tables.append(reader.take(position[chosen] + entries[number].offset, names))
        order.append(chosen)
    back = np.argsort(np.concatenate(order), kind="stable")
    return pa.concat_tables(tables).take(pa.array(back))


def write_hits(
    context: WriteContext,
    attempt: Attempt,
    base: BaseFile | FileSlice,
    entries: tuple[StagedEntry, ...],
    parts: list[Hits],
) -> TagResult:
    """Write what was found of a file, or of a slice with logs, beside the staged rows."""
    parts = [part for part in parts if len(part)]
    if not parts:
        return TagResult(base=base)
    names = tuple(sorted({run for part in parts for run in part.runs}))
    run = np.concatenate([np.array([names.index(r) for r in part.runs], np.int32)[part.run] for part in parts])
    base_row = np.concatenate([part.base_row for part in parts])
    row, kind = np.concatenate([part.row for part in parts]), np.concatenate([part.kind for part in parts])
    order = np.argsort(base_row, kind="stable")
    table = pa.table(
        {
            "base_row": base_row[order],
            "run": pa.DictionaryArray.from_arrays(pa.array(run[order], pa.int32()), pa.array(names, pa.string())),
            "row": row[order],
            "kind": kind[order],
        }
    )
    path = f"{context.staging}/hits/{base.file_id}_{attempt.token}.arrow"
    with context.storage.open_output(path) as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return TagResult(
        base=base,
        hits=path,
        hit_rows=int((kind != LOST).sum()),
        consumed=_consumed(entries, names, run, row, kind),
    )


def _consumed(
    entries: tuple[StagedEntry, ...], names: tuple[str, ...], run: np.ndarray, row: np.ndarray, kind: np.ndarray
) -> dict[str, int]:
    """Count, per partition of the batch, the distinct upserts that will not be inserted."""
    counts: dict[str, int] = {}
    for entry in entries:
        if entry.run not in names:
            continue
        mine = (run == names.index(entry.run)) & (kind != MOVED_OUT)
        mine &= (row >= entry.offset) & (row < entry.offset + entry.upserts)
        used = len(np.unique(row[mine]))
        if used:
            counts[entry.partition] = counts.get(entry.partition, 0) + used
    return counts
