"""Snapshot reads in which Spark's Parquet reader reads the unchanged rows of slices with logs.

The in-process reader merges all rows in Arrow. It is the reference for the rows.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col

from lakehouse import Table
from lakehouse.core.table.scan import TableScan
from lakehouse.spark import changed_rows
from tests.spark.test_merge_on_read import batch, make, row
from tests.support.fixture_tables import canonical_rows

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Apply the read to small files and few columns."""
    monkeypatch.setattr(changed_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(changed_rows, "LEAST_SHARE", 0)
    monkeypatch.setattr(changed_rows, "MOST_LOG_SHARE", 1e6)


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def joins(frame: DataFrame) -> bool:
    """Return whether Spark excludes changed rows of base files."""
    return "LeftAnti" in plan_of(frame)


def check(spark: SparkSession, scan: TableScan) -> DataFrame:
    """Check that Spark returns the rows of the in-process reader, and that it reads unchanged rows itself."""
    frame: DataFrame = scan.to_spark(spark)
    assert joins(frame) and "MapInArrow" not in plan_of(frame)
    reference = scan.to_arrow()
    assert canonical_rows(frame.toArrow(), with_meta=True) == canonical_rows(reference, with_meta=True)
    assert reference.num_rows
    return frame


def written(path: Path, **declared: Any) -> Table:
    """Return a table of all data types with logs: updates, older updates, deletes, inserts and null values."""
    table = make(path, **declared)
    table.upsert(batch([row(n, version=5) for n in range(40)]))
    table.upsert(batch([row(n, version=7, tags=None, place=None, price=None) for n in range(5, 15)]))
    table.upsert(batch([row(n, version=3) for n in range(10, 20)]))
    table.delete(["k0001", "k0039"])
    table.upsert(batch([row(n, version=6) for n in range(38, 45)]))
    return table


TABLES: dict[str, dict[str, Any]] = {
    "event time": {},
    "commit time": {"ordering": None},
    "one file": {"partition_by": []},
    "version 8": {"options": {"hoodie.write.table.version": "8"}},
    "version 6": {"options": {"hoodie.write.table.version": "6"}},
    "buckets": {"options": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}},
}


@pytest.mark.parametrize("name", TABLES)
def test_spark_returns_the_rows_of_the_in_process_reader(name: str, spark: SparkSession, tmp_path: Path) -> None:
    table = written(tmp_path, **TABLES[name])
    check(spark, table.scan())
    check(spark, table.scan(["ts", "id"]))
    frame = check(spark, table.scan(["id"], "ts >= 6 AND small < -2"))
    assert frame.columns == ["id"]


def test_time_travel_and_incremental_reads_return_the_rows_of_their_version(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = written(tmp_path)
    commits = [instant for instant, _ in table.commits()]
    for instant in commits[1:]:
        check(spark, table.scan(as_of=instant.requested))
    for first, last in ((0, None), (1, 3), (2, None)):
        end = None if last is None else commits[last].completion
        check(spark, table.incremental(begin=commits[first].completion, end=end))


def test_base_files_with_older_types_are_cast(spark: SparkSession, tmp_path: Path) -> None:
    narrow = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("n", pa.int32()), ("f", pa.float32())])
    wide = pa.schema(
        [("id", pa.string()), ("ts", pa.int64()), ("n", pa.int64()), ("f", pa.float64()), ("x", pa.date32())]
    )
    table = make(tmp_path, partition_by=[])
    table.upsert(pa.Table.from_pylist([{"id": i, "ts": 1, "n": 7, "f": 0.5} for i in "abcd"], narrow))
    table.upsert(pa.Table.from_pylist([{"id": "b", "ts": 2, "n": 1 << 40, "f": 0.1, "x": dt.date(2026, 1, 1)}], wide))
    check(spark, table.scan())
    check(spark, table.scan(["x", "n"], "n > 5"))


