"""Stage the incoming batch: write it once to a place where all tasks of a write can read it.

One task stages one shard: all rows of its keys, so that duplicates are in one task. A shard that exceeds the budget is
split by key hash into local spill files, repeatedly if a part is still too large. Each run is one Arrow file, with rows
grouped by partition and bucket, and upserts before deletes. Its entries contain the row range of each group.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import align
from lakehouse.core.files.stage.write_context import Batches, WriteContext, give_back
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.index.hash.bucket import bucket_ids
from lakehouse.core.index.hash.consistent_hashing import key_hashes
from lakehouse.core.index.write_tasks import StagedEntry, StagedRun
from lakehouse.core.rows.absent_columns import LACKS, bits_of, bits_without
from lakehouse.core.rows.casting import writable
from lakehouse.core.rows.deduplicate import combine
from lakehouse.core.rows.keys import (
    encoded_partition_paths,
    record_keys,
    refuse_ambiguous_keys,
    refuse_long_keys,
    required_columns,
)
from lakehouse.core.rows.numbered_texts import numbered_texts
from lakehouse.core.rows.record_merge import says_deleted, with_delete_flags
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.errors import UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode

KEY = META_COLUMNS[2]
PATH = META_COLUMNS[3]
_DELETES = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING)
_SPILL_WAYS = 32
# Maximum number of split levels, because a hash has no more digits. Also the minimum size of a part in a separate file.
_MAX_LEVEL = 5
_MIN_SPILLED_BYTES = 1 << 20
#: Maximum number of values of the spread column that a run counts.
_MOST_VALUES = 1_000
#: The number of rows in each record batch of a run except the last one.
RUN_BATCH_ROWS = 65_536


def stage_shard(context: WriteContext, attempt: Attempt, batches: Batches) -> Iterator[StagedRun]:
    """Write the rows of one shard as runs. If duplicates are combined, each key occurs exactly once in all runs."""
    with scratch_directory("lakehouse-spill-") as directory:
        batches = with_generated_keys(context, attempt, batches)
        incoming = (keyed(context, batch) for batch in batches if batch.num_rows)
        yield from stage_keyed(context, attempt, incoming, Path(directory))


def with_generated_keys(context: WriteContext, attempt: Attempt, batches: Batches) -> Batches:
    """Return the batches of a task with the column of the record key, if the table has no key columns.

    As in Hudi, a key is `<instant>_<task>_<row>`, where rows are counted in the task. Only one attempt of a task is
    used, so the keys of a write are unique. The rows of a MERGE that change stored rows have their keys.
    """
    generates = context.incoming.generates_keys or context.incoming.fills_keys
    return _with_keys(context, attempt, batches) if generates else batches


def _with_keys(context: WriteContext, attempt: Attempt, batches: Batches) -> Iterator[pa.RecordBatch]:
    prefix, first = f"{context.instant}_{attempt.partition}_", 0
    for batch in batches:
        # Rows of a scan contain the keys of another table.
        names = [name for name in batch.schema.names if name != KEY]
        columns = [batch.column(name) for name in names]
        keys = numbered_texts(prefix, first, batch.num_rows)
        if context.incoming.fills_keys:
            keys = pc.coalesce(batch.column(KEY), keys)
        yield pa.RecordBatch.from_arrays([*columns, keys], names=[*names, KEY])
        first += batch.num_rows


def stage_keyed(
    context: WriteContext, attempt: Attempt, incoming: Iterator[pa.Table], directory: Path
) -> Iterator[StagedRun]:
    """Write the rows of one shard as runs (see `keyed`); `directory` takes the rows that exceed the budget."""
    for number, rows in enumerate(_fitting(context, incoming, directory)):
        yield _write_run(context, attempt, number, rows)


def _fitting(
    context: WriteContext, incoming: Iterator[pa.Table], directory: Path, level: int = 0
) -> Iterator[list[pa.Table]]:
    """Yield the rows in pieces that fit the budget; the caller empties each piece. Duplicates stay together."""
    limit = context.budget.pending_bytes if level == 0 else max(context.budget.pending_bytes, _MIN_SPILLED_BYTES)
    pending: list[pa.Table] = []
    size, spill = 0, None
    for rows in incoming:
        pending.append(rows)
        size += rows.nbytes
        if size <= limit or level == _MAX_LEVEL:
            continue
        if context.incoming.combine:
            spill = spill or _Spill(directory, rows.schema, level)
            spill.add(set_aside(context, pending))
        else:
            yield pending
        pending, size = [], 0
        give_back()
    if spill is None:
        if pending:
            yield pending
        return
    if pending:
        spill.add(set_aside(context, pending))
    for way, rows_of_way in enumerate(spill.finish()):
        yield from _fitting(context, rows_of_way, directory / str(way), level + 1)


def keyed(context: WriteContext, batch: pa.RecordBatch | pa.Table) -> pa.Table:
    """Return the batch in the schema of the table, with record key and partition path as first columns.

    Raises UserError for rows without a valid key or partition path, before any row of the batch is written.
    """
    rows, paths = keyed_rows(context, batch)
    return rows.add_column(1, PATH, paths.dictionary_decode())


def keyed_rows(context: WriteContext, batch: pa.RecordBatch | pa.Table) -> tuple[pa.Table, pa.DictionaryArray]:
    """Return the batch in the schema of the table, with the record key as first column, and the partition paths.

    The dictionary of the paths has each path once. Raises UserError as `keyed` does.
    """
    table = pa.Table.from_batches([batch]) if isinstance(batch, pa.RecordBatch) else batch
    table = table if context.incoming.deletes_only else with_delete_flags(table, context.schema)
    # Keys are built from converted values. An int32 and an int64, or times of different units, must give one key.
    data = _aligned(table, _named_columns(context, table) if context.incoming.deletes_only else context.schema, context)
    if KEY in table.column_names and (context.incoming.deletes_only or context.keys.generates_keys):
        keys = table.column(KEY)
        if keys.null_count:
            raise UserError(
                f"{keys.null_count:,} of {len(table):,} rows have no record key in {KEY}. Rows of a table without key "
                "columns are changed by the keys of a scan; add rows by insert",
                column=KEY,
            )
    else:
        refuse_ambiguous_keys(data, context.keys)
        keys = record_keys(data, context.keys)
        refuse_long_keys(keys, context.policy.max_key_bytes)
    if not context.keys.partition_fields or (context.layout.global_keys and context.incoming.deletes_only):
        # A delete with a global index finds its row in any partition, so its own partition does not matter.
        paths = pa.DictionaryArray.from_arrays(np.zeros(len(table), np.int32), pa.array([""], pa.string()))
    else:
        paths = _partition_paths(context, data)
    if context.incoming.ordered_deletes:
        ordering = pa.schema([context.schema.field(name) for name in context.rule.compared])
        data = align(table.select(ordering.names), ordering, exact=not context.rounds)
    elif context.incoming.deletes_only:
        data = pa.table({})
    columns = {KEY: keys, **{n: data.column(n) for n in data.column_names}}
    if context.incoming.lacks:
        columns[LACKS] = pa.array(bits_of(table) | bits_without(context.incoming.lacks, frozenset(table.column_names)))
    return pa.table(columns), paths


def check_partition_paths(context: WriteContext, rows: Any) -> None:
    """Raise UserError for rows in memory whose partition path the storage cannot hold, before the instant exists.

    For other frames, such as streams, the tasks check the rows when they read them.
    """
    is_in_memory = isinstance(rows, pa.Table | pa.RecordBatch)
    if is_in_memory and context.keys.partition_fields and not context.incoming.deletes_only:
        named = set(required_columns(context.keys))
        schema = pa.schema([column for column in context.schema if column.name in named])
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        _partition_paths(context, _aligned(table.select(schema.names), schema, context))


def _partition_paths(context: WriteContext, data: pa.Table) -> pa.DictionaryArray:
    """Return the partition path of each row; a path that cannot exist contains no rows to delete."""
    if context.incoming.deletes_only:
        return encoded_partition_paths(data, context.keys)

    def exists(partition: str) -> bool:
        return partition in context.known_partitions or bool(context.storage.list_names(partition))

    return encoded_partition_paths(data, context.keys, context.partition_limits, exists)


def _named_columns(context: WriteContext, table: pa.Table) -> pa.Schema:
    """Return the columns from which keys and partition paths are built, for a batch of deletes."""
    named = set(required_columns(context.keys)) & set(table.column_names)
    return pa.schema([column for column in context.schema if column.name in named])


def _aligned(table: pa.Table, schema: pa.Schema, context: WriteContext) -> pa.Table:
    data = align(table, schema, exact=not context.rounds)
    for field in schema:
        if not field.nullable and data.column(field.name).null_count:
            raise UserError(
                f"column {field.name!r} must not be null, but {data.column(field.name).null_count} of {len(table)} "
                "rows are",
                column=field.name,
            )
    return writable(data, schema)


def staged_schema(context: WriteContext) -> pa.Schema:
    """Return the columns of a run: key, then the table's data columns."""
    control = [pa.field(LACKS, pa.int64())] if context.incoming.lacks else []
    return pa.schema([pa.field(KEY, pa.string()), *context.schema, *control])


