"""Key ranges of base files against the keys of a batch (MDT-13)."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.base.ranged_files import RANGES, has_key, usable_ranges


def ranges(*bounds: tuple[str | None, str | None]) -> pa.Table:
    """Return ranges of files of one partition."""
    low, high = zip(*bounds, strict=True)
    columns = [pa.array(range(len(bounds))), ["p"] * len(bounds), low, high]
    return pa.table([pa.array(column) for column in columns], names=RANGES.names).cast(RANGES)


@given(
    st.lists(st.text(max_size=3), max_size=20),
    st.lists(st.tuples(st.text(max_size=3), st.text(max_size=3)), min_size=1, max_size=10),
)
def test_range_has_key_as_a_comparison_of_all_keys_says(keys: list[str], bounds: list[tuple[str, str]]) -> None:
    found = has_key(ranges(*bounds), pa.array(keys, pa.string())).tolist()
    assert found == [any(low <= key <= high for key in keys) for low, high in bounds]


@pytest.mark.parametrize("bound", [None, "a\ue000", "\U0001f600"])
def test_range_without_a_bound_that_all_writers_order_alike_is_not_used(bound: str | None) -> None:
    found = usable_ranges(ranges(("a", "b"), (bound, "b"), ("a", bound)))
    assert found.column("file").to_pylist() == [0]
