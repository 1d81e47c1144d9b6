"""The example merger of the DAGs: it returns the bitwise OR of bitmaps of any length."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dags.examples.mergers.retention import merge
from tests.support.tables import examples

bitmaps = st.none() | st.binary(max_size=5)


def merged(first: list, second: list, kind: pa.DataType) -> list:
    tables = [
        pa.table({"id": [str(i) for i in range(len(side))], "active": pa.chunked_array([pa.array(side, kind)])})
        for side in (first, second)
    ]
    merged = merge(*tables)
    assert merged.schema == tables[1].schema
    return merged.column("active").to_pylist()


@examples(60)
@given(pairs=st.lists(st.tuples(bitmaps, bitmaps), max_size=6))
def test_merge_returns_the_bitwise_or_of_bytes(pairs: list[tuple[bytes | None, bytes | None]]) -> None:
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    made = merged(first, second, pa.binary())
    for one, other, both in zip(first, second, made, strict=True):
        one, other = one or b"", other or b""
        assert len(both) == max(len(one), len(other))
        assert int.from_bytes(both, "little") == int.from_bytes(one, "little") | int.from_bytes(other, "little")


def test_merge_returns_the_bitwise_or_of_integers() -> None:
    assert merged([1, 2, None, None, 1 << 62], [2, 2, 5, None, 1], pa.int64()) == [3, 2, 5, 0, (1 << 62) + 1]


@pytest.mark.parametrize("offset", [0, 3])
def test_merge_respects_the_offset_of_sliced_columns(offset: int) -> None:
    column = pa.array([bytes([n]) * (n % 3) for n in range(9)], pa.binary()).slice(offset, 4)
    rows = pa.table({"active": column})
    assert merge(rows, rows).column("active").to_pylist() == column.to_pylist()
