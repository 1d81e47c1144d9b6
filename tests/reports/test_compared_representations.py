"""Conditions on values with several representations hold for the same rows in Arrow, in Spark, and on plain Parquet."""

from __future__ import annotations

import math
import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from lakehouse.core.planning.predicate import parse_predicate
from lakehouse.core.table.table import Table
from lakehouse.spark.conditions import condition
from tests.support.spark import collected

pytestmark = pytest.mark.spark

_LEAST, _MOST = -(2**63), 2**63 - 1
#: Microseconds of 0001-01-01 00:00:00 and of 9999-12-31 23:59:59.999999.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999
OTHER_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "d": (pa.float64(), [0.0, -0.0, math.nan, OTHER_NAN, 1.5, -math.inf, math.inf, 9007199254740992.0]),
    "f": (pa.float32(), [0.0, -0.0, math.nan, 16777216.0, 0.1, -math.inf, math.inf, 3.4028234663852886e38]),
    "m": (pa.decimal128(5, 2), [*map(Decimal, ("0.00", "1.10", "999.99", "-999.99", "1.00", "-0.01", "5.00"))]),
    "w": (pa.decimal128(38, 10), [*map(Decimal, ("0", "1.1", "9007199254740993", "123456789012345678.91"))]),
    "i": (pa.int64(), [0, 9007199254740992, 9007199254740993, _LEAST, _MOST, -1, 1, 2]),
    "n": (pa.int32(), [0, 1, 2, -1, 2**31 - 1, -(2**31), 3, 4]),
    "day": (pa.date32(), [0, -719_162, 2_932_896, 2_932_897, -1, 20_454, -141_428, -141_427]),
    "at": (pa.timestamp("us", "UTC"), [0, _FIRST, _LAST, _LAST + 1, _FIRST - 1, -1, 1_767_268_800_000_000, 1]),
    "local": (pa.timestamp("us"), [0, _FIRST, _LAST, _LAST + 1, _FIRST - 1, -1, 1_767_268_800_000_000, 1]),
}
ROWS = pa.table(
    {
        "id": [f"k{number}" for number in range(9)],
        "p": [str(number // 2) for number in range(9)],
        **{name: pa.array([*values, *[None] * (9 - len(values))], kind) for name, (kind, values) in KINDS.items()},
    }
)
#: Conditions in our syntax; where the syntax of Spark differs, in that, too.
CONDITIONS: dict[str, str] = {
    "d = 0": "", "d = -0.0": "", "d != 0.0": "", "d IN (0.0, 5)": "", "d NOT IN (0)": "", "d < 0": "", "d >= 0": "",
    "NOT d > 0": "", "d > 1e300": "", "d <= 1.5": "", "d BETWEEN 0 AND 2": "", "d = 9007199254740993": "",
    "d < 9007199254740993": "", "d = 1.5000000000000000000000000001": "",
    "d = 'NaN'": "d = double('NaN')", "d != 'NaN'": "d != double('NaN')", "d < 'NaN'": "d < double('NaN')",
    "d >= 'NaN'": "d >= double('NaN')", "d <= 'NaN'": "d <= double('NaN')", "d > 'NaN'": "d > double('NaN')",
    "d IN ('NaN', 1.5)": "d IN (double('NaN'), 1.5)", "d NOT IN ('NaN')": "d NOT IN (double('NaN'))",
    "d >= 'Infinity'": "d >= double('Infinity')", "d < '-inf'": "d < double('-Infinity')",
    "f = 0": "", "f IN (-0.0, 7)": "", "f = 0.1": "", "f != 0.1": "", "f < 0.1": "", "f > 0.1": "", "f = 16777217": "",
    "f >= 16777217": "", "f < 1e39": "f < 1e39", "f > 1e39": "", "f IN (0.1, 16777216)": "", "NOT f >= 0": "",
    "m < 1000000": "", "m = 1000000": "", "m != 1000000": "", "NOT m < 1000000": "", "m > -1000": "", "m = 1.1": "",
    "m = 1.100": "", "m <= 1.099": "", "m >= 1.0999": "", "m = 1.001": "", "m NOT IN (1.001, 1.1)": "", "m < 1e2": "",
    "w = 9007199254740993": "", "w = 123456789012345678.91": "", "w < 123456789012345678.91": "", "w > 0.00": "",
    "i = 9007199254740993.0": "", "i = 9007199254740992.0": "", "i < 9007199254740992.5": "", "i IN (1, 1.5)": "",
    "i NOT IN (1, 1.5)": "", "i = 1.5": "", "i != 1.5": "", "i > 1.5": "", "i = '9007199254740993'": "",
    "i <= 99999999999999999999": "i IS NOT NULL", "i > -9223372036854775808": "", "i >= 9223372036854775807": "",
    "n < 3000000000": "", "n = 3000000000": "", "n != 3000000000": "", "n = '1'": "", "n > -2147483648.5": "",
    "day = DATE '0001-01-01'": "", "day = '9999-12-31'": "", "day > DATE '9999-12-31'": "", "day < '1582-10-15'": "",
    "day < TIMESTAMP '1970-01-01 00:00:00.5'": "", "day = TIMESTAMP '1970-01-01 12:00:00'": "",
    "day <= TIMESTAMP '9999-12-31 00:00:00'": "", "day IN ('9999-12-31', '0001-01-01')": "", "day >= '10000-01-01'": "",
    "at = TIMESTAMP '9999-12-31 23:59:59.999999'": "", "at > '9999-12-31 23:59:59.999999'": "", "at = '0001-01-01'": "",
    "at < DATE '0001-01-01'": "", "at <= '2026-01-01T14:00:00+02:00'": "", "at >= '1970-01-01 00:00:00.000001'": "",
    "at < '1970-01-01T00:00:00Z'": "", "at IN ('10000-01-01', '1970-01-01')": "",
    "NOT at > '1969-12-31 23:59:59.999999'": "", "local = '9999-12-31 23:59:59.999999'": "",
    "local > '9999-12-31'": "", "local < '0001-01-01'": "",
    "local >= '1970-01-01'": "", "local = TIMESTAMP '2026-01-01 14:00:00+02:00'": "", "local != DATE '1970-01-01'": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def referee(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Return the keys of the rows of plain Parquet that meet each condition in Spark.

    Parquet's dictionary filter, which Spark uses for pushed filters, loses zeros of the other sign, so none is pushed.
    """
    path = str(tmp_path_factory.mktemp("plain") / "rows")
    spark.createDataFrame(ROWS).write.parquet(path)
    spark.conf.set("spark.sql.parquet.filterPushdown", "false")
    try:
        frame = spark.read.parquet(path)
        tests = [F.expr(f"CAST({text or where} AS BOOLEAN)").alias(where) for where, text in CONDITIONS.items()]
        results = frame.select("id", *tests).toArrow()
    finally:
        spark.conf.set("spark.sql.parquet.filterPushdown", "true")
    return {where: sorted(results.filter(results.column(where)).column("id").to_pylist()) for where in CONDITIONS}


@pytest.fixture(scope="module", params=["COPY_ON_WRITE", "MERGE_ON_READ", "without metadata table"])
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Return a table with two rows in each file, of which some are in log files."""
    kind = request.param if request.param in ("COPY_ON_WRITE", "MERGE_ON_READ") else "COPY_ON_WRITE"
    path: Path = tmp_path_factory.mktemp("table") / "t"
    options = {"hoodie.metadata.enable": str(kind == request.param).lower()}
    made = Table.create(
        str(path), name="t", record_key="id", partition_by="p", schema=ROWS.schema, table_type=kind, options=options
    )
    made.bulk_insert(ROWS)
    if kind == "MERGE_ON_READ":
        made.upsert(ROWS.slice(3, 3))
    return made


def test_condition_holds_for_the_rows_of_spark_on_plain_parquet(table: Table, referee: dict[str, list[str]]) -> None:
    """apache/iceberg#9130, apache/paimon#8060, apache/hudi#18754, duckdb/duckdb#23829, duckdb/duckdb#9520."""
    scanned = {where: sorted(table.scan(["id"], where).to_arrow().column(0).to_pylist()) for where in CONDITIONS}
    assert scanned == referee


def test_condition_as_a_column_of_spark_holds_for_the_rows_of_plain_parquet(
    spark: Any, referee: dict[str, list[str]]
) -> None:
    """apache/iceberg#9130, apache/paimon#8060, apache/paimon#9720."""
    frame = spark.createDataFrame(ROWS)
    tests = [condition(parse_predicate(where), ROWS.schema).alias(where) for where in CONDITIONS]
    rows = frame.select("id", *tests).toArrow()
    assert {w: sorted(rows.filter(rows.column(w)).column("id").to_pylist()) for w in CONDITIONS} == referee


#: Conditions that Spark compares with bounds and dictionaries of Parquet files.
PUSHED = (
    "d = 0", "f IN (-0.0, 7)", "d = 'NaN'", "d > 1e300", "f < 0.1", "m < 1000000", "w = 123456789012345678.91",
    "day >= '10000-01-01'", "local > '9999-12-31'",
)  # fmt: skip


def test_scan_in_spark_keeps_the_rows_of_plain_parquet_with_pushed_filters(
    spark: Any, tmp_path: Path, referee: dict[str, list[str]]
) -> None:
    """duckdb/duckdb#23829, apache/iceberg#9130, apache/paimon#8060, duckdb/duckdb#9520."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="p", schema=ROWS.schema)
    table.bulk_insert(ROWS)
    found = collected([table.scan(["id"], where).to_spark(spark) for where in PUSHED])
    scanned = {w: sorted(rows.column(0).to_pylist()) for w, rows in zip(PUSHED, found, strict=True)}
    assert scanned == {where: referee[where] for where in PUSHED}


def test_scan_in_spark_compares_times_of_day_which_spark_does_not_support(spark: Any, tmp_path: Path) -> None:
    """prestodb/presto#24091."""
    clock = pa.array([0, 43_200_000_000, 86_399_999_999, None], pa.int64()).cast(pa.time64("us"))
    rows = pa.table({"id": ["a", "b", "c", "n"], "clock": clock})
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", schema=rows.schema)
    table.bulk_insert(rows)
    wheres = ("clock >= TIME '12:00:00'", "NOT clock > '00:00:00.0000001'", "clock IN ('23:59:59.999999')")
    found = collected([table.scan(["id"], where).to_spark(spark) for where in wheres])
    assert [sorted(rows.column(0).to_pylist()) for rows in found] == [["b", "c"], ["a"], ["c"]]
