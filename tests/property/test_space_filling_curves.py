"""Invariants of space-filling curves: each cell has its own position, Hilbert steps are adjacent, codes keep order."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.rows.space_filling_curves import bits_of, bounds_of, codes_of, hilbert, z_order
from tests.support.tables import examples

GRIDS = [(1, 4), (2, 1), (2, 4), (3, 3), (4, 2), (5, 2)]
VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[object]]] = {
    "integers": (pa.int64(), st.integers(-5, 5) | st.integers(-(2**63), 2**63 - 1)),
    "texts": (pa.string(), st.text(max_size=3)),
    "floats": (pa.float64(), st.floats(allow_nan=False)),
    "decimals": (pa.decimal128(9, 2), st.decimals(-99, 99, places=2)),
    "dates": (pa.date32(), st.dates()),
    "flags": (pa.bool_(), st.booleans()),
}


def grid(columns: int, bits: int) -> np.ndarray:
    """Return all cells of a grid, one per row."""
    return np.array(list(itertools.product(range(1 << bits), repeat=columns)), np.uint64)


def interleaved(cell: Sequence[int], bits: int) -> int:
    """Return the interleaved bits of the coordinates, computed from their binary text."""
    text = "".join(f"{number:0{bits}b}"[bit] for bit in range(bits) for number in cell)
    return int(text, 2)


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
def test_z_order_interleaves_the_bits_of_coordinates(columns: int, bits: int) -> None:
    cells = grid(columns, bits)
    positions = z_order(list(cells.T), bits)
    assert positions.tolist() == [interleaved(cell, bits) for cell in cells.tolist()]


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
def test_hilbert_curve_visits_each_cell_once_in_steps_between_adjacent_cells(columns: int, bits: int) -> None:
    cells = grid(columns, bits)
    positions = hilbert(list(cells.T), bits)
    assert sorted(positions.tolist()) == list(range(len(cells)))
    path = cells[np.argsort(positions)].astype(np.int64)
    assert (np.abs(np.diff(path, axis=0)).sum(axis=1) == 1).all()


@given(cells=st.lists(st.tuples(*[st.integers(0, (1 << 12) - 1)] * 5), min_size=1, max_size=30))
@examples(30)
def test_curve_positions_are_distinct_for_distinct_cells_at_full_precision(cells: list[tuple[int, ...]]) -> None:
    codes = list(np.array(cells, np.uint64).T)
    for curve in (z_order, hilbert):
        assert len(set(curve(codes, bits_of(5)).tolist())) == len(set(cells))
    assert z_order(codes, bits_of(5)).tolist() == [interleaved(cell, 12) for cell in cells]


@pytest.mark.parametrize("kind", VALUES)
@examples(20)
@given(data=st.data(), bits=st.integers(1, 5))
def test_code_is_the_number_of_bounds_up_to_the_value(kind: str, data: st.DataObject, bits: int) -> None:
    arrow, strategy = VALUES[kind]
    sample = data.draw(st.lists(st.none() | strategy, max_size=60))
    values = data.draw(st.lists(st.none() | strategy, max_size=20))
    bounds = bounds_of(pa.array(sample, arrow), bits)
    assert len(bounds) < 1 << bits
    limits = bounds.to_pylist()
    assert limits == sorted(set(limits))  # type: ignore[type-var]
    chunked = pa.chunked_array([pa.array(values[:7], arrow), pa.array(values[7:], arrow)])
    plain = [int(value) if kind == "flags" and value is not None else value for value in values]
    expected = [0 if value is None else sum(bound <= value for bound in limits) for value in plain]  # type: ignore[operator]
    assert codes_of(chunked, bounds).tolist() == expected


def test_bounds_divide_skewed_values_into_parts_of_similar_size() -> None:
    values = pa.array((np.arange(10_000) ** 3).astype(np.int64))
    codes = codes_of(values, bounds_of(values, 4))
    counts = np.bincount(codes.astype(np.int64))
    assert counts[1:].max() <= 800 and len(counts) == 16
