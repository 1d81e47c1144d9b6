"""Literals of conditions keep every digit, and no part of a literal is dropped."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError

ROWS = pa.table(
    {
        "id": ["a", "b", "c", "n"],
        "p": ["1", "2", "3", "4"],
        "amount": pa.array(
            [*map(Decimal, ("123456789012345678.90", "123456789012345678.91", "123456789012345678.92")), None],
            pa.decimal128(20, 2),
        ),
        "small": pa.array([*map(Decimal, ("-999.99", "1.10", "999.99")), None], pa.decimal128(5, 2)),
        "number": pa.array([9007199254740992, 9007199254740993, 2**63 - 1, None], pa.int64()),
        "day": pa.array([dt.date(2026, 1, 1), dt.date(2026, 1, 2), dt.date(9999, 12, 31), None]),
        "at": pa.array([0, 1_500_000, 2_000_000, None], pa.int64()).cast(pa.timestamp("us", "UTC")),
        "millis": pa.array([0, 1_500, 2_000, None], pa.int64()).cast(pa.timestamp("ms")),
        "clock": pa.array([0, 43_200_000_000, 86_399_999_999, None], pa.int64()).cast(pa.time64("us")),
        "zip": ["01", "1", "x", None],
    }
)


@pytest.fixture(scope="module")
def table() -> Table:
    """Return a table with one file for each row."""
    made = Table.create(
        "memory://t",
        name="t",
        record_key="id",
        partition_by="p",
        schema=ROWS.schema,
        env=Env(storage=MemoryStorage()),
    )
    made.bulk_insert(ROWS)
    return made


def keys(table: Table, where: str) -> str:
    return "".join(sorted(table.scan(["id"], where).to_arrow().column("id").to_pylist()))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("amount = 123456789012345678.91", "b"),
        ("amount != 123456789012345678.91", "ac"),
        ("amount < 123456789012345678.91", "a"),
        ("amount IN (123456789012345678.90, '123456789012345678.92')", "ac"),
        ("amount > 123456789012345678.910000000000000000001", "c"),
        ("number = 9007199254740993.0", "b"),
        ("number = 9007199254740992e0", "a"),
        ("number < 9007199254740992.5", "a"),
    ],
)
def test_number_in_a_condition_is_compared_with_all_digits(table: Table, where: str, expected: str) -> None:
    """HuaweiBigData/carbondata#789, ClickHouse/ClickHouse#70136, apache/doris#55884."""
    assert keys(table, where) == expected


def test_delete_where_deletes_no_row_whose_value_differs_in_the_last_digit() -> None:
    """HuaweiBigData/carbondata#789, ClickHouse/ClickHouse#70136."""
    table = Table.create("memory://t", name="t", record_key="id", schema=ROWS.schema, env=Env(storage=MemoryStorage()))
    table.bulk_insert(ROWS)
    table.delete_where("amount < 123456789012345678.91")
    assert sorted(table.scan(["id"]).to_arrow().column("id").to_pylist()) == ["b", "c", "n"]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("small < 1000000", "abc"),
        ("small > -1e30", "abc"),
        ("small != 1000000", "abc"),
        ("NOT small < 1000000", ""),
        ("small = 1.101", ""),
        ("small <= 1.101", "ab"),
        ("small IN (1.1, 1.101, 1000000)", "b"),
        ("small NOT IN (1.1, 1.101, 1000000)", "ac"),
        ("number <= 9223372036854775808", "abc"),
        ("number > 9223372036854775807.5", ""),
        ("number = '9223372036854775808'", ""),
        ("number BETWEEN -1e400 AND 1e400", "abc"),
    ],
)
def test_number_that_the_type_cannot_hold_is_compared_as_in_sql(table: Table, where: str, expected: str) -> None:
    """dolthub/dolt#5693, pingcap/tidb#10497, matrixorigin/matrixone#1078, FirebirdSQL/firebird#7997."""
    assert keys(table, where) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("millis < TIMESTAMP '1970-01-01 00:00:01.500001'", "ab"),
        ("millis >= '1970-01-01T00:00:01.500001'", "c"),
        ("millis = '1970-01-01 00:00:01.500001'", ""),
        ("at > '1970-01-01 00:00:01.4999999999'", "bc"),
        ("at <= '1970-01-01 00:00:01.999999999'", "ab"),
        ("at != '1970-01-01 00:00:01.500000001'", "abc"),
        ("at = '1970-01-01T02:00:01.5+02:00'", "b"),
        ("at < DATE '9999-12-31'", "abc"),
        ("day < TIMESTAMP '2026-01-02 00:00:00.000000001'", "ab"),
        ("day = TIMESTAMP '2026-01-02 12:00:00'", ""),
        ("day > '9999-12-30'", "c"),
        ("day < '+10000-01-01'", "abc"),
        ("day >= '-0001-12-31'", "abc"),
    ],
)
def test_time_finer_than_its_column_is_compared_exactly(table: Table, where: str, expected: str) -> None:
    """apache/paimon#9675, apache/paimon#9810, trinodb/trino#13335."""
    assert keys(table, where) == expected


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("clock = TIME '12:00:00'", "b"),
        ("clock >= '12:00'", "bc"),
        ("clock < '00:00:00.0000001'", "a"),
        ("clock IN ('00:00:00', '23:59:59.999999')", "ac"),
        ("NOT clock > '12:00:00'", "ab"),
    ],
)
def test_time_of_day_is_compared_with_its_column(table: Table, where: str, expected: str) -> None:
    """apache/iceberg#9431, prestodb/presto#24091."""
    assert keys(table, where) == expected


