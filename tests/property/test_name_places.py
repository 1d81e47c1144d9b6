"""Property test: names are found by numbers as by a hash table of the names."""

from __future__ import annotations

import tracemalloc

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.read import metadata_ranges
from lakehouse.core.operations.read.metadata_ranges import NumberedNames, places_of_names
from tests.support.tables import examples

#: Names that differ at both ends, in the middle, or in their length; some are too short for numbers.
NAMES = st.builds(
    lambda head, middle, tail: f"{head:032d}{middle}{tail:032d}",
    st.integers(0, 5),
    st.sampled_from(["", "-a", "-b", "-long-part"]),
    st.integers(0, 2),
) | st.text("ab", min_size=30, max_size=33)


@examples(200)
@given(names=st.lists(NAMES, max_size=12), known=st.lists(NAMES, max_size=12), cut=st.integers(0, 3))
def test_names_are_found_where_a_hash_table_finds_them(names: list[str], known: list[str], cut: int) -> None:
    wanted, stored = pa.array(names, pa.string()).slice(cut), pa.array(known, pa.string()).slice(cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metadata_ranges, "_COMPARED", 3)
        found = places_of_names(wanted, NumberedNames(stored))
    if found is not None:
        assert len(set(stored.to_pylist())) == len(stored)
        assert found.to_pylist() == pc.index_in(wanted, value_set=stored).to_pylist()


def test_names_of_files_are_found_without_comparing_all_of_them() -> None:
    stored = pa.array([f"{number:032d}-abc-0_0-0-0_20250101000000000.parquet" for number in range(50)])
    wanted = pa.concat_arrays([stored.slice(7), pa.array([f"{'x' * 60}.parquet"])])
    found = places_of_names(wanted, NumberedNames(stored))
    assert found is not None
    assert found.to_pylist() == [*range(7, 50), None]
    repeated = pa.concat_arrays([stored, stored.slice(3, 1)])
    assert places_of_names(wanted, NumberedNames(repeated)) is None


def test_numbers_of_names_take_few_bytes_for_each_name() -> None:
    count = 10_000
    names = pa.array([f"{number:032d}-abc-0_0-0-0_20250101000000000.parquet" for number in range(count)])
    assert places_of_names(names, NumberedNames(names)) is not None
    tracemalloc.start()
    try:
        assert places_of_names(names, NumberedNames(names)) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 64 * count


def test_stored_names_are_numbered_once_for_several_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    names = pa.array([f"{number:032d}-abc-0_0-0-0_20250101000000000.parquet" for number in range(40)])
    stored, numbered = NumberedNames(names), []
    numbers_of = metadata_ranges._numbers

    def counted(given: pa.Array) -> object:
        numbered.append(len(given))
        return numbers_of(given)

    monkeypatch.setattr(metadata_ranges, "_numbers", counted)
    for start in (0, 10, 20):
        places = places_of_names(names.slice(start, 10), stored)
        assert places is not None and places.to_pylist() == list(range(start, start + 10))
    assert sorted(numbered) == [10, 10, 10, 40]
