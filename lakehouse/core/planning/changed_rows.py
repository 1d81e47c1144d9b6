"""Compute the rows that UPDATE, DELETE and MERGE change, batch by batch (pure: Arrow in, Arrow out).

The rows of the source are in memory; the rows of the table come in batches. Each row of the result has all key,
partition and ordering columns, the columns that its clause assigns, and a control column (`rows.absent_columns`) if
rows lack columns or are deletes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.casts import cast_value
from lakehouse.core.expressions.comparisons import comparable_pair
from lakehouse.core.expressions.evaluate import evaluate, matches
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.planning.statement import SOURCE, TARGET, Clause, Join, Verb, When
from lakehouse.core.rows.absent_columns import DELETE_BIT, LACKS, Groups, grouped
from lakehouse.core.rows.ordering import at_least, ordering_columns
from lakehouse.core.rows.python_values import stored_cast
from lakehouse.core.rows.record_merge import ROW_MARKS
from lakehouse.errors import UserError
from lakehouse.model.expression import Value, columns_in
from lakehouse.model.merge import MergeRule, PartialMode

#: Maximum number of row pairs that a condition without equality compares in one step, and in all.
_PAIRS_AT_ONCE, _MOST_PAIRS = 4_000_000, 2_000_000_000
_TARGET_ROW, _SOURCE_ROW = "\0t", "\0s"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A bound statement on a table.

    Attributes:
        schema: The data columns of the table.
        keys: The top-level columns of the record key.
        partitions: The top-level columns of the partition path.
        rule: How the table merges versions of a record.
        clauses: The clauses in order.
        join: The condition of a MERGE; None for a statement without a source.
        orders_deletes: Whether deletes have ordering values, so that older rows which arrive later stay deleted.
        places: Columns of `schema` that say where a row is stored. They are part of the result, and are not written.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    partitions: tuple[str, ...]
    rule: MergeRule
    clauses: tuple[Clause, ...]
    join: Join | None = None
    orders_deletes: bool = False
    places: tuple[str, ...] = ()

    @property
    def fixed(self) -> tuple[str, ...]:
        """The columns that every changed row has: key, partition and ordering columns, and those that need a value."""
        of_groups = (group.ordering for group in self.rule.groups)
        required = () if self.only_deletes else (column.name for column in self.schema if not column.nullable)
        names = (*self.keys, *self.partitions, *self._ordering, *of_groups, *required, *self.places)
        return tuple(dict.fromkeys(name for name in names if name in self.schema.names))

    @property
    def generates_keys(self) -> bool:
        """Whether the table has no key columns, so that inserted rows get a key when they are written."""
        return self.keys == (META_COLUMNS[2],)

    @property
    def only_deletes(self) -> bool:
        """Whether all clauses delete rows."""
        return all(clause.verb is Verb.DELETE for clause in self.clauses)

    @property
    def inserts(self) -> bool:
        """Whether a clause inserts rows."""
        return any(clause.verb is Verb.INSERT for clause in self.clauses)

    @property
    def output(self) -> pa.Schema:
        """The columns of the result, without the control column."""
        names = set(self.schema.names) if self.inserts else set(self.fixed)
        for clause in self.clauses:
            names |= clause.columns
        return pa.schema([column for column in self.schema if column.name in names])

    @property
    def set_columns(self) -> frozenset[str] | None:
        """The columns that the statement changes in stored rows; None if it may change all of them.

        It may if it adds or deletes rows, and if readers derive values from other columns.
        """
        names = frozenset(name for clause in self.clauses for name in clause.columns)
        is_mixed = self.rule.mixes or not names.isdisjoint({*ROW_MARKS, self.rule.delete_field})
        updates = all(clause.verb is Verb.UPDATE for clause in self.clauses)
        return names if updates and not is_mixed else None

    @property
    def _ordering(self) -> tuple[str, ...]:
        return tuple(name.partition(".")[0] for name in self.rule.ordering)

    @cached_property
    def bits(self) -> tuple[Groups, tuple[int, ...]]:
        """The groups of columns that some rows lack, and the bits of the control column for the rows of each clause.

        There is no group if no row lacks columns or is a delete.
        """
        output, fixed = frozenset(self.output.names), frozenset(self.fixed)
        lacking = [
            output - fixed - clause.columns if clause.verb is Verb.UPDATE else frozenset[str]()
            for clause in self.clauses
        ]
        groups, bits = grouped(lacking)
        deletes = [DELETE_BIT if clause.verb is Verb.DELETE else 0 for clause in self.clauses]
        # A batch has the control column if there is a group, even if the group has no columns.
        groups = groups or ((frozenset(),) if any(deletes) else ())
        return groups, tuple(one | two for one, two in zip(bits, deletes, strict=True))

    def is_unordered(self, name: str, clause: Clause) -> bool:
        """Return whether rows of a clause leave an ordering column null: such a delete always wins.

        A column that also identifies the row keeps its value: without it the delete would not find the row.
        """
        leaves = clause.verb is Verb.DELETE and not self.orders_deletes and name in self._ordering
        return leaves and self.schema.field(name).nullable and name not in (*self.keys, *self.partitions)

    def target_columns(self) -> tuple[str, ...]:
        """Return the columns of the table that the clauses and the join read."""
        used = [name for clause in self.clauses for name in self._used(clause)]
        if self.join is not None:
            used += [name for pair in self.join.pairs for name in columns_in(pair[0])]
            used += [] if self.join.residual is None else list(columns_in(self.join.residual))
        names = (name.removeprefix(TARGET) for name in used if name.startswith(TARGET))
        return tuple(dict.fromkeys((*self.fixed, *self.roots(names))))

    def roots(self, names: Iterable[str]) -> Iterator[str]:
        """Yield the top-level columns that contain these columns."""
        for name in names:
            yield name if name in self.schema.names else _root(name, self.schema)

    def _used(self, clause: Clause) -> list[str]:
        expressions = [value for _, value in clause.values]
        if clause.predicate is not None:
            expressions.append(clause.predicate)
        return [name for expression in expressions for name in columns_in(expression)]


def _root(name: str, schema: pa.Schema) -> str:
    parts = name.split(".")
    roots = (".".join(parts[:depth]) for depth in range(len(parts), 0, -1))
    return next((root for root in roots if root in schema.names), name)


@dataclass(slots=True)
class Counts:
    """What a statement did: rows by verb, and updates without effect.

    `ignored` are updates whose ordering value is lower than the stored one, which every reader of the table discards.
    """

    updated: int = 0
    deleted: int = 0
    inserted: int = 0
    ignored: int = 0


@dataclass
class ChangedRows:
    """The state of one statement run: which rows of the source matched, and what was counted."""

    statement: Statement
    source: pa.Table = field(default_factory=lambda: pa.table({}))
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        self._matched = np.zeros(self.source.num_rows, bool)
        columns = [SOURCE + name for name in self.source.column_names]
        self._source = self.source.rename_columns(columns).combine_chunks()
        self._pairs = 0
        #: The rows of the last batch whose compared values a row of the source has, in ascending order.
        self.compared_rows = np.array([], np.int64)

    @property
    def matched(self) -> np.ndarray:
        """The mask of the rows of the source with a match so far."""
        return self._matched

    def add_matched(self, matched: np.ndarray) -> None:
        """Add rows of the source that have a match in rows which other tasks compared."""
        self._matched |= matched

    def of_batch(self, target: pa.Table) -> pa.Table:
        """Return the changed rows of a batch of the table.

        Raises:
            UserError: More than one row of the source changes a row, or a value does not fit its column.
        """
        statement = self.statement
        rows = target.rename_columns([TARGET + name for name in target.column_names])
        if statement.join is None:
            return self._changed(rows, When.NOT_MATCHED_BY_SOURCE)
        target_rows, source_rows = self._joined(rows, statement.join)
        self._matched[source_rows] = True
        results = []
        if any(clause.when is When.MATCHED for clause in statement.clauses):
            pairs = _beside(rows.take(pa.array(target_rows)), self._source.take(pa.array(source_rows)))
            results.append(self._changed(pairs, When.MATCHED, target_rows))
        if any(clause.when is When.NOT_MATCHED_BY_SOURCE for clause in statement.clauses):
            others = np.ones(rows.num_rows, bool)
            others[target_rows] = False
            results.append(self._changed(rows.filter(pa.array(others)), When.NOT_MATCHED_BY_SOURCE))
        return pa.concat_tables(results) if results else self.empty()

    def inserted(self) -> pa.Table:
        """Return the rows to insert; call it after all batches of the table.

        Raises UserError if two rows have the same key and partition.
        """
        if not self.statement.inserts:
            return self.empty()
        rows = self._changed(self._source.filter(pa.array(~self._matched)), When.NOT_MATCHED)
        if self.statement.generates_keys:
            return rows
        identity = [*self.statement.keys, *self.statement.partitions]
        counts = rows.group_by(identity).aggregate([([], "count_all")])
        if counts.num_rows < rows.num_rows:
            twice = counts.filter(pc.greater(counts.column("count_all"), 1)).select(identity).slice(0, 1).to_pylist()[0]
            raise UserError(f"MERGE: several rows of the source insert the key {twice}; remove duplicates")
        return rows

    def _joined(self, rows: pa.Table, join: Join) -> tuple[np.ndarray, np.ndarray]:
        """Return the pairs of rows that meet the condition, as positions on both sides."""
        if not join.pairs:
            return self._compared_all(rows, join)
        left, right = {}, {}
        for number, (target, source) in enumerate(join.pairs):
            values = comparable_pair(evaluate(target, rows), evaluate(source, self._source))
            left[str(number)], right[str(number)] = values
        left[_TARGET_ROW] = pa.array(np.arange(rows.num_rows))
        right[_SOURCE_ROW] = pa.array(np.arange(self._source.num_rows))
        keys = [str(number) for number in range(len(join.pairs))]
        joined = pa.table(left).join(pa.table(right), keys=keys, join_type="inner")
        target_rows = joined.column(_TARGET_ROW).to_numpy()
        source_rows = joined.column(_SOURCE_ROW).to_numpy()
        order = np.lexsort((source_rows, target_rows))
        self.compared_rows = np.unique(target_rows)
        return self._meeting(rows, join, target_rows[order], source_rows[order])

    def _compared_all(self, rows: pa.Table, join: Join) -> tuple[np.ndarray, np.ndarray]:
        """Compare each row of the table with each row of the source, in steps of bounded size."""
        sources = self._source.num_rows
        self._pairs += rows.num_rows * sources
        if self._pairs > _MOST_PAIRS:
            raise UserError(
                f"MERGE: the condition has no equality between the table and the source, so more than {_MOST_PAIRS:,} "
                "pairs of rows would be compared. Add an equality of columns to `on`"
            )
        step = max(_PAIRS_AT_ONCE // max(sources, 1), 1)
        pieces = [(np.array([], np.int64), np.array([], np.int64))]
        for start in range(0, rows.num_rows if sources else 0, step):
            count = min(step, rows.num_rows - start)
            target_rows = np.repeat(np.arange(start, start + count), sources)
            pieces.append(self._meeting(rows, join, target_rows, np.tile(np.arange(sources), count)))
        return np.concatenate([one for one, _ in pieces]), np.concatenate([two for _, two in pieces])

    def _meeting(
        self, rows: pa.Table, join: Join, target_rows: np.ndarray, source_rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        if join.residual is None or not len(target_rows):
            return target_rows, source_rows
        pairs = _beside(rows.take(pa.array(target_rows)), self._source.take(pa.array(source_rows)))
        met = np.asarray(pc.fill_null(matches(join.residual, pairs), False).to_numpy(zero_copy_only=False), bool)
        return target_rows[met], source_rows[met]

    def _changed(self, rows: pa.Table, when: When, target_rows: np.ndarray | None = None) -> pa.Table:
        """Apply the clauses for these rows in order: the first one whose condition holds decides about a row."""
        results, acting = [self.empty()], [np.array([], np.int64)]
        places = np.arange(rows.num_rows) if target_rows is None else target_rows
        for number, clause in enumerate(self.statement.clauses):
            if clause.when is not when or not rows.num_rows:
                continue
            chosen, rest = rows, rows.slice(0, 0)
            chosen_places, rest_places = places, places[:0]
            if clause.predicate is not None:
                met = pc.fill_null(matches(clause.predicate, rows), False)
                flags = np.asarray(met.to_numpy(zero_copy_only=False), bool)
                chosen, rest = rows.filter(met), rows.filter(pc.invert(met))
                chosen_places, rest_places = places[flags], places[~flags]
            acting.append(chosen_places)
            if target_rows is not None:
                self._refuse_repeated(chosen, np.concatenate(acting))
            results.append(self._of_clause(number, clause, chosen))
            rows, places = rest, rest_places
        return pa.concat_tables(results)

    def _refuse_repeated(self, rows: pa.Table, acting: np.ndarray) -> None:
        """Raise UserError if several rows of the source change one row of the table."""
        distinct, counts = np.unique(acting, return_counts=True)
        if len(distinct) == len(acting):
            return
        repeated = distinct[counts > 1][0]
        place = int(np.flatnonzero(acting[len(acting) - rows.num_rows :] == repeated)[0])
        key = {name: rows.column(TARGET + name)[place].as_py() for name in self.statement.keys}
        raise UserError(
            f"MERGE: {int(counts[distinct == repeated][0])} rows of the source change the row with the key {key}, and "
            "SQL allows one. Remove duplicates from the source, or add conditions to the clauses",
            key=str(key),
        )

    def _of_clause(self, number: int, clause: Clause, rows: pa.Table) -> pa.Table:
        """Return the rows that one clause writes."""
        statement = self.statement
        values = {name: self._assigned(name, clause, rows) for name in clause.columns}
        columns = []
        for column in self.empty().schema:
            name = column.name
            if name in values:
                columns.append(values[name])
            elif statement.is_unordered(name, clause):
                columns.append(pa.nulls(rows.num_rows, column.type))
            elif TARGET + name in rows.column_names and name in statement.fixed and clause.verb is not Verb.INSERT:
                columns.append(_one(rows.column(TARGET + name)).cast(column.type))
            elif name == LACKS:
                columns.append(pa.repeat(pa.scalar(statement.bits[1][number], pa.int64()), rows.num_rows))
            else:
                columns.append(pa.nulls(rows.num_rows, column.type))
        result = pa.Table.from_arrays(columns, schema=self.empty().schema)
        if clause.verb is Verb.UPDATE:
            self._check_update(clause, rows, result)
            result = self._newest(clause, rows, result)
            self.counts.updated += result.num_rows
        elif clause.verb is Verb.DELETE:
            self.counts.deleted += result.num_rows
        else:
            self.counts.inserted += result.num_rows
        return result

    def _assigned(self, name: str, clause: Clause, rows: pa.Table) -> pa.Array:
        expression = dict(clause.values)[name]
        kind = self.statement.schema.field(name).type
        if isinstance(expression, Value) and expression.value is None:
            return pa.nulls(rows.num_rows, kind)
        return assigned(evaluate(expression, rows), kind, name)

    def _check_update(self, clause: Clause, rows: pa.Table, result: pa.Table) -> None:
        """Raise UserError for an update that changes the key or the partition of a row, or that cannot take effect."""
        for names, noun, way in (
            (self.statement.keys, "record key", "delete the row, and insert it with the other key"),
            (self.statement.partitions, "partition", "delete the row, and insert it into the other partition"),
        ):
            for name in clause.columns.intersection(names):
                stored = _one(rows.column(TARGET + name)).cast(result.schema.field(name).type)
                differs = _differs(stored, _one(result.column(name)))
                if differs is not None:
                    raise UserError(
                        f"the update changes {name!r}, a column of the {noun}, from {stored[differs].as_py()!r} to "
                        f"{result.column(name)[differs].as_py()!r}; {way}",
                        column=name,
                    )
        if self.statement.rule.partial is PartialMode.IGNORE_DEFAULTS:
            for name in clause.columns:
                if result.column(name).null_count:
                    raise UserError(
                        f"the update sets {name!r} to null, but the table keeps stored values where a row has null "
                        "(partial_update=IGNORE_DEFAULTS), so it would have no effect",
                        column=name,
                    )

    def _newest(self, clause: Clause, rows: pa.Table, result: pa.Table) -> pa.Table:
        """Leave out and count the updates whose ordering value is lower than the stored one."""
        rule = self.statement.rule
        if not clause.columns.intersection(rule.compared):
            return result
        stored = pa.table({name: rows.column(TARGET + name) for name in rule.compared})
        wins = at_least(ordering_columns(result, rule), ordering_columns(stored, rule), result.num_rows)
        self.counts.ignored += int(np.count_nonzero(~wins))
        return result if wins.all() else result.filter(pa.array(wins))

    def empty(self) -> pa.Table:
        output = self.statement.output
        control = [pa.field(LACKS, pa.int64())] if self.statement.bits[0] and not self.statement.only_deletes else []
        return pa.schema([*(column.with_nullable(True) for column in output), *control]).empty_table()


def assigned(values: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    """Convert assigned values to the type of a column; raise UserError for a value that changes by that."""
    if values.type == kind:
        return values
    if pa.types.is_null(values.type):
        return pa.nulls(len(values), kind)
    try:
        is_text = pa.types.is_string(values.type)
        return cast_value(values, kind) if is_text and not pa.types.is_string(kind) else stored_cast(values, kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"column {name!r} has the type {kind}, and a value of type {values.type} does not fit: {error}. "
            "Convert it in the statement, for example with round or CAST",
            column=name,
        ) from None
    except UserError as error:
        raise UserError(f"column {name!r}: {error}", column=name) from None


def _differs(stored: pa.Array, new: pa.Array) -> int | None:
    """Return the position of the first two values that differ."""
    if stored.equals(new):
        return None
    if pa.types.is_nested(stored.type):
        return 0
    same = pc.or_(pc.fill_null(pc.equal(stored, new), False), pc.and_(stored.is_null(), new.is_null()))
    places = np.flatnonzero(~np.asarray(same.to_numpy(zero_copy_only=False), bool))
    return int(places[0]) if len(places) else None


def _one(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    whole = pa.concat_arrays(whole.chunks) if isinstance(whole, pa.ChunkedArray) else whole
    return whole.cast(whole.type.value_type) if pa.types.is_dictionary(whole.type) else whole


def _beside(left: pa.Table, right: pa.Table) -> pa.Table:
    names = [*left.column_names, *right.column_names]
    return pa.Table.from_arrays([*left.columns, *right.columns], names=names)
