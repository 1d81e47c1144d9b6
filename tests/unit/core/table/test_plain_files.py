"""DuckDB and Polars read the files of a table by their own reader only if they return the same rows as Arrow."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.read.plain_files import divided
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.table import Table
from lakehouse.errors import CleanedHistoryError

duckdb = pytest.importorskip("duckdb", reason="missing: duckdb")
pl = pytest.importorskip("polars", reason="missing: polars")

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("day", pa.string()),
        ("n", pa.int32()),
        ("f", pa.float64()),
        ("d", pa.decimal128(8, 2)),
        ("b", pa.binary()),
        ("on", pa.date32()),
        ("local", pa.timestamp("us")),
        ("moment", pa.timestamp("us", "UTC")),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.string())),
        ("facts", pa.map_(pa.string(), pa.int32())),
    ]
)
DAYS = ("a=1", "b c", "ü", None, "*?[x]")


def rows(first: int, last: int, shift: int = 0) -> pa.Table:
    moment = dt.datetime(2026, 1, 2, 3, 4, 5, 678)
    made = []
    for number in range(first, last):
        value = number + shift
        made.append(
            {
                "id": number,
                "day": DAYS[number % len(DAYS)],
                "n": None if value % 7 == 0 else value,
                "f": math.nan if value % 5 == 0 else value / 4,
                "d": Decimal(value) / 4 if value % 3 else None,
                "b": bytes([value % 256]),
                "on": dt.date(2026, 1, 1) + dt.timedelta(value),
                "local": moment + dt.timedelta(value),
                "moment": (moment + dt.timedelta(value)).replace(tzinfo=dt.UTC),
                "place": None if value % 4 == 0 else {"city": "x", "zip": value},
                "tags": [] if value % 2 else ["a", None],
                "facts": [("k", value)],
            }
        )
    return pa.Table.from_pylist(made, SCHEMA)


def created(path: Path, **options: Any) -> Table:
    return Table.create(str(path / "t"), name="t", record_key="id", partition_by="day", **options)


def merge_on_read(table: Table) -> None:
    table.insert(rows(0, 40))
    table.upsert(rows(0, 2, shift=100))
    table.delete(["6", "11"])


def added_column(table: Table) -> None:
    table.insert(rows(0, 20))
    table.insert(rows(20, 30).append_column("extra", pa.array(range(10), pa.int32())))


def wider_column(table: Table) -> None:
    table.insert(rows(0, 20))
    wide = rows(20, 30)
    table.insert(wide.set_column(2, "n", wide.column("n").cast(pa.int64())))


def plain(table: Table) -> None:
    table.insert(rows(0, 40))
    table.upsert(rows(5, 15, shift=100))
    table.delete(["6", "11"])


HISTORIES: dict[str, tuple[str, Callable[[Table], None]]] = {
    "copy-on-write": ("COPY_ON_WRITE", plain),
    "merge-on-read": ("MERGE_ON_READ", merge_on_read),
    "added column": ("COPY_ON_WRITE", added_column),
    "wider column": ("COPY_ON_WRITE", wider_column),
}
SCANS: dict[str, Callable[[Table], TableScan]] = {
    "all": lambda table: table.scan(),
    "columns": lambda table: table.scan(columns=["n", "id"]),
    "condition": lambda table: table.scan(where="n > 10"),
    "old": lambda table: table.scan(as_of=table.commits()[0][0].requested),
    "base files": lambda table: table.scan(read_optimized=True),
    "increment": lambda table: table.incremental(),
}


def by_id(found: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted((name, _plain(value)) for name, value in row.items())) for row in found)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted(value.items())
    return value


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("history", HISTORIES)
def test_engines_return_the_rows_of_arrow(history: str, scan: str, tmp_path: Path) -> None:
    kind, fill = HISTORIES[history]
    table = created(tmp_path, table_type=kind, options={"hoodie.datasource.write.hive_style_partitioning": "true"})
    fill(table)
    read = SCANS[scan](table)
    expected = read.to_arrow()
    # Arrow has pairs for maps and DuckDB has its own decimals; both are compared as Arrow data.
    relation = read.to_duckdb(duckdb.connect())
    assert relation.columns == expected.column_names
    by_duckdb = pa.table(relation).cast(expected.schema)
    assert by_id(by_duckdb.to_pylist()) == by_id(expected.to_pylist())
    frame = read.to_polars()
    collected = frame.collect()
    assert collected.schema == frame.collect_schema()
    arrow = pl.from_arrow(expected)
    assert sorted(map(repr, collected.rows())) == sorted(map(repr, arrow.rows()))
    if "n" in expected.column_names:
        condition = pl.col("n") % 2 == 1
        assert sorted(map(repr, frame.filter(condition).collect().rows())) == sorted(
            map(repr, arrow.filter(condition).rows())
        )
        assert frame.select(pl.col("n").sum()).collect().item() == arrow["n"].sum()
        assert frame.head(3).collect().height == min(3, arrow.height)


def test_files_without_logs_are_read_by_the_engine_and_the_others_by_arrow(tmp_path: Path) -> None:
    table = created(tmp_path, table_type="MERGE_ON_READ")
    merge_on_read(table)
    planned = table.scan().plan()
    assert isinstance(planned, Scan)
    parts = divided(planned)
    # The logs change rows of two partitions, and one path is a pattern for other engines.
    assert {partition for partition, _ in parts.ids} == {"ü", "__HIVE_DEFAULT_PARTITION__"}
    assert parts.rest is not None and len(parts.rest.plan.slices) == 3
    text = table.scan().to_duckdb(duckdb.connect()).explain()
    assert "PARQUET" in text.upper() and "ARROW" in text.upper()


def test_files_of_a_copy_on_write_table_are_read_by_the_engine_alone(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", options={"hoodie.metadata.enable": "true"})
    table.insert(rows(0, 10).select(["id", "n"]))
    text = table.scan().to_duckdb(duckdb.connect()).explain()
    assert "PARQUET" in text.upper() and "ARROW" not in text.upper()


@pytest.mark.parametrize("fill", [added_column, wider_column])
def test_file_with_other_columns_is_not_read_by_the_engine(fill: Callable[[Table], None], tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key="id", options={"hoodie.parquet.small.file.limit": "0"}
    )
    fill(table)
    planned = table.scan().plan()
    assert isinstance(planned, Scan)
    assert (len(planned.plan.slices), len(divided(planned).paths)) == (2, 1)
    narrow = table.scan(columns=["id", "f"])
    planned = narrow.plan()
    assert isinstance(planned, Scan)
    assert len(divided(planned).paths) == 2
    numbers = [(number,) for number in range(30)]
    assert sorted(narrow.to_duckdb(duckdb.connect()).select("id").fetchall()) == numbers
    assert sorted(narrow.to_polars().select("id").collect().rows()) == numbers


def test_column_of_another_id_is_not_read_by_the_engine(tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"), name="t", record_key="id", options={"hoodie.parquet.small.file.limit": "0"}
    )
    table.insert([{"id": 1, "a": 1, "b": "x"}])
    table.alter().drop_column("b").execute()
    table.alter().add_column("b", "string").execute()
    table.alter().rename_column("a", "c").execute()
    table.insert([{"id": 2, "c": 2, "b": "y"}])
    for columns in (["id", "b"], ["id", "c"], None):
        scan = table.scan(columns=columns)
        planned = scan.plan()
        assert isinstance(planned, Scan)
        assert len(divided(planned).paths) == 1
        names = [name for name in scan.to_arrow().column_names if not name.startswith("_")]
        relation = scan.to_duckdb(duckdb.connect()).order("id")
        wanted = [(1, None), (2, "y")] if columns == ["id", "b"] else [(1, 1), (2, 2)]
        assert relation.select(*names[:2]).fetchall() == wanted or columns is None
        assert sorted(scan.to_polars().select(names[:2]).collect().rows()) == wanted or columns is None
        assert sorted(scan.to_polars().select("id").collect().rows()) == [(1,), (2,)]


def test_error_of_a_cleaned_version_reaches_the_user_of_polars(tmp_path: Path) -> None:
    table = created(tmp_path, options={"hoodie.clean.commits.retained": "1"})
    table.insert(rows(0, 10))
    frame = table.scan().to_polars()
    for shift in range(1, 4):
        table.upsert(rows(0, 10, shift=shift))
    table.services.clean.run()
    with pytest.raises(CleanedHistoryError, match=r"call scan\(\) again"):
        frame.collect()
