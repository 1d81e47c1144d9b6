"""Merge-on-read tables on Spark: writes, queries and services on slices with logs, in all data types."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from lakehouse import Table
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.read.queries import Changes, ScanRequest
from lakehouse.core.table.scan import TableScan
from lakehouse.spark import register
from lakehouse.spark.engine import SparkEngine
from lakehouse.spark.scan import spark_schema
from tests.support.fixture_tables import canonical_rows
from tests.support.spark import used_relation

pytestmark = pytest.mark.spark

QUERY = "hoodie.datasource.query.type"
BEGIN = "hoodie.datasource.read.begin.instanttime"
TINY = {"hoodie.parquet.small.file.limit": "0", "hoodie.copyonwrite.record.size.estimate": "100000"}
UTC = dt.UTC
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("day", pa.string()),
        ("ts", pa.int64()),
        ("flag", pa.bool_()),
        ("small", pa.int32()),
        ("ratio", pa.float32()),
        ("value", pa.float64()),
        ("price", pa.decimal128(12, 3)),
        ("wide", pa.decimal128(38, 9)),
        ("born", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("blob", pa.binary()),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("lat", pa.float64()), ("seen", pa.timestamp("us", "UTC")), ("n", pa.list_(pa.int32()))])),
        ("attrs", pa.map_(pa.string(), pa.decimal128(6, 2))),
    ]
)


def row(number: int, *, version: int = 1, **values: Any) -> dict[str, Any]:
    """Return a row whose values of all types depend on number and version."""
    moment = dt.datetime(2026, 3, 29, 0, 59, 59, 123456) + dt.timedelta(hours=number)
    made = {
        "id": f"k{number:04d}",
        "day": f"2026-01-{1 + number % 3:02d}",
        "ts": version,
        "flag": bool(version % 2),
        "small": -number,
        "ratio": number / 4,
        "value": number / 3,
        "price": Decimal(number * 1000 + version) / 1000,
        "wide": Decimal(f"{number}.{version:09d}"),
        "born": dt.date(1969, 12, 30) + dt.timedelta(days=number),
        "at": moment.replace(tzinfo=UTC),
        "local": moment,
        "blob": bytes([number % 256, version, 0]),
        "tags": [f"v{version}", None],
        "place": {"lat": number / 7, "seen": moment.replace(tzinfo=UTC), "n": [number, version]},
        "attrs": [("a", Decimal(version)), ("b", None)],
    }
    return made | values


def batch(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, SCHEMA)


def frame_of(spark: Any, rows: list[dict[str, Any]]) -> Any:
    """Return rows as a DataFrame with timestamps without zone; by default Spark would read them as local times."""
    return spark.createDataFrame(batch(rows), spark_schema(SCHEMA))


def make(path: Path, **declared: Any) -> Table:
    settings: dict[str, Any] = {
        "name": "t",
        "record_key": ["id"],
        "partition_by": ["day"],
        "ordering": "ts",
        "table_type": "MERGE_ON_READ",
        "options": TINY,
    }
    return Table.create(str(path / "t"), **(settings | declared))


@contextmanager
def session_zone(spark: Any, zone: str) -> Iterator[None]:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        yield
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def source(spark: Any, table: Table, **options: str) -> Any:
    return used_relation(spark, table.location, **options)


def ids(rows: Any) -> list[str]:
    found = rows.select("id").toArrow() if hasattr(rows, "toArrow") else rows
    return sorted(found.column("id").to_pylist())


def versions(frame: Any) -> Mapping[str, int]:
    return {found.id: found.ts for found in frame.select("id", "ts").collect()}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with thirty rows in base files, and logs with new versions of ten rows and deletes of two."""
    made = make(tmp_path)
    made.upsert(batch([row(n) for n in range(30)]))
    made.upsert(batch([row(n, version=2) for n in range(10)]))
    made.delete(["k0003", "k0029"])
    return made


EXPECTED = {f"k{n:04d}": 2 if n < 10 else 1 for n in range(29) if n != 3}


def test_values_of_all_types_are_equal_in_base_files_and_logs(spark: Any, table: Table) -> None:
    assert sum(len(s.logs) for s in table.scan().plan().plan.slices) >= 3
    expected = [row(n, version=2 if n < 10 else 1) for n in range(29) if n != 3]
    for rows in (table.scan().to_spark(spark).toArrow(), source(spark, table).toArrow(), table.scan().to_arrow()):
        assert canonical_rows(rows) == canonical_rows(batch(expected))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "Europe/Berlin"])
