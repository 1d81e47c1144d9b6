"""Merge rules of metadata records, against a plain model that merges one record after the other."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.core.format.metadata.merge import Layer, merge_files, merge_latest, merge_statistics
from lakehouse.core.format.metadata.records import FILE_ROWS
from lakehouse.core.format.metadata.statistics import STAT_ROWS, statistics_of, typed_statistics

KEYS = st.sampled_from(["a", "b", "c"])
NAMES = st.sampled_from(["x", "y", "z", None])
FILE_LAYER = st.dictionaries(st.tuples(KEYS, NAMES), st.tuples(st.integers(0, 9), st.booleans()), max_size=5)
DELETES = st.lists(KEYS, max_size=2, unique=True)


def file_layer(files: dict[tuple[str, str | None], tuple[int, bool]]) -> Layer:
    rows = [(key, name, size, dead or name is None) for (key, name), (size, dead) in files.items()]
    columns = [list(column) for column in zip(*rows, strict=True)] if rows else [[]] * 4
    arrays = [pa.array(column, field.type) for column, field in zip(columns, FILE_ROWS, strict=True)]
    return Layer(pa.table(arrays, schema=FILE_ROWS))


def deletes(keys: list[str], schema: pa.Schema) -> Layer:
    return Layer(schema.empty_table(), pa.array(keys, pa.string()))


@settings(max_examples=200)
@given(FILE_LAYER, st.lists(FILE_LAYER | DELETES, max_size=6))
def test_files_are_united_and_tombstones_remove_the_files_that_they_meet(base: dict[Any, Any], logs: list[Any]) -> None:
    layers, held = [file_layer(base)], dict(base)
    expected = {place: info for place, info in held.items() if place[1] is not None}
    for change in logs:
        if isinstance(change, list):
            layers.append(deletes(change, FILE_ROWS))
            expected = {place: info for place, info in expected.items() if place[0] not in change}
            continue
        layers.append(file_layer(change))
        for place, (size, dead) in change.items():
            older = expected.get(place)
            if place[1] is None:
                continue
            if dead and older is not None and not older[1]:
                del expected[place]
            elif not dead and older is not None and not older[1]:
                expected[place] = (max(size, older[0]), False)
            else:
                expected[place] = (size, dead)
    found = merge_files(layers).to_pylist()
    named = [row for row in found if row["name"] is not None]
    assert {(row["key"], row["name"]): (row["size_bytes"], row["deleted"]) for row in named} == expected
    assert len(named) == len(expected)


def test_record_without_files_stays_until_it_gets_a_file() -> None:
    empty = file_layer({("a", None): (0, True), ("b", None): (0, True)})
    merged = merge_files([empty, file_layer({("a", "x"): (1, False)}), file_layer({("b", None): (0, True)})])
    rows = {(row["key"], row["name"]) for row in merged.to_pylist()}
    assert rows == {("a", "x"), ("b", None)}


@given(
    st.lists(
        st.dictionaries(st.text("ab😀", max_size=2), st.integers(), max_size=4) | st.lists(st.text("ab😀", max_size=2)),
        min_size=1,
        max_size=6,
    )
)
def test_newest_row_of_each_key_stays(changes: list[Any]) -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    layers, expected = [Layer(schema.empty_table())], dict[str, str]()
    for change in changes:
        if isinstance(change, list):
            layers.append(deletes(change, schema))
            expected = {key: value for key, value in expected.items() if key not in change}
        else:
            columns = [list(change), [str(value) for value in change.values()]]
            layers.append(Layer(pa.table([pa.array(column, pa.string()) for column in columns], schema=schema)))
            expected |= {key: str(value) for key, value in change.items()}
    found = merge_latest(layers).to_pylist()
    assert {row["key"]: row["value"] for row in found} == expected
    assert len(found) == len(expected)
    assert {row["key"] for row in merge_latest(layers[1:]).to_pylist()} == set(expected)


# parameters: one row of statistics
def stat(
    minimum: Any, maximum: Any, kind: pa.DataType, *, tight: bool = False, nulls: int = 0, count: int = 5
) -> Layer:
    rows = pa.table(
        {
            "name": ["f"], "min": pa.array([minimum], kind), "max": pa.array([maximum], kind), "value_count": [count],
            "null_count": [nulls], "size_bytes": [1], "uncompressed_bytes": [2], "tight": [tight],
        }
    )  # fmt: skip
    return Layer(statistics_of(rows, "c", pa.array(["k"]), version="V2"))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [-5, 3, 7]),
        (pa.float64(), [-0.5, 0.25, 9.0]),
        (pa.string(), ["a", "näme", "z😀"]),
        (pa.decimal128(30, 2), [-300, -1, 1000]),
        (pa.binary(), [b"\x01", b"\x7f", b"\x80"]),
    ],
)
def test_bounds_of_two_versions_widen(kind: pa.DataType, values: list[Any]) -> None:
    low, middle, high = pa.array(values).cast(kind).to_pylist()
    for pairs in ([(low, middle), (middle, high)], [(middle, high), (low, low)], [(low, high), (middle, middle)]):
        merged = merge_statistics([stat(*pair, kind) for pair in pairs])
        (row,) = typed_statistics(merged, kind).to_pylist()
        assert (row["min"], row["max"]) == (min(low for low, _ in pairs), max(high for _, high in pairs))
        assert (row["value_count"], row["null_count"]) == (10, 0)


def test_row_with_tight_bounds_replaces_the_older_row() -> None:
    layers = [stat(1, 9, pa.int32()), stat(2, 8, pa.int32()), stat(3, 4, pa.int32(), tight=True, nulls=1)]
    (row,) = typed_statistics(merge_statistics(layers), pa.int32()).to_pylist()
    assert (row["min"], row["max"], row["value_count"], row["null_count"]) == (3, 4, 5, 1)


def test_rows_after_a_tight_or_deleted_row_are_merged_with_it() -> None:
    kind = pa.int32()
    older, tight = stat(1, 9, kind), stat(3, 4, kind, tight=True)
    (row,) = typed_statistics(merge_statistics([older, tight, stat(2, 3, kind)]), kind).to_pylist()
    assert (row["min"], row["max"], row["value_count"]) == (2, 4, 10)
    position = older.rows.schema.get_field_index("deleted")
    gone = Layer(older.rows.set_column(position, "deleted", pa.array([True])))
    (row,) = typed_statistics(merge_statistics([older, gone, stat(2, 3, kind)]), kind).to_pylist()
    assert (row["min"], row["max"], row["value_count"]) == (2, 3, 5)
    assert merge_statistics([older, tight, gone]).num_rows == 0


def merged_row(layers: list[Layer], kind: pa.DataType) -> dict[str, Any]:
    (row,) = typed_statistics(merge_statistics(layers), kind).to_pylist()
    return dict(row)


def test_rows_without_values_leave_the_bounds_of_the_other_version() -> None:
    kind = pa.int32()
    for layers in (
        [stat(None, None, kind, nulls=5), stat(2, 8, kind)],
        [stat(2, 8, kind), stat(None, None, kind, nulls=5)],
    ):
        row = merged_row(layers, kind)
        assert (row["min"], row["max"], row["known"], row["null_count"]) == (2, 8, True, 5)


def test_texts_without_bounds_remove_the_bounds_of_the_other_version() -> None:
    kind = pa.string()
    row = merged_row([stat("a", "b", kind), stat(None, None, kind, nulls=5)], kind)
    assert not row["known"]
    row = merged_row([stat("a", "b", kind), stat(None, None, kind, count=0)], kind)
    assert (row["min"], row["known"]) == ("a", True)


def test_deleted_statistics_are_dropped_and_a_later_row_counts_again() -> None:
    gone = deletes(["k"], STAT_ROWS)
    assert merge_statistics([stat(1, 2, pa.int32()), gone]).num_rows == 0
    row = merged_row([stat(1, 2, pa.int32()), gone, stat(5, 6, pa.int32())], pa.int32())
    assert (row["min"], row["max"], row["value_count"]) == (5, 6, 5)
    marked = stat(1, 2, pa.int32()).rows.set_column(STAT_ROWS.get_field_index("deleted"), "deleted", pa.array([True]))
    assert merge_statistics([stat(1, 2, pa.int32()), Layer(marked)]).num_rows == 0
    assert merge_statistics([Layer(marked)]).num_rows == 0


def test_bounds_of_different_types_are_dropped_when_they_meet() -> None:
    row = merged_row([stat(1, 2, pa.int32()), stat("a", "b", pa.string())], pa.string())
    assert (row["min"], row["known"]) == (None, False)


@pytest.mark.parametrize(
    ("older", "newer", "expected"),
    [
        ((1.0, math.nan), (2.0, 5.0), (1.0, math.nan)),
        ((1.0, 2.0), (0.0, math.nan), (0.0, math.nan)),
        ((math.nan, math.nan), (2.0, 5.0), (2.0, math.nan)),
        ((1.0, 2.0), (math.nan, math.nan), (1.0, math.nan)),
    ],
)
def test_merged_bounds_keep_nan_as_the_greatest_number(
    older: tuple[float, float], newer: tuple[float, float], expected: tuple[float, float]
) -> None:
    layers = []
    for low, high in (older, newer):
        values = {"name": ["p"], "min": [low], "max": [high], "value_count": [2], "null_count": [0]}
        rows = pa.table({**values, "size_bytes": [1], "uncompressed_bytes": [1], "tight": [False]})
        layers.append(Layer(statistics_of(rows, "f", pa.array(["k"]), version="V2", partition_stats=True)))
    merged = merge_statistics(layers)
    found = (merged["min_real"][0].as_py(), merged["max_real"][0].as_py())
    assert repr(found) == repr(expected)
