"""MergeBuilder: `table.merge(source, on=...)` with the verbs of deltalake."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Unpack

import pyarrow as pa

from lakehouse.core.engine.adapters import engine_shuffle, frame_batches, frame_schema, is_frame, unique_frame
from lakehouse.core.engine.frames import ARROW_FRAMES
from lakehouse.core.expressions.column_path import spelled
from lakehouse.core.expressions.conditions import predicate_of
from lakehouse.core.expressions.parse import parse_expression
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.planning.changed_rows import Statement
from lakehouse.core.planning.statement import SOURCE, ClauseText, Join, Names, Verb, When, bind_clause, bind_join
from lakehouse.core.rows.record_merge import ROW_MARKS
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.table.arguments import Outcome, WriteCall
from lakehouse.core.table.executor_statements import by_executors
from lakehouse.core.table.input_rows import InputRules, input_batch
from lakehouse.core.table.merge_source import MergeSource, data_schema, merge_source, plain_rows, repeated_rows
from lakehouse.core.table.statements import (
    StatementRun,
    TableAccess,
    is_new_by_join,
    literal_values,
    located,
    with_ignored,
)
from lakehouse.errors import UserError
from lakehouse.model.commit import Operation
from lakehouse.model.expression import Column, rename_columns
from lakehouse.spec.options.policies import Policies

#: The source may use this part of the memory budget.
_SOURCE_PART = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeBuilder:
    """A MERGE that is not executed yet. Clauses are considered in the order in which they are added.

    For each row the first clause of its kind whose predicate holds decides. Values are SQL texts, in which `source.x`
    and `target.x` are columns of the two sides; other Python values are literals.
    """

    table: TableAccess
    source: Any
    on: str | tuple[str, ...]
    source_alias: str = "source"
    target_alias: str = "target"
    clauses: tuple[ClauseText, ...] = ()

    def when_matched_update(self, updates: Mapping[str, Any], predicate: str | None = None) -> MergeBuilder:
        """Set columns of a matched row, by column of the table."""
        return self._with(When.MATCHED, Verb.UPDATE, literal_values(updates), predicate)

    def when_matched_update_all(
        self, predicate: str | None = None, except_cols: Sequence[str] | None = None
    ) -> MergeBuilder:
        """Set all columns of a matched row that the source has, except some."""
        return self._with(When.MATCHED, Verb.UPDATE, None, predicate, except_cols)

    def when_matched_delete(self, predicate: str | None = None) -> MergeBuilder:
        """Delete a matched row."""
        return self._with(When.MATCHED, Verb.DELETE, {}, predicate)

    def when_not_matched_insert(self, updates: Mapping[str, Any], predicate: str | None = None) -> MergeBuilder:
        """Insert a row for a row of the source without a match; other columns of the table are null."""
        return self._with(When.NOT_MATCHED, Verb.INSERT, literal_values(updates), predicate)

    def when_not_matched_insert_all(
        self, predicate: str | None = None, except_cols: Sequence[str] | None = None
    ) -> MergeBuilder:
        """Insert a row of the source without a match, with all its columns, except some."""
        return self._with(When.NOT_MATCHED, Verb.INSERT, None, predicate, except_cols)

    def when_not_matched_by_source_update(
        self, updates: Mapping[str, Any], predicate: str | None = None
    ) -> MergeBuilder:
        """Set columns of a stored row that no row of the source matches."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, Verb.UPDATE, literal_values(updates), predicate)

    def when_not_matched_by_source_delete(self, predicate: str | None = None) -> MergeBuilder:
        """Delete a row of the table that no row of the source matches."""
        return self._with(When.NOT_MATCHED_BY_SOURCE, Verb.DELETE, {}, predicate)

    def execute(self, **call: Unpack[WriteCall]) -> Outcome:
        """Run the statement in one commit; see `WriteCall` for the arguments.

        Returns:
            The commit, or `NothingToDo` if no row changes. `ignored_updates` counts the updates without effect because
            the table has a row with a greater ordering value.

        Raises:
            UserError: There is no clause, a name or a type does not fit, or several rows of the source change one row
                of the table. Nothing is written.
            ConflictError: Another writer changed the rows that were read, and the source cannot be read again.
        """
        if not self.clauses:
            raise UserError("merge: add at least one clause, such as .when_matched_update_all()")
        policies = self.table.policies_of(call)
        rows = self._rows(policies)
        loaded = self.table.refresh()
        target = table_schema(loaded)
        if target is None:
            raise UserError(
                f"{self.table.location}: the table has no columns yet. Create it with schema=..., or write rows first"
            )
        is_distributed = not isinstance(rows, ARROW_FRAMES)
        rows = rows if is_distributed else plain_rows(rows)
        names = Names(
            target=target,
            source=data_schema(frame_schema(rows) if is_distributed else rows.schema),
            target_alias=self.target_alias,
            source_alias=self.source_alias,
        )
        join = bind_join(self.on, names)
        statement = statement_of(loaded, policies, self.clauses, names, join)
        is_upsert = self._is_upsert(statement, join, loaded)
        if is_distributed and is_upsert:
            return self._upserted(rows, loaded, policies, call, statement)
        run = StatementRun(table=self.table, names=names, statement=located(statement, loaded))
        if is_distributed:
            return _distributed(rows, run, loaded, policies, call)
        with ExitStack() as stack:
            source = merge_source(rows, names, statement, policies.write.memory_budget_bytes // _SOURCE_PART, stack)
            if is_upsert:
                return self._upserted(source, loaded, policies, call, statement)
            return replace(run, source=source).execute(loaded, policies, call)

    # parameters: the kinds of row and action, and the three parts of a clause
    def _with(
        self,
        when: When,
        verb: Verb,
        values: Mapping[str, Any] | None,
        predicate: str | None,
        except_cols: Sequence[str] | None = None,
    ) -> MergeBuilder:
        clause = ClauseText(
            when=when, verb=verb, values=values, predicate=predicate, except_columns=tuple(except_cols or ())
        )
        return replace(self, clauses=(*self.clauses, clause))

    def _rows(self, policies: Policies) -> Any:
        """Return the source as Arrow data, or as the frame of another engine."""
        if is_frame(self.source):
            return self.source
        source = self.source.scan() if isinstance(getattr(self.source, "config", None), TableConfig) else self.source
        if hasattr(source, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(source)
        # The types of the source follow from its own values: the statement converts them.
        rules = InputRules(
            schema=None,
            adds_columns=True,
            separates_absent=False,
            budget_bytes=policies.write.memory_budget_bytes,
        )
        return input_batch(source, lambda: rules).rows

    def _is_upsert(self, statement: Statement, join: Join, loaded: LoadedTable) -> bool:
        """Return whether the statement updates or inserts all columns by key, which an upsert does without a read."""
        kinds = [(clause.when, clause.verb) for clause in statement.clauses]
        is_plain = kinds in (
            [(When.MATCHED, Verb.UPDATE), (When.NOT_MATCHED, Verb.INSERT)],
            [(When.NOT_MATCHED, Verb.INSERT), (When.MATCHED, Verb.UPDATE)],
        )
        if not is_plain or any(c.predicate is not None or not c.is_star for c in statement.clauses):
            return False
        identity = (*statement.keys, *statement.partitions)
        is_by_key = set(join.equal_columns()) == set(identity) and all(
            is_new_by_join(clause, join, identity) for clause in statement.clauses
        )
        is_by_key &= all(value == Column(SOURCE + name) for c in statement.clauses for name, value in c.values)
        same_columns = len({clause.columns for clause in statement.clauses}) == 1
        # The write statistics of a merge-on-read table do not tell which updates have no effect.
        counts_ignored = not statement.rule.compared or not loaded.config.is_merge_on_read
        has_fixed = set(statement.fixed) <= statement.clauses[0].columns
        is_mixed = statement.rule.mixes or statement.rule.delete_field is not None
        return is_by_key and same_columns and counts_ignored and has_fixed and not is_mixed

    # parameters: the rows, the table, the options and the call, and the columns
    def _upserted(
        self, source: Any, loaded: LoadedTable, policies: Policies, call: WriteCall, statement: Statement
    ) -> Outcome:
        identity = [*statement.keys, *statement.partitions]
        rows = _CountedRows(identity)
        names = [name for name in statement.schema.names if name in statement.clauses[0].columns]
        if isinstance(source, MergeSource):
            schema = pa.schema([source.schema.field(name) for name in names])
            frame = source.table.select(names) if source.table is not None else rows.stream(source, schema)
            if source.table is not None:
                rows.check(source.table)
        else:
            frame = unique_frame(source, identity, names)
        request = WriteRequest(
            operation=Operation.UPSERT,
            frame=frame,
            extra=dict(call.get("commit_metadata") or {}),
            allow_empty=call.get("allow_empty", False),
            precondition=call.get("precondition"),
            sets_columns=True,
        )
        outcome = self.table.write(loaded, policies, request, None)
        if not statement.rule.compared or not ROW_MARKS.isdisjoint(names):
            return outcome
        incoming = source.rows if isinstance(source, MergeSource) else request.incoming[0]
        stats = outcome.metadata.stats if isinstance(outcome, Committed) else ()
        written = sum(stat.num_inserts + stat.num_updates for stat in stats)
        return with_ignored(outcome, incoming - written - outcome.late_rows_dropped)


# parameters: the frame, the statement, and the table with the options and the call
def _distributed(frame: Any, run: StatementRun, loaded: LoadedTable, policies: Policies, call: WriteCall) -> Outcome:
    """Run a MERGE with a frame of an engine: by its executors, or in this process if the source is small."""
    limit, join = policies.write.driver_bytes, run.statement.join
    assert join is not None, "a statement with a source has a condition"
    shuffle = engine_shuffle(frame, policies.write.memory_budget_bytes)
    if not join.pairs:
        # Without an equality, any row of the source may match any row of the table: all tasks get the whole source.
        limit = policies.write.memory_budget_bytes // _SOURCE_PART
        source = _within(frame, run.names.source, limit)
        if source is None:
            raise UserError(
                f"merge: the source has more than {limit:,} bytes, a quarter of the memory budget, and `on` has no "
                "equality of columns by which executors can divide it. Add one, or join the source in Spark with "
                "table.scan().to_spark(spark), and give the changed rows to table.upsert and the keys to table.delete"
            )
        local = replace(run, source=source)
        is_small = local.read_bytes(loaded, policies) <= policies.write.driver_bytes
        return (local if is_small else by_executors(local, shuffle)).execute(loaded, policies, call)
    source = _within(frame, run.names.source, limit) if shuffle.bytes_of(frame) <= limit else None
    if source is not None:
        local = replace(run, source=source)
        if local.read_bytes(loaded, policies) <= limit:
            return local.execute(loaded, policies, call)
    return by_executors(run, shuffle, frame).execute(loaded, policies, call)


def _within(frame: Any, schema: pa.Schema, limit_bytes: int) -> MergeSource | None:
    """Return the rows of a frame as a source that is not read again; None if they have more than `limit_bytes`."""
    batches, size = [], 0
    for batch in frame_batches(frame, limit_bytes):
        batches.append(batch.select(schema.names))
        size += batches[-1].nbytes
        if size > limit_bytes:
            return None
    table = pa.Table.from_batches(batches, schema)
    return MergeSource(schema=schema, rows=table.num_rows, table=table, repeats=False)


@dataclass(frozen=True, slots=True)
class _CountedRows:
    """Checks that no two rows of a source have the same key."""

    identity: list[str]

    def check(self, table: pa.Table) -> None:
        """Raise UserError for a key of several rows."""
        row = repeated_rows(table, self.identity)
        if row is None:
            return
        count = row.pop("count_all")
        raise UserError(
            f"MERGE: {count} rows of the source have the key {row}, and SQL allows one. Remove duplicates from the "
            "source",
            key=str(row),
        )

    def stream(self, source: MergeSource, schema: pa.Schema) -> pa.RecordBatchReader:
        """Return the rows of a divided source; all rows with one key are in one part."""

        def batches() -> Iterator[pa.RecordBatch]:
            for _, table in source.parts():
                self.check(table)
                yield from table.select(schema.names).to_batches()

        return pa.RecordBatchReader.from_batches(schema, batches())


def statement_of(
    loaded: LoadedTable, policies: Policies, clauses: Sequence[ClauseText], names: Names, join: Join | None
) -> Statement:
    """Return a bound statement on a table."""
    keys, rule = loaded.config.keys, loaded.config.merge_rule
    verbs = {clause.verb for clause in clauses}
    if rule.mixes and Verb.DELETE in verbs and len(verbs) > 1:
        raise UserError(
            f"{loaded.env.storage.root}: the table mixes values of several versions of a record (partial updates or a "
            "merger), so one statement cannot delete rows and write others: run two statements"
        )
    schema, columns = names.target, tuple(dict.fromkeys(name.partition(".")[0] for name in keys.record_key_fields))
    if not columns:
        # A generated key is stored in the meta column only. Inserted rows have none yet.
        columns, schema = (META_COLUMNS[2],), schema.append(pa.field(META_COLUMNS[2], pa.string()))
    return Statement(
        schema=schema,
        keys=columns,
        partitions=tuple(dict.fromkeys(name.partition(".")[0] for name in keys.partition_fields)),
        rule=rule,
        clauses=tuple(bind_clause(clause, names) for clause in clauses),
        join=join,
        orders_deletes=policies.deletes.retention_ms > 0,
    )


def clause(verb: str, values: Mapping[str, Any]) -> ClauseText:
    """Return the clause of UPDATE or DELETE, which have no source."""
    return ClauseText(when=When.NOT_MATCHED_BY_SOURCE, verb=Verb(verb), values=literal_values(values))


# parameters: the table with its state and options, and the two parts of the statement
def without_source(
    table: TableAccess, loaded: LoadedTable, policies: Policies, clause: ClauseText, where: str | None
) -> StatementRun:
    """Return UPDATE or DELETE on a loaded table that has columns."""
    target = table_schema(loaded)
    assert target is not None, "the caller checks that the table has columns"
    names = Names(target=target, target_alias=loaded.config.name)
    statement = located(statement_of(loaded, policies, (clause,), names, None), loaded)
    condition = None
    if where is not None:
        condition = predicate_of(rename_columns(parse_expression(where), lambda name: spelled(name, target)))
    return StatementRun(table=table, names=names, statement=statement, where=condition)


# parameters: the session, the statement, and the table with the options
def run_on(session: Any, run: StatementRun, loaded: LoadedTable, policies: Policies) -> StatementRun:
    """Return a statement without a source that runs on the executors of a session, unless it reads little."""
    if session is None:
        return run
    shuffle = engine_shuffle(session, policies.write.memory_budget_bytes)
    return run if run.read_bytes(loaded, policies) <= policies.write.driver_bytes else by_executors(run, shuffle)
