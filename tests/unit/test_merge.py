"""How an incoming row meets the stored one (format: data.md 5.2)."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.errors import UnsupportedError
from lakehouse.model.merge import MergeMode
from lakehouse.rows.merge import delete_flags, incoming_wins

EVENT, COMMIT = MergeMode.EVENT_TIME_ORDERING, MergeMode.COMMIT_TIME_ORDERING


def wins(mode: MergeMode, stored: list, incoming: list, deletes: list | None = None, kind: pa.DataType | None = None):
    """Decide for each pair; ordering values are longs unless told otherwise."""
    kind = kind or pa.int64()
    flags = None if deletes is None else np.array(deletes)
    return incoming_wins(mode, pa.array(stored, kind), pa.array(incoming, kind), flags, len(stored)).tolist()


def test_by_commit_time_the_incoming_row_always_wins() -> None:
    assert wins(COMMIT, [5, None, 1], [1, 1, None]) == [True, True, True]


def test_by_event_time_the_greater_wins_ties_go_to_the_newer_and_null_is_lowest() -> None:
    assert wins(EVENT, [1, 2, 3, None, None, 1], [2, 2, 2, None, 0, None]) == [True, True, False, True, True, False]


def test_event_time_works_on_every_orderable_type() -> None:
    assert wins(EVENT, ["a", "b"], ["b", "a"], kind=pa.string()) == [True, False]
    assert wins(EVENT, [1, 2], [2, 1], kind=pa.timestamp("us", "UTC")) == [True, False]
    assert wins(EVENT, [0.5, 2.5], [0.75, 1.5], kind=pa.float64()) == [True, False]


def test_a_delete_without_ordering_value_always_wins() -> None:
    assert wins(EVENT, [5, 5, 5], [None, None, 6], [True, False, True]) == [True, False, True]


def test_zero_means_no_ordering_value_for_an_int_alone() -> None:
    assert wins(EVENT, [5], [0], [True], kind=pa.int32()) == [True]
    assert wins(EVENT, [5], [0], [True], kind=pa.int64()) == [False]
    assert wins(EVENT, [5], [0], [False], kind=pa.int32()) == [False]


def test_without_an_ordering_column_the_incoming_row_wins() -> None:
    assert incoming_wins(EVENT, None, None, None, 2).tolist() == [True, True]


def test_a_custom_merge_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="CUSTOM"):
        wins(MergeMode.CUSTOM, [1], [1])


def test_deletes_are_flagged_by_hudis_column() -> None:
    assert delete_flags(pa.table({"a": [1]})) is None
    flags = delete_flags(pa.table({"_hoodie_is_deleted": [True, None, False]}))
    assert flags is not None and flags.tolist() == [True, False, False]
