"""Change data in Spark: DataFrames of structs, and `format("lakehouse")` with Hudi's options and columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.operations.read.cdc import plan_change_read
from lakehouse.core.operations.read.queries import EARLIEST as EARLIEST_INSTANT
from lakehouse.core.operations.read.queries import Changes, ScanRequest
from lakehouse.spark import register
from lakehouse.spark.changes import rows_of_changes
from tests.support.spark import used_relation

pytestmark = pytest.mark.spark

QUERY = {
    "hoodie.datasource.query.type": "incremental",
    "hoodie.datasource.query.incremental.format": "cdc",
}
EARLIEST = {"hoodie.datasource.read.begin.instanttime": "earliest"}


def rows(**columns: list[Any]) -> pa.Table:
    kinds = {"id": pa.string(), "day": pa.string(), "ts": pa.int64(), "tags": pa.list_(pa.string())}
    return pa.table({name: pa.array(values, kinds[name]) for name, values in columns.items()})


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ", "COPY_ON_WRITE 6"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    made = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key=["id"],
        partition_by=["day"],
        ordering="ts",
        table_type=request.param.removesuffix(" 6"),
        cdc="DATA_BEFORE_AFTER",
        options={"hoodie.write.table.version": "6"} if request.param.endswith(" 6") else {},
    )
    made.upsert(rows(id=["a", "b", "c"], day=["1", "1", "2"], ts=[1, 1, 1], tags=[["x"], None, []]))
    made.upsert(rows(id=["a", "d"], day=["1", "2"], ts=[2, 2], tags=[['"y"', None], None]))
    made.delete(["c"])
    return made


def read(spark: Any, table: Table, **options: str) -> Any:
    return used_relation(spark, table.location, **QUERY, **options)


def plain(change: Any) -> tuple[Any, ...]:
    return tuple(json.loads(v) if i > 1 and v is not None else v for i, v in enumerate(change))


def expected(table: Table, begin: str | None = "earliest") -> list[tuple[Any, ...]]:
    return [tuple(c.values()) for c in table.incremental(begin, format="cdc").to_arrow().to_pylist()]


def test_data_source_returns_changes_in_columns_of_hudi(spark: Any, table: Table) -> None:
    frame = read(spark, table, **EARLIEST)
    assert frame.dtypes == [(name, "string") for name in ("op", "ts_ms", "before", "after")]
    found = [plain(change) for change in frame.collect()]
    assert sorted(found, key=repr) == sorted(expected(table), key=repr)
    assert [op for op, *_ in found] == ["i", "i", "i", "u", "i", "d"]


def test_data_source_applies_ranges_columns_and_filters_to_changes(spark: Any, table: Table) -> None:
    first = table.commits()[0][0]
    begin = {"hoodie.datasource.read.begin.instanttime": first.completion}
    assert [row.op for row in read(spark, table, **begin, columns="op").collect()] == ["u", "i", "d"]
    frame = read(spark, table, **begin).where("op = 'u' AND get_json_object(after, '$.id') = 'a'")
    assert [json.loads(row.after)["tags"] for row in frame.collect()] == [['"y"', None]]
    assert [row.op for row in read(spark, table).collect()] == ["d"]
    assert [row.op for row in read(spark, table, **EARLIEST, where="id = 'a'").collect()] == ["i", "u"]


def test_to_spark_returns_changes_with_structs(spark: Any, table: Table) -> None:
    frame = table.incremental("earliest", format="cdc", columns=["id", "tags"]).to_spark(spark)
    assert [row.op for row in frame.orderBy("ts_ms", "op", "after.id").collect()] == ["i", "i", "i", "i", "u", "d"]
    (update,) = frame.where("op = 'u'").collect()
    assert (update.before.asDict(), update.after.asDict()) == (
        {"id": "a", "tags": ["x"]},
        {"id": "a", "tags": ['"y"', None]},
    )
    (gone,) = frame.where("op = 'd'").collect()
    assert gone.after is None and gone.before.id == "c"
    upto_now = table.incremental(table.commits()[-1][0].completion, format="cdc").to_spark(spark)
    assert upto_now.columns == ["op", "ts_ms", "before", "after"] and upto_now.count() == 0


@pytest.mark.parametrize("columns", [("id", "day", "ts", "tags"), ("id", "tags"), ("day",)])
@pytest.mark.parametrize("sides", [("before",), ("after",), ("before", "after")])
def test_rows_of_changes_are_the_images_of_the_changes(
    spark: Any, table: Table, columns: tuple[str, ...], sides: tuple[str, ...]
) -> None:
    loaded = table.refresh()
    end = table.commits()[-1][0].completion
    query = Changes(EARLIEST_INSTANT, end)
    scan = plan_change_read(loaded, query, ScanRequest(query=query, columns=columns))
    images = [
        tuple(change[side][name] for name in columns)
        for change in table.incremental("earliest", format="cdc").to_arrow().to_pylist()
        for side in sides
        if change[side] is not None
    ]
    found = [tuple(row) for row in rows_of_changes(spark, scan, sides).collect()]
    assert sorted(found, key=repr) == sorted(images, key=repr)
    fewer = [tuple(row) for row in rows_of_changes(spark, scan, sides, distinct=True).collect()]
    assert {*map(repr, fewer)} == {*map(repr, images)}
    # Two rows of the first commit have the same day. Lists cannot be grouped, so rows with lists are all there.
    if "after" in sides:
        assert (len(fewer) < len(images)) == ("tags" not in columns)


def test_writes_of_dataframes_log_changes(spark: Any, table: Table) -> None:
    frame = spark.createDataFrame(
        [("b", "1", 5, ["from", "spark"])], "id string, day string, ts long, tags array<string>"
    )
    table.upsert(frame)
    assert [(op, before["id"], after["tags"]) for op, _, before, after in expected(table, None)] == [
        ("u", "b", ["from", "spark"])
    ]


def test_stream_returns_changes(spark: Any, table: Table, tmp_path: Path) -> None:
    register(spark)
    source = spark.readStream.format("lakehouse").options(**QUERY).load(table.location)

    def drain() -> list[tuple[Any, ...]]:
        sink = source.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "offsets"))
        sink.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
        return sorted((plain(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()), key=repr)

    assert drain() == sorted(expected(table), key=repr)
    table.upsert(rows(id=["b"], day=["1"], ts=[9], tags=[["late"]]))
    assert drain() == sorted(expected(table), key=repr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hoodie.datasource.query.type": "snapshot"}, "contradict"),
        ({"hoodie.datasource.query.incremental.format": "changes"}, "'latest_state' or 'cdc'"),
        ({"columns": "id"}, "not in the changes"),
    ],
)
def test_contradicting_options_are_refused(spark: Any, table: Table, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        register(spark)
        spark.read.format("lakehouse").options(**{**QUERY, **options}).load(table.location).collect()
