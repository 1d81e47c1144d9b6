"""Functions that differ between versions of pyarrow: the native ones, and those for older versions."""

from __future__ import annotations

import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format import arrow_versions
from lakehouse.core.format.arrow_versions import (
    bisect_sorted,
    cached_by_columns,
    order_nulls_first,
    position_of,
    search_sorted,
)

SEARCHES = {"search": search_sorted, "bisect": bisect_sorted}
TEXTS = st.text(alphabet="abé\x00z", max_size=3)


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES.keys())
@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@given(values=st.lists(TEXTS, max_size=20), keys=st.lists(TEXTS, max_size=8))
def test_search_returns_the_positions_of_bisect_for_any_keys(
    search: Callable[..., Any], kind: pa.DataType, values: list[str], keys: list[str]
) -> None:
    ordered, wanted = sorted(value.encode() for value in values), [key.encode() for key in keys]
    array, needles = pa.array(ordered, pa.binary()).cast(kind), pa.array(wanted, pa.binary()).cast(kind)
    assert search(array, needles, "left").tolist() == [bisect_left(ordered, key) for key in wanted]
    assert search(array, needles, "right").tolist() == [bisect_right(ordered, key) for key in wanted]


def test_bisect_returns_the_same_positions_as_the_native_function_for_many_values() -> None:
    values = pa.array([f"{number // 3:05d}" for number in range(3000)])
    keys = pa.array([f"{number * 7 % 1100:05d}" for number in range(1100)])
    for side in ("left", "right"):
        assert (bisect_sorted(values, keys, side) == search_sorted(values, keys, side)).all()
    assert position_of(values, keys[1], "right") == 24


def test_rows_are_ordered_by_all_columns_with_nulls_first(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = pa.table({"b": [2, None, 1, None, 1], "a": ["x", "y", None, None, "a"]})
    orders = []
    for is_new in (True, False):
        if is_new and not arrow_versions._HAS_NULL_PLACEMENT_PER_KEY:
            continue
        monkeypatch.setattr(arrow_versions, "_HAS_NULL_PLACEMENT_PER_KEY", is_new)
        with warnings.catch_warnings():
            # Newer versions of pyarrow warn of the option for all keys.
            warnings.simplefilter("ignore", FutureWarning)
            orders.append(order_nulls_first(keys).to_pylist())
    assert set(map(tuple, orders)) == {(3, 1, 2, 4, 0)}


def test_cache_ignores_the_metadata_of_a_schema() -> None:
    calls: list[tuple[pa.Schema | None, int]] = []

    @cached_by_columns(maxsize=4)
    def names(schema: pa.Schema | None, more: int) -> list[str]:
        calls.append((schema, more))
        return [] if schema is None else schema.names

    plain = pa.schema([pa.field("id", pa.int64())])
    assert names(plain, 1) == names(plain.with_metadata({"pandas": "{}"}), 1) == ["id"]
    assert names(plain, 2) == ["id"]
    assert names(None, 1) == []
    assert calls == [(plain, 1), (plain, 2), (None, 1)]
    assert all(schema is None or schema.metadata is None for schema, _ in calls)
