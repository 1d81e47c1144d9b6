"""The external sort gives the order of a stable sort in memory, for any memory limit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.stage import external_sort
from lakehouse.core.files.stage.external_sort import RunSorter
from tests.support.tables import examples

BY = ["a", "b"]
PIECES = st.lists(
    st.lists(st.tuples(st.none() | st.integers(0, 4), st.none() | st.sampled_from(["", "x", "yy"])), max_size=40),
    max_size=12,
)


def tables(pieces: list[list[tuple[int | None, str | None]]]) -> list[pa.Table]:
    """Return pieces as tables; the column n numbers all rows, and b has another dictionary in each table."""
    number, made = 0, []
    for piece in pieces:
        made.append(
            pa.table(
                {
                    "n": range(number, number + len(piece)),
                    "a": pa.array([a for a, _ in piece], pa.int64()),
                    "b": pa.array([b for _, b in piece], pa.string()).dictionary_encode(),
                },
                schema=pa.schema([("n", pa.int64()), ("a", pa.int64()), ("b", pa.dictionary(pa.int32(), pa.string()))]),
            )
        )
        number += len(piece)
    return made


@pytest.mark.parametrize("limit", [1, 600, 1 << 30])
@pytest.mark.parametrize("ways", [2, 32])
@given(pieces=PIECES)
@examples(25)
def test_external_sort_is_stable_and_removes_its_files(
    limit: int, ways: int, tmp_path_factory: pytest.TempPathFactory, pieces: list[list[tuple[int | None, str | None]]]
) -> None:
    directory: Path = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(external_sort, "_WAYS", ways)
        patch.setattr(external_sort, "_MIN_BATCH_ROWS", 3)
        sorter = RunSorter(directory, BY, limit)
        for rows in tables(pieces):
            sorter.add(rows)
        found = [row for rows in sorter.drain() for row in rows.to_pylist()]
    assert sorter.rows == len(found)
    flat = [{"n": n, "a": a, "b": b} for n, (a, b) in enumerate(pair for piece in pieces for pair in piece)]
    expected = sorted(flat, key=lambda r: (r["a"] is not None, r["a"] or 0, r["b"] is not None, r["b"] or "", r["n"]))  # type: ignore[return-value]
    assert found == expected
    assert list(directory.iterdir()) == []