class StagedReader:
    """One open run. Rows are read by position, and memory-mapped if the storage is local.

    A run may have been staged by an earlier attempt, before another writer changed the table's schema. It is then
    converted to the schema of this attempt.
    """

    def __init__(self, context: WriteContext, run: str) -> None:
        self._source = context.storage.open_input(run)
        self._reader = pa.ipc.open_file(self._source)
        staged, wanted = self._reader.schema, staged_schema(context)
        is_same = context.incoming.deletes_only or (staged.names == wanted.names and staged.types == wanted.types)
        self._wanted = None if is_same else wanted

    def __enter__(self) -> StagedReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    @property
    def bytes_per_row(self) -> float:
        """The size of a row in memory."""
        batches = self._reader.num_record_batches
        rows = (batches - 1) * RUN_BATCH_ROWS + self._reader.get_batch(batches - 1).num_rows if batches else 0
        return self._source.size() / max(rows, 1)

    def slice(self, offset: int, rows: int, columns: list[str] | None = None) -> pa.Table:
        """Return rows [offset, offset + rows) of `columns`, or of all columns."""
        if rows == 0:
            return self._table([], columns)
        # All record batches of a run except the last have the same number of rows, so positions need no index.
        first, last = offset // RUN_BATCH_ROWS, (offset + rows - 1) // RUN_BATCH_ROWS
        return self._table(range(first, last + 1), columns).slice(offset - first * RUN_BATCH_ROWS, rows)

    def take(self, rows: np.ndarray, columns: list[str] | None = None) -> pa.Table:
        """Return the rows at these positions of the run, in this order."""
        # One batch at a time, because `take` on several batches first copies all of them into one.
        batch = rows // RUN_BATCH_ROWS
        order = np.argsort(batch, kind="stable")
        numbers, starts = np.unique(batch[order], return_index=True)
        parts = [
            self._table([number], columns).take(pa.array(rows[chosen] - number * RUN_BATCH_ROWS))
            for number, chosen in zip(numbers.tolist(), np.split(order, starts[1:]), strict=True)
        ]
        taken = pa.concat_tables(parts) if parts else self._table([], columns)
        if len(parts) <= 1 or bool((order[1:] > order[:-1]).all()):
            return taken
        return taken.combine_chunks().take(pa.array(np.argsort(order)))

    def _table(self, numbers: Iterable[int], columns: list[str] | None) -> pa.Table:
        table = pa.Table.from_batches([self._reader.get_batch(i) for i in numbers], self._reader.schema)
        if self._wanted is not None:
            table = align(table, self._wanted)
        return table if columns is None else table.select(columns)


