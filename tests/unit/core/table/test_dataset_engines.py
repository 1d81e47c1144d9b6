"""DuckDB and Polars read a dataset lazily: with their columns and filters, several times, and with their semantics."""

from __future__ import annotations

import datetime as dt
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from threading import active_count
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.dataset import DatasetScanner
from lakehouse.core.table.polars_batches import polars_batches
from lakehouse.core.table.polars_frame import polars_frame
from lakehouse.core.table.table import Table
from lakehouse.errors import CleanedHistoryError, UserError
from tests.support.tables import make_env

duckdb = pytest.importorskip("duckdb", reason="missing: duckdb")
pl = pytest.importorskip("polars", reason="missing: polars")

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(8, 2)),
        ("moment", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
    ]
)
CONDITIONS = [
    "n > 5",
    "n IN (1, 3, 900)",
    "n NOT IN (1, 3)",
    "n IS NULL",
    "f > 2",
    "f = 'nan'",
    "f <> 1",
    "f BETWEEN 1 AND 4",
    "NOT (f > 2)",
    "s = 'it''s \"7\"'",
    "s LIKE 'it%'",
    "s LIKE '%\"7\"'",
    "upper(s) LIKE 'IT%'",
    "d >= 2.50",
    "moment >= TIMESTAMPTZ '2026-01-01 05:00:00+00'",
    "day = '2026-01-02'",
    "day = '2026-01-02' AND (n < 9 OR s IS NULL)",
    "place.city = 'x' AND place.zip > 1",
    "len(tags) = 2",
    "id % 2 = 0 AND day > '2026-01-01'",
]


