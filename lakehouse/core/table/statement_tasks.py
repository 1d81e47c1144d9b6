"""The tasks of a statement that an engine distributes: each takes batches and yields pieces (`core.engine.pieces`).

    SourceTask    rows of the source --> pieces by the hash of the values that `on` compares, and these values
    TargetTask    rows of the table  --> pieces by the same hash
    JoinTask      both sides of a shard --> the changed rows, as pieces by the hash of the record key, and counts
    SliceTask     rows of the table --> the same, for a statement without a source, or with all of a small source
    InsertTask    a small source    --> the rows without a match
    IdentityTask  stored keys --> pieces by the hash of the record key
    KeyTask       changed and stored keys of a shard --> an error if a write by key would change other rows

Rows of a shard that exceed their part of the memory budget are divided into local files of the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.pieces import Batches, collected, pieces_of, report_piece, shards_of
from lakehouse.core.expressions.evaluate import evaluate
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_log_merge import HashSplit
from lakehouse.core.operations.read.row_reader import read_rows
from lakehouse.core.planning.changed_rows import ChangedRows, Counts, Statement, assigned
from lakehouse.core.planning.scan import ScanPlan
from lakehouse.core.planning.statement import SOURCE, Join, Names
from lakehouse.core.rows.keys import encoded_partition_paths
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.core.table.merge_source import Division, compared_texts, divided_source, joined_texts, ways_of
from lakehouse.core.table.statement_keys import (
    COUNT,
    KeyCounts,
    refuse_other_places,
    refuse_partly_changed,
    refuse_repeated_inserts,
    refuse_repeated_keys,
    refuse_stored_keys,
)
from lakehouse.errors import UserError
from lakehouse.model.expression import Expression
from lakehouse.model.files import FileSlice
from lakehouse.model.keys import KeyConfig

#: The sides of pieces, in the order in which a task gets them.
SOURCE_ROWS, STORED_ROWS, CHANGED_ROWS, INSERTED_ROWS, CHANGED_KEYS, INSERTED_KEYS, STORED_KEYS = range(7)
#: The number of shards. It is a prime, so that the rows of a shard can be divided again by their hash.
SHARDS = 1021
#: Rows are divided when this part of the memory budget is collected; larger pieces cost less.
_BUFFER_SHARE = 16
#: The source of a shard, and the rows that are compared with it, may each use this part of the memory budget.
_PARTS_OF_BUDGET = 4
_LEAST_ROWS = 131_072
#: The maximum number of distinct values that a task reports for each compared column.
_MOST_REPORTED = 5_000
#: The same for each shard or file slice whose keys are compared later.
_MOST_REPORTED_KEYS = 200
#: The number of local files for a shard that does not fit into its part of the memory budget.
_WAYS = 256
#: Changed rows are spread over this number of shards.
_FEW_SHARDS = 997


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnValues:
    """The values of a column in a task, without nulls.

    Attributes:
        distinct: The distinct values; None if there are too many.
        bounds: The minimum and the maximum; empty without values.
    """

    distinct: pa.Array | None
    bounds: pa.Array


class ValueCollector:
    """Collects the distinct values of a column, or the bounds if there are too many."""

    def __init__(self, kind: pa.DataType, most: int) -> None:
        self._kind, self._most = kind, most
        self._values, self._bounds = pa.array([], kind), pa.array([], kind)
        self._is_few = True

    def add(self, values: pa.Array | pa.ChunkedArray) -> None:
        """Add values, which have the type of the collector."""
        distinct = _whole(pc.unique(values)).drop_null()
        if self._is_few:
            self._values = pc.unique(pa.concat_arrays([self._values, distinct]))
            self._is_few = len(self._values) <= self._most
        if not pa.types.is_boolean(self._kind):
            bounds = pa.concat_arrays([self._bounds, distinct])
            order = pc.sort_indices(bounds)
            self._bounds = bounds.take(order.take(pa.array([0, len(order) - 1]))) if len(order) else bounds

    def result(self) -> ColumnValues:
        """Return the values so far."""
        return ColumnValues(distinct=self._values if self._is_few else None, bounds=self._bounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReport:
    """The number of rows in a task, their bytes, and the values by column of the table; no values if unusable."""

    rows: int
    nbytes: int
    values: Mapping[str, ColumnValues | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeReport:
    """The changes of a task.

    Attributes:
        counts: The numbers of rows by verb.
        rows: The number of rows to write.
        inserted: The partitions of inserted rows; None if a key must be unique in all partitions.
        values: The values of the key columns in changed rows whose keys have to be compared.
        matched: The bits of the rows in a small source that have a match.
    """

    counts: Counts
    rows: int
    inserted: frozenset[str] | None
    values: Mapping[str, ColumnValues | None] = field(default_factory=dict)
    matched: np.ndarray | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTask:
    """Divides rows of the source.

    Attributes:
        names: The columns of both sides.
        join: The condition.
        schema: The columns of the source.
        looked_up: The column of the table, its type, and the expression of the source that equals it.
        budget_bytes: The memory budget of a task.
    """

    names: Names
    join: Join
    schema: pa.Schema
    looked_up: tuple[tuple[str, pa.DataType, Expression], ...]
    budget_bytes: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of the rows and a `SourceReport`."""
        values = {name: ValueCollector(kind, _MOST_REPORTED) for name, kind, _ in self.looked_up}
        rows = nbytes = 0
        for table in collected(batches, self.budget_bytes // _BUFFER_SHARE):
            # Spark marks each column as nullable or not, which the values need not repeat.
            part = table.select(self.schema.names).cast(self.schema)
            rows, nbytes = rows + part.num_rows, nbytes + part.nbytes
            yield from pieces_of(part, _compared_shards(self.names, self.join, part, is_source=True), SOURCE_ROWS)
            bound = part.rename_columns([SOURCE + name for name in part.column_names])
            for name, kind, source in self.looked_up:
                distinct = pc.unique(evaluate(source, bound))
                if name in values and not _add(values[name], distinct, kind, name):
                    del values[name]
        of_columns = {name: values[name].result() if name in values else None for name, _, _ in self.looked_up}
        yield report_piece(SourceReport(rows=rows, nbytes=nbytes, values=of_columns))


def _add(collector: ValueCollector, values: pa.Array | pa.ChunkedArray, kind: pa.DataType, name: str) -> bool:
    """Add values in the type of the table; return False if they are compared in another type."""
    try:
        collector.add(values if values.type == kind else assigned(_whole(values), kind, name))
    except UserError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTask:
    """Divides the rows of file slices like the source."""

    names: Names
    join: Join
    context: SliceContext
    plan: ScanPlan

    def __call__(self, slices: Iterable[FileSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the pieces of the rows in file slices."""
        batches = _rows_of(slices, self.context, self.plan)
        for table in collected(batches, self.context.budget_bytes // _BUFFER_SHARE):
            yield from pieces_of(table, _compared_shards(self.names, self.join, table, is_source=False), STORED_ROWS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """How changed rows become pieces and reports.

    Attributes:
        statement: The statement.
        identity: The columns of the key; none if keys are not compared.
        partition_keys: The key configuration of the table; None if a key must be unique in all partitions.
        reports_keys: Whether the values of the key columns are reported, because a later task compares keys.
    """

    statement: Statement
    identity: tuple[str, ...]
    partition_keys: KeyConfig | None
    reports_keys: bool


class Changes:
    """Collects what a task changes, for one `ChangeReport`."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes, self._rows = outcomes, 0
        self._inserted: frozenset[str] | None = frozenset()
        schema = outcomes.statement.schema
        names = outcomes.identity if outcomes.reports_keys else ()
        self._values = {name: ValueCollector(schema.field(name).type, _MOST_REPORTED_KEYS) for name in names}

    def pieces(self, changed: pa.Table, side: int) -> Iterator[pa.RecordBatch]:
        """Yield changed or inserted rows as pieces, and their keys by hash if a later task compares them."""
        if not changed.num_rows:
            return
        self._rows += changed.num_rows
        statement = self._outcomes.statement
        if side == INSERTED_ROWS:
            partitions = self._partitions(changed)
            both = self._inserted is not None and partitions is not None
            self._inserted = (self._inserted or frozenset()) | (partitions or frozenset()) if both else None
        # The write divides the rows again, so they stay together here.
        yield from pieces_of(changed, np.full(changed.num_rows, self._rows % _FEW_SHARDS), side)
        # Inserted rows have no generated key yet.
        if not self._values or (side == INSERTED_ROWS and statement.generates_keys):
            return
        identity = self._outcomes.identity
        for name in identity:
            self._values[name].add(changed.column(name))
        columns = [*identity, *(statement.places if side == CHANGED_ROWS else statement.partitions)]
        keys = changed.select(list(dict.fromkeys(columns)))
        yield from pieces_of(keys, _key_shards(keys, identity), CHANGED_KEYS if side == CHANGED_ROWS else INSERTED_KEYS)

    def report(self, counts: Counts, matched: np.ndarray | None = None) -> pa.RecordBatch:
        """Return the report as a piece."""
        values = {name: collector.result() for name, collector in self._values.items()}
        return report_piece(
            ChangeReport(counts=counts, rows=self._rows, inserted=self._inserted, values=values, matched=matched)
        )

    def _partitions(self, inserted: pa.Table) -> frozenset[str] | None:
        keys = self._outcomes.partition_keys
        if keys is None:
            return None
        if not keys.partition_fields:
            return frozenset({""})
        return frozenset(encoded_partition_paths(inserted, keys).dictionary.to_pylist())


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """Applies a statement to file slices, each of which is compared with all rows of the source."""

    outcomes: Outcomes
    context: SliceContext
    plan: ScanPlan
    source: pa.Table

    def __call__(self, slices: Iterable[FileSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the changed rows of file slices, and a `ChangeReport`."""
        rows, changes = ChangedRows(self.outcomes.statement, self.source), Changes(self.outcomes)
        for table in collected(_rows_of(slices, self.context, self.plan), self.context.budget_bytes // _BUFFER_SHARE):
            yield from changes.pieces(rows.of_batch(table), CHANGED_ROWS)
        yield changes.report(rows.counts, np.packbits(rows.matched))


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertTask:
    """Inserts the rows of a small source that no task of file slices matched, as their bits show."""

    outcomes: Outcomes
    source: pa.Table
    matched: np.ndarray

    def __call__(self) -> Iterator[pa.RecordBatch]:
        """Yield the inserted rows, and a `ChangeReport`."""
        rows, changes = ChangedRows(self.outcomes.statement, self.source), Changes(self.outcomes)
        rows.add_matched(np.unpackbits(self.matched, count=self.source.num_rows).astype(bool))
        yield from changes.pieces(rows.inserted(), INSERTED_ROWS)
        yield changes.report(rows.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTask:
    """Applies a MERGE to the shards of both sides.

    Attributes:
        outcomes: How changed rows become pieces.
        names: The columns of both sides.
        join: The condition.
        schema: The columns of the source.
        compares_keys: Whether all stored rows with the key of a changed row are in its shard, so that keys are compared
            here.
        budget_bytes: The memory budget of a task.
    """

    outcomes: Outcomes
    names: Names
    join: Join
    schema: pa.Schema
    compares_keys: bool
    budget_bytes: int

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Yield the changed rows of each shard, and a `ChangeReport` for each."""
        for _, pieces in shards_of(batches):
            with ExitStack() as stack:
                yield from self._shard(pieces, stack)

    def _shard(self, pieces: Iterator[tuple[int, pa.Table]], stack: ExitStack) -> Iterator[pa.RecordBatch]:
        """Join the pieces of a shard: the source first, then the table."""
        limit = self.budget_bytes // _PARTS_OF_BUDGET
        tables, size, rest = [self.schema.empty_table()], 0, iter(pieces)
        for side, table in rest:
            if side != SOURCE_ROWS:
                rest = chain([(side, table)], rest)
                break
            tables.append(table)
            size += table.nbytes
            if size > limit:
                yield from self._divided(tables, rest, limit, stack)
                return
        yield from self._part(pa.concat_tables(tables), (table for _, table in rest))

    def _divided(
        self, tables: list[pa.Table], rest: Iterator[tuple[int, pa.Table]], limit: int, stack: ExitStack
    ) -> Iterator[pa.RecordBatch]:
        """Divide both sides into local files, and join the files of one part after another."""
        first_target: list[pa.Table] = []

        def source() -> Iterator[pa.RecordBatch]:
            while tables:
                yield from tables.pop(0).to_batches()
            for side, table in rest:
                if side != SOURCE_ROWS:
                    first_target.append(table)
                    return
                yield from table.to_batches()

        empty = Division(names=self.names, join=self.join, group_of_way=np.zeros(_WAYS, np.int64))
        parts = divided_source(source(), self.schema, empty, limit, stack)
        assert parts.division is not None, "a divided source has files"
        directory = Path(stack.enter_context(scratch_directory("lakehouse-merge-")))
        stored = HashSplit(directory, "table", _WAYS)
        for table in chain(first_target, (table for _, table in rest)):
            stored.add(table, compared_texts(self.names, self.join, table, is_source=False))
        paths = stored.finish()
        groups = parts.division.group_of_way
        for number, rows in parts.parts():
            of_part = [path for way, path in enumerate(paths) if path is not None and groups[way] == number]
            yield from self._part(rows, _stored_rows(of_part))

    def _part(self, source: pa.Table, targets: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Join rows of the source with all stored rows that can match them."""
        outcomes, rows, changes = self.outcomes, ChangedRows(self.outcomes.statement, source), Changes(self.outcomes)
        keys = KeyCounts(outcomes.identity if self.compares_keys else (), outcomes.statement.places)
        least, most_bytes = max(_LEAST_ROWS, source.num_rows), self.budget_bytes // _PARTS_OF_BUDGET
        for target in _joined_tables(targets, least, most_bytes):
            changed = rows.of_batch(target)
            if self.compares_keys:
                keys.add_changed(changed)
                keys.add_stored(target.take(pa.array(rows.compared_rows)))
            yield from changes.pieces(changed, CHANGED_ROWS)
        if self.compares_keys:
            refuse_partly_changed(outcomes.statement, keys.changed(), keys.stored())
        yield from changes.pieces(rows.inserted(), INSERTED_ROWS)
        yield changes.report(rows.counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityTask:
    """Divides stored keys like changed rows."""

    identity: tuple[str, ...]
    context: SliceContext
    plan: ScanPlan

    def __call__(self, slices: Iterable[FileSlice]) -> Iterator[pa.RecordBatch]:
        """Yield the keys of file slices as pieces."""
        batches = _rows_of(slices, self.context, self.plan)
        for table in collected(batches, self.context.budget_bytes // _BUFFER_SHARE):
            yield from pieces_of(table, _key_shards(table, self.identity), STORED_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTask:
    """Compares the keys of changed, inserted and stored rows.

    Attributes:
        statement: The statement.
        identity: The columns of the key.
        is_whole: Whether all rows of the table are changed, so that no stored key is compared.
    """

    statement: Statement
    identity: tuple[str, ...]
    is_whole: bool

    def __call__(self, batches: Batches) -> Iterator[pa.RecordBatch]:
        """Raise UserError if a write by key would change other rows; yield nothing."""
        for _, pieces in shards_of(batches):
            self._check(pieces)
        yield from ()

    def _check(self, pieces: Iterator[tuple[int, pa.Table]]) -> None:
        statement, identity = self.statement, list(self.identity)
        changed, stored = KeyCounts(identity, statement.places), KeyCounts(identity, statement.places)
        inserted = KeyCounts(list(dict.fromkeys((*identity, *statement.partitions))), ())
        new = counted = None
        for side, table in pieces:
            if side == CHANGED_KEYS:
                changed.add_changed(table)
                continue
            if side == INSERTED_KEYS:
                inserted.add_changed(table)
                continue
            if new is None or counted is None:
                new, counted = inserted.changed(), changed.changed()
            if new.num_rows:
                refuse_stored_keys(table, new, identity)
            if counted.num_rows:
                stored.add_stored(table.join(counted.select(identity), keys=identity, join_type="left semi"))
        repeated = inserted.changed()
        if repeated.num_rows:
            refuse_repeated_inserts(repeated.filter(pc.greater(repeated.column(COUNT), 1)).drop_columns([COUNT]))
        self._compare(changed, stored)

    def _compare(self, changed: KeyCounts, stored: KeyCounts) -> None:
        counted = changed.changed()
        if not counted.num_rows:
            return
        if self.statement.places or not self.statement.only_deletes:
            refuse_repeated_keys(counted.filter(pc.greater(counted.column(COUNT), 1)))
        if self.is_whole:
            return
        if self.statement.places:
            refuse_other_places(changed, stored)
        refuse_partly_changed(self.statement, counted, stored.stored())


def _rows_of(slices: Iterable[FileSlice], context: SliceContext, plan: ScanPlan) -> Iterator[pa.RecordBatch]:
    for file_slice in slices:
        yield from read_rows(context, file_slice, plan)


def _compared_shards(names: Names, join: Join, rows: pa.Table, *, is_source: bool) -> np.ndarray:
    return ways_of(compared_texts(names, join, rows, is_source=is_source), SHARDS)


def _key_shards(rows: pa.Table, identity: Sequence[str]) -> np.ndarray:
    """Return the shard of each row by its key."""
    return ways_of(joined_texts([rows.column(name) for name in identity], rows.num_rows), SHARDS)


def _joined_tables(tables: Iterable[pa.Table], least_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of pieces in tables that are as large as the source, because each is joined with all of it."""
    pending: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        pending.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        if rows >= least_rows or size >= most_bytes:
            yield pa.concat_tables(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.concat_tables(pending)


def _stored_rows(paths: Iterable[Path]) -> Iterator[pa.Table]:
    for path in paths:
        with pa.OSFile(str(path)) as source:
            for batch in pa.ipc.open_stream(source):
                yield pa.Table.from_batches([batch])


def _whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    whole = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    return pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