def write_run_rows(context: WriteContext, path: str, reader: StagedReader, rows: np.ndarray) -> int:
    """Write the rows at these positions of a run as another run; return their size in memory, in bytes."""
    size, schema = 0, reader.slice(0, 0).schema
    with context.storage.open_output(path) as sink, pa.ipc.new_file(sink, schema) as writer:
        for start in range(0, len(rows), RUN_BATCH_ROWS):
            taken = reader.take(rows[start : start + RUN_BATCH_ROWS]).combine_chunks()
            size += taken.nbytes
            writer.write_table(taken)
    return size


class _Spill:
    """Rows on local disk, split by key hash so that duplicates stay together.

    Each level uses a different digit of the hash.
    """

    def __init__(self, directory: Path, schema: pa.Schema, level: int) -> None:
        directory.mkdir(exist_ok=True)
        self._level = level
        self._paths = [directory / f"{way}.arrows" for way in range(_SPILL_WAYS)]
        self._writers = [pa.ipc.new_stream(str(path), schema) for path in self._paths]

    def add(self, rows: pa.Table) -> None:
        unit: int = _SPILL_WAYS**self._level
        digits = bucket_ids(rows.column(KEY), key_fields=("",), hash_fields=("",), buckets=unit * _SPILL_WAYS)
        ways = digits // unit
        order = np.argsort(ways, kind="stable")
        bounds = np.searchsorted(ways[order], np.arange(_SPILL_WAYS + 1))
        rows = rows.combine_chunks()
        for way, writer in enumerate(self._writers):
            if bounds[way + 1] > bounds[way]:
                writer.write_table(rows.take(pa.array(order[bounds[way] : bounds[way + 1]])))

    def finish(self) -> Iterator[Iterator[pa.Table]]:
        """Yield the rows of each part; read them before the next part."""
        for writer in self._writers:
            writer.close()
        for path in self._paths:
            with pa.OSFile(str(path)) as source:
                yield (pa.Table.from_batches([batch]) for batch in pa.ipc.open_stream(source))
            path.unlink()


