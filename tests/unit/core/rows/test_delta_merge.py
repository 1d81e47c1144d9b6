"""Delta merge by examples: which version of a record the logs result in (DATA-5.2, DATA-5.3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.rows.custom_merger import load_merger
from lakehouse.core.rows.delta_merge import merge_entries
from lakehouse.core.rows.log_entries import (
    COLUMNS,
    CONTROL,
    DEFAULT,
    DELETE,
    DELETED_RECORD,
    KEY,
    KIND,
    RECORD,
    ColumnSets,
    delete_entries,
    record_entries,
)
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode

SCHEMA = pa.schema([("_hoodie_commit_time", pa.string()), (KEY, pa.string()), ("ts", pa.int64()), ("v", pa.string())])
COMMIT = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING)
EVENT = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",))


def put(key: str, ts: Any, v: Any = "", at: str = "1", schema: pa.Schema = SCHEMA, rule: MergeRule = EVENT) -> pa.Table:
    """Return a record in a separate data block."""
    row = {"_hoodie_commit_time": at, KEY: key, "ts": ts, "v": v}
    return record_entries(pa.Table.from_pylist([row], schema=schema), rule, table=schema)


def drop(key: str, ts: Any = None, schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return an entry of a delete block; without `ts` a delete without ordering value."""
    ordering = pa.array([ts], schema.field("ts").type)
    return delete_entries(pa.array([key]), [ordering], np.array([ts is None]), schema, EVENT)


def merged_entry(*entries: pa.Table, rule: MergeRule = EVENT) -> list[tuple[int, bool, Any, Any]]:
    """Return (kind, default, ts, v) of the merged entry of the one key."""
    merged = merge_entries(pa.concat_tables(entries), rule, ColumnSets())
    return [tuple(row[name] for name in (KIND, DEFAULT, "ts", "v")) for row in merged.to_pylist()]


def test_commit_time_ordering_keeps_the_last_entry() -> None:
    assert merged_entry(put("a", 9, "old"), put("a", 1, "new"), rule=COMMIT) == [(RECORD, False, 1, "new")]
    assert merged_entry(put("a", 9, "old"), drop("a"), rule=COMMIT) == [(DELETE, True, None, None)]
    assert merged_entry(drop("a", 5), put("a", 1, "new"), rule=COMMIT) == [(RECORD, False, 1, "new")]


def test_event_time_ordering_keeps_the_greatest_entry_and_the_newer_of_equal_ones() -> None:
    assert merged_entry(put("a", 9, "old"), put("a", 1, "new")) == [(RECORD, False, 9, "old")]
    assert merged_entry(put("a", 9, "old"), put("a", 9, "new")) == [(RECORD, False, 9, "new")]
    assert merged_entry(put("a", None, "old"), put("a", -(2**63), "new")) == [(RECORD, False, -(2**63), "new")]
    assert merged_entry(put("a", -(2**63), "old"), put("a", None, "new")) == [(RECORD, False, -(2**63), "old")]


def test_delete_with_an_ordering_value_is_compared_like_a_record() -> None:
    assert merged_entry(put("a", 9, "old"), drop("a", 8)) == [(RECORD, False, 9, "old")]
    assert merged_entry(put("a", 9, "old"), drop("a", 9)) == [(DELETE, False, 9, None)]
    assert merged_entry(drop("a", 9), put("a", 8, "new")) == [(DELETE, False, 9, None)]


def test_delete_without_ordering_value_wins_over_older_entries_and_loses_to_newer_records() -> None:
    assert merged_entry(put("a", 9, "old"), drop("a")) == [(DELETE, True, None, None)]
    assert merged_entry(put("a", 9, "old"), drop("a"), put("a", 5, "new")) == [(RECORD, False, 5, "new")]
    assert merged_entry(put("a", 9, "old"), drop("a"), put("a", 5, "new"), put("a", 3, "late")) == [
        (RECORD, False, 5, "new")
    ]
    assert merged_entry(drop("a"), put("a", 5), drop("a"), put("a", 1, "last")) == [(RECORD, False, 1, "last")]


def test_delete_block_entry_does_not_replace_a_delete_without_ordering_value() -> None:
    assert merged_entry(drop("a"), drop("a", 7)) == [(DELETE, True, None, None)]
    assert merged_entry(drop("a"), drop("a", 7), put("a", 5, "new")) == [(RECORD, False, 5, "new")]
    assert merged_entry(drop("a"), put("a", 5, "new"), drop("a", 7)) == [(DELETE, False, 7, None)]


