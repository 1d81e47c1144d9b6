"""Partial updates: rows provide some columns, and stored records keep their values of the others."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.drift import Drift, decode_drift
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


def test_columns_missing_from_a_batch_keep_their_stored_values(table: Table) -> None:
    table.upsert(rows(id=["a", "c"], ts=[2, 2], amount=[10.0, 30.0]), options=PARTIAL)
    expected = [("a", "1", 10.0), ("b", "2", 2.0), ("c", None, 30.0)]
    assert [(r["id"], r["v"], r["amount"]) for r in data_rows(table)] == expected


def test_new_columns_of_a_partial_update_are_added_to_the_table(table: Table) -> None:
    table.upsert(rows(id=["b"], ts=[2], extra=["new"]), options=PARTIAL)
    assert table.schema.names == ["p", "id", "ts", "v", "amount", "extra"]
    assert [tuple(r[name] for name in COLUMNS) for r in data_rows(table)] == [
        ("a", 1, "1", 1.0, None),
        ("b", 2, "2", 2.0, "new"),
    ]


def test_older_partial_row_does_not_change_the_stored_row(table: Table) -> None:
    table.upsert(rows(id=["a"], ts=[0], amount=[99.0]), options=PARTIAL)
    assert [r["amount"] for r in data_rows(table)] == [1.0, 2.0]


def test_columns_of_several_partial_updates_are_kept_by_compaction(table: Table, table_type: str) -> None:
    table.upsert(rows(id=["a", "b"], ts=[2, 2], amount=[10.0, 20.0]), options=PARTIAL)
    table.upsert(rows(id=["a", "b"], ts=[3, 3], v=["x", "y"]), options=PARTIAL)
    stitched = data_rows(table)
    assert [(r["ts"], r["v"], r["amount"]) for r in stitched] == [(3, "x", 10.0), (3, "y", 20.0)]
    if table_type == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
        assert data_rows(table) == stitched == data_rows(table, read_optimized=True)


def test_missing_column_keeps_stored_values_by_default_and_is_counted(table: Table) -> None:
    outcome = table.upsert(rows(id=["a", "c"], ts=[2, 2], amount=[10.0, 30.0]))
    expected = [("a", "1", 10.0), ("b", "2", 2.0), ("c", None, 30.0)]
    assert [(r["id"], r["v"], r["amount"]) for r in data_rows(table)] == expected
    assert isinstance(outcome, Committed)
    drift = {(one.column, str(one.change)): one.rows for one in outcome.drift}
    assert drift == {("v", "nulled"): 1, ("v", "kept"): 1}
    assert decode_drift(table.commits()[-1][1].extra) == outcome.drift


def test_missing_column_is_refused_by_option_and_by_overwrites(table: Table) -> None:
    before = data_rows(table)
    with pytest.raises(UserError, match="column 'v' of the table is not in the data"):
        table.upsert(rows(id=["a"], ts=[2], amount=[10.0]), options={"lakehouse.schema.missing.column": "fail"})
    for overwrite in (table.insert_overwrite, table.insert_overwrite_table):
        with pytest.raises(UserError, match=r"column 'v' of the table is not in the data.*cannot be kept"):
            overwrite(rows(id=["a"], ts=[2], amount=[10.0]))
    with pytest.raises(UserError, match="'ts' is not in the data"):
        table.upsert(pa.table({"id": ["a"], "p": ["a"], "amount": [1.0]}))
    assert data_rows(table) == before


def test_insert_writes_null_for_a_missing_column(table: Table) -> None:
    outcome = table.insert(rows(id=["x", "y"], ts=[2, 2], amount=[10.0, 20.0]))
    assert isinstance(outcome, Committed)
    assert [(one.column, one.change, one.rows) for one in outcome.drift] == [("v", Drift.NULLED, 2)]
    assert [r["v"] for r in data_rows(table)] == ["1", "2", None, None]
