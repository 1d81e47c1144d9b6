"""The next base file of one file group: stored rows, met by incoming ones, then inserts.

Stored rows stream through in batches; of the incoming rows only a window is in memory. Positions of matches are known
before the first row is written, so no row is looked up twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa

from lakehouse.io.base_reader import BaseFileReader
from lakehouse.io.base_writer import BaseFileWriter, stored_schema
from lakehouse.io.cdc_writer import ChangeLog
from lakehouse.io.context import WriteContext
from lakehouse.io.match import IN_PLACE, KEY, LOST, MOVED_OUT, Hits, find, read_hits, staged_keys
from lakehouse.io.staging import StagedReader
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.plan.write import GroupTask, StagedEntry
from lakehouse.rows.entries import ColumnSets, record_entries
from lakehouse.rows.merge import incoming_wins, says_deleted
from lakehouse.rows.settle import settle

_WINDOW_BYTES_PER_VALUE = 24


def write_group(context: WriteContext, attempt: Attempt, task: GroupTask) -> WriteStat | None:
    """Write the group's next base file and return its stat; None if there is nothing to write."""
    reader = None if task.base is None else BaseFileReader(context.storage, task.base.path)
    try:
        hits = _hits(context, task, reader)
        chosen = _inserts(context, task, hits)
        count = sum(len(rows) for _, rows in chosen)
        if not count and (hits is None or len(hits) == 0):
            return None
        with (
            BaseFileWriter(context, attempt, task.partition, task.file_id, task.base) as writer,
            ChangeLog(context, attempt, task.base) as changes,
        ):
            updates = deletes = 0
            if reader is not None:
                writer.bloom.inherit(
                    reader.footer("org.apache.hudi.bloomfilter"), reader.footer("hoodie_bloom_filter_type_code"), count
                )
                updates, deletes = _merge(context, writer, changes, reader, hits)
            inserts = 0
            for rows in _windows(context, chosen):
                writer.write_new(rows, rows.column(KEY))
                changes.inserted(rows)
                inserts += rows.num_rows
        return replace(writer.stat(inserts=inserts, updates=updates, deletes=deletes), cdc_files=changes.files)
    finally:
        if reader is not None:
            reader.close()


def _hits(context: WriteContext, task: GroupTask, reader: BaseFileReader | None) -> Hits | None:
    if reader is None or task.base is None:
        return None
    if task.finds_matches:
        return find(context, task.base, reader, task.entries, staged_keys(context, task.entries))
    return read_hits(context, task.hits) if task.hits else None


def _merge(
    context: WriteContext, writer: BaseFileWriter, changes: ChangeLog, reader: BaseFileReader, hits: Hits | None
) -> tuple[int, int]:
    """Stream the stored rows into `writer`, replaced or dropped where a hit says so; return (updates, deletes)."""
    updates = deletes = start = 0
    window = None if hits is None else _HitWindow(context, hits)
    for stored in reader.batches(stored_schema(context.schema), reader.rows_within(_budget_share(context))):
        stop = start + stored.num_rows
        touched = None if window is None else window.upto(stop)
        if touched is None:
            writer.write_kept(stored)
        else:
            position, kind, incoming = touched
            replaced, dropped, fresh = _meet(context, stored, position - start, kind, incoming)
            gone = np.zeros(stored.num_rows, bool)
            gone[(position - start)[replaced | dropped]] = True
            writer.write_kept(stored.filter(pa.array(~gone)))
            writer.write_new(fresh, fresh.column(KEY), known=True)
            changes.merged(stored, position - start, replaced, dropped, fresh)
            updates, deletes = updates + int(replaced.sum()), deletes + int(dropped.sum())
        start = stop
    return updates, deletes


def _meet(
    context: WriteContext, stored: pa.Table, position: np.ndarray, kind: np.ndarray, incoming: pa.Table
) -> tuple[np.ndarray, np.ndarray, pa.Table]:
    """Return which hits replace their stored row, which remove it, and the replacing rows in order."""
    rule, at = context.rule, pa.array(position)
    if context.deletes_only:
        return np.zeros(len(position), bool), np.ones(len(position), bool), incoming.slice(0, 0)
    if rule.mixes:
        assert (kind == IN_PLACE).all(), "a write that moves rows between partitions is refused where versions mix"
        sets = ColumnSets()
        brought = sets.number(None if context.brought is None else frozenset(context.brought))
        entries = record_entries(incoming, rule, brought, table=context.schema)
        settled = settle(stored.select(incoming.column_names).take(at), entries, rule, sets)
        return settled.replaced, settled.removed, settled.rows
    deleted = says_deleted(incoming, rule, context.schema)
    wins = incoming_wins(rule, stored.select(rule.compared).take(at), incoming, deleted)
    replaced, moved = wins & ~deleted & (kind == IN_PLACE), kind == MOVED_OUT
    fresh = _completed(context, incoming.filter(pa.array(replaced)), stored, position[replaced])
    return replaced, moved | (wins & deleted & (kind == IN_PLACE)), fresh


