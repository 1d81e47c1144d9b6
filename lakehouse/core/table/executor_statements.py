"""Run UPDATE, DELETE and MERGE on the executors of an engine: no row passes the driver.

source    tasks divide the source by the hash of the values that `on` compares; the driver gets counts and values
scan      the driver plans a read of the table that these values prune
join      tasks divide the rows of the table alike, and a task per shard computes the changed rows
keys      tasks compare the keys of changed rows with stored keys, if a shard does not show all rows of a key
write     the engine's tasks stage and write the changed rows; the driver commits

    source --hash of `on`--+                          +--> write
                           +-- shard: changed rows --+
    file slices --hash-----+                          +--hash of key--+-- shard: compared keys
                                               stored keys --hash-----+

The source is read once: the engine stores its pieces. The changed rows are computed once, before the write gets an
instant. If the engine lost stored pieces and computed them again from a source that returned other rows, the number of
rows may differ: then nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.pieces import Shuffle, TaskDivision
from lakehouse.core.expressions.literals import ArrowValues
from lakehouse.core.operations.commit.read_rows import ReadRows
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import SNAPSHOT, ScanRequest
from lakehouse.core.operations.read.scan import Scan, plan_row_read
from lakehouse.core.planning.changed_rows import ChangedRows
from lakehouse.core.planning.statement import Join
from lakehouse.core.table.arguments import Outcome, WriteCall
from lakehouse.core.table.merge_source import MergeSource
from lakehouse.core.table.statement_tasks import (
    CHANGED_KEYS,
    CHANGED_ROWS,
    INSERTED_KEYS,
    INSERTED_ROWS,
    SHARDS,
    ChangeReport,
    ColumnValues,
    IdentityTask,
    InsertTask,
    JoinTask,
    KeyTask,
    Outcomes,
    SliceTask,
    SourceReport,
    SourceTask,
    TargetTask,
)
from lakehouse.core.table.statements import StatementRun, groups_of, is_unique_in_table, with_ignored
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.predicate import And, Comparison, In, Predicate
from lakehouse.spec.options.policies import Policies

#: Maximum number of distinct values that a read names; above it, it uses their range.
_MOST_VALUES = 200_000
#: Bytes of pieces from which a shuffle has another task, and bytes that fill a task.
_LEAST_BYTES, _TASK_BYTES = 4 << 20, 64 << 20
#: Groups per task, so that tasks have about the same size, and the share of the budget that a group takes.
_GROUPS_PER_TASK, _KEPT_SHARE = 4, 8
#: Bytes that the key of a changed row takes.
_KEY_BYTES = 64


def by_executors(run: StatementRun, shuffle: Shuffle, frame: Any = None) -> ExecutorRun:
    """Return a statement that executors run, with the rows of a frame as source, or the rows that it has.

    The source is not read again after a conflict, because the data of a frame may change.
    """
    source = run.source if frame is None else MergeSource(schema=run.names.source, rows=0, repeats=False)
    return ExecutorRun(
        table=run.table,
        names=run.names,
        statement=run.statement,
        source=source,
        where=run.where,
        shuffle=shuffle,
        frame=frame,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorRun(StatementRun):
    """A statement whose rows are read, compared and written by executors.

    Attributes:
        shuffle: Divides the rows among the tasks.
        frame: The source as a frame of the engine; None for UPDATE and DELETE, and if `source` has all rows.
    """

    shuffle: Shuffle
    frame: Any = None

    def _attempt(self, loaded: LoadedTable, policies: Policies, call: WriteCall) -> Outcome:
        reads = self._reads(loaded)
        changes = (self._by_slices if self.frame is None else self._merged)(loaded, policies, reads)
        empty = ChangedRows(statement=self.statement, source=self.source.schema.empty_table()).empty()
        schema = empty.schema
        for name in self.statement.places:
            schema = schema.remove(schema.get_field_index(name))
        ignored = sum(report.counts.ignored for report in changes.reports)
        rows = sum(report.rows for report in changes.reports)
        if not rows:
            request = self._request(loaded, call, reads, schema.empty_table())
            return with_ignored(self.table.write(loaded, policies, request, None), ignored)
        self._compare_keys(loaded, policies, changes)
        frame = self.shuffle.rows(self.shuffle.of_sides(changes.pieces, (CHANGED_ROWS, INSERTED_ROWS)), schema)
        request = self._request(loaded, call, reads, frame)
        assert request.precondition is not None, "the request of a statement checks the rows that were read"
        check = _SameRows(shuffle=self.shuffle, frame=frame, rows=rows, confirm=request.precondition.confirm)
        request = replace(request, precondition=replace(request.precondition, confirm=check))
        return with_ignored(self.table.write(loaded, policies, request, self.shuffle.engine), ignored)

    def _by_slices(self, loaded: LoadedTable, policies: Policies, reads: ReadRows) -> _Changes:
        """Compute the changed rows file slice by file slice, each with all rows of the source."""
        scan = self._scan(loaded, policies, self.where)
        reads.groups = groups_of(scan)
        outcomes, source = self._outcomes(loaded, compares_keys=False), self.source.table
        assert source is not None, "a source that is compared with all rows is in memory"
        task = SliceTask(outcomes=outcomes, context=scan.context, plan=scan.plan.without_slices(), source=source)
        tasks = self._tasks(scan.plan.slices.bytes)
        changes = self._stored([self.shuffle.of_slices(scan.plan.slices, task)], tasks, outcomes, reads)
        if not self.statement.inserts:
            return changes
        bits = [report.matched for report in changes.reports if report.matched is not None]
        none = np.zeros(-(-source.num_rows // 8), np.uint8)
        insert = InsertTask(outcomes=outcomes, source=source, matched=np.bitwise_or.reduce([none, *bits]))
        return self._stored([changes.pieces, self.shuffle.of_task(insert)], tasks, outcomes, reads)

    def _merged(self, loaded: LoadedTable, policies: Policies, reads: ReadRows) -> _Changes:
        """Compute the changed rows of MERGE, shard by shard."""
        join, names, budget = self.statement.join, self.names, policies.write.memory_budget_bytes
        assert join is not None, "a statement with a source has a condition"
        task = SourceTask(
            names=names, join=join, schema=names.source, looked_up=self._looked_up(join), budget_bytes=budget
        )
        size = self.shuffle.bytes_of(self.frame)
        source = self.shuffle.stored([self.shuffle.of_frame(self.frame, task)], self._tasks(size))
        reports: list[SourceReport] = self.shuffle.reports(source)
        scan = self._scan(
            loaded, policies, None if self._reads_all else _condition([report.values for report in reports])
        )
        reads.groups = groups_of(scan)
        outcomes = self._outcomes(loaded, compares_keys=self._compares_keys(self._identity(loaded)))
        context, plan = scan.context, scan.plan.without_slices()
        target = TargetTask(names=names, join=join, context=context, plan=plan)
        joined = JoinTask(
            outcomes=outcomes,
            names=names,
            join=join,
            schema=names.source,
            compares_keys=self._compares_keys(self._identity(loaded)),
            budget_bytes=budget,
        )
        source_bytes = sum(report.nbytes for report in reports)
        division = self._division(scan.plan.slices.bytes + source_bytes, source_bytes, budget)
        sides = [source, self.shuffle.of_slices(scan.plan.slices, target)]
        return self._stored([self.shuffle.by_shard(sides, joined, division)], division.tasks, outcomes, reads)

    def _stored(self, pieces: Sequence[Any], tasks: int, outcomes: Outcomes, reads: ReadRows) -> _Changes:
        """Compute pieces with changed rows and collect their reports."""
        stored = self.shuffle.stored(pieces, tasks)
        reports: list[ChangeReport] = self.shuffle.reports(stored)
        partitions = [report.inserted for report in reports]
        reads.inserted = None if None in partitions else set().union(*(each for each in partitions if each is not None))
        return _Changes(pieces=stored, reports=reports, outcomes=outcomes)

    def _outcomes(self, loaded: LoadedTable, *, compares_keys: bool) -> Outcomes:
        identity, keys = tuple(self._identity(loaded)), loaded.config.keys
        inserts_new = not self.statement.inserts or self._inserts_new_keys(loaded)
        if not identity and not inserts_new:
            raise UserError(
                f"merge: a clause inserts rows whose nested key ({', '.join(self.statement.keys)}) cannot be compared "
                "with stored keys. Compare it in `on`"
            )
        return Outcomes(
            statement=self.statement,
            identity=identity,
            partition_keys=None if keys.partition_fields and is_unique_in_table(loaded) else keys,
            reports_keys=bool(identity) and not (compares_keys and inserts_new),
        )

    def _compare_keys(self, loaded: LoadedTable, policies: Policies, changes: _Changes) -> None:
        """Raise UserError if a write of the changed rows by key would change other rows."""
        outcomes = changes.outcomes
        if not outcomes.reports_keys:
            return
        is_whole = self.where is None and self.statement.join is None
        task = KeyTask(statement=self.statement, identity=outcomes.identity, is_whole=is_whole)
        sides = [self.shuffle.of_sides(changes.pieces, (CHANGED_KEYS, INSERTED_KEYS))]
        size = 0
        if not is_whole:
            request = ScanRequest(
                query=SNAPSHOT,
                columns=(*outcomes.identity, *self.statement.places),
                where=_condition([report.values for report in changes.reports]),
                memory_budget_bytes=policies.write.memory_budget_bytes // 2,
                skips_damage=policies.write.skips_damage,
                # The write finds rows by the record index even if keys may be repeated.
                trusts_keys=bool(self.statement.places),
            )
            scan = plan_row_read(loaded, SNAPSHOT, request)
            stored = IdentityTask(identity=outcomes.identity, context=scan.context, plan=scan.plan.without_slices())
            sides.append(self.shuffle.of_slices(scan.plan.slices, stored))
            size = _key_bytes(scan)
        # The task yields nothing: its errors are the result. It keeps the keys of changed rows.
        rows = sum(report.rows for report in changes.reports)
        division = self._division(size, rows * _KEY_BYTES, policies.write.memory_budget_bytes)
        self.shuffle.run(self.shuffle.by_shard(sides, task, division))

    def _looked_up(self, join: Join) -> tuple[tuple[str, pa.DataType, Any], ...]:
        """Return the columns of the table by whose values in the source its files are pruned."""
        if self._reads_all:
            return ()
        target = self.names.target
        return tuple(
            (name, target.field(name).type, source)
            for name, source in join.equal_columns().items()
            if name in target.names and not pa.types.is_nested(target.field(name).type)
        )

    def _tasks(self, size: int) -> int:
        """Return the number of tasks for pieces with this many bytes."""
        least = min(self.shuffle.engine.parallelism, -(-size // _LEAST_BYTES))
        return max(min(max(-(-size // _TASK_BYTES), least), SHARDS), 1)

    def _division(self, size: int, kept_bytes: int, budget_bytes: int) -> TaskDivision:
        """Return the numbers of tasks and groups for pieces of a size; a group fills about an eighth of a budget."""
        tasks = max(self._tasks(size), self._tasks(kept_bytes))
        groups = max(-(-kept_bytes * _KEPT_SHARE // budget_bytes), _GROUPS_PER_TASK * tasks if tasks > 1 else 1)
        return TaskDivision(tasks=tasks, groups=min(groups, SHARDS))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Changes:
    """The changed rows of a statement as pieces, and the reports of the tasks."""

    pieces: Any
    reports: Sequence[ChangeReport]
    outcomes: Outcomes


@dataclass(frozen=True, slots=True, kw_only=True)
class _SameRows:
    """Checks before a commit that the write read the rows that were reported."""

    shuffle: Shuffle
    frame: Any
    rows: int
    confirm: Callable[[], None] | None

    def __call__(self) -> None:
        """Raise RetryableError if the numbers differ."""
        read = self.shuffle.rows_read(self.frame)
        if read != self.rows:
            raise RetryableError(
                f"the statement changes {self.rows:,} rows, but {read:,} were written: rows of a lost executor were "
                "computed again, and the source returned other rows. Nothing was committed; run the statement again, "
                "or store the source in a table before"
            )
        if self.confirm is not None:
            self.confirm()


def _condition(of_tasks: Iterable[Mapping[str, ColumnValues | None]]) -> Predicate | None:
    """Return a condition that rows with the values of all tasks meet, or None."""
    reports = list(of_tasks)
    names = dict.fromkeys(name for values in reports for name in values)
    parts = [_values_condition(name, [values[name] for values in reports if name in values]) for name in names]
    usable = tuple(part for part in parts if part is not None)
    return And(usable) if usable else None


def _values_condition(name: str, values: Sequence[ColumnValues | None]) -> Predicate | None:
    of_tasks = [each for each in values if each is not None]
    # NaN has no place in the order of Arrow's comparisons.
    if len(of_tasks) < len(values) or pa.types.is_floating(of_tasks[0].bounds.type):
        return None
    distinct = [each.distinct for each in of_tasks if each.distinct is not None]
    if len(distinct) == len(of_tasks):
        whole = pa.chunked_array(distinct).unique()
        if len(whole) <= _MOST_VALUES:
            return In(name, ArrowValues(whole))
    bounds = pa.chunked_array([each.bounds for each in of_tasks])
    if not len(bounds):
        return None
    order = pc.sort_indices(bounds)
    low, high = bounds[order[0].as_py()], bounds[order[-1].as_py()]
    return And((Comparison(name, ">=", low), Comparison(name, "<=", high)))


def _key_bytes(scan: Scan) -> int:
    """Return about how many bytes the columns of a scan take."""
    return int(scan.plan.slices.bytes * len(scan.plan.schema) / max(len(scan.table_schema), 1))
