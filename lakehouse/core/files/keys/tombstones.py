"""Apply and write tombstones: drop rows of a batch that are older than a recorded delete of their key.

A tombstone file is Parquet with one row per delete. The partition bounds of its row groups let a reader skip them:

    partition string | key string | instant string (of its commit) | until int64 (ms) | order_0, order_1, ... (ordering)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.files.keys.key_lookup import entry_parts, staged_keys
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.staging import KEY, RUN_BATCH_ROWS, StagedReader, write_run_rows
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import StagedEntry, StagedRun, TagTask
from lakehouse.core.planning.tombstones import TOMBSTONES, TombstoneFile, Tombstones, tombstone_name
from lakehouse.core.rows.deduplicate import combine
from lakehouse.core.rows.ordering import at_least, ordering_columns, without_ordering
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode

_PARTITION, _KEY, _INSTANT, _UNTIL = "partition", "key", "instant", "until"
_WHERE = "where"
#: Placeholder for the partition of deletes whose partition is unknown, in a partitioned table.
_ANYWHERE = ""
_GROUP_ROWS = 65_536
_TOMBSTONE_BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDeletes:
    """The tombstones that tasks receive: the files, and the time `now_ms` with which their expiry is compared."""

    known: Tombstones
    now_ms: int
    until_ms: int = 0
    files: tuple[TombstoneFile, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """A staged run without late rows, and the number of late rows. Without late rows it is the original run."""

    run: StagedRun
    late: int


def drop_late(context: WriteContext, deletes: KnownDeletes, attempt: Attempt, run: StagedRun) -> KeptRun:
    """Rewrite the run without the rows that are older than a recorded delete of their key, if there are any."""
    late = late_rows(context, deletes, run)
    if not len(late):
        return KeptRun(run=run, late=0)
    keep = np.ones(run.rows, bool)
    keep[late] = False
    path = f"{context.staging}/in-order/{attempt.token}.arrow"
    rows = np.flatnonzero(keep)
    with StagedReader(context, run.path) as reader:
        size = write_run_rows(context, path, reader, rows)
    entries = tuple(entry for e in run.entries if (entry := _moved(e, late, path)).rows)
    return KeptRun(run=replace(run, path=path, entries=entries, rows=len(rows), size_bytes=size), late=len(late))


def _moved(entry: StagedEntry, late: np.ndarray, path: str) -> StagedEntry:
    """Return the entry in a run without the `late` rows, which are in ascending order."""
    before, upto = np.searchsorted(late, [entry.offset, entry.offset + entry.rows]).tolist()
    return replace(entry, run=path, offset=entry.offset - before, rows=entry.rows - (upto - before))


def found_versions(context: WriteContext, read: SliceContext, attempt: Attempt, task: TagTask) -> StagedRun | None:
    """Stage the stored versions of keys to delete, with their ordering values.

    Return None if the slice contains none of the keys.

    A delete without ordering value applies to the stored version. With consistent hashing each entry is one part of the
    staged run, and the parts are in hash order.
    """
    (file_slice,) = task.slices
    path = f"{context.staging}/found/{file_slice.file_id}_{attempt.token}.arrow"
    wanted = pa.schema([pa.field(KEY, pa.string()), *(context.schema.field(n) for n in context.rule.compared)])
    columns = pa.schema([field for field in read.table if field.name in wanted.names])
    with ExitStack() as stack:
        writer, pending, count = None, wanted.empty_table(), 0
        pieces: list[int] = []
        for part in entry_parts(task.entries, context.policy.memory_budget_bytes):
            keys = staged_keys(context, part).combine_chunks()
            for _, rows in read_slice(read, file_slice, columns):
                met = rows.filter(pc.is_in(rows.column(KEY), value_set=keys)).select(wanted.names).cast(wanted)
                pending, count = pa.concat_tables([pending, met]), count + met.num_rows
                if writer is None and count:
                    sink = stack.enter_context(context.storage.open_output(path))
                    writer = stack.enter_context(pa.ipc.new_file(sink, wanted))
                while writer is not None and pending.num_rows >= RUN_BATCH_ROWS:
                    writer.write_table(_piece(context, pending.slice(0, RUN_BATCH_ROWS)))
                    pieces.append(RUN_BATCH_ROWS)
                    pending = pending.slice(RUN_BATCH_ROWS)
        if writer is None:
            return None
        writer.write_table(_piece(context, pending))
        pieces.append(pending.num_rows)
    bucket = context.layout.bucket_of_group(file_slice.file_id)
    whole = StagedEntry(run=path, partition=file_slice.partition, bucket=bucket, offset=0, rows=count, deletes=count)
    entries, start = [], 0
    for rows in context.layout.parts(pieces):
        entries.append(replace(whole, offset=start, rows=rows, deletes=rows))
        start += rows
    return context.layout.run(path, tuple(e for e in entries if e.rows), count, 0)


def _piece(context: WriteContext, rows: pa.Table) -> pa.Table:
    """Return rows as one chunk; with consistent hashing in the order of the hash."""
    rows = rows.combine_chunks()
    order = context.layout.hash_positions(rows.column(KEY), context.keys.record_key_fields)
    return rows if order is None else rows.take(pa.array(order))


def count_late(context: WriteContext, deletes: KnownDeletes, _attempt: Attempt, run: StagedRun) -> int:
    """Return the number of rows in the run that are older than a recorded delete of their key."""
    return len(late_rows(context, deletes, run))


def late_rows(context: WriteContext, deletes: KnownDeletes, run: StagedRun) -> np.ndarray:
    """Return the positions, ascending, of the run's upserts that are older than a recorded delete of their key."""
    scopes = _scopes(context, deletes, run)
    if not scopes:
        return np.array([], np.int64)
    entries = [entry for entry in run.entries if entry.upserts]
    number = {name: n for n, name in enumerate(_partitions(run))}
    position = np.concatenate([np.arange(e.offset, e.offset + e.upserts) for e in entries])
    code = pa.array(np.repeat([number[e.partition] for e in entries], [e.upserts for e in entries]))
    with StagedReader(context, run.path) as reader:
        wanted = [KEY, *context.rule.compared]
        rows = pa.concat_tables([reader.slice(e.offset, e.upserts, wanted) for e in entries])
    late = np.zeros(len(position), bool)
    for scope in scopes:
        where = _where(scope, code, rows.column(KEY))
        for stored in _in_scope(context, deletes, scope):
            # The newest delete of each key decides. With one delete per key each row has at most one match.
            newest = combine(stored, keys=(_WHERE,), rule=_by_value(context.rule))
            newest_of = pc.index_in(where, value_set=newest.column(_WHERE).combine_chunks())
            met = np.flatnonzero(np.asarray(newest_of.is_valid()))
            theirs = ordering_columns(newest.take(newest_of.drop_null()), context.rule)
            ours = ordering_columns(rows.take(pa.array(met)), context.rule)
            late[met[~at_least(ours, theirs, len(met))]] = True
    ascending: np.ndarray = np.sort(position[late])
    return ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scope:
    """The deletes to compare rows with: of some partitions (None means all), matched by key or by key and partition."""

    names: Sequence[str] | None
    by_key: bool

    def may_be_in(self, file: TombstoneFile) -> bool:
        """Return whether the file may contain such a delete."""
        return self.names is None or file.covers(self.names)


