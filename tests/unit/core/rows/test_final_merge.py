"""Final merge by examples: the result for a base row and its entry (DATA-5.2, DATA-5.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.rows.delta_merge import merge_entries
from lakehouse.core.rows.final_merge import BaseMergeResult, inserted_rows, merge_base
from lakehouse.core.rows.log_entries import KEY, ColumnSets, delete_entries, record_entries
from lakehouse.errors import UnsupportedError
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode

SCHEMA = pa.schema(
    [
        ("_hoodie_commit_time", pa.string()),
        (KEY, pa.string()),
        ("ts", pa.int64()),
        ("v", pa.string()),
        ("w", pa.int32()),
    ]
)
EVENT = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",))
COMMIT = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING)

Row = tuple[Any, ...]


def table(*rows: Row, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return rows of (commit time, key, ts, v, w)."""
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def put(*rows: Row, rule: MergeRule = EVENT, columns: int = 0) -> pa.Table:
    """Return entries of a data block."""
    return record_entries(table(*rows), rule, columns, table=SCHEMA)


def drop(key: str, ts: int | None = None) -> pa.Table:
    """Return an entry of a delete block."""
    return delete_entries(pa.array([key]), [pa.array([ts], pa.int64())], np.array([ts is None]), SCHEMA, EVENT)


def outcome_of(merged: BaseMergeResult) -> tuple[list[bool], list[bool], list[Row]]:
    """Return the result as Python values."""
    rows = [tuple(row.values()) for row in merged.rows.to_pylist()]
    return merged.replaced.tolist(), merged.removed.tolist(), rows


def test_event_time_ordering_keeps_a_greater_base_row() -> None:
    base = table(("1", "a", 5, "old", 0), ("1", "b", 5, "old", 0), ("1", "c", 5, "old", 0))
    entries = put(("2", "a", 4, "new", 1), ("2", "b", 5, "new", 1), ("2", "c", None, "new", 1))
    assert outcome_of(merge_base(base, entries, EVENT, ColumnSets())) == (
        [False, True, False],
        [False, False, False],
        [("2", "b", 5, "new", 1)],
    )


def test_commit_time_ordering_prefers_the_entry_and_deletes_remove() -> None:
    base = table(("1", "a", 5, "old", 0), ("1", "b", 5, "old", 0))
    entries = pa.concat_tables([put(("2", "a", 1, "new", 1)), drop("b", 1)])
    assert outcome_of(merge_base(base, entries, COMMIT, ColumnSets())) == (
        [True, False],
        [False, True],
        [("2", "a", 1, "new", 1)],
    )


def test_delete_removes_the_base_row_unless_its_ordering_value_is_lower() -> None:
    base = table(*(("1", key, 5, "old", 0) for key in "abc"))
    entries = pa.concat_tables([drop("a"), drop("b", 4), drop("c", 5)])
    merged = merge_base(base, entries, EVENT, ColumnSets())
    assert merged.removed.tolist() == [True, False, True]
    assert not merged.replaced.any() and merged.rows.schema == SCHEMA and merged.rows.num_rows == 0


def test_base_row_survives_a_delete_that_a_lower_record_replaced_in_the_logs() -> None:
    """The merge is not associative: delete(0), insert(5) over a base row of 100 leaves the base row."""
    entries = merge_entries(pa.concat_tables([drop("a"), put(("2", "a", 5, "new", 1))]), EVENT, ColumnSets())
    assert outcome_of(merge_base(table(("1", "a", 100, "old", 0)), entries, EVENT, ColumnSets())) == (
        [False],
        [False],
        [],
    )


def test_replacing_rows_have_the_schema_of_the_base() -> None:
    schema = SCHEMA.set(0, pa.field(SCHEMA.names[0], pa.dictionary(pa.int32(), pa.string())))
    schema = schema.set(4, pa.field("w", pa.int64(), nullable=False))
    base = table(("1", "a", 5, "old", 0), ("1", "b", 5, None, 7)).cast(schema)
    for rule in (EVENT, MergeRule(mode=EVENT.mode, ordering=("ts",), partial=PartialMode.IGNORE_DEFAULTS)):
        merged = merge_base(base, put(("2", "a", 6, "new", 1), ("2", "b", 4, "low", 1)), rule, ColumnSets())
        assert merged.rows.schema == schema
        assert merged.rows.to_pylist()[0] == dict(zip(schema.names, ("2", "a", 6, "new", 1), strict=True))


