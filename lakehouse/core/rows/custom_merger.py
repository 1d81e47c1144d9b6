"""Run custom mergers: Python functions of users that merge two versions of each record, for whole columns.

    def merge(older: pa.Table, newer: pa.Table) -> pa.Table

Row i of `older` and row i of `newer` are versions of the same record, and neither is a delete. Both tables have the
record key (`_hoodie_record_key`) and the data columns, but no other meta columns. The result has as many rows, the same
columns and types, and the same keys. A row of the result is a delete if its delete column marks it
(`_hoodie_is_deleted`, or the delete marker of the table). Rows of one batch are merged too, in ascending order of their
ordering values. Logs are merged with each other before the base file, so a merger must be associative: merge(merge(a,
b), c) equals merge(a, merge(b, c)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.rows.column_groups import merge_groups
from lakehouse.core.rows.log_entries import COLUMNS, DEFAULT, KEY, ColumnSets, Control, record_entries, without_control
from lakehouse.core.rows.record_pairs import merged_columns
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.merge import MergeRule, require_runnable
from lakehouse.spec.function import named_function

Merger: TypeAlias = Callable[[pa.Table, pa.Table], pa.Table]


def load_merger(name: str) -> Merger:
    """Load the function `package.module:function`. Raises UserError if it does not exist."""
    hint = (
        "It must be importable here and in workers: put its folder on PYTHONPATH, or give it to spark-submit with "
        "--py-files"
    )
    merger: Merger = named_function(name, what="merger", hint=hint)
    return merger


def merge_records(older: pa.Table, newer: pa.Table, rule: MergeRule, sets: ColumnSets) -> pa.Table:
    """Merge aligned entries, all of them records, with the merger of `rule`; return entries in the same schema.

    Columns that a newer partial row does not provide are filled from the older row first.

    Raises:
        UserError: The merger fails, or its result does not fit the rows.
        UnsupportedError: The merger is not allowed.
    """
    assert rule.merger is not None
    require_runnable(rule)
    if not newer.num_rows:
        return newer
    ours, theirs = Control.of(newer), Control.of(older)
    data = without_control(newer.schema)
    shown = [name for name in data.names if name == KEY or name not in META_COLUMNS]
    given = _filled(newer.select(shown), older, ours.columns, sets)
    if rule.groups:
        merged = merge_groups(older.select(shown), given, rule.groups)
    else:
        merged = _apply(rule.merger, older.select(shown), given)
    merged = pa.table([(merged if n in shown else newer).column(n) for n in data.names], schema=data)
    columns = merged_columns(ours.columns, theirs.columns, np.ones(newer.num_rows, dtype=bool), sets)
    entries = record_entries(merged, rule, table=data)
    # If a version replaces all older versions, its merge with newer versions also does.
    control = {COLUMNS: pa.array(columns), DEFAULT: pa.array(Control.of(entries).default | theirs.default)}
    made = [control.get(name, entries.column(name)) for name in newer.column_names]
    return pa.table(made, schema=newer.schema)


def _apply(name: str, older: pa.Table, newer: pa.Table) -> pa.Table:
    merge = load_merger(name)
    try:
        result = merge(older, newer)
    except LakehouseError:
        raise
    except Exception as error:
        raise UserError(f"merger {name!r} failed: {type(error).__name__}: {error}", merger=name) from error
    fault = _fault(result, newer)
    if fault:
        raise UserError(f"merger {name!r} {fault}", merger=name)
    return result.select(newer.column_names)


def _fault(result: object, newer: pa.Table) -> str:
    if not isinstance(result, pa.Table):
        return f"must return a pyarrow.Table, not {type(result).__name__}"
    if result.num_rows != newer.num_rows:
        return f"returned {result.num_rows} rows for {newer.num_rows} pairs; it must return one for each"
    if sorted(result.column_names) != sorted(newer.column_names):
        return f"returned columns {', '.join(result.column_names)}; expected {', '.join(newer.column_names)}"
    for column in newer.schema:
        kind = result.schema.field(column.name).type
        if kind != column.type:
            return f"returned column {column.name!r} with type {kind}; expected {column.type}"
    if not result.column(KEY).equals(newer.column(KEY)):
        return f"changed record keys; it must return {KEY} unchanged"
    return ""


def _filled(newer: pa.Table, older: pa.Table, columns: np.ndarray, sets: ColumnSets) -> pa.Table:
    for place, column in enumerate(newer.schema):
        lacking = np.array([names is not None and column.name not in names for names in sets.sets])[columns]
        if lacking.any():
            both = pa.chunked_array([*newer.column(place).chunks, *older.column(column.name).chunks], column.type)
            source = np.arange(len(columns)) + lacking * len(columns)
            newer = newer.set_column(place, column, both.take(pa.array(source)))
    return newer
