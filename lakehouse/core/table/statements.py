"""Run UPDATE, DELETE and MERGE: read the rows of one snapshot, compute the changed rows, commit them in one write.

snapshot   load the table; plan a read of the columns that the statement uses, pruned by the condition or by the keys
compute    stream the rows through `planning.changed_rows` into the write
commit     one instant; the write fails if a later commit changed the file groups that were read
retry      a conflict starts again with a new snapshot, if the source can be read again
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.expressions.evaluate import evaluate
from lakehouse.core.expressions.literals import ArrowValues
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.metadata.read.table import RECORD_INDEX
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.read_rows import SET_COLUMNS_KEY, ReadRows
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.operations.read.queries import SNAPSHOT, ScanRequest
from lakehouse.core.operations.read.scan import Scan, plan_row_read
from lakehouse.core.planning.changed_rows import ChangedRows, Counts, Statement, assigned
from lakehouse.core.planning.statement import SOURCE, TARGET, Clause, Join, Names, Verb
from lakehouse.core.rows.keys import encoded_partition_paths
from lakehouse.core.table.arguments import Outcome, WriteCall
from lakehouse.core.table.merge_source import NO_SOURCE, MergeSource
from lakehouse.core.table.statement_keys import (
    COUNT,
    KeyCounts,
    refuse_other_places,
    refuse_partly_changed,
    refuse_repeated_keys,
    refuse_stored_keys,
)
from lakehouse.errors import ConflictError, RetryableError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.display import count_text
from lakehouse.model.drift import BatchColumns
from lakehouse.model.expression import Column, columns_in
from lakehouse.model.predicate import And, Comparison, In, Predicate, columns_of
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

#: A batch of the table has at least this number of rows, and at least as many as the source.
_LEAST_ROWS = 131_072
#: Maximum number of distinct values of the source that a read names; above it, it uses their range.
_MOST_VALUES = 200_000
#: The source of a MERGE, and the rows that are compared with it, may each use this part of the memory budget.
_PARTS_OF_BUDGET = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAccess:
    """What a statement needs of a table: its location, and functions that load and write it.

    Without an engine, `write` uses the engine of the frame.
    """

    location: str
    refresh: Callable[[], LoadedTable]
    policies_of: Callable[[WriteCall], Policies]
    write: Callable[[LoadedTable, Policies, WriteRequest, Engine | None], Outcome]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatementRun:
    """A statement with what it needs to run several times.

    Attributes:
        table: The table.
        names: The columns that the statement was bound to.
        statement: The bound statement.
        source: The rows of the source; none for UPDATE and DELETE.
        where: The condition of UPDATE and DELETE.
    """

    table: TableAccess
    names: Names
    statement: Statement
    source: MergeSource = NO_SOURCE
    where: Predicate | None = None

    def execute(self, loaded: LoadedTable, policies: Policies, call: WriteCall) -> Outcome:
        """Run the statement on a loaded table; start again after a conflict."""
        transaction = policies.transaction
        tries = transaction.conflict_retries if transaction.many_writers and self.source.repeats else 0
        while True:
            try:
                return self._attempt(loaded, policies, call)
            except ConflictError as conflict:
                if tries == 0:
                    raise
                tries -= 1
                logger.info("%s: the statement runs again: %s", self.table.location, conflict)
                loaded = self.table.refresh()
                self._require_same_columns(loaded)

    def read_bytes(self, loaded: LoadedTable, policies: Policies) -> int:
        """Return the size of the files that the statement reads, for a source in memory."""
        join = self.statement.join
        where = self.where if join is None else self._keys_of_source(join, self.source.table)
        return self._scan(loaded, policies, where).plan.slices.bytes

    def _require_same_columns(self, loaded: LoadedTable) -> None:
        if table_schema(loaded) != self.names.target:
            raise RetryableError(
                f"{self.table.location}: another writer changed the columns of the table while a statement ran; "
                "nothing was written, run it again"
            )

    def _attempt(self, loaded: LoadedTable, policies: Policies, call: WriteCall) -> Outcome:
        reads, counts = self._reads(loaded), Counts()
        batches = self._batches(loaded, policies, reads, counts)
        first = next(batches)
        frame = pa.RecordBatchReader.from_batches(first.schema, _flat(first, batches))
        outcome = self.table.write(loaded, policies, self._request(loaded, call, reads, frame), None)
        return with_ignored(outcome, counts.ignored)

    def _request(self, loaded: LoadedTable, call: WriteCall, reads: ReadRows, frame: Any) -> WriteRequest:
        """Return the write of changed rows, which fails if another commit changed the rows that were read."""
        given = call.get("precondition")
        deletes = self.statement.only_deletes
        lacks, _ = self.statement.bits
        return WriteRequest(
            operation=Operation.DELETE if deletes else Operation.UPSERT,
            frame=frame,
            extra={**(call.get("commit_metadata") or {}), **self._changes()},
            allow_empty=call.get("allow_empty", False),
            precondition=replace(given or Precondition(timeline=loaded.timeline, marks={}), reads=reads.conflict),
            columns=BatchColumns(rows=0, lacks=lacks) if lacks and not deletes else None,
            sets_columns=not deletes,
        )

    def _reads(self, loaded: LoadedTable) -> ReadRows:
        """Return the columns on which the statement is based, as yet without file groups."""
        statement = self.statement
        of_condition = tuple(columns_of(self.where)) if self.where is not None else ()
        columns = {*statement.target_columns(), *statement.output.names, *statement.roots(of_condition)}
        identity = {*statement.keys, *(() if is_unique_in_table(loaded) else statement.partitions)}
        # Merged values may depend on any column of both versions, and each write of a row changes its meta columns.
        # With non-blocking writers a delete may be merged before an update that was committed earlier.
        deletes = any(clause.verb is Verb.DELETE for clause in statement.clauses)
        reads_all = statement.rule.mixes or deletes or not columns <= {*statement.schema.names}
        return ReadRows(columns=None if reads_all else frozenset(columns - identity), identity=frozenset(identity))

    def _changes(self) -> dict[str, str]:
        """Return the extra metadata by which other statements see whether they read changed columns."""
        changed = self.statement.set_columns
        return {SET_COLUMNS_KEY: json.dumps(None if changed is None else sorted(changed))}

    def _scan(self, loaded: LoadedTable, policies: Policies, where: Predicate | None) -> Scan:
        request = ScanRequest(
            query=SNAPSHOT,
            columns=self.statement.target_columns(),
            where=where,
            memory_budget_bytes=policies.write.memory_budget_bytes // 2,
            skips_damage=policies.write.skips_damage,
            trusts_keys=policies.indexing.trusts_keys,
        )
        return plan_row_read(loaded, SNAPSHOT, request)

    def _keys_of_source(self, join: Join, rows: pa.Table) -> Predicate | None:
        """Return a condition that all rows of the table with a match in the source meet; None to read all rows."""
        if self._reads_all:
            return None
        bound = rows.rename_columns([SOURCE + name for name in rows.column_names])
        parts: list[Predicate] = []
        for name, source in join.equal_columns().items():
            if name not in self.names.target.names:
                continue
            kind = self.names.target.field(name).type
            values = evaluate(source, bound).drop_null()
            if values.type != kind:
                try:
                    values = assigned(values, kind, name)
                except UserError:
                    # The types are compared in another type, so the values cannot be looked up.
                    continue
            parts.append(one_of(name, values))
        return And(tuple(parts)) if parts else None

    @property
    def _reads_all(self) -> bool:
        """Whether rows of the table without a match in the source are changed."""
        return any(clause.when == "not matched by source" for clause in self.statement.clauses)

    def _batches(self, loaded: LoadedTable, policies: Policies, reads: ReadRows, counts: Counts) -> Iterator[pa.Table]:
        """Yield an empty table with the columns to write, then the changed rows for each part of the source."""
        empty = ChangedRows(statement=self.statement, source=self.source.schema.empty_table()).empty()
        yield empty.drop_columns(list(self.statement.places))
        for number, source in self.source.parts():
            yield from self._of_part(loaded, policies, reads, ChangedRows(self.statement, source, counts), number)

    # parameters: the table, and the state for the run and for the part
    def _of_part(
        self, loaded: LoadedTable, policies: Policies, reads: ReadRows, changes: ChangedRows, number: int
    ) -> Iterator[pa.Table]:
        join = self.statement.join
        scan = self._scan(loaded, policies, self.where if join is None else self._keys_of_source(join, changes.source))
        reads.groups = (reads.groups or frozenset()).union(groups_of(scan))
        least = max(_LEAST_ROWS, changes.source.num_rows)
        most_bytes = scan.context.budget_bytes // _PARTS_OF_BUDGET
        keys = KeyCounts(self._identity(loaded), self.statement.places)
        compares_keys = self._compares_keys(keys.identity)
        is_whole = self.where is None and self.statement.join is None
        for target in _joined_batches(scan, least, most_bytes):
            result = changes.of_batch(self.source.rows_of_part(number, target) if self._reads_all else target)
            yield result
            keys.add_changed(result)
            if compares_keys:
                keys.add_stored(target.take(pa.array(changes.compared_rows)))
            elif keys.nbytes > most_bytes:
                is_whole = False
                self._require_one_row_per_key(keys, loaded)
                keys = KeyCounts(keys.identity, keys.places)
        if compares_keys:
            refuse_partly_changed(self.statement, keys.changed(), keys.stored())
        else:
            self._require_one_row_per_key(keys, loaded, is_whole=is_whole)
        rows = changes.inserted()
        if rows.num_rows:
            self._require_new_keys(rows, loaded)
            partitions = self._partitions_of(rows, loaded)
            both = reads.inserted is not None and partitions is not None
            reads.inserted = {*(reads.inserted or ()), *(partitions or ())} if both else None
        yield rows

    def _identity(self, loaded: LoadedTable) -> list[str]:
        """Return the columns that identify a row; none if the key is generated or nested, and not compared."""
        statement = self.statement
        names = self._full_identity(loaded)
        columns = [statement.schema.field(name) for name in names if name in statement.schema.names]
        is_flat = len(columns) == len(names) and not any(pa.types.is_nested(column.type) for column in columns)
        return list(names) if is_flat else []

    def _compares_keys(self, identity: Sequence[str]) -> bool:
        """Return whether the condition `on` compares the record key, and no column besides the key and the partition.

        Then all stored rows with the key of a changed row were compared with the same rows of the source, and none of
        them has to be read again.
        """
        join = self.statement.join
        # A record index has the place of one row of a key, so the read by key is needed to know this row.
        if join is None or not identity or self._reads_all or self.statement.places:
            return False
        used = {name.removeprefix(TARGET) for target, _ in join.pairs for name in columns_in(target)}
        compared = used & join.equal_columns().keys()
        return set(self.statement.keys) <= compared and used <= set(identity)

    def _require_one_row_per_key(self, keys: KeyCounts, loaded: LoadedTable, *, is_whole: bool = False) -> None:
        """Raise UserError if several stored rows have the key of a changed row: a write by key changes all of them.

        A delete may remove all rows of a key, but a record index has the place of one of them. `is_whole` means that
        all rows of the table are changed.
        """
        counted, identity, places = keys.changed(), keys.identity, keys.places
        if not counted.num_rows:
            return
        if places or not self.statement.only_deletes:
            refuse_repeated_keys(counted.filter(pc.greater(counted.column(COUNT), 1)))
        if is_whole:
            return
        parts = tuple(one_of(name, counted.column(name)) for name in identity if not counted.column(name).null_count)
        # The write finds rows by the record index even if keys may be repeated.
        columns = (*identity, *places)
        request = ScanRequest(query=SNAPSHOT, columns=columns, where=And(parts), trusts_keys=bool(places))
        stored = KeyCounts(identity, places)
        for batch in plan_row_read(loaded, SNAPSHOT, request).batches():
            rows = pa.Table.from_batches([batch]).select([*identity, *places])
            stored.add_stored(rows.join(counted, keys=identity, join_type="left semi"))
        if places:
            # This read finds rows by the record index. A changed row that it does not find has another row's key.
            refuse_other_places(keys, stored)
        refuse_partly_changed(self.statement, counted, stored.stored())

    def _partitions_of(self, rows: pa.Table, loaded: LoadedTable) -> set[str] | None:
        """Return the partitions of inserted rows; None if a key must be unique in all partitions."""
        keys = loaded.config.keys
        if not keys.partition_fields:
            return {""}
        if is_unique_in_table(loaded):
            return None
        return set(encoded_partition_paths(rows, keys).dictionary.to_pylist())

    def _full_identity(self, loaded: LoadedTable) -> tuple[str, ...]:
        """Return the columns that identify a row, even nested ones."""
        others = () if is_unique_in_table(loaded) else self.statement.partitions
        return tuple(dict.fromkeys((*self.statement.keys, *others)))

    def _inserts_new_keys(self, loaded: LoadedTable) -> bool:
        """Return whether inserted rows have keys that are not stored, because of the condition or generated keys."""
        statement, identity = self.statement, self._full_identity(loaded)
        return statement.generates_keys or (
            statement.join is not None
            and all(is_new_by_join(clause, statement.join, identity) for clause in statement.clauses)
        )

    def _require_new_keys(self, rows: pa.Table, loaded: LoadedTable) -> None:
        """Raise UserError if the table has a row with the key of an inserted row, which the insert would replace."""
        if self._inserts_new_keys(loaded):
            return
        identity = self._full_identity(loaded)
        parts = tuple(one_of(name, rows.column(name).drop_null()) for name in identity)
        request = ScanRequest(query=SNAPSHOT, columns=identity, where=And(parts))
        stored = plan_row_read(loaded, SNAPSHOT, request)
        for batch in stored.batches():
            refuse_stored_keys(pa.Table.from_batches([batch]), rows, identity)


def groups_of(scan: Scan) -> frozenset[tuple[str, str]]:
    """Return the file groups that a scan reads."""
    slices = scan.plan.slices
    return frozenset(zip(slices.partitions.to_pylist(), slices.file_ids.to_pylist(), strict=True))


def is_unique_in_table(loaded: LoadedTable) -> bool:
    """Return whether a record key is unique in the table, not only in its partition."""
    return loaded.config.path_keys.partition_fields != loaded.config.keys.partition_fields


def located(statement: Statement, loaded: LoadedTable) -> Statement:
    """Return the statement with the files of its rows, if a record index of the table has one place for each key."""
    metadata = metadata_of(loaded)
    if metadata is None or RECORD_INDEX not in metadata.usable or statement.generates_keys:
        return statement
    schema = statement.schema.append(pa.field(META_COLUMNS[4], pa.string()))
    return replace(statement, schema=schema, places=(META_COLUMNS[4],))


def one_of(name: str, values: pa.Array | pa.ChunkedArray) -> Predicate:
    """Return the condition that a column has one of these values, or is in their range if there are many."""
    kind = values.type
    distinct = pc.unique(values)
    distinct = distinct.combine_chunks() if isinstance(distinct, pa.ChunkedArray) else distinct
    has_order = not (pa.types.is_boolean(kind) or pa.types.is_nested(kind))
    if len(distinct) <= _MOST_VALUES or not has_order:
        return In(name, ArrowValues(distinct))
    bounds = pc.min_max(distinct)
    return And((Comparison(name, ">=", bounds["min"]), Comparison(name, "<=", bounds["max"])))


def _flat(first: pa.Table, rest: Iterator[pa.Table]) -> Iterator[pa.RecordBatch]:
    for table in rest:
        yield from table.select(first.column_names).combine_chunks().to_batches()


def _joined_batches(scan: Scan, least_rows: int, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows of a scan in tables that are as large as the source, because each is joined with all of it."""
    pending: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in scan.batches():
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= least_rows or size >= most_bytes:
            yield pa.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pa.Table.from_batches(pending)


def is_new_by_join(clause: Clause, join: Join, identity: Sequence[str]) -> bool:
    """Return whether a row without a match has a key that is not stored, because the condition compares just the key.

    A clause that inserts another value as key than the condition compares may insert a stored key.
    """
    compared = join.equal_columns()
    if join.residual is not None or not set(compared) <= set(identity) or len(compared) < len(join.pairs):
        return False
    if clause.verb != "insert":
        return True
    values = dict(clause.values)
    return all(values.get(name) == source and isinstance(source, Column) for name, source in compared.items())


def with_ignored(outcome: Outcome, ignored: int) -> Outcome:
    """Return an outcome with the number of updates that have no effect."""
    if not ignored:
        return outcome
    if isinstance(outcome, NothingToDo):
        reason = f"{count_text(ignored, 'update')} without effect: the ordering value is lower than the stored one"
        return replace(outcome, reason=reason, ignored_updates=ignored)
    assert isinstance(outcome, Committed)
    return replace(outcome, ignored_updates=ignored)


def literal_values(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return assigned values; raise UserError for something else than a mapping of columns."""
    if not isinstance(values, Mapping):
        raise UserError(f"give the assigned values as {{'column': 'expression'}}, not {type(values).__name__}")
    return values
