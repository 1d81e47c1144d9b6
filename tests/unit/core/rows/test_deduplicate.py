"""Duplicates inside one batch."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lakehouse.core.rows.deduplicate import check_orderable, combine
from lakehouse.errors import UserError
from lakehouse.model.merge import UNAVAILABLE, MergeMode, MergeRule, PartialMode

PLAIN = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING)
BY_TS = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",))


def test_combine_keeps_the_greatest_ordering_value_and_null_is_lowest() -> None:
    rows = pa.table({"k": ["a", "b", "a", "b", "c"], "ts": [1, None, 2, 0, None], "v": ["x", "y", "z", "w", "u"]})
    assert combine(rows, keys=("k",), rule=BY_TS).to_pylist() == [
        {"k": "a", "ts": 2, "v": "z"},
        {"k": "b", "ts": 0, "v": "w"},
        {"k": "c", "ts": None, "v": "u"},
    ]


def test_combine_breaks_ties_by_values_and_not_by_arrival() -> None:
    rows = pa.table({"k": ["a", "a", "a"], "ts": [1, 1, 1], "v": [None, "x", "w"], "tags": [[1], [2], [3]]})
    winner = [{"k": "a", "ts": 1, "v": "x", "tags": [2]}]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert combine(rows.take(order), keys=("k",), rule=BY_TS).to_pylist() == winner
    equal = pa.table({"k": ["a", "a"], "tags": [[1], [2]]})
    for order in ([0, 1], [1, 0]):
        assert combine(equal.take(order), keys=("k",), rule=PLAIN).column("tags").to_pylist() == [[2]]


def test_deletes_that_yield_are_dropped_whatever_the_order_if_their_key_has_another_row() -> None:
    rows = pa.table(
        {
            "k": ["a", "a", "b", "b", "c", "d", "d", "d"],
            "p": ["x", "x", "x", "y", "x", "x", "x", "x"],
            "ts": [1, 9, 9, 1, 9, 9, 1, 2],
            "_hoodie_is_deleted": [False, True, True, None, True, True, False, None],
        }
    )

    def kept(keys: tuple[str, ...], order: list[int], *, yields: bool = True) -> list[tuple[str, str, int]]:
        found = combine(rows.take(order), keys=keys, rule=BY_TS, deletes_yield=yields).to_pylist()
        return sorted((row["k"], row["p"], row["ts"]) for row in found)

    for order in (list(range(8)), list(reversed(range(8)))):
        live = [("a", "x", 1), ("b", "x", 9), ("b", "y", 1), ("c", "x", 9), ("d", "x", 2)]
        assert kept(("k", "p"), order) == live
        assert kept(("k",), order) == [one for one in live if one != ("b", "x", 9)]
        assert kept(("k",), order, yields=False) == [("a", "x", 9), ("b", "x", 9), ("c", "x", 9), ("d", "x", 9)]
    plain = rows.drop_columns(["_hoodie_is_deleted"])
    assert combine(plain, keys=("k",), rule=BY_TS, deletes_yield=True).column("ts").to_pylist() == [9, 9, 9, 9]


def test_combine_compares_all_key_columns() -> None:
    rows = pa.table({"k": ["a", "a", "a"], "p": ["x", "y", "x"], "v": [1, 2, 3]})
    assert combine(rows, keys=("k", "p"), rule=PLAIN).column("v").to_pylist() == [2, 3]
    assert combine(rows, keys=("k",), rule=replace(BY_TS, ordering=("v",))).column("v").to_pylist() == [3]


def test_combine_returns_a_batch_without_duplicates_unchanged() -> None:
    rows = pa.table({"k": ["a", "b"], "v": [1, 2]})
    assert combine(rows, keys=("k",), rule=PLAIN) is rows
    assert combine(rows.slice(0, 0), keys=("k", "v"), rule=PLAIN).num_rows == 0


def test_combine_compares_several_ordering_columns_as_a_tuple() -> None:
    rows = pa.table({"k": ["a"] * 3, "ts": [1, 2, 2], "n": [9, None, 3], "v": ["x", "y", "z"]})
    assert combine(rows, keys=("k",), rule=replace(BY_TS, ordering=("ts", "n"))).column("v").to_pylist() == ["z"]
    assert combine(rows, keys=("k",), rule=replace(BY_TS, ordering=("n", "ts"))).column("v").to_pylist() == ["x"]


def test_combine_compares_binlog_positions_as_numbers() -> None:
    rows = pa.table({"k": ["a", "a"], "ts": ["9.5", "10.1"], "v": ["x", "y"]})
    assert combine(rows, keys=("k",), rule=BY_TS).column("v").to_pylist() == ["x"]
    assert combine(rows, keys=("k",), rule=replace(BY_TS, by_parts=True)).column("v").to_pylist() == ["y"]


KEY = "_hoodie_record_key"


def test_combine_merges_partial_rows_beginning_with_the_lowest() -> None:
    rows = pa.table(
        {KEY: ["a", "b", "a", "a"], "ts": [3, 1, 1, 2], "v": [None, "b", "1", "2"], "w": [None, "b", "1", None]}
    )
    rule = replace(BY_TS, partial=PartialMode.IGNORE_DEFAULTS)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        made = combine(rows.take(order), keys=(KEY,), rule=rule).sort_by(KEY)
        assert made.to_pylist() == [{KEY: "a", "ts": 3, "v": "2", "w": "1"}, {KEY: "b", "ts": 1, "v": "b", "w": "b"}]


def test_combine_takes_an_unavailable_value_from_the_older_row() -> None:
    rows = pa.table({KEY: ["a", "a"], "ts": [1, 2], "v": ["text", UNAVAILABLE], "w": ["old", None]})
    rule = replace(BY_TS, partial=PartialMode.FILL_UNAVAILABLE)
    assert combine(rows, keys=(KEY,), rule=rule).to_pylist() == [{KEY: "a", "ts": 2, "v": "text", "w": None}]


def test_combine_takes_no_values_from_a_delete() -> None:
    rule = replace(BY_TS, partial=PartialMode.IGNORE_DEFAULTS, delete_field="op", delete_marker="d")
    rows = pa.table({KEY: ["a"] * 3, "ts": [1, 2, 3], "op": ["c", "d", "c"], "v": ["x", None, None]})
    assert combine(rows, keys=(KEY,), rule=rule).column("v").to_pylist() == [None]
    assert combine(rows.slice(0, 2), keys=(KEY,), rule=rule).column("op").to_pylist() == ["d"]


def test_combine_keeps_rows_of_one_key_in_two_partitions() -> None:
    rule = replace(BY_TS, partial=PartialMode.IGNORE_DEFAULTS)
    rows = pa.table({KEY: ["a", "a", "a"], "p": ["x", "y", "x"], "ts": [1, 2, 3], "v": ["1", "2", None]})
    assert combine(rows, keys=(KEY, "p"), rule=rule).sort_by("p").column("v").to_pylist() == ["1", "2"]


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int32())]
)
def test_check_orderable_refuses_a_type_without_order(kind: pa.DataType) -> None:
    with pytest.raises(UserError, match=r"'ts' has type .* no order"):
        check_orderable(pa.schema([("ts", kind)]), "ts")


def test_check_orderable_refuses_a_missing_ordering_column() -> None:
    with pytest.raises(UserError, match="'ts' is not in the data; columns: a, b"):
        check_orderable(pa.schema([("a", pa.int32()), ("b", pa.int32())]), "ts")
    check_orderable(pa.schema([("a", pa.string())]), "a")
