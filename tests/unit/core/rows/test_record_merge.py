"""Whether an incoming row wins over the stored one (DATA-5.2)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.rows.record_merge import delete_flags, incoming_wins
from lakehouse.errors import UnsupportedError
from lakehouse.model.merge import MergeMode, MergeRule

EVENT, COMMIT = MergeMode.EVENT_TIME_ORDERING, MergeMode.COMMIT_TIME_ORDERING


def wins(mode: MergeMode, stored: list, incoming: list, deletes: list | None = None, kind: pa.DataType | None = None):
    """Return the decision for each pair; ordering values are longs by default."""
    kind = kind or pa.int64()
    flags = None if deletes is None else np.array(deletes)
    rule = MergeRule(mode=mode, ordering=("ts",))
    pairs = [pa.table({"ts": pa.array(values, kind)}) for values in (stored, incoming)]
    return incoming_wins(rule, *pairs, flags).tolist()


def test_commit_time_ordering_prefers_the_incoming_row() -> None:
    assert wins(COMMIT, [5, None, 1], [1, 1, None]) == [True, True, True]


def test_event_time_ordering_prefers_the_greater_row_then_the_newer_and_null_is_lowest() -> None:
    assert wins(EVENT, [1, 2, 3, None, None, 1], [2, 2, 2, None, 0, None]) == [True, True, False, True, True, False]


def test_event_time_ordering_supports_each_orderable_type() -> None:
    assert wins(EVENT, ["a", "b"], ["b", "a"], kind=pa.string()) == [True, False]
    assert wins(EVENT, [1, 2], [2, 1], kind=pa.timestamp("us", "UTC")) == [True, False]
    assert wins(EVENT, [0.5, 2.5], [0.75, 1.5], kind=pa.float64()) == [True, False]


def test_delete_without_ordering_value_always_wins() -> None:
    assert wins(EVENT, [5, 5, 5], [None, None, 6], [True, False, True]) == [True, False, True]


def test_zero_means_no_ordering_value_for_a_single_int_column() -> None:
    assert wins(EVENT, [5], [0], [True], kind=pa.int32()) == [True]
    assert wins(EVENT, [5], [0], [True], kind=pa.int64()) == [False]
    assert wins(EVENT, [5], [0], [False], kind=pa.int32()) == [False]


def test_incoming_row_wins_without_an_ordering_column() -> None:
    rows = pa.table({"v": [1, 2]})
    assert incoming_wins(MergeRule(mode=EVENT), rows, rows, None).tolist() == [True, True]


def test_several_ordering_columns_are_compared_as_a_tuple() -> None:
    rule = MergeRule(mode=EVENT, ordering=("file", "pos"))
    stored = pa.table({"file": ["b", "b", "b", None], "pos": [5, 5, 5, 5]})
    incoming = pa.table({"file": ["a", "b", "b", None], "pos": [9, 4, 5, None]})
    assert incoming_wins(rule, stored, incoming, None).tolist() == [False, False, True, False]
    assert incoming_wins(rule, stored, incoming, np.ones(4, bool)).tolist() == [False, False, True, True]


def test_custom_merge_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="CUSTOM"):
        wins(MergeMode.CUSTOM, [1], [1])


def test_deletes_are_flagged_by_the_column_of_hudi() -> None:
    assert delete_flags(pa.table({"a": [1]})) is None
    flags = delete_flags(pa.table({"_hoodie_is_deleted": [True, None, False]}))
    assert flags is not None and flags.tolist() == [True, False, False]