@pytest.mark.parametrize(
    "where",
    [
        "day = '2026-01-01junk'",
        "day = '2026-01-01 junk'",
        "day = '2026-01-01T12:00:00'",
        "day = DATE '2026-01-01T12:00:00'",
        "day = '20260101'",
        "day = '2026-W01-1'",
        "day = 20260101",
        "at = '1970-01-01 00:00:01.5 junk'",
        "at = '1970-01-01 00:00:01,5'",
        "at = '1970-01-01_00:00:01'",
        "at = '1970-01-01 00:00:01 Europe/Berlin'",
        "at = TIMESTAMP '1970-01-01 noon'",
        "clock = '12:00:00+01:00'",
        "clock = '25:00:00'",
        "clock = 43200",
        "number = '1junk'",
        "number = '1.5'",
        "number = '1_000'",
        "number = '١'",
        "small = '1.1d'",
        "small = '0x1'",
        "small = 'NaN'",
        "zip = 1",
        "zip < 5",
        "zip IN ('01', 1)",
        "amount = 1.5BE",
        "amount = 1_000",
    ],
)
def test_literal_with_a_part_that_would_be_dropped_is_refused(table: Table, where: str) -> None:
    """trinodb/trino#14164, NVIDIA/cudf-spark#2890."""
    with pytest.raises(UserError):
        table.scan(["id"], where).to_arrow()
    with pytest.raises(UserError):
        table.delete_where(where)
    assert table.scan(["id"]).count() == ROWS.num_rows


def test_number_beyond_the_largest_double_is_refused_for_a_column_of_doubles() -> None:
    """dolthub/dolt#5693."""
    table = Table.create("memory://t", name="t", record_key="id", env=Env(storage=MemoryStorage()))
    table.bulk_insert(pa.table({"id": ["a"], "value": [1.5]}))
    with pytest.raises(UserError, match="beyond the largest double"):
        table.scan(where="value < 1e400").to_arrow()
    assert table.scan(where="value < 1e308").count() == 1


def test_command_compares_the_condition_with_all_digits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """HuaweiBigData/carbondata#789."""
    path = str(tmp_path / "t")
    Table.create(path, name="t", record_key="id", schema=ROWS.schema).bulk_insert(ROWS)
    where = "amount >= 123456789012345678.91 AND number != 9223372036854775807.0"
    assert main(["table", "read", "--table", path, "--columns", "id", "--where", where, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"id": "b"}]
    assert main(["table", "delete", "--table", path, "--where", "day = '2026-01-01junk'"]) == 64
    assert "'2026-01-01junk' is not a value of type date32" in capsys.readouterr().err
    assert Table.open(path).scan().count() == ROWS.num_rows


@pytest.mark.parametrize(
    ("where", "quoted"),
    [("id = DATE '2026-01-31'", "'2026-01-31'"), ("id = 12", "'12'"), ("id IN (true)", "'true'")],
)
def test_message_shows_the_text_to_compare_a_string_column_with(table: Table, where: str, quoted: str) -> None:
    """StarRocks/starrocks#76068: a string column of dates compared with a date returned nothing."""
    with pytest.raises(UserError, match=f"write the literal in quotes, such as {quoted}$"):
        table.scan(where=where).count()