@pytest.mark.parametrize("partial", [PartialMode.NONE, PartialMode.IGNORE_DEFAULTS])
def test_zero_in_an_int_column_is_no_ordering_value_of_a_delete(partial: PartialMode) -> None:
    schema = SCHEMA.set(2, pa.field("ts", pa.int32())).append(pa.field("_hoodie_is_deleted", pa.bool_()))
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",), partial=partial)
    rows = [(9, "old", False), (0, None, True), (-4, "new", None)]
    entries = record_entries(
        pa.table([["1"] * 3, ["a"] * 3, *map(list, zip(*rows, strict=True))], schema=schema), rule, table=schema
    )
    assert entries.column(KIND).to_pylist() == [RECORD, DELETED_RECORD, RECORD]
    assert entries.column(DEFAULT).to_pylist() == [False, True, False]
    assert merged_entry(entries, rule=rule) == [(RECORD, False, -4, "new")]
    assert merged_entry(entries.slice(0, 2), rule=rule) == [(DELETED_RECORD, True, 0, None)]


def test_rows_are_deletes_by_column_by_marker_and_by_operation() -> None:
    schema = pa.schema(
        [*SCHEMA, ("_hoodie_is_deleted", pa.bool_()), ("Op", pa.string()), ("_hoodie_operation", pa.string())]
    )
    rows = pa.Table.from_pylist(
        [
            {KEY: "1", "_hoodie_is_deleted": True},
            {KEY: "2", "Op": "D", "ts": 3},
            {KEY: "3", "_hoodie_operation": "D"},
            {KEY: "4", "_hoodie_operation": "-U"},
            {KEY: "5", "_hoodie_operation": "U", "Op": "U", "_hoodie_is_deleted": False},
        ],
        schema=schema,
    )
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",), delete_field="Op", delete_marker="D")
    assert record_entries(rows, rule, table=schema).column(KIND).to_pylist() == [1, 1, 1, 1, 0]
    assert record_entries(rows, rule, table=schema).column(DEFAULT).to_pylist() == [True, False, True, True, False]
    # A column that only a block has is not a column of the table.
    assert record_entries(rows, EVENT, table=SCHEMA).column(KIND).to_pylist() == [0, 0, 1, 1, 0]


def test_delete_marker_is_compared_as_text() -> None:
    schema = SCHEMA.set(3, pa.field("v", pa.int32()))
    rows = pa.Table.from_pylist([{KEY: "a", "v": 1}, {KEY: "b", "v": 10}], schema=schema)
    rule = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING, delete_field="v", delete_marker="1")
    assert record_entries(rows, rule, table=schema).column(KIND).to_pylist() == [1, 0]


def test_several_ordering_columns_are_compared_as_a_tuple() -> None:
    schema = pa.schema([(KEY, pa.string()), ("file", pa.string()), ("pos", pa.int64())])
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("file", "pos"))
    rows = [{KEY: "a", "file": f, "pos": p} for f, p in [("b.2", 1), ("b.1", 9), ("b.2", None), ("b.2", 1)]]
    entries = record_entries(pa.Table.from_pylist(rows, schema=schema), rule, table=schema)
    numbered = entries.append_column("row", pa.array(range(4)))
    assert merge_entries(numbered, rule, ColumnSets()).column("row").to_pylist() == [3]
    assert merge_entries(numbered.slice(0, 3), rule, ColumnSets()).column("row").to_pylist() == [0]


def test_sequences_are_compared_part_by_part_as_numbers() -> None:
    schema = SCHEMA.set(2, pa.field("ts", pa.string()))
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",), by_parts=True)
    for older, newer, wins in [
        ("2.9", "2.10", True),
        ("10.1", "9.99", False),
        ("001.5", "1.5", True),
        (None, "0.0", True),
    ]:
        entries = [put("a", ts, v, schema=schema, rule=rule) for ts, v in ((older, "older"), (newer, "newer"))]
        assert merged_entry(*entries, rule=rule)[0][3] == ("newer" if wins else "older")
    bad = [put("a", ts, schema=schema, rule=rule) for ts in ("1.1", "one")]
    with pytest.raises(CorruptTableError, match="'ts': expected values <file>"):
        merged_entry(*bad, rule=rule)


def test_ordering_column_without_order_is_refused() -> None:
    schema = SCHEMA.set(2, pa.field("ts", pa.list_(pa.int32())))
    with pytest.raises(UnsupportedError, match="'ts' has type list"):
        merged_entry(*(put("a", [1], schema=schema) for _ in range(2)))


