"""Laws of the curves: a place for each cell, Hilbert's neighbours are neighbours, codes keep the order of values."""

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
    """Return all cells of a grid, one a row."""
    return np.array(list(itertools.product(range(1 << bits), repeat=columns)), np.uint64)


def dealt_out(cell: Sequence[int], bits: int) -> int:
    """Return the bits of the numbers in turn, the naive way."""
    text = "".join(f"{number:0{bits}b}"[bit] for bit in range(bits) for number in cell)
    return int(text, 2)


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
def test_the_z_order_deals_out_bits(columns: int, bits: int) -> None:
    cells = grid(columns, bits)
    places = z_order(list(cells.T), bits)
    assert places.tolist() == [dealt_out(cell, bits) for cell in cells.tolist()]


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
def test_hilberts_curve_visits_each_cell_once_and_goes_from_neighbour_to_neighbour(columns: int, bits: int) -> None:
    cells = grid(columns, bits)
    places = hilbert(list(cells.T), bits)
    assert sorted(places.tolist()) == list(range(len(cells)))
    walked = cells[np.argsort(places)].astype(np.int64)
    assert (np.abs(np.diff(walked, axis=0)).sum(axis=1) == 1).all()


@given(cells=st.lists(st.tuples(*[st.integers(0, (1 << 12) - 1)] * 5), min_size=1, max_size=30))
@examples(30)
def test_as_many_bits_as_fit_make_different_places_of_different_cells(cells: list[tuple[int, ...]]) -> None:
    codes = list(np.array(cells, np.uint64).T)
    for curve in (z_order, hilbert):
        assert len(set(curve(codes, bits_of(5)).tolist())) == len(set(cells))
    assert z_order(codes, bits_of(5)).tolist() == [dealt_out(cell, 12) for cell in cells]


@pytest.mark.parametrize("kind", VALUES)
@examples(20)
@given(data=st.data(), bits=st.integers(1, 5))
def test_codes_count_the_bounds_that_are_not_greater(kind: str, data: st.DataObject, bits: int) -> None:
    arrow, strategy = VALUES[kind]
    sample = data.draw(st.lists(st.none() | strategy, max_size=60))
    values = data.draw(st.lists(st.none() | strategy, max_size=20))
    bounds = bounds_of(pa.array(sample, arrow), bits)
    assert len(bounds) < 1 << bits
    known = bounds.to_pylist()
    assert known == sorted(set(known))  # type: ignore[type-var]
    pieces = pa.chunked_array([pa.array(values[:7], arrow), pa.array(values[7:], arrow)])
    plain = [int(value) if kind == "flags" and value is not None else value for value in values]
    expected = [0 if value is None else sum(bound <= value for bound in known) for value in plain]  # type: ignore[operator]
    assert codes_of(pieces, bounds).tolist() == expected


def test_bounds_divide_skewed_values_into_equal_parts() -> None:
    values = pa.array((np.arange(10_000) ** 3).astype(np.int64))
    codes = codes_of(values, bounds_of(values, 4))
    counts = np.bincount(codes.astype(np.int64))
    assert counts[1:].max() <= 800 and len(counts) == 16