def test_a_column_named_like_the_metadata_of_spark_is_read(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="ts", table_type="MERGE_ON_READ")
    rows = pa.table({"id": ["a", "b", "c"], "ts": [1, 1, 1], "_metadata": ["x", "y", "z"]})
    table.bulk_insert(rows)
    table.upsert(rows.slice(1, 1).set_column(1, "ts", pa.array([2])))
    check(spark, table.scan())


def test_only_one_of_repeated_base_rows_is_replaced(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path)
    table.bulk_insert(batch([row(n) for n in (1, 1, 4, 4, 2)]))
    table.upsert(batch([row(1, version=2), row(2, version=2)]))
    assert len(check(spark, table.scan(["id", "ts"])).collect()) == 5


def test_rows_with_values_of_several_versions_are_merged_by_workers(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, partial_update="IGNORE_DEFAULTS")
    table.upsert(batch([row(n) for n in range(9)]))
    table.upsert(batch([row(3, version=2, tags=None)]))
    frame = table.scan().to_spark(spark)
    assert not joins(frame)
    assert canonical_rows(frame.toArrow()) == canonical_rows(table.scan().to_arrow())


def test_few_columns_are_merged_by_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = written(tmp_path)
    monkeypatch.setattr(changed_rows, "LEAST_SHARE", 0.5)
    assert not joins(table.scan(["id", "ts"]).to_spark(spark)) and joins(table.scan().to_spark(spark))


def test_slices_with_relatively_large_logs_are_merged_by_workers(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = written(tmp_path)
    monkeypatch.setattr(changed_rows, "MOST_LOG_SHARE", 1e-3)
    assert not joins(table.scan().to_spark(spark))
    monkeypatch.undo()
    assert not joins(table.scan().to_spark(spark)), "the files are small"


def test_spark_reads_needed_columns_and_workers_send_changed_rows_once(spark: SparkSession, tmp_path: Path) -> None:
    table = make(tmp_path, partition_by=[])
    table.bulk_insert(batch([row(n) for n in range(1_000)]))
    table.upsert(batch([row(n, version=2) for n in range(7)]))
    frame = table.scan(["id", "ts"], "ts >= 1").to_spark(spark)
    assert "PushedFilters: [IsNotNull(ts), GreaterThanOrEqual(ts,1)]" in plan_of(frame)
    assert "FileScan parquet [id#" in plan_of(frame) and "price" not in plan_of(frame)
    first = next_job(spark)
    assert [frame.count(), frame.where(col("ts") == 2).count()] == [1_000, 7]
    added = [stage for stage in stages(spark, first) if stage[0]]
    assert [records for _, records in added if records == 7] == [7], "workers ran once, for both queries"
    assert max(tasks for tasks, _ in added) <= 3


def next_job(spark: SparkSession) -> int:
    """Return the id of the next job."""
    spark.range(1).count()
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return 1 + max(int(jobs.apply(number).jobId()) for number in range(jobs.size()))


def stages(spark: SparkSession, first_job: int) -> list[tuple[int, int]]:
    """Return completed tasks and written shuffle records of each stage of the jobs from `first_job` on.

    Spark skips stages that have run. Once a session has had a thousand stages, it forgets skipped ones at once.
    """
    context = spark.sparkContext._jsc.sc()
    # The store gets the events of jobs in another thread.
    context.listenerBus().waitUntilEmpty(60_000)
    store = context.statusStore()
    jobs = store.jobsList(None)
    numbers = [jobs.apply(n).stageIds() for n in range(jobs.size()) if jobs.apply(n).jobId() >= first_job]
    ids = {ids.apply(number) for ids in numbers for number in range(ids.size())}
    return [_work_of(store, number) for number in sorted(ids)]


def _work_of(store: Any, stage: int) -> tuple[int, int]:
    try:
        data = store.lastStageAttempt(stage)
    except Py4JJavaError as error:
        if "No stage with id" not in str(error):
            raise
        return 0, 0
    return data.numCompleteTasks(), data.shuffleWriteRecords()
