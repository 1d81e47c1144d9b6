"""Final merge: folded log entries meet the rows of the base file (DATA-5.2, step 2).

The base row is the older one. What stays as it is, is neither replaced nor removed, so that a caller can copy it whole.
Entries that no base row met are inserts; deletes among them mean nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from lakehouse.core.rows.custom_merger import merge_records
from lakehouse.core.rows.log_entries import RECORD, ColumnSets, Control, with_control
from lakehouse.core.rows.ordering import at_least, ordering_columns
from lakehouse.core.rows.partial_update import from_lower, gaps
from lakehouse.core.rows.record_pairs import both_records, newer_wins
from lakehouse.model.merge import MergeRule, PartialMode, require_runnable


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """The outcome for pairs: masks over them, and the replacing rows, one per True of `replaced`, as base rows."""

    replaced: np.ndarray
    removed: np.ndarray
    rows: pa.Table


def settle(base: pa.Table, entries: pa.Table, rule: MergeRule, sets: ColumnSets) -> Settled:
    """Return what becomes of the rows of `base`, row i of which meets row i of `entries` (folded, one per key).

    `entries` has the columns of `base` and the control columns. A base row that survives is replaced only if it takes
    values from the entry. Raises UnsupportedError for a rule that cannot be run here, UserError for a merger that does
    not do its work.
    """
    require_runnable(rule)
    control, stored = Control.of(entries), Control.of_records(base.num_rows)
    later = at_least(ordering_columns(entries, rule), ordering_columns(base, rule), base.num_rows)
    wins = newer_wins(rule, control, stored, later)
    record = both_records(control, stored)
    removed, replaced = wins & ~record, wins & record
    if rule.merger is not None:
        merged = _merged(base.filter(pa.array(record)), entries.filter(pa.array(record)), rule, sets)
        kept = Control.of(merged).kind == RECORD
        replaced, rows = record.copy(), merged.filter(pa.array(kept))
        replaced[record], removed[record] = kept, ~kept
    elif rule.partial is PartialMode.NONE and not control.columns.any():
        rows = entries.filter(pa.array(replaced))
    else:
        replaced, rows = _filled(base, entries, control, wins, record, rule, sets)
    return Settled(replaced=replaced, removed=removed, rows=_conform(rows, base.schema))


def inserted(entries: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows that folded entries insert where no base row met them, in `schema`; deletes insert nothing."""
    return _conform(entries.filter(pa.array(Control.of(entries).kind == RECORD)), schema)


def _merged(base: pa.Table, entries: pa.Table, rule: MergeRule, sets: ColumnSets) -> pa.Table:
    schema = _plain(base.schema)
    older = with_control(_conform(base, schema), Control.of_records(base.num_rows))
    return merge_records(older, with_control(_conform(entries, schema), Control.of(entries)), rule, sets)


def _filled(
    base: pa.Table,
    entries: pa.Table,
    control: Control,
    wins: np.ndarray,
    record: np.ndarray,
    rule: MergeRule,
    sets: ColumnSets,
) -> tuple[np.ndarray, pa.Table]:
    """Return which base rows are replaced, and the replacing rows, values of the other side filled in."""
    schema, size = _plain(base.schema), base.num_rows
    older, newer = _conform(base, schema), _conform(entries, schema)
    had = gaps(older, np.zeros(size, dtype=np.int32), rule, sets)
    brought = gaps(newer, control.columns, rule, sets)
    replaced, from_newer = wins & record, {}
    for name in had.keys() | brought.keys():
        ours, theirs = brought.get(name), had.get(name)
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
    """Return `schema` with the value types of dictionaries, so that two tables can be put together."""
    return pa.schema([f.with_type(f.type.value_type) if pa.types.is_dictionary(f.type) else f for f in schema])


def _conform(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = (rows.column(field.name) for field in schema)
    cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.table(cast, schema=schema)