def set_aside(context: WriteContext, tables: list[pa.Table]) -> pa.Table:
    """Return some rows of a shard as one table and empty the list. Rows with equal keys are combined if possible."""
    # Values can be merged only when all versions of a record are together.
    mixes = context.rule.mixes or bool(context.incoming.lacks)
    return _joined(tables) if mixes and not context.incoming.deletes_only else _combined(context, tables)


def _joined(tables: list[pa.Table]) -> pa.Table:
    """Return the tables as one and empty the list, so that the rows are not in memory twice."""
    rows = pa.concat_tables(tables)
    tables.clear()
    return rows


def _combined(context: WriteContext, tables: list[pa.Table]) -> pa.Table:
    rows = _joined(tables)
    if not context.incoming.combine:
        return rows
    keys = context.layout.identity(KEY, PATH)
    rule = context.rule
    if context.incoming.deletes_only:
        # Without ordering columns a batch of keys to delete has no other columns, so no version is preferred.
        rule = replace(rule, partial=PartialMode.NONE, merger=None) if context.incoming.ordered_deletes else _DELETES
    return combine(
        rows, keys=keys, rule=rule, lacks=context.incoming.lacks, deletes_yield=context.incoming.deletes_yield
    )


def _write_run(context: WriteContext, attempt: Attempt, number: int, pending: list[pa.Table]) -> StagedRun:
    return _store_run(context, f"{context.staging}/{attempt.token}-{number}.arrow", _combined(context, pending))


def regroup_run(context: WriteContext, attempt: Attempt, run: StagedRun) -> StagedRun:
    """Rewrite a staged run with the buckets of `context`, because an earlier attempt staged it with other buckets."""
    entries = sorted(run.entries, key=lambda entry: entry.offset)
    with StagedReader(context, run.path) as reader:
        rows = reader.slice(0, run.rows)
        paths = pa.chunked_array([pa.repeat(entry.partition, entry.rows) for entry in entries], pa.string())
        return _store_run(context, f"{context.staging}/buckets-{attempt.token}.arrow", rows.append_column(PATH, paths))