def may_be_late(context: WriteContext, deletes: KnownDeletes, run: StagedRun) -> bool:
    """Return whether a file may contain a delete for a key of the run. No file is read."""
    return bool(_scopes(context, deletes, run))


def _scopes(context: WriteContext, deletes: KnownDeletes, run: StagedRun) -> list[_Scope]:
    """Return the scopes of the run's upserts for which at least one file may contain deletes."""
    names = _partitions(run)
    searched = context.layout.searched(names)
    scopes = [_Scope(names=searched, by_key=searched is None)]
    if context.keys.partition_fields and searched is not None:
        # Deletes without partition apply to all partitions.
        scopes.append(_Scope(names=[_ANYWHERE], by_key=True))
    return [scope for scope in scopes if names and any(scope.may_be_in(file) for file in deletes.known.files)]


def _partitions(run: StagedRun) -> list[str]:
    return sorted({entry.partition for entry in run.entries if entry.upserts})


def _by_value(rule: MergeRule) -> MergeRule:
    return replace(rule, mode=MergeMode.EVENT_TIME_ORDERING, partial=PartialMode.NONE, merger=None)


def _where(scope: _Scope, codes: pa.Array, keys: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the value by which rows are matched: partition number and key, or only the key."""
    return keys if scope.by_key else pc.binary_join_element_wise(codes.cast(pa.string()), keys, ":")


def _in_scope(context: WriteContext, deletes: KnownDeletes, scope: _Scope) -> Iterator[pa.Table]:
    """Yield the valid deletes of the scope: `where` and the ordering columns, in pieces that fit into memory."""
    limit = context.budget.hashed_keys(_TOMBSTONE_BYTES)
    pending: list[pa.Table] = []
    for file in deletes.known.files:
        for rows in _read(context, deletes, file, scope.names) if scope.may_be_in(file) else ():
            codes = pa.array(np.zeros(rows.num_rows, np.int64))
            if scope.names is not None:
                number = pc.index_in(rows.column(_PARTITION), value_set=pa.array(scope.names, pa.string()))
                rows, codes = rows.filter(number.is_valid()), number.drop_null()
            where = _where(scope, codes, rows.column(_KEY))
            pending.append(rows.drop_columns([_PARTITION, _KEY, _INSTANT, _UNTIL]).append_column(_WHERE, where))
            if sum(piece.num_rows for piece in pending) >= limit:
                yield pa.concat_tables(pending)
                pending = []
    if sum(piece.num_rows for piece in pending):
        yield pa.concat_tables(pending)


def _read(
    context: WriteContext, deletes: KnownDeletes, file: TombstoneFile, names: Sequence[str] | None
) -> Iterator[pa.Table]:
    """Yield the valid deletes of a file by row groups. Row groups without any of the partitions are not read."""
    try:
        source = context.storage.open_input(file.path)
    except NotFoundError as error:
        raise CorruptTableError(
            f"{context.storage.root}/{file.path} is missing: it records deletes that late rows must not undo. "
            "Restore it, or write with lakehouse.delete_retention= (empty) until its deletes expire",
            path=file.path,
        ) from error
    with ExitStack() as stack:
        stack.callback(source.close)
        reader = stack.enter_context(pq.ParquetFile(source, pre_buffer=False))
        for number in range(reader.num_row_groups):
            bounds = reader.metadata.row_group(number).column(0).statistics
            bounded = names is not None and bounds is not None and bounds.has_min_max
            if bounded and not any(bounds.min <= name <= bounds.max for name in names or ()):
                continue
            rows = reader.read_row_group(number, use_threads=False)
            yield _counting(_with_ordering(context, rows), deletes)


def _with_ordering(context: WriteContext, rows: pa.Table) -> pa.Table:
    """Return the deletes with the ordering columns under the names and types of the table."""
    columns = {name: rows.column(name) for name in (_PARTITION, _KEY, _INSTANT, _UNTIL)}
    ordering = {name: rows.column(f"order_{i}") for i, name in enumerate(context.rule.compared)}
    kinds = {name: context.schema.field(name).type for name in ordering}
    return pa.table(columns | {name: column.cast(kinds[name]) for name, column in ordering.items()})


def _counting(rows: pa.Table, deletes: KnownDeletes) -> pa.Table:
    """Return the deletes that have not expired and whose partition was not overwritten later."""
    counts = pc.greater(rows.column(_UNTIL), deletes.now_ms)
    tombstones = deletes.known
    if tombstones.overwritten_all:
        counts = pc.and_(counts, pc.greater(rows.column(_INSTANT), tombstones.overwritten_all))
    if tombstones.overwritten:
        names, instants = (
            pa.array(list(tombstones.overwritten), pa.string()),
            pa.array(list(tombstones.overwritten.values()), pa.string()),
        )
        at = instants.take(pc.index_in(rows.column(_PARTITION), value_set=names).combine_chunks())
        counts = pc.and_(counts, pc.fill_null(pc.greater(rows.column(_INSTANT), at), True))
    return rows.filter(counts)


def write_tombstones(
    context: WriteContext, deletes: KnownDeletes, attempt: Attempt, run: StagedRun
) -> TombstoneFile | None:
    """Write the deletes of a run that have an ordering value. Return None if there are none."""
    entries = [entry for entry in run.entries if context.incoming.deletes_only or entry.deletes]
    with StagedReader(context, run.path) as reader, _Writer(context, deletes.until_ms, attempt) as writer:
        window = context.budget.window_rows(reader.bytes_per_row)
        for entry in entries:
            first = entry.offset if context.incoming.deletes_only else entry.offset + entry.upserts
            stop = entry.offset + entry.rows
            for start in range(first, stop, window):
                wanted = [KEY, *context.rule.compared]
                rows = reader.slice(start, min(window, stop - start), wanted)
                rows = rows.filter(pa.array(~without_ordering(rows, context.rule)))
                count = rows.num_rows
                columns = {
                    _PARTITION: pa.repeat(entry.partition, count),
                    _KEY: rows.column(KEY),
                    _INSTANT: pa.repeat(context.instant, count),
                    _UNTIL: pa.repeat(deletes.until_ms, count),
                }
                writer.add(pa.table(columns | {name: rows.column(name) for name in context.rule.compared}))
        return writer.finish()


def merge_tombstones(
    context: WriteContext, deletes: KnownDeletes, attempt: Attempt, files: tuple[TombstoneFile, ...]
) -> TombstoneFile | None:
    """Write the valid deletes of some files as one file. Return None if there are none."""
    until_ms = max(file.until_ms for file in files)
    with _Writer(context, until_ms, attempt) as writer:
        for file in files:
            for rows in _read(context, deletes, file, None):
                writer.add(rows)
        return writer.finish()


class _Writer:
    """A tombstone file that is created with the first deletes. An incomplete file is removed."""

    def __init__(self, context: WriteContext, until_ms: int, attempt: Attempt) -> None:
        self._context = context
        self._name = tombstone_name(context.instant, until_ms, attempt.token)
        self._stack = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._pending: list[pa.Table] = []
        self._rows = self._held = 0
        self._first = self._last = ""

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.__exit__(*error)  # type: ignore[arg-type]

    def add(self, rows: pa.Table) -> None:
        """Append deletes."""
        if not rows.num_rows:
            return
        bounds = pc.min_max(rows.column(_PARTITION)).as_py()
        self._first = bounds["min"] if not self._rows else min(self._first, bounds["min"])
        self._last = max(self._last, bounds["max"])
        names = [
            f"order_{self._context.rule.compared.index(n)}" if n in self._context.rule.compared else n
            for n in rows.column_names
        ]
        self._pending.append(rows.rename_columns(names))
        self._rows, self._held = self._rows + rows.num_rows, self._held + rows.num_rows
        if self._held >= _GROUP_ROWS:
            self._flush()

    def finish(self) -> TombstoneFile | None:
        """Complete the file and return it; None if nothing was added."""
        self._flush()
        if self._writer is None:
            return None
        self._stack.close()
        return TombstoneFile(name=self._name, rows=self._rows, first=self._first, last=self._last)

    def _flush(self) -> None:
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending).combine_chunks()
        if self._writer is None:
            sink = self._stack.enter_context(self._context.storage.open_output(f"{TOMBSTONES}/{self._name}"))
            self._writer = self._stack.enter_context(pq.ParquetWriter(sink, rows.schema, compression="zstd"))
        self._writer.write_table(
            rows.sort_by([(_PARTITION, "ascending"), (_KEY, "ascending")]), row_group_size=_GROUP_ROWS
        )
        self._pending, self._held = [], 0