def test_base_needs_only_the_compared_columns_if_rows_are_replaced_completely() -> None:
    base = table(("1", "a", 5, "old", 0)).select(["ts", "v"])
    assert outcome_of(merge_base(base, put(("2", "a", 6, "new", 1)), EVENT, ColumnSets())) == (
        [True],
        [False],
        [(6, "new")],
    )


def test_partial_row_takes_absent_columns_from_the_base() -> None:
    sets = ColumnSets()
    number = sets.number(frozenset({"_hoodie_commit_time", KEY, "ts", "w"}))
    base = table(("1", "a", 5, "old", 0), ("1", "b", 5, "old", None))
    entries = put(("2", "a", 6, None, None), ("2", "b", 4, None, 9), columns=number)
    assert outcome_of(merge_base(base, entries, EVENT, sets)) == (
        [True, False],
        [False, False],
        [("2", "a", 6, "old", None)],
    )


def test_surviving_base_row_is_replaced_only_if_it_takes_a_value() -> None:
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",), partial=PartialMode.IGNORE_DEFAULTS)
    base = table(("1", "a", 5, None, 0), ("1", "b", 5, None, 0), ("1", "c", 5, "old", 0), ("1", "d", 1, "old", 3))
    entries = put(
        ("2", "a", 4, "late", 1), ("2", "b", 4, None, 1), ("2", "c", 4, "x", 1), ("2", "d", 4, None, None), rule=rule
    )
    assert outcome_of(merge_base(base, entries, rule, ColumnSets())) == (
        [True, False, False, True],
        [False] * 4,
        [("1", "a", 5, "late", 0), ("2", "d", 4, "old", 3)],
    )


def test_unavailable_values_are_taken_from_the_base() -> None:
    rule = MergeRule(mode=COMMIT.mode, partial=PartialMode.FILL_UNAVAILABLE)
    entries = put(("2", "a", 6, "__debezium_unavailable_value", 1), rule=rule)
    assert outcome_of(merge_base(table(("1", "a", 5, "old", 0)), entries, rule, ColumnSets()))[2] == [
        ("2", "a", 6, "old", 1)
    ]


def first_wins(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Keep the older row, with the commit time of the newer one."""
    return older.set_column(0, older.schema.field(0), newer.column(0))


def emptied(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Mark each row as deleted."""
    at = newer.column_names.index("_hoodie_is_deleted")
    return newer.set_column(at, newer.schema.field(at), pa.array([True] * newer.num_rows))


def test_custom_merger_decides_between_records_and_event_time_decides_deletes() -> None:
    rule = MergeRule(mode=MergeMode.CUSTOM, ordering=("ts",), merger=f"{__name__}:first_wins", merger_allowed=True)
    base = table(*(("1", key, 5, "old", 0) for key in "abc"))
    base = base.set_column(0, SCHEMA.names[0], base.column(0).dictionary_encode())
    entries = pa.concat_tables([drop("a", 4), put(("2", "b", 1, "new", 1), rule=rule), drop("c")])
    merged = merge_base(base, entries, rule, ColumnSets())
    assert outcome_of(merged) == ([False, True, False], [False, False, True], [("2", "b", 5, "old", 0)])
    assert merged.rows.schema == base.schema


def test_custom_merger_may_delete_by_the_column_of_the_table() -> None:
    schema = SCHEMA.append(pa.field("_hoodie_is_deleted", pa.bool_()))
    rule = MergeRule(mode=MergeMode.CUSTOM, ordering=("ts",), merger=f"{__name__}:emptied", merger_allowed=True)
    base = table(("1", "a", 5, "old", 0, None), schema=schema)
    entries = record_entries(table(("2", "a", 6, "new", 1, False), schema=schema), rule, table=schema)
    merged = merge_base(base, entries, rule, ColumnSets())
    assert (merged.replaced.tolist(), merged.removed.tolist(), merged.rows.num_rows) == ([False], [True], 0)


def test_entries_without_a_base_row_are_inserted_unless_they_are_deletes() -> None:
    entries = pa.concat_tables([put(("2", "a", 6, "new", 1)), drop("b"), drop("c", 5)])
    assert inserted_rows(entries, SCHEMA).to_pylist() == table(("2", "a", 6, "new", 1)).to_pylist()
    narrow = pa.schema([("w", pa.int64()), (KEY, pa.string())])
    assert inserted_rows(entries, narrow).to_pylist() == [{"w": 1, KEY: "a"}]
    assert inserted_rows(entries, narrow).schema == narrow


def test_unsupported_rule_is_refused() -> None:
    rule = MergeRule(mode=MergeMode.CUSTOM, foreign="merge strategy 1234")
    with pytest.raises(UnsupportedError, match="merge strategy 1234"):
        merge_base(table(), put(), rule, ColumnSets())