def test_ordering_column_that_rows_lack_counts_as_null() -> None:
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("gone",))
    assert merged_entry(put("a", 9, "old", rule=rule), put("a", 1, "new", rule=rule), rule=rule)[0][3] == "new"


def test_distinct_keys_are_returned_unchanged() -> None:
    entries = pa.concat_tables([put("a", 1), put("b", 2), drop("c")])
    assert merge_entries(entries, EVENT, ColumnSets()) is entries
    empty = entries.slice(0, 0)
    assert merge_entries(empty, EVENT, ColumnSets()).num_rows == 0


def test_keys_may_be_dictionary_encoded() -> None:
    entries = pa.concat_tables([put("a", 1, "x"), put("a", 2, "y"), put("b", 1, "z")])
    # The dictionary has a value that no row has, so its size is not the number of keys.
    codes = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.int32()), pa.array(["a", "b", "c"]))
    encoded = entries.set_column(1, KEY, codes)
    assert sorted(merge_entries(encoded, EVENT, ColumnSets()).column("v").to_pylist()) == ["y", "z"]


def test_delete_entries_have_key_and_ordering_columns_only() -> None:
    made = delete_entries(pa.array(["a", "b"]), [pa.array([3, None])], np.array([False, True]), SCHEMA, EVENT)
    assert made.schema == pa.schema([*SCHEMA, *CONTROL])
    assert made.to_pylist()[0] == {
        "_hoodie_commit_time": None, KEY: "a", "ts": 3, "v": None, KIND: DELETE, DEFAULT: False, COLUMNS: 0,
    }  # fmt: skip
    without = delete_entries(pa.array(["a"]), [], np.array([True]), SCHEMA, EVENT)
    assert without.column("ts").to_pylist() == [None] and without.column(DEFAULT).to_pylist() == [True]


def partly(key: str, sets: ColumnSets, rule: MergeRule, at: str = "2", **values: Any) -> pa.Table:
    """Return a row of a block that provides only these columns."""
    row = {"_hoodie_commit_time": at, KEY: key, **values}
    brings = sets.number(frozenset(row))
    return record_entries(pa.Table.from_pylist([row], schema=SCHEMA), rule, brings, table=SCHEMA)


def test_partial_row_takes_absent_columns_from_the_older_row() -> None:
    sets = ColumnSets()
    entries = pa.concat_tables(
        [put("a", 1, "kept", at="1"), partly("a", sets, EVENT, ts=2), partly("b", sets, EVENT, v="x")]
    )
    rows = {row[KEY]: row for row in merge_entries(entries, EVENT, sets).to_pylist()}
    assert (rows["a"]["ts"], rows["a"]["v"], rows["a"][COLUMNS]) == (2, "kept", 0)
    assert rows["a"]["_hoodie_commit_time"] == "2"
    assert sets.sets[rows["b"][COLUMNS]] == {"_hoodie_commit_time", KEY, "v"}


def test_two_partial_rows_provide_the_union_of_their_columns() -> None:
    sets = ColumnSets()
    low = pa.concat_tables([partly("a", sets, EVENT, ts=5, at="1"), partly("a", sets, EVENT, ts=3, v="late", at="2")])
    (row,) = merge_entries(low, EVENT, sets).to_pylist()
    assert (row["ts"], row["v"], row["_hoodie_commit_time"]) == (5, "late", "1")
    assert sets.sets[row[COLUMNS]] == {"_hoodie_commit_time", KEY, "ts", "v"}


def test_defaults_are_filled_from_the_other_version() -> None:
    rule = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",), partial=PartialMode.IGNORE_DEFAULTS)
    assert merged_entry(put("a", 1, "old"), put("a", 2, None), rule=rule) == [(RECORD, False, 2, "old")]
    assert merged_entry(put("a", 2, None), put("a", 1, "late"), rule=rule) == [(RECORD, False, 2, "late")]
    assert merged_entry(put("a", 1, "old"), drop("a"), put("a", 2, None), rule=rule) == [(RECORD, False, 2, None)]
    assert merged_entry(drop("a"), drop("a", 4), put("a", 2, None), rule=rule) == [(RECORD, False, 2, None)]