def test_time_zone_of_the_session_does_not_shift_timestamps(spark: Any, tmp_path: Path, zone: str) -> None:
    table = make(tmp_path)
    with session_zone(spark, zone):
        for version, numbers in ((1, range(30)), (2, range(10))):
            table.upsert(frame_of(spark, [row(n, version=version) for n in numbers]))
        expected = canonical_rows(batch([row(n, version=2 if n < 10 else 1) for n in range(30)]))
        assert canonical_rows(table.scan().to_arrow()) == expected
        assert canonical_rows(table.scan().to_spark(spark).toArrow()) == expected
        assert canonical_rows(source(spark, table).toArrow()) == expected
        late = dt.datetime(2026, 3, 30, 4, 59, 59, 123456, UTC)
        where = "at >= '2026-03-30 04:59:59.123456'"
        wanted = [f"k{n:04d}" for n in range(28, 30)]
        assert ids(table.scan(where=where).to_spark(spark)) == wanted
        assert ids(table.scan(where=where).to_arrow()) == wanted
        assert ids(source(spark, table).where(col("at") >= lit(late))) == wanted
    table.services.compaction.run(force=True, spark=spark)
    assert canonical_rows(table.scan(read_optimized=True).to_spark(spark).toArrow()) == expected


def test_queries_read_snapshot_base_files_and_earlier_versions(spark: Any, table: Table) -> None:
    first = table.commits()[0][0]
    original = {f"k{n:04d}": 1 for n in range(30)}
    assert versions(table.scan().to_spark(spark)) == EXPECTED
    assert versions(table.scan(read_optimized=True).to_spark(spark)) == original
    assert versions(source(spark, table, **{QUERY: "read_optimized"})) == original
    assert versions(table.scan(as_of=first.requested).to_spark(spark)) == original
    assert versions(source(spark, table, **{"as.of.instant": first.requested})) == original
    changed = {f"k{n:04d}": 2 for n in range(10) if n != 3}
    assert versions(table.incremental(first.completed).to_spark(spark)) == changed
    assert versions(source(spark, table, **{QUERY: "incremental", BEGIN: str(first.completed)})) == changed


def test_conditions_and_columns_are_exact_with_and_without_logs(spark: Any, table: Table) -> None:
    # Base files without logs would return no row for the first condition, and too many for the second.
    assert ids(table.scan(["id"], "ts = 2 AND day = '2026-01-02'").to_spark(spark)) == ["k0001", "k0004", "k0007"]
    assert ids(table.scan(["id"], "ts < 2 AND id < 'k0012'").to_spark(spark)) == [
        "k0010",
        "k0011",
    ]
    selected = source(spark, table, columns="id, ts, day", where="ts = 2 AND day = '2026-01-02'")
    assert selected.columns == ["id", "ts", "day"]
    assert ids(selected) == ["k0001", "k0004", "k0007"]
    assert ids(source(spark, table).where("ts = 2 AND day = '2026-01-02'")) == ["k0001", "k0004", "k0007"]
    assert source(spark, table).where("day = '2026-01-03'").count() == 9


def test_scan_reads_slices_with_and_without_logs(spark: Any, tmp_path: Path) -> None:
    table = make(tmp_path)
    table.upsert(batch([row(n) for n in range(30)]))
    table.upsert(batch([row(n, version=2) for n in range(0, 30, 3)]))
    slices = table.scan().plan().plan.slices
    assert {bool(s.logs) for s in slices} == {True, False}
    frame = table.scan(["id", "ts"], "ts >= 1").to_spark(spark)
    assert versions(frame) == {f"k{n:04d}": 1 + (n % 3 == 0) for n in range(30)}
    plan = frame._jdf.queryExecution().toString()
    assert "FileScan parquet" in plan and "MapInArrow" in plan


def test_type_promoted_between_base_and_log_is_the_new_type(spark: Any, tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("n", pa.int32()), ("f", pa.float32())])
    wide = pa.schema(
        [("id", pa.string()), ("ts", pa.int64()), ("n", pa.int64()), ("f", pa.float64()), ("x", pa.date32())]
    )
    table = make(tmp_path, partition_by=[])
    table.upsert(pa.Table.from_pylist([{"id": i, "ts": 1, "n": 7, "f": 0.5} for i in "abc"], narrow))
    table.upsert(pa.Table.from_pylist([{"id": "b", "ts": 2, "n": 1 << 40, "f": 0.1, "x": dt.date(2026, 1, 1)}], wide))
    expected = [("a", 7, 0.5, None), ("b", 1 << 40, 0.1, dt.date(2026, 1, 1)), ("c", 7, 0.5, None)]
    for frame in (table.scan().to_spark(spark), source(spark, table)):
        assert [(r.id, r.n, r.f, r.x) for r in frame.orderBy("id").collect()] == expected
    table.services.compaction.run(force=True, spark=spark)
    frame = table.scan(read_optimized=True).to_spark(spark)
    assert [(r.id, r.n, r.f, r.x) for r in frame.orderBy("id").collect()] == expected


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
def test_every_write_method_accepts_dataframes(spark: Any, tmp_path: Path, index: str) -> None:
    table = make(tmp_path, options={**TINY, "hoodie.index.type": index, "hoodie.bucket.index.num.buckets": "2"})

    def frame(numbers: range, version: int) -> Any:
        return frame_of(spark, [row(n, version=version) for n in numbers])

    table.bulk_insert(frame(range(10), 1))
    table.insert(frame(range(10, 15), 1))
    table.upsert(frame(range(5, 20), 3))
    table.upsert(frame(range(0, 8), 2))
    table.delete(frame(range(18, 20), 9).select("id", "day"))
    expected = {f"k{n:04d}": 3 if n >= 5 else 2 for n in range(18)}
    assert versions(table.scan().to_spark(spark)) == expected
    assert any(s.logs for s in table.scan().plan().plan.slices)
    kept = {key: version for key, version in expected.items() if int(key[1:]) % 3}
    table.insert_overwrite(frame(range(30, 31), 4))
    assert versions(table.scan().to_spark(spark)) == kept | {"k0030": 4}
    table.insert_overwrite_table(frame(range(2), 5))
    assert versions(table.scan().to_spark(spark)) == {"k0000": 5, "k0001": 5}


