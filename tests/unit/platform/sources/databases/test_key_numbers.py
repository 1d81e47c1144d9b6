"""Borders of chunks of a key that is one integer."""

from __future__ import annotations

from lakehouse.platform.sources.databases.server import KeyNumbers


def test_borders_divide_dense_numbers_into_parts_of_the_wanted_rows() -> None:
    dense = KeyNumbers(low=1, high=1000, first=1, rows=1000)
    assert dense.borders(300, 10) == [("300",), ("600",), ("900",)]
    assert dense.borders(300, 2) == [("300",), ("600",)]
    assert dense.borders(1000, 10) == []


def test_borders_are_wider_if_the_table_has_gaps_and_none_if_it_is_sparse() -> None:
    assert KeyNumbers(low=1, high=1000, first=1, rows=500).borders(300, 10) == [("600",)]
    assert KeyNumbers(low=1, high=1000, first=1, rows=200).borders(100, 10) is None
    assert KeyNumbers(low=1, high=3, first=1, rows=0).borders(2, 10) == []


def test_borders_after_a_key_have_the_width_of_the_whole_table() -> None:
    assert KeyNumbers(low=601, high=1000, first=1, rows=500).borders(100, 10) == [("800",)]
