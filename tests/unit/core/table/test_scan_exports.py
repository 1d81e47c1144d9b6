"""A scan is read by pandas, DuckDB, Polars, nanoarrow and others through Arrow, as often as they want."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import make_env

duckdb = pytest.importorskip("duckdb", reason="missing: duckdb")
pd = pytest.importorskip("pandas", reason="missing: pandas")
pl = pytest.importorskip("polars", reason="missing: polars")

COLUMNS = ["id", "day", "n"]


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest) -> Table:
    env = make_env()
    made = Table.create(
        env.storage.root, name="orders", record_key="id", partition_by="day", table_type=request.param, env=env
    )
    made.insert([{"id": number, "day": f"d{number % 3}", "n": number} for number in range(30)])
    made.upsert([{"id": number, "day": f"d{number % 3}", "n": -number} for number in range(6)])
    return made


def expected() -> list[tuple[Any, ...]]:
    return [(number, f"d{number % 3}", -number if number < 6 else number) for number in range(30)]


def test_scan_is_a_stream_of_arrow(table: Table) -> None:
    scan = table.scan(columns=COLUMNS)
    for rows in (
        pa.table(scan),
        pa.table(scan),
        pl.DataFrame(scan).to_arrow(),
        pa.table(pd.DataFrame.from_arrow(scan)),
    ):
        assert sorted(tuple(row.values()) for row in rows.to_pylist()) == expected()
    assert sorted(duckdb.from_arrow(scan).fetchall()) == expected()
    assert pa.RecordBatchReader.from_stream(scan).schema == scan.to_arrow().schema


def test_variable_with_a_scan_is_a_table_of_duckdb(table: Table) -> None:
    orders = table.scan(columns=COLUMNS)
    assert orders is not None
    assert sorted(duckdb.sql("FROM orders").fetchall()) == expected()
    assert duckdb.sql("SELECT count(*) FROM orders a JOIN orders b USING (id)").fetchall() == [(30,)]


def test_scan_becomes_a_frame_of_pandas(table: Table) -> None:
    frame = table.scan(columns=COLUMNS).to_pandas()
    assert sorted(frame.itertuples(index=False, name=None)) == expected()


@pytest.mark.parametrize("is_own", [True, False])
def test_relation_reads_columns_and_rows_of_a_query(table: Table, is_own: bool) -> None:
    connection = duckdb.connect() if is_own else None
    relation = table.scan().to_duckdb(connection)
    assert sorted(relation.filter("day = 'd1' AND n > 3").select("id").fetchall()) == [
        (row[0],) for row in expected() if row[1] == "d1" and row[2] > 3
    ]
    assert relation.aggregate("count(*), sum(n)").fetchall() == [(30, sum(row[2] for row in expected()))]


def test_relation_has_a_name_for_queries(table: Table) -> None:
    connection = duckdb.connect()
    relation = table.scan(columns=COLUMNS).to_duckdb(connection, "daily orders")
    assert sorted(connection.sql('SELECT * FROM "daily orders"').fetchall()) == expected()
    assert sorted(relation.fetchall()) == expected()


def test_connection_of_another_type_is_refused(table: Table) -> None:
    with pytest.raises(UserError, match=r"duckdb.connect\(\)"):
        table.scan().to_duckdb("lake.db")


@pytest.mark.parametrize("package", ["duckdb", "pandas", "polars"])
def test_missing_package_is_an_error_with_the_installation(
    table: Table, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UserError, match=f"pip install {package}"):
        getattr(table.scan(), f"to_{package}")()


def test_columns_and_filters_of_a_query_reach_the_plan(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Scan] = []
    batches = Scan.batches

    def counted(scan: Scan, **options: Any) -> Iterator[pa.RecordBatch]:
        plans.append(scan)
        return batches(scan, **options)

    monkeypatch.setattr(Scan, "batches", counted)
    table.scan().to_duckdb().filter("day = 'd1'").aggregate("sum(n)").fetchall()
    table.scan().to_polars().filter(pl.col("day") == "d1").select(pl.col("n").sum()).collect()
    assert [set(plan.schema.names) for plan in plans] == [{"day", "n"}] * 2
    assert [{file_slice.partition for file_slice in plan.plan.slices} for plan in plans] == [{"d1"}] * 2
