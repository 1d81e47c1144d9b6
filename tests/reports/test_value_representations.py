"""Two representations of one value, and values at the ends of a type: statistics, indexes and keys agree with rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.operations.read.plan import plan_read
from lakehouse.core.operations.read.queries import ScanRequest
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.planning.predicate import matching
from lakehouse.core.table.table import Table
from lakehouse.model.predicate import Applied, Call, Comparison, In, Not, Predicate
from tests.support.spark import collected
from tests.support.tables import make_env

NANS = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
#: Arithmetic of `decimal`, also a minus, rounds to 28 digits.
MOST, LEAST = Decimal("9" * 38), Decimal("-" + "9" * 38)


def days(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int32()).view(pa.date32())


def moments(*numbers: int) -> pa.Array:
    return pa.array(numbers, pa.int64()).view(pa.timestamp("us", "UTC"))


#: Values that are equal in another form, or at the ends of what a type, Python or a text with four digits represents.
VALUES: Mapping[str, pa.Array] = {
    "real": pa.array([0.0, -0.0, math.nan, *NANS, 1.5, math.inf, -math.inf, 5e-324]),
    "small": pa.array([0.0, -0.0, math.nan, 1.5, -math.inf], pa.float32()),
    "price": pa.array([Decimal("1.50"), Decimal("0.00"), Decimal("-0.01")], pa.decimal128(10, 2)),
    "whole": pa.array([Decimal(1), MOST, LEAST], pa.decimal128(38, 0)),
    "day": days(-719_162, 0, 2_932_896, -141_428),
    "late_day": days(-719_163, 2_932_897, 2**31 - 1, -(2**31), 0),
    "moment": moments(-62_135_596_800_000_000, -1, 253_402_300_799_999_999),
    "late_time": moments(-62_135_596_800_000_001, 253_402_300_800_000_000, 2**63 - 1, 0),
    "number": pa.array([-(2**63), 2**63 - 1, 2**53 + 1, 2**53]),
    "name": pa.array(["", "1.5", "1.50", "\uffff", "𐐷"]),
}
#: Columns with an index on an expression.
INDEXED = ("real", "price", "whole", "day", "moment", "name")


def call(column: str) -> Call:
    return Call(function="identity", column=column)


def table_of(*, statistics: bool) -> Table:
    """Return a table with a column for each kind of value, a file for each row, and one file with all rows."""
    env = make_env()
    options = {"hoodie.metadata.enable": str(statistics).lower()}
    table = Table.create(env.storage.root, name="t", record_key="id", partition_by="p", options=options, env=env)
    for column in INDEXED if statistics else ():
        table.services.create_expression_index(f"{column}=identity({column})")
    size = max(map(len, VALUES.values()))
    columns = {
        name: pa.concat_arrays([values, pa.nulls(size - len(values), values.type)]) for name, values in VALUES.items()
    }
    for number in range(size):
        row = {name: values.slice(number, 1) for name, values in columns.items()}
        table.bulk_insert(pa.table({"id": [f"k{number}"], "p": ["ab"[number % 2]], **row}))
    table.bulk_insert(pa.table({"id": [f"m{n}" for n in range(size)], "p": ["c"] * size, **columns}))
    return table


def literals(values: pa.Array) -> list[Any]:
    """Return the values that Python represents, each once."""
    found = []
    for value in values:
        try:
            found.append(value.as_py())
        except (ValueError, OverflowError):
            continue
    return [value for value in dict.fromkeys(found) if value == value]


def conditions(values: pa.Array, name: str) -> list[Predicate]:
    leaves = [Comparison(name, operator, value) for value in literals(values) for operator in ("=", "<", ">=")]
    return [*leaves, In(name, tuple(literals(values)[:2])), *(Not(leaf) for leaf in leaves[:3])]


def keys_of(rows: pa.Table) -> list[str]:
    return sorted(rows.column("id").to_pylist())


def pruned(table: Table, where: Predicate) -> list[str]:
    scan = plan_read(table.refresh(), ScanRequest(where=where))
    assert isinstance(scan, Scan)
    return keys_of(pa.Table.from_batches(scan.batches(), scan.schema))


def applied(where: Predicate, column: str) -> Predicate:
    if isinstance(where, Not):
        return Not(applied(where.part, column))
    assert isinstance(where, Comparison | In)
    return Applied(call(column), where)


@pytest.mark.parametrize("statistics", ["metadata table", "commits"])
def test_statistics_hide_no_row_for_values_with_several_representations(statistics: str) -> None:
    """apache/hudi#18754, ClickHouse/ClickHouse#118110, apache/hudi#13097: bounds of NaN, zeros and long decimals."""
    table = table_of(statistics=statistics == "metadata table")
    whole = table.scan().to_arrow()
    for column, values in VALUES.items():
        for where in conditions(values, column):
            assert pruned(table, where) == keys_of(matching(whole, where, whole.schema)), where
    assert not table.validate(deep=True).corrupt
    assert table.metadata.validate().ok