def _store_run(context: WriteContext, path: str, rows: pa.Table) -> StagedRun:
    order, groups = _grouped(context, rows)
    data = rows.drop_columns([PATH]).combine_chunks()
    del rows
    count, size = len(order), data.nbytes
    with context.storage.open_output(path) as sink, pa.ipc.new_file(sink, data.schema) as writer:
        for start in range(0, count, RUN_BATCH_ROWS):
            writer.write_table(data.take(pa.array(order[start : start + RUN_BATCH_ROWS])))
    entries = tuple(StagedEntry(run=path, **group) for group in groups)
    return replace(context.layout.run(path, entries, count, size), values=_value_counts(context, data))


def _value_counts(context: WriteContext, rows: pa.Table) -> tuple[tuple[str, int], ...]:
    """Return the values of the spread column that occur more often than others, with their rows."""
    if context.layout.spread_column not in rows.column_names:
        return ()
    counts = pc.value_counts(_spread_texts(context, rows).drop_null())
    order = pc.sort_indices(counts.field("counts"), sort_keys=[("", "descending")])[:_MOST_VALUES]
    frequent = counts.take(order)
    return tuple(zip(frequent.field("values").to_pylist(), frequent.field("counts").to_pylist(), strict=True))


def _spread_texts(context: WriteContext, rows: pa.Table) -> pa.ChunkedArray:
    return pc.cast(rows.column(context.layout.spread_column), pa.string())


def _large_values(context: WriteContext, rows: pa.Table) -> np.ndarray | None:
    """Return for each row the position of its large value, from 1; 0 for other values. None without large values."""
    is_spread = (
        context.layout.spread_large
        and not context.layout.hashes_keys
        and context.layout.spread_column in rows.column_names
    )
    if not is_spread:
        return None
    positions = pc.index_in(_spread_texts(context, rows), value_set=pa.array(context.layout.spread_large, pa.string()))
    return np.asarray(pc.fill_null(positions, -1)).astype(np.int64) + 1


def _grouped(context: WriteContext, rows: pa.Table) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return the order of the rows by (partition, bucket, delete), and the groups that they form."""
    paths = rows.column(PATH).dictionary_encode().combine_chunks()
    paths = paths.chunk(0) if isinstance(paths, pa.ChunkedArray) else paths
    codes = paths.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    names = paths.dictionary.to_pylist()
    buckets, width = np.full(rows.num_rows, -1, np.int64), 1
    if context.layout.buckets is not None:
        counts = np.array([context.layout.buckets.staged_of(name) for name in names], np.int32)
        width = int(counts.max(initial=1)) + 1
        buckets = bucket_ids(
            rows.column(KEY),
            key_fields=context.keys.record_key_fields,
            hash_fields=context.layout.hash_fields or context.keys.record_key_fields,
            buckets=counts[codes],
        ).astype(np.int64)
    deletes = (
        np.ones(rows.num_rows, bool)
        if context.incoming.deletes_only
        else says_deleted(rows, context.rule, context.schema)
    )
    group = codes * width + buckets + 1
    large, ways = _large_values(context, rows), len(context.layout.spread_large) + 1
    if large is not None:
        group, width = group * ways + large, width * ways
    if context.layout.hash_order:
        # An entry contains either upserts or deletes, sorted by hash, so that it can be split into ranges.
        group, width = codes * 2 + deletes, 2
        order = np.lexsort((_hashes(context, rows), group))
    else:
        order = np.argsort(group * 2 + deletes, kind="stable")
    ordered, dead = group[order], deletes[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(ordered) else np.array([], np.int64)
    ends = np.append(starts[1:], len(ordered))
    groups: list[dict[str, Any]] = [
        {
            "partition": names[int(ordered[start]) // width],
            "bucket": -1 if context.layout.hash_order or large is not None else int(ordered[start]) % width - 1,
            "offset": int(start),
            "rows": int(end - start),
            "deletes": int(dead[start:end].sum()),
            "value": None if large is None else (None, *context.layout.spread_large)[int(ordered[start]) % ways],
        }
        for start, end in zip(starts, ends, strict=True)
    ]
    return order, groups


def _hashes(context: WriteContext, rows: pa.Table) -> np.ndarray:
    return key_hashes(
        rows.column(KEY), key_fields=context.keys.record_key_fields, hash_fields=context.layout.hash_fields
    )