def rows(first: int, last: int, shift: int = 0) -> pa.Table:
    """Return rows of three days; each seventh value is null, and one is NaN."""
    listed = []
    for key in range(first, last):
        number = key + shift
        listed.append(
            {
                "id": key,
                "day": f"2026-01-0{1 + key % 3}",
                "n": None if number % 7 == 0 else number,
                "f": math.nan if number % 5 == 4 else float(number),
                "s": None if number % 7 == 1 else f'it\'s "{number}"',
                "d": Decimal(number) / 4,
                "moment": dt.datetime(2026, 1, 1, number % 24, tzinfo=dt.UTC),
                "place": None if number % 7 == 2 else {"city": "xy"[number % 2], "zip": number % 4},
                "tags": ["a"] * (number % 3),
            }
        )
    return pa.Table.from_pylist(listed, schema=SCHEMA)


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """A table with three partitions and updates, which are log files for merge-on-read.

    The files of the copy-on-write table are on a disk, where engines read them by their own readers.
    """
    env = make_env() if request.param == "MERGE_ON_READ" else make_env(str(tmp_path / "t"))
    made = Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        partition_by="day",
        table_type=request.param,
        schema=SCHEMA,
        options={"hoodie.clean.commits.retained": "1"},
        env=env,
    )
    made.upsert(rows(0, 12))
    made.upsert(rows(3, 15, shift=1))
    return made


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The plans of all scanners of the test."""
    planned: list[Any] = []
    plan = DatasetScanner._plan

    def recording(self: DatasetScanner, *conditions: Any) -> Any:
        planned.append(plan(self, *conditions))
        return planned[-1]

    monkeypatch.setattr(DatasetScanner, "_plan", recording)
    return planned


@pytest.fixture
def connection() -> Iterator[Any]:
    """A connection to DuckDB, in UTC and with two threads."""
    with duckdb.connect() as made:
        made.execute("SET threads = 2; SET TimeZone = 'UTC'")
        yield made


def sorted_rows(result: list[Any]) -> list[str]:
    return sorted(map(repr, result))


@pytest.mark.parametrize("condition", CONDITIONS)
def test_duckdb_finds_the_rows_that_it_finds_in_an_arrow_table(table: Table, condition: str, connection: Any) -> None:
    dataset = table.scan().to_pyarrow_dataset()
    whole = table.scan().to_arrow()
    text = "SELECT id, n, f, s, d, moment, place, tags FROM {} WHERE {}"
    connection.register("dataset", dataset)
    connection.register("whole", whole)
    expected = connection.execute(text.format("whole", condition)).fetchall()
    assert expected
    assert sorted_rows(connection.execute(text.format("dataset", condition)).fetchall()) == sorted_rows(expected)
    count = connection.execute(f"SELECT count(*) FROM dataset WHERE {condition}").fetchall()
    assert count == [(len(expected),)]


def test_duckdb_finds_a_variable_by_its_name_and_uses_it_twice(table: Table, plans: list[Any]) -> None:
    orders = table.scan().to_pyarrow_dataset()
    assert "id" in orders.schema.names
    query = """
        SELECT a.id, b.n FROM orders a JOIN orders b USING (id) WHERE a.day = '2026-01-02' AND b.day >= '2026-01-02'
        ORDER BY id
    """
    first = duckdb.sql(query).fetchall()
    assert [key for key, _ in first] == [1, 4, 7, 10, 13]
    assert duckdb.sql(query).fetchall() == first
    assert {plan.plan.slices.partition_count for plan in plans} <= {1, 2}
    assert {name for plan in plans for name in plan.schema.names} == {"id", "day", "n"}


def test_duckdb_reads_one_version_in_one_query_and_after_later_commits(table: Table, connection: Any) -> None:
    connection.register("dataset", table.scan().to_pyarrow_dataset())
    query = "SELECT count(*), sum(n), max(id) FROM dataset"
    before = connection.execute(query).fetchall()
    table.upsert(rows(14, 40, shift=5))
    assert connection.execute(query).fetchall() == before
    assert connection.execute("SELECT count(*) FROM dataset a JOIN dataset b USING (id)").fetchall() == [(15,)]


def test_duckdb_stops_reading_after_a_limit(table: Table, connection: Any) -> None:
    connection.register("dataset", table.scan().to_pyarrow_dataset())
    assert len(connection.execute("SELECT * FROM dataset LIMIT 5").fetchall()) == 5


def test_error_of_a_cleaned_version_reaches_the_user_of_an_engine(table: Table, connection: Any) -> None:
    dataset = table.scan().to_pyarrow_dataset()
    for shift in range(4):
        table.upsert(rows(0, 15, shift))
        if table.refresh().config.is_merge_on_read:
            table.services.compaction.run(force=True)
    table.services.clean.run()
    connection.register("dataset", dataset)
    with pytest.raises(Exception, match=r"call scan\(\) again"):
        connection.execute("SELECT * FROM dataset").fetchall()
    with pytest.raises(CleanedHistoryError, match=r"call scan\(\) again"):
        pl.scan_pyarrow_dataset(dataset).collect()
    with pytest.raises(Exception, match=r"call scan\(\) again"):
        polars_frame(dataset).collect()


def frames(table: Table) -> list[Any]:
    """Return both ways to read a table with Polars."""
    scan = table.scan()
    return [scan.to_polars(), pl.scan_pyarrow_dataset(scan.to_pyarrow_dataset())]


def test_polars_filters_projects_and_prunes(table: Table, plans: list[Any]) -> None:
    expected = pl.from_arrow(table.scan().to_arrow())
    assert isinstance(expected, pl.DataFrame)
    for frame in frames(table):
        lazy = frame.filter((pl.col("day") == "2026-01-02") & (pl.col("n") > 5) & pl.col("s").str.contains("1"))
        assert lazy.select("id", "d").sort("id").collect().rows() == [(10, Decimal("2.75"))]
        assert plans[-1].plan.slices.partition_count == 1
        assert plans[-1].schema.names == ["id", "day", "n", "s", "d"]
        assert frame.select(pl.len()).collect().item() == 15
        assert len(plans[-1].schema.names) == 1
        assert frame.join(frame, on="id").select(pl.len()).collect().item() == 15
        assert frame.select(SCHEMA.names).collect().sort("id").equals(expected.select(SCHEMA.names).sort("id"))
        assert frame.head(5).collect().height == 5
        assert frame.filter(pl.col("n") > 5).head(2).collect().height == 2


@pytest.mark.parametrize("engine", ["in-memory", "streaming"])
def test_frame_of_polars_has_the_rules_of_polars(table: Table, engine: Any) -> None:
    column, utc = pl.col, dt.UTC
    conditions = [
        column.f > 2,
        column.f <= 2,
        ~(column.f > 2),
        column.f == pl.lit(math.nan),
        column.f != pl.lit(math.nan),
        column.f.is_in([1.0, math.nan]),
        ~column.f.is_in([1.0]),
        column.f.is_nan(),
        column.n.is_in([1, None]),
        ~column.n.is_in([1]),
        column.n.is_between(2, 9),
        column.n.is_null() | (column.n > 2.5),
        column.s == 'it\'s "6"',
        column.d > Decimal("1.5"),
        column.moment >= dt.datetime(2026, 1, 1, 5, tzinfo=utc),
        column.place.struct.field("zip") > 1,
        column.tags.list.len() == 2,
        (column.day > "2026-01-01") & (column.n < column.id * 2),
    ]
    frame = table.scan().to_polars()
    whole = pl.from_arrow(table.scan().to_arrow())
    assert isinstance(whole, pl.DataFrame)
    for condition in conditions:
        expected = whole.filter(condition).sort("id")
        assert 0 < expected.height < 15, str(condition)
        assert frame.filter(condition).collect(engine=engine).sort("id").equals(expected), str(condition)


def test_frame_of_polars_reads_one_version(table: Table) -> None:
    frame = table.scan().to_polars()
    before = frame.collect()
    table.upsert(rows(14, 40, shift=5))
    assert frame.collect().equals(before)


@pytest.mark.parametrize("is_local", [False, True])
def test_polars_computes_conditions_itself_if_its_reader_would_skip_rows(is_local: bool, tmp_path: Path) -> None:
    env = make_env(str(tmp_path / "t")) if is_local else make_env()
    table = Table.create(env.storage.root, name="n", record_key="id", schema=SCHEMA, env=env)
    table.insert([{"id": 1, "n": 1}, {"id": 2, "n": 2**31 - 1, "s": "a"}])
    frame = table.scan().to_polars().select("id", "n", "s")
    assert frame.filter(pl.col("n") + 1 > 1).collect()["id"].to_list() == [1]
    assert frame.filter(pl.col("s").is_in(["a", None], nulls_equal=True)).collect().height == 2


def test_panic_of_polars_fails_a_write() -> None:
    def panic(frame: Any) -> Any:
        raise pl.exceptions.PanicException("unwrap on None")

    env = make_env()
    table = Table.create(env.storage.root, name="kept", record_key="id", env=env)
    table.insert([{"id": "a"}])
    with pytest.raises(BaseException, match="unwrap on None"):  # a panic is not an Exception
        table.insert_overwrite_table(pl.LazyFrame({"id": ["b"]}).map_batches(panic))
    assert table.scan().to_arrow()["id"].to_pylist() == ["a"]


def test_batches_of_polars_end_with_their_reader() -> None:
    """A reader that stops early stops the query."""
    before = active_count()
    batches = polars_batches(pl.LazyFrame({"id": range(9)}).with_columns(pl.col("id") * 2))
    assert sum(batch.height for batch in batches) == 9
    batches = polars_batches(pl.LazyFrame({"id": range(9)}))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert active_count() <= before + 1


def test_missing_polars_is_a_clear_error(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(UserError, match="pip install polars"):
        table.scan().to_polars()
