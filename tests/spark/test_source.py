"""`format("lakehouse")`: batch reads with conditions and selected columns, and streams of commits.

All reads use relations that other queries used before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.errors import CorruptTableError
from lakehouse.spark import register
from tests.support.spark import used_relation

pytestmark = pytest.mark.spark


def _rows(first: int, count: int, *, value: float = 1.0) -> pa.Table:
    ids = list(range(first, first + count))
    return pa.table(
        {
            "id": [f"k{i:04d}" for i in ids],
            "day": [f"2026-01-{1 + i % 3:02d}" for i in ids],
            "ts": pa.array(ids, pa.int64()),
            "value": pa.array([value] * count, pa.float64()),
        }
    )


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(
        str(tmp_path / "t"), name="t", record_key=["id"], partition_by=["day"], ordering="ts", schema=_rows(0, 1).schema
    )
    made.upsert(_rows(0, 30))
    return made


def _read(spark: Any, table: Table, **options: str) -> Any:
    return used_relation(spark, table.location, **options)


def test_batch_read_returns_meta_and_data_columns(spark: Any, table: Table) -> None:
    frame = _read(spark, table)
    assert frame.columns[:2] == ["_hoodie_commit_time", "_hoodie_commit_seqno"]
    assert frame.count() == 30


def test_filters_and_conditions_have_the_same_rows(spark: Any, table: Table) -> None:
    where = "day = '2026-01-02' AND ts >= 10 AND value IS NOT NULL"
    expected = [i for i in range(10, 30) if i % 3 == 1]
    filtered = _read(spark, table).where(where)
    assert sorted(row.ts for row in filtered.collect()) == expected
    assert "Filter (" in filtered._jdf.queryExecution().executedPlan().toString(), "Spark applies filters"
    assert sorted(row.ts for row in _read(spark, table, where=where).collect()) == expected
    assert sorted(row.ts for row in _read(spark, table, where="day = '2026-01-02'").where("ts > 20").collect()) == [
        i for i in range(21, 30) if i % 3 == 1
    ]


def test_condition_on_a_column_that_is_not_selected_applies(spark: Any, table: Table) -> None:
    frame = _read(spark, table, columns="id", where="ts = 7")
    assert [tuple(row) for row in frame.collect()] == [("k0007",)]
    narrow = spark.read.format("lakehouse").schema("id string").option("where", "ts = 7").load(table.location)
    assert [tuple(row) for row in narrow.collect()] == [("k0007",)]


@pytest.mark.parametrize(
    ("where", "message"),
    [("dya = '2026-01-02'", "Did you mean 'day'"), ("ts >", "ends too early"), ("ts = 'x'", "is not a value of type")],
)
def test_condition_that_cannot_be_read_is_refused_at_load(spark: Any, table: Table, where: str, message: str) -> None:
    register(spark)
    with pytest.raises(Exception, match=message):
        spark.read.format("lakehouse").option("where", where).load(table.location)


def test_condition_applies_to_incremental_reads(spark: Any, table: Table) -> None:
    table.upsert(_rows(25, 10, value=2.0))
    options = {"hoodie.datasource.query.type": "incremental"}
    assert sorted(row.ts for row in _read(spark, table, where="ts > 30", **options).collect()) == [31, 32, 33, 34]


def test_columns_option_and_schema_both_prune_columns(spark: Any, table: Table) -> None:
    assert _read(spark, table, columns="id, value").columns == ["id", "value"]
    narrow = spark.read.format("lakehouse").schema("id string, ts long").load(table.location)
    assert narrow.columns == ["id", "ts"]
    assert narrow.where("ts = 7").collect()[0].id == "k0007"


def test_time_travel_and_incremental_use_hudis_option_names(spark: Any, table: Table) -> None:
    first = table.commits()[-1][0]
    table.upsert(_rows(25, 10, value=2.0))
    assert _read(spark, table).count() == 35
    assert _read(spark, table, **{"as.of.instant": first.requested}).count() == 30
    changed = _read(
        spark,
        table,
        **{
            "hoodie.datasource.query.type": "incremental",
            "hoodie.datasource.read.begin.instanttime": str(first.completed),
        },
    )
    assert sorted(row.ts for row in changed.collect()) == list(range(25, 35))


def test_unknown_option_and_unknown_column_name_the_nearest(spark: Any, table: Table) -> None:
    with pytest.raises(Exception, match=r"as\.of\.instant"):
        _read(spark, table, **{"as.of.instnt": "20260101"}).schema  # noqa: B018
    with pytest.raises(Exception, match="Did you mean 'value'"):
        _read(spark, table, columns="valu").schema  # noqa: B018


def test_scan_to_spark_prunes_files_before_any_is_opened(spark: Any, table: Table) -> None:
    scan = table.scan(where="day = '2026-01-02'")
    assert len(scan.plan().plan.files) == 1
    frame = scan.to_spark(spark)
    assert frame.count() == 10
    assert "FileScan parquet" in frame._jdf.queryExecution().toString()


def test_stream_returns_every_commit_once_across_restarts(spark: Any, table: Table, tmp_path: Path) -> None:
    register(spark)

    def run() -> None:
        query = (
            spark.readStream.format("lakehouse")
            .option("columns", "id,ts,value")
            .option("where", "ts > 1")
            .load(table.location)
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 28, "those that meet the condition"
    table.upsert(_rows(28, 4, value=9.0))
    run()
    run()
    delivered = spark.read.parquet(str(tmp_path / "out"))
    assert delivered.count() == 32
    assert sorted(row.ts for row in delivered.where("value = 9").collect()) == [28, 29, 30, 31]


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_event_time_query_includes_late_events(spark: Any, tmp_path: Path, kind: str) -> None:
    options = {"hoodie.payload.event.time.field": "at", "lakehouse.event_time.lateness": "1h"}
    table = Table.create(str(tmp_path / "e"), name="e", record_key=["id"], table_type=kind, options=options)

    def write(*events: tuple[str, str]) -> None:
        table.upsert(spark.createDataFrame(list(events), "id string, at string").selectExpr("id", "timestamp(at) at"))

    write(("a", "2025-02-28T20:00:00Z"), ("b", "2025-02-28T21:00:00Z"))
    write(("c", "2025-03-01T03:00:00Z"))
    times = [stat.event_time for _, metadata in table.commits() for stat in metadata.stats]
    assert times == [(1_740_772_800_000, 1_740_776_400_000), (1_740_798_000_000, 1_740_798_000_000)]
    assert str(table.watermark().value) == "2025-03-01 02:00:00+00:00"

    def ids(**read: str) -> list[str]:
        return sorted(row.id for row in _read(spark, table, **read).collect())

    assert ids(**{"as.of.event.time": "2025-03-01"}) == ["a", "b"]
    write(("late", "2025-02-28T23:00:00Z"))
    assert ids(**{"as.of.event.time": "2025-03-01T00:00"}) == ["a", "b", "c", "late"]
    assert ids(**{"as.of.event.time": "2025-02-28T20:00Z"}) == []
    assert table.scan(["id"], as_of_event_time="2025-02-28T22:00").to_spark(spark).count() == 2
    assert table.scan(["id"], as_of_event_time="2025-02-28T23:30").to_spark(spark).count() == 4
    with pytest.raises(Exception, match="contradict; give one of them"):
        ids(**{"as.of.event.time": "2025-03-01", "as.of.instant": "20250301"})


@pytest.mark.parametrize("linked", ["partition", "data file"])
@pytest.mark.parametrize("has_metadata", [True, False])
def test_spark_read_refuses_a_data_file_behind_a_link(
    spark: Any, linked: str, has_metadata: bool, tmp_path: Path
) -> None:
    """Spark's own reader would follow the link to a file of another owner with the same name."""
    options = {"hoodie.metadata.enable": str(has_metadata).lower()}
    table = Table.create(str(tmp_path / "l"), name="l", record_key=["id"], partition_by=["day"], options=options)
    table.upsert(_rows(0, 6))
    partition = tmp_path / "l" / "2026-01-01"
    path = partition if linked == "partition" else next(partition.glob("*.parquet"))
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CorruptTableError, match="reached through a symbolic link"):
        Table.open(table.location).scan().to_spark(spark).collect()