def _completed(context: WriteContext, fresh: pa.Table, stored: pa.Table, position: np.ndarray) -> pa.Table:
    """Return rows of a partial update with the stored values of the columns that they do not bring."""
    if context.brought is None:
        return fresh
    rows = pa.array(position)
    for number, name in enumerate(fresh.column_names):
        if name in stored.column_names and name not in context.brought and name != KEY:
            fresh = fresh.set_column(number, name, stored.column(name).take(rows))
    return fresh


def _budget_share(context: WriteContext) -> int:
    # A batch is in memory as read, once more as what is kept of it, and beside it the rows that wait to be encoded.
    return context.policy.memory_budget_bytes // 16


class _HitWindow:
    """The staged rows of the next hits, gathered a window at a time."""

    def __init__(self, context: WriteContext, hits: Hits) -> None:
        effective = np.flatnonzero(hits.kind != LOST)
        self._context, self._next = context, 0
        self._hits = Hits(
            base_row=hits.base_row[effective],
            run=hits.run[effective],
            row=hits.row[effective],
            kind=hits.kind[effective],
            runs=hits.runs,
        )
        width = len(context.schema.names) * _WINDOW_BYTES_PER_VALUE
        self._size = max(context.policy.memory_budget_bytes // 8 // width, 1024)
        self._start = self._stop = 0
        self._rows: pa.Table | None = None

    def upto(self, base_row: int) -> tuple[np.ndarray, np.ndarray, pa.Table] | None:
        """Return (base rows, kinds, incoming rows) of the hits before `base_row` not returned yet; None if none."""
        stop = int(np.searchsorted(self._hits.base_row, base_row))
        start, self._next = self._next, stop
        if start == stop:
            return None
        if self._rows is None or stop > self._stop:
            self._start, self._stop = start, min(max(stop, start + self._size), len(self._hits))
            self._rows = self._gather(self._start, self._stop)
        rows = self._rows.slice(start - self._start, stop - start)
        return self._hits.base_row[start:stop], self._hits.kind[start:stop], rows

    def _gather(self, start: int, stop: int) -> pa.Table:
        run, row = self._hits.run[start:stop], self._hits.row[start:stop]
        tables, order = [], []
        for number in np.unique(run):
            chosen = np.flatnonzero(run == number)
            with StagedReader(self._context.storage, self._hits.runs[number]) as reader:
                tables.append(reader.take(row[chosen]))
            order.append(chosen)
        back = np.argsort(np.concatenate(order), kind="stable")
        return pa.concat_tables(tables).take(pa.array(back))


def _inserts(context: WriteContext, task: GroupTask, hits: Hits | None) -> list[tuple[StagedEntry, np.ndarray]]:
    """Return the rows this group inserts: per entry, positions in its run."""
    if task.insert_range is None:
        return []
    known = [hits] if task.finds_matches and hits is not None else [read_hits(context, p) for p in task.consumed_by]
    first, last = task.insert_range
    chosen, number = [], 0
    for entry in task.entries:
        free = np.ones(entry.upserts, bool)
        for found in known:
            if entry.run in found.runs:
                mine = (found.run == found.runs.index(entry.run)) & (found.kind != MOVED_OUT)
                mine &= (found.row >= entry.offset) & (found.row < entry.offset + entry.upserts)
                free[found.row[mine] - entry.offset] = False
        rows = np.flatnonzero(free) + entry.offset
        begin = min(max(first - number, 0), len(rows))
        end = len(rows) if last is None else min(max(last - number, 0), len(rows))
        number += len(rows)
        if end > begin:
            chosen.append((entry, rows[begin:end]))
    return chosen


def _windows(context: WriteContext, chosen: list[tuple[StagedEntry, np.ndarray]]) -> Iterator[pa.Table]:
    size = max(context.policy.memory_budget_bytes // 8 // (len(context.schema.names) * _WINDOW_BYTES_PER_VALUE), 1024)
    for entry, rows in chosen:
        with StagedReader(context.storage, entry.run) as reader:
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                if part[-1] - part[0] == len(part) - 1:
                    yield reader.slice(int(part[0]), len(part))
                else:
                    yield reader.take(part)