def test_unavailable_values_are_filled_in_strings_and_bytes() -> None:
    schema = pa.schema([(KEY, pa.string()), ("s", pa.string()), ("b", pa.binary()), ("n", pa.list_(pa.string()))])
    rule = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING, partial=PartialMode.FILL_UNAVAILABLE, unavailable="?")
    rows = [{KEY: "a", "s": "old", "b": b"old", "n": ["old"]}, {KEY: "a", "s": "?", "b": b"?", "n": ["?"]}]
    rows.append({KEY: "a", "s": None, "b": b"?", "n": None})
    entries = record_entries(pa.Table.from_pylist(rows, schema=schema), rule, table=schema)
    assert (
        merge_entries(entries.slice(0, 2), rule, ColumnSets()).to_pylist()[0].items()
        >= {"s": "old", "b": b"old", "n": ["?"]}.items()
    )
    assert (
        merge_entries(entries, rule, ColumnSets()).to_pylist()[0].items() >= {"s": None, "b": b"old", "n": None}.items()
    )


def test_unsupported_rule_is_refused_by_name() -> None:
    rule = MergeRule(mode=MergeMode.CUSTOM, foreign="payload class com.example.Own")
    with pytest.raises(UnsupportedError, match=r"payload class com\.example\.Own.*lakehouse\.merger=package"):
        merged_entry(put("a", 1), rule=rule)


def longest(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Keep the longer `v` of two rows."""
    value = pc.if_else(
        pc.greater(pc.utf8_length(older.column("v")), pc.utf8_length(newer.column("v"))),
        older.column("v"),
        newer.column("v"),
    )
    return newer.set_column(newer.column_names.index("v"), "v", value)


def fewer(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Drop a row."""
    return newer.slice(1)


def renamed(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Rename a column."""
    return newer.rename_columns([name if name != "v" else "w" for name in newer.column_names])


def retyped(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Change the type of a column."""
    return newer.set_column(newer.column_names.index("v"), "v", pa.nulls(newer.num_rows))


def rekeyed(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Change the keys."""
    return newer.set_column(newer.column_names.index(KEY), KEY, pa.array(["z"] * newer.num_rows))


def broken(older: pa.Table, newer: pa.Table) -> pa.Table:
    """Raise an error."""
    raise KeyError("no such thing")


def listing(older: pa.Table, newer: pa.Table) -> Any:
    """Return a list instead of a table."""
    return newer.to_pylist()


NOT_CALLABLE = 1


def custom(name: str) -> MergeRule:
    """Return the rule of a merger of this module."""
    return MergeRule(mode=MergeMode.CUSTOM, ordering=("ts",), merger=f"{__name__}:{name}", merger_allowed=True)


def test_custom_merger_merges_version_by_version() -> None:
    entries = [put("a", 1, "long"), put("a", 2, "b"), put("a", 3, "cc"), put("b", 1, "x")]
    merged = merge_entries(pa.concat_tables(entries), custom("longest"), ColumnSets()).to_pylist()
    assert sorted((row[KEY], row["ts"], row["v"]) for row in merged) == [("a", 3, "long"), ("b", 1, "x")]


def test_deletes_are_decided_by_event_time_before_a_custom_merger_runs() -> None:
    rule = custom("broken")
    assert merged_entry(put("a", 9, "old"), drop("a", 8), rule=rule) == [(RECORD, False, 9, "old")]
    assert merged_entry(put("a", 9, "old"), drop("a"), put("a", 1, "new"), rule=rule) == [(RECORD, True, 1, "new")]


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("fewer", "returned 0 rows for 1 pairs"),
        ("renamed", "returned columns .*w; expected .*v"),
        ("retyped", "returned column 'v' with type null; expected string"),
        ("rekeyed", "changed record keys"),
        ("broken", "failed: KeyError: 'no such thing'"),
        ("listing", "must return a pyarrow.Table, not list"),
    ],
)
def test_invalid_result_of_a_custom_merger_is_refused_by_name(name: str, fault: str) -> None:
    with pytest.raises(UserError, match=rf"test_delta_merge:{name}' {fault}"):
        merged_entry(put("a", 1), put("a", 2), rule=custom(name))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("no_colon", "expected package.module:function"),
        ("no.such.module:f", "cannot be loaded"),
        (f"{__name__}:missing", "cannot be loaded"),
        (":f", "expected package.module:function"),
        (".relative:f", "cannot be loaded"),
        (f"{__name__}:NOT_CALLABLE", "is not a function but of type int"),
    ],
)
def test_missing_custom_merger_is_refused_by_name(name: str, fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        load_merger(name)
