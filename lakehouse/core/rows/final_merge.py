"""Final merge: merge log entries with the rows of the base file (DATA-5.2, step 2).

The base row is the older version. A base row that stays unchanged is neither replaced nor removed, so that a caller can
copy it. Entries without a base row are inserts; deletes among them have no effect.

Partial updates are not associative. If the versions of a key were merged before the base row, a result would depend on
the commits that a compaction has merged already:

    base ts=9 v=x    log ts=22 v=null    log ts=3 v=y
    base + first log = (22, x), + second log = (22, x)     as copy-on-write tables, and with a compaction in between
    both logs = (22, y), + base = (22, y)                  as readers of Hudi before a compaction

So `fold_into_base` merges the versions of a key with its base row one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakehouse.core.rows.casting import cast_columns
from lakehouse.core.rows.custom_merger import merge_records
from lakehouse.core.rows.delta_merge import fold_versions, rounds_of
from lakehouse.core.rows.log_entries import RECORD, ColumnSets, Control, with_control
from lakehouse.core.rows.ordering import at_least, ordering_columns, ranks
from lakehouse.core.rows.partial_update import from_lower, gaps
from lakehouse.core.rows.record_pairs import both_records, newer_wins
from lakehouse.model.merge import MergeRule, PartialMode, require_runnable


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseMergeResult:
    """The result of a merge: masks over the pairs of rows, and the new version of each replaced row, in order."""

    replaced: np.ndarray
    removed: np.ndarray
    rows: pa.Table


def merge_base(base: pa.Table, entries: pa.Table, rule: MergeRule, sets: ColumnSets) -> BaseMergeResult:
    """Merge row i of `base` with row i of `entries`, which has one entry per key.

    A base row that survives is replaced only if it takes values from the entry.

    Args:
        base: Rows of the base file.
        entries: Their entries, with the columns of `base` and the control columns.
        rule: How versions of a record are merged.
        sets: The sets of columns that partial rows provide.

    Raises:
        UnsupportedError: The rule is not supported.
        UserError: A custom merger fails.
    """
    require_runnable(rule)
    control, stored = Control.of(entries), Control.of_records(base.num_rows)
    later = at_least(ordering_columns(entries, rule), ordering_columns(base, rule), base.num_rows)
    wins = newer_wins(rule, control, stored, later)
    record = both_records(control, stored)
    removed, replaced = wins & ~record, wins & record
    if rule.merger is not None:
        merged = _merged(base.filter(pa.array(record)), entries.filter(pa.array(record)), rule, sets)
        survives = Control.of(merged).kind == RECORD
        replaced, rows = record.copy(), merged.filter(pa.array(survives))
        replaced[record], removed[record] = survives, ~survives
    elif rule.partial is PartialMode.NONE and not control.columns.any():
        rows = entries.filter(pa.array(replaced))
    else:
        replaced, rows = _completed(base, entries, wins, rule, sets)
    return BaseMergeResult(replaced=replaced, removed=removed, rows=_conform(rows, base.schema))


def fold_into_base(
    base: pa.Table, versions: pa.Table, records: np.ndarray, rule: MergeRule, sets: ColumnSets
) -> BaseMergeResult:
    """Merge each row of `base` with several entries, oldest first.

    Args:
        base: Rows of the base file.
        versions: Entries, with the columns of `base` and the control columns. Entries for one row are in time order.
        records: The row of `base` for each entry; each row has one or more.
        rule: How versions of a record are merged; it has no custom merger.
        sets: The sets of columns that partial rows provide. Unions of sets are added to it.
    """
    schema, size = _plain(base.schema), base.num_rows
    newer = with_control(_conform(versions, schema), Control.of(versions))
    rows = pa.concat_tables([with_control(_conform(base, schema), Control.of_records(size)), newer])
    compared = ordering_columns(rows, rule)
    rounds = rounds_of(np.concatenate([np.arange(size), records]))
    folded = fold_versions(rows, rounds, None if compared is None else ranks(compared), rule, sets)
    # The first version of each key is its base row.
    place = np.argsort(rounds.versions(0))
    changed = folded.row >= size
    for source in folded.source.values():
        changed |= source >= size
    is_record = Control.of(rows).kind[folded.row] == RECORD
    replaced, removed = (is_record & changed)[place], (~is_record)[place]
    chosen = pa.array(place[replaced])
    columns = [folded.column(rows, name).take(chosen) for name in schema.names]
    return BaseMergeResult(
        replaced=replaced, removed=removed, rows=_conform(pa.table(columns, schema=schema), base.schema)
    )


def inserted_rows(entries: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows, in `schema`, that are inserted by entries without a base row. Deletes insert nothing."""
    return _conform(entries.filter(pa.array(Control.of(entries).kind == RECORD)), schema)


def _merged(base: pa.Table, entries: pa.Table, rule: MergeRule, sets: ColumnSets) -> pa.Table:
    """Return the merged records. An entry that follows a delete is not changed."""
    schema, control = _plain(base.schema), Control.of(entries)
    older = with_control(_conform(base, schema), Control.of_records(base.num_rows))
    newer = with_control(_conform(entries, schema), control)
    merged = merge_records(older, newer, rule, sets)
    if not control.default.any():
        return merged
    place = np.arange(base.num_rows) + np.where(control.default, base.num_rows, 0)
    return pa.concat_tables([merged, newer]).take(pa.array(place))


def _completed(
    base: pa.Table, entries: pa.Table, wins: np.ndarray, rule: MergeRule, sets: ColumnSets
) -> tuple[np.ndarray, pa.Table]:
    """Return the mask of replaced base rows, and the replacing rows, with values filled in from the other side."""
    control, size = Control.of(entries), base.num_rows
    record, schema = both_records(control, Control.of_records(size)), _plain(base.schema)
    older, newer = _conform(base, schema), _conform(entries, schema)
    stored_gaps = gaps(older, np.zeros(size, dtype=np.int32), rule, sets)
    newer_gaps = gaps(newer, control.columns, rule, sets)
    replaced, from_newer = wins & record, {}
    for name in stored_gaps.keys() | newer_gaps.keys():
        ours, theirs = newer_gaps.get(name), stored_gaps.get(name)
        taken = from_lower(theirs, ours, record)
        from_newer[name] = np.where(wins, ~from_lower(ours, theirs, record), taken)
        replaced |= ~wins & (taken if ours is None else taken & ~ours.open)
    at = np.flatnonzero(replaced)
    columns = []
    for name in schema.names:
        both = pa.chunked_array([*older.column(name).chunks, *newer.column(name).chunks], schema.field(name).type)
        columns.append(both.take(pa.array(at + size * from_newer.get(name, wins)[at])))
    return replaced, pa.table(columns, schema=schema)


def _plain(schema: pa.Schema) -> pa.Schema:
    """Return `schema` with the value types of dictionaries, so that two tables can be concatenated."""
    return pa.schema([f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema])


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    return cast_columns(rows.select(schema.names), schema)
