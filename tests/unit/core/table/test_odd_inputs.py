"""Frames with types that Arrow cannot store, and strings that UTF-8 cannot encode."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import UserError

SCHEMA = pa.schema([("id", pa.string()), ("v", pa.string()), ("f", pa.float64())])
HALF = "\ud800"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table.create(tmp_path / "t", name="t", record_key="id", schema=SCHEMA)


def rows(table: Table) -> list[tuple[Any, ...]]:
    """Return the data columns."""
    return sorted(tuple(row.values()) for row in table.scan(columns=["id", "v", "f"]).to_arrow().to_pylist())


def test_sparse_columns_of_pandas_are_written_with_all_values(table: Table) -> None:
    table.upsert(pd.DataFrame({"id": ["a", "b"], "f": pd.arrays.SparseArray([0.0, 1.5])}))
    assert rows(table) == [("a", None, 0.0), ("b", None, 1.5)]


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b", "x"])])
def test_categories_of_polars_are_written_as_strings(table: Table, kind: Any) -> None:
    keys, values = pl.Series(["a", "b"], dtype=kind), pl.Series(["x", None], dtype=kind)
    table.upsert(pl.DataFrame({"id": keys, "v": values}))
    table.upsert(pl.DataFrame({"id": keys[1:], "v": pl.Series(["x"], dtype=kind)}))
    assert rows(table) == [("a", "x", None), ("b", "x", None)]


@pytest.mark.parametrize(
    "frame",
    [
        pd.DataFrame({"id": ["a"], "f": [1 + 2j]}),
        pd.DataFrame({"id": ["a"], "f": np.array([1], dtype="longdouble")}),
    ],
)
def test_columns_of_pandas_that_arrow_lacks_are_refused_by_name(table: Table, frame: Any) -> None:
    with pytest.raises(UserError, match=r"column 'f' of the frame has the type (complex|float)128, which Arrow cannot"):
        table.upsert(frame)


@pytest.mark.parametrize(
    "call",
    [
        lambda table: table.alter().set_comment("v", HALF),
        lambda table: table.alter().add_column("x", "int", comment=HALF),
        lambda table: Table.create(f"{table.location}/x", name=HALF, record_key="id", schema=SCHEMA),
        lambda table: Table.create(f"{table.location}/{HALF}", name="x", record_key="id", schema=SCHEMA),
        lambda table: Table.open(f"{table.location}/{HALF}"),
        lambda table: Table.open(f"{table.location}/\0"),
        lambda table: table.upsert([{"id": "a", HALF: "x"}]),
        lambda table: table.upsert([{"id": "a", "v": HALF}]),
        lambda table: table.update({"v": f"'{HALF}'"}, "id = 'a'"),
    ],
)
def test_strings_that_cannot_be_encoded_are_refused(table: Table, call: Callable[[Table], Any]) -> None:
    table.upsert([{"id": "a", "v": "b"}])
    with pytest.raises(UserError):
        call(table)
    assert rows(table) == [("a", "b", None)]
