"""Duplicates inside one batch."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.errors import UserError
from lakehouse.rows.combine import check_orderable, combine


def test_the_greatest_ordering_value_wins_and_null_is_lowest() -> None:
    rows = pa.table({"k": ["a", "b", "a", "b", "c"], "ts": [1, None, 2, 0, None], "v": ["x", "y", "z", "w", "u"]})
    assert combine(rows, keys=("k",), ordering="ts").to_pylist() == [
        {"k": "a", "ts": 2, "v": "z"},
        {"k": "b", "ts": 0, "v": "w"},
        {"k": "c", "ts": None, "v": "u"},
    ]


def test_ties_are_broken_by_values_and_never_by_arrival() -> None:
    rows = pa.table({"k": ["a", "a", "a"], "ts": [1, 1, 1], "v": [None, "x", "w"], "tags": [[1], [2], [3]]})
    winner = [{"k": "a", "ts": 1, "v": "x", "tags": [2]}]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        assert combine(rows.take(order), keys=("k",), ordering="ts").to_pylist() == winner
    equal = pa.table({"k": ["a", "a"], "tags": [[1], [2]]})
    for order in ([0, 1], [1, 0]):
        assert combine(equal.take(order), keys=("k",), ordering=None).column("tags").to_pylist() == [[2]]


def test_a_key_is_all_of_its_columns() -> None:
    rows = pa.table({"k": ["a", "a", "a"], "p": ["x", "y", "x"], "v": [1, 2, 3]})
    assert combine(rows, keys=("k", "p"), ordering=None).column("v").to_pylist() == [2, 3]
    assert combine(rows, keys=("k",), ordering="v").column("v").to_pylist() == [3]


def test_a_batch_without_duplicates_is_not_touched() -> None:
    rows = pa.table({"k": ["a", "b"], "v": [1, 2]})
    assert combine(rows, keys=("k",), ordering=None) is rows
    assert combine(rows.slice(0, 0), keys=("k", "v"), ordering=None).num_rows == 0


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int32()), pa.struct([("a", pa.int32())]), pa.map_(pa.string(), pa.int32())]
)
def test_what_has_no_order_cannot_order(kind: pa.DataType) -> None:
    with pytest.raises(UserError, match=r"'ts' has type .* no order"):
        check_orderable(pa.schema([("ts", kind)]), "ts")


def test_an_ordering_column_must_be_there() -> None:
    with pytest.raises(UserError, match="'ts' is not in the data; columns: a, b"):
        check_orderable(pa.schema([("a", pa.int32()), ("b", pa.int32())]), "ts")
    check_orderable(pa.schema([("a", pa.string())]), "a")
    check_orderable(pa.schema([]), None)