def test_indexes_on_expressions_hide_no_row_for_values_with_several_representations() -> None:
    """apache/hudi#13097, apache/hudi#18754: bounds of results with 38 digits, and of results that are NaN."""
    table = table_of(statistics=True)
    assert isinstance(table.services.index.run(), Indexed)
    whole = table.scan().to_arrow()
    for column in INDEXED:
        for where in conditions(VALUES[column], call(column).text):
            on_result = applied(where, column)
            assert pruned(table, on_result) == keys_of(matching(whole, on_result, whole.schema)), on_result
    assert table.metadata.validate().ok


def test_footer_bounds_that_ignore_nan_exclude_no_file_for_greater_values() -> None:
    """ClickHouse/ClickHouse#118110, datafusion-contrib/datafusion-ducklake#203: NaN is greater than every number."""
    env = make_env()
    options = {"hoodie.metadata.enable": "false"}
    table = Table.create(env.storage.root, name="t", record_key="id", partition_by="p", options=options, env=env)
    table.bulk_insert(pa.table({"id": ["k0", "k1", "k2"], "p": ["a", "b", "b"], "v": [1.0, 2.0, math.nan]}))
    for where in (Comparison("v", ">", 100.0), Comparison("v", ">=", 100.0), Comparison("v", "!=", 2.0)):
        scan = plan_read(table.refresh(), ScanRequest(where=where))
        assert isinstance(scan, Scan)
        assert "b" in {slice_.partition for slice_ in scan.plan.slices}, where


TEXTS = (
    *("real = 0.0", "real <= 0.0", "real < 0.0", "real = 1.5", "real < 1"),
    *("price = 1.5", "price = 1.500", "price >= 0", "price < 0", "whole = 1", "whole < 0", "whole > 0"),
    *("day = DATE '9999-12-31'", "day = DATE '0001-01-01'", "day < DATE '1970-01-01'", "day >= DATE '1582-10-15'"),
    *("moment >= TIMESTAMP '9999-12-31 23:59:59.999999'", "moment = TIMESTAMP '0001-01-01 00:00:00'"),
    *("name = '1.5'", "name >= '1.5'", "name = ''"),
)


@pytest.mark.spark
def test_conditions_return_the_rows_of_spark_on_plain_parquet(spark: SparkSession, tmp_path: Path) -> None:
    """apache/hudi#18754, databendlabs/databend#20520: a table and Parquet files give the same rows for a condition."""
    table = table_of(statistics=True)
    pq.write_table(table.scan(["id", *VALUES]).to_arrow(), str(tmp_path / "plain.parquet"))
    frame = spark.read.parquet(str(tmp_path / "plain.parquet"))
    for text, expected in zip(TEXTS, collected([frame.where(text).select("id") for text in TEXTS]), strict=True):
        assert keys_of(table.scan(["id"], text).to_arrow()) == keys_of(expected), text


#: Two forms of one value have different texts in keys, as in Hudi; NaN has one text.
KEYS = ("real", "price", "moment")
INDEXES = ["SIMPLE", "BLOOM", "BUCKET", "RECORD_INDEX"]


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("index", INDEXES)
def test_indexes_and_key_generators_agree_on_the_rows_of_a_key(kind: str, index: str) -> None:
    """databendlabs/databend#20520, duckdb/duckdb#23829: an index has the keys that the key generator writes."""
    values = VALUES[kind]
    if kind == "real":
        values = values.filter(pa.array(~np.isnan(values.to_numpy())))
    env = make_env()
    options = {"hoodie.metadata.enable": "true", "hoodie.index.type": index, "hoodie.bucket.index.num.buckets": "2"}
    options |= {"hoodie.metadata.global.record.level.index.enable": str(index == "RECORD_INDEX").lower()}
    table = Table.create(env.storage.root, name="t", record_key="v", partition_by="p", options=options, env=env)
    for number in range(2):
        for half in (values.slice(0, 2), values.slice(2)):
            size = len(half)
            table.upsert(pa.table({"v": half, "p": ["a"] * size, "n": [number] * size, "id": [str(number)] * size}))
    whole = table.scan().to_arrow()
    assert whole.num_rows == len(values) and set(whole.column("n").to_pylist()) == {1}
    for value in literals(values):
        where = Comparison("v", "=", value)
        scan = plan_read(table.refresh(), ScanRequest(where=where))
        assert isinstance(scan, Scan)
        found = pa.Table.from_batches(scan.batches(), scan.schema)
        assert found.num_rows == matching(whole, where, whole.schema).num_rows > 0
    assert table.metadata.validate().ok
