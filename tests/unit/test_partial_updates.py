"""Partial updates: a writer brings some of the columns, stored rows keep their values of the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.errors import UserError
from lakehouse.table import Table
from tests.support.tables import KEYS, Shape, data_rows, make_env

PARTIAL = {"lakehouse.write.partial.update": "true"}
COLUMNS = ["id", "ts", "v", "amount", "extra"]


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["SIMPLE", "GLOBAL_SIMPLE", "BUCKET"])
def table(request: pytest.FixtureRequest, table_type: str) -> Table:
    env = make_env()
    made = Table.create(
        env.storage.root,
        name="events",
        record_key=KEYS["simple"][0],
        partition_by=KEYS["simple"][1],
        ordering="ts",
        table_type=table_type,
        options=Shape(index=request.param, buckets=2).table_options(),
        env=env,
    )
    made.upsert(rows(id=["a", "b"], ts=[1, 1], v=["1", "2"], amount=[1.0, 2.0]))
    return made


def rows(**columns: list[object]) -> pa.Table:
    return pa.table({"p": ["a"] * len(columns["id"]), **columns})


def test_columns_that_a_batch_lacks_keep_their_values(table: Table) -> None:
    table.upsert(rows(id=["a", "c"], ts=[2, 2], amount=[10.0, 30.0]), options=PARTIAL)
    expected = [("a", "1", 10.0), ("b", "2", 2.0), ("c", None, 30.0)]
    assert [(r["id"], r["v"], r["amount"]) for r in data_rows(table)] == expected


def test_columns_that_the_table_lacks_are_added(table: Table) -> None:
    table.upsert(rows(id=["b"], ts=[2], extra=["new"]), options=PARTIAL)
    assert table.schema.names == ["p", "id", "ts", "v", "amount", "extra"]
    assert [tuple(r[name] for name in COLUMNS) for r in data_rows(table)] == [
        ("a", 1, "1", 1.0, None),
        ("b", 2, "2", 2.0, "new"),
    ]


def test_an_older_partial_row_changes_nothing_that_is_stored(table: Table) -> None:
    table.upsert(rows(id=["a"], ts=[0], amount=[99.0]), options=PARTIAL)
    assert [r["amount"] for r in data_rows(table)] == [1.0, 2.0]


def test_stitched_columns_are_there_after_compaction(table: Table, table_type: str) -> None:
    table.upsert(rows(id=["a", "b"], ts=[2, 2], amount=[10.0, 20.0]), options=PARTIAL)
    table.upsert(rows(id=["a", "b"], ts=[3, 3], v=["x", "y"]), options=PARTIAL)
    stitched = data_rows(table)
    assert [(r["ts"], r["v"], r["amount"]) for r in stitched] == [(3, "x", 10.0), (3, "y", 20.0)]
    if table_type == "MERGE_ON_READ":
        table.services.compaction(force=True)
        assert data_rows(table) == stitched == data_rows(table, read_optimized=True)


def test_without_the_option_a_missing_column_is_refused(table: Table) -> None:
    with pytest.raises(UserError, match="column 'v' of the table is not in the data"):
        table.upsert(rows(id=["a"], ts=[2], amount=[10.0]))
    with pytest.raises(UserError, match="'ts' is not in the data"):
        table.upsert(pa.table({"id": ["a"], "p": ["a"], "amount": [1.0]}), options=PARTIAL)
