"""Conditions of a read exclude files before any is opened; filters have the rows of Spark's own evaluation."""

from __future__ import annotations

import datetime as dt
import math
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.spark.scan import spark_schema
from lakehouse.spark.versions.choice import spark_version
from tests.support.spark import used_relation
from tests.support.spark35 import NO_DATA_SOURCE

if not spark_version().HAS_DATA_SOURCE:
    pytest.skip(NO_DATA_SOURCE, allow_module_level=True)

source: Any = import_module("lakehouse.spark.source")

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("p", pa.string()),
        ("n", pa.int64()),
        ("f", pa.float64()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
    ]
)
FILES = 6
#: Conditions of a read, and the largest number of slices that it opens. A column without values has no range.
CONDITIONS = {
    "p = '3'": 1,
    "p in ('1', '2')": 2,
    "n = 30": 2,
    "n > 30": 3,
    "n between 10 and 21": 3,
    "id like 'k4%'": 1,
    "n is null": 1,
    "place.city = 'c5'": FILES,
    "f > 21": FILES,
    "f < 11": FILES,
    "not (f > 21)": FILES,
    "p = '1' or n = 40": FILES,
}
#: Filters of a query, which exclude no files.
FILTERS = (*CONDITIONS, "n <=> 20", "f = double('NaN')", "n is null or n > 30")


def rows(number: int) -> pa.Table:
    value = None if number == 0 else 10 * number
    return pa.table(
        {
            "id": [f"k{number}a", f"k{number}b"],
            "p": [str(number)] * 2,
            "n": [value, value],
            "f": [math.nan, float(10 * number)],
            "place": [{"city": f"c{number}", "zip": number}] * 2,
        },
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Return a table of six partitions with one file each."""
    path: Path = tmp_path_factory.mktemp("pushdown") / "t"
    made = Table.create(str(path), name="t", record_key="id", partition_by="p", ordering="id", schema=SCHEMA)
    made.bulk_insert(pa.concat_tables(rows(number) for number in range(FILES)))
    return made


@pytest.fixture(scope="module")
def used(spark: Any, table: Table) -> Any:
    """Return one relation of the table for all filters."""
    return used_relation(spark, table.location)


@pytest.mark.parametrize("where", FILTERS)
def test_filter_returns_the_rows_of_spark_from_a_used_relation(spark: Any, used: Any, where: str) -> None:
    frame = spark.createDataFrame(pa.concat_tables(rows(n) for n in range(FILES)).to_pylist(), spark_schema(SCHEMA))
    expected = sorted(row.id for row in frame.where(where).collect())
    assert sorted(row.id for row in used.where(where).collect()) == expected


@pytest.mark.parametrize("where", CONDITIONS)
def test_condition_returns_the_rows_of_a_scan_and_opens_few_files(spark: Any, table: Table, where: str) -> None:
    expected = sorted(table.scan(["id"], where).to_arrow().column("id").to_pylist())
    assert sorted(row.id for row in used_relation(spark, table.location, where=where).collect()) == expected
    # The planner runs in a worker of Spark, so the plan of the same condition is counted here.
    reader = source.LakehouseReader({"path": table.location, "where": where}, spark_schema(SCHEMA))
    opened = sum(len(task.value.slices) for task in reader.partitions())
    assert opened <= CONDITIONS[where]
    assert opened == len(table.scan(["id"], where).plan().plan.slices)


def test_where_of_a_scan_has_the_same_rows_in_arrow_and_in_spark(spark: Any, table: Table) -> None:
    for where in ("f > 21", "f >= 20", "NOT f > 21", "f != 20", "place.city = 'c5'", "place.zip >= 4", "n IS NULL"):
        scan = table.scan(["id"], where)
        assert sorted(row.id for row in scan.to_spark(spark).collect()) == sorted(
            scan.to_arrow().column("id").to_pylist()
        ), where


@pytest.mark.parametrize("where", ["f > 1000", "f = double('NaN')", "place.height >= 1000", "place.height > 3"])
def test_filter_of_a_plain_frame_keeps_rows_with_nan(spark: Any, tmp_path: Path, where: str) -> None:
    schema = pa.schema([("id", pa.string()), ("f", pa.float64()), ("place", pa.struct([("height", pa.float32())]))])
    made = Table.create(str(tmp_path / "t"), name="t", record_key="id", schema=schema)
    rows = [
        {"id": "number", "f": 1.0, "place": {"height": 2.0}},
        {"id": "nan", "f": math.nan, "place": {"height": math.nan}},
        {"id": "null", "f": None, "place": None},
    ]
    made.bulk_insert(pa.Table.from_pylist(rows, schema))
    assert [row.id for row in made.scan().to_spark(spark).where(where).collect()] == ["nan"]
    made.upsert(pa.Table.from_pylist([{"id": "other", "f": 2.0, "place": None}], schema))
    assert [row.id for row in made.scan().to_spark(spark).where(where).collect()] == ["nan"]


def test_functions_in_conditions_do_not_depend_on_the_time_zone_of_the_session(spark: Any, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id")
    moments = [dt.datetime(2024, 1, 1, hour, tzinfo=dt.UTC) for hour in (3, 4, 5)]
    table.upsert(pa.table({"id": ["a", "b", "c"], "at": pa.array(moments, pa.timestamp("us", "UTC"))}))
    table.services.create_expression_index("h=hour(at)")
    table.services.index.run(spark=spark)
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Oslo")
    try:
        scan = table.scan(["id"], "hour(at) = 4")
        assert [row.id for row in scan.to_spark(spark).collect()] == ["b"]
        assert scan.to_arrow().column(0).to_pylist() == ["b"]
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