def test_compaction_on_spark_keeps_rows(spark: Any, table: Table) -> None:
    before = canonical_rows(table.scan().to_spark(spark).toArrow(), with_meta=True)
    outcome = table.services.compaction.run(force=True, spark=spark)
    assert isinstance(outcome, Committed)
    assert len(outcome.metadata.stats) == 3
    compacted = table.scan(read_optimized=True).to_spark(spark).toArrow()
    assert canonical_rows(compacted, with_meta=True) == before
    assert not any(s.logs for s in table.scan().plan().plan.slices)
    table.upsert(frame_of(spark, [row(28, version=5)]))
    assert versions(table.scan().to_spark(spark)) == EXPECTED | {"k0028": 5}


def test_log_compaction_on_spark_keeps_rows(spark: Any, table: Table) -> None:
    for version in (3, 4, 5):
        table.upsert(batch([row(n, version=version) for n in range(5, 8)]))
    before = canonical_rows(table.scan().to_arrow(), with_meta=True)
    table.services.log_compaction.run(spark=spark)
    assert canonical_rows(table.scan().to_spark(spark).toArrow(), with_meta=True) == before


def test_stream_returns_rows_of_logs_and_not_of_compactions(spark: Any, table: Table, tmp_path: Path) -> None:
    register(spark)

    def run() -> dict[str, int]:
        query = (
            spark.readStream.format("lakehouse")
            .option("columns", "id,ts")
            .load(table.location)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = spark.read.parquet(str(tmp_path / "out"))
        assert found.count() == found.distinct().count()
        return dict(found.groupBy("ts").count().collect())

    assert run() == {1: 19, 2: 9}
    table.services.compaction.run(force=True)
    assert run() == {1: 19, 2: 9}
    table.upsert(batch([row(n, version=7) for n in range(4)]))
    assert run() == {1: 19, 2: 9, 7: 4}


def test_spark_knows_the_size_of_a_scan_so_several_tasks_write_it_and_no_join_broadcasts_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    count = 400_000
    number = np.arange(count)
    noise = np.random.default_rng(1).random((4, count))
    columns = {"id": number, "part": pa.array(number % 8).cast(pa.string())}
    values = pa.table({**columns, **{f"v{n}": noise[n] for n in range(4)}})
    table = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key="id",
        partition_by="part",
        table_type="MERGE_ON_READ",
        cdc="DATA_BEFORE_AFTER",
    )
    table.insert(values)
    begin = table.commits()[-1][0].completion
    table.upsert(values.slice(0, count // 2))
    stored = int(load_slices(table.refresh()).bytes)
    assert stored > 12_000_000, "larger than what Spark broadcasts and than what one task writes"
    scan = table.scan().to_spark(spark)
    assert stored // 2 <= size_of(scan) <= stored
    assert SparkEngine(spark, 64 << 20).divides(scan)
    assert scan.count() == scan.select("id").distinct().count() == count
    # The right side of a left join is the one that Spark may broadcast.
    joined = spark.range(count).toDF("other").join(scan, col("id") == col("other"), "left")
    assert "BroadcastExchange" not in str(joined._jdf.queryExecution().executedPlan().toString())
    changes = TableScan(table=table.refresh(), request=ScanRequest(query=Changes(begin, None))).to_spark(spark)
    assert size_of(changes) > 1_000_000
    assert changes.count() == count // 2
    copy = Table.create(str(tmp_path / "copy"), name="copy", record_key="id")
    before = max(tasks_by_job(spark))
    copy.upsert(scan)
    assert max(tasks for job, tasks in tasks_by_job(spark).items() if job > before) > 1
    assert copy.scan().to_spark(spark).count() == count


def size_of(frame: DataFrame) -> int:
    return int(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes())


def tasks_by_job(spark: SparkSession) -> dict[int, int]:
    """Return the number of tasks of the newest jobs by the id of the job. Spark keeps the newest 1,000 only."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return {jobs.apply(number).jobId(): jobs.apply(number).numTasks() for number in range(jobs.size())}
