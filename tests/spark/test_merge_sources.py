"""MERGE with DataFrames, and UPDATE and DELETE on a session: executors read, compare and write the rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from lakehouse import NothingToDo, Table
from lakehouse.core.engine.adapters import frame_batches
from lakehouse.core.table.executor_statements import ExecutorRun
from lakehouse.errors import ConflictError, UserError

pytestmark = pytest.mark.spark
STORED = pa.table({"id": pa.array(range(40), pa.int64()), "v": pa.array(range(40), pa.int64())})


WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
ALWAYS = {"lakehouse.statement.driver.bytes": "0"}
SMALL_BUDGET = {**ALWAYS, "lakehouse.write.memory.budget": "20000"}
CLAUSES = {
    "all kinds": lambda merge: (
        merge.when_matched_delete("source.v = 300")
        .when_matched_update({"v": "target.v + source.v", "seq": "source.seq"}, "source.id % 2 = 0")
        .when_not_matched_insert_all("source.v < 900")
        .when_not_matched_insert({"id": "source.id", "day": "source.day", "v": "-1"}, "source.id % 3 = 0")
        .when_not_matched_by_source_update({"v": "target.v - 1"}, "target.id > 5")
        .when_not_matched_by_source_delete("target.id < 3")
    ),
    "deletes": lambda merge: merge.when_matched_delete("target.v > 25"),
}
#: The conditions compare the key and the partition, or another column and an expression that is no equality.
CONDITIONS = ("source.id = target.id AND source.day = target.day", "source.w = target.w AND source.v >= target.v")


def stored(table: Table) -> pa.Table:
    """Return the data columns of the rows, ordered by key."""
    return table.scan(columns=["id", "day", "w", "v", "seq"]).to_arrow().sort_by("id")


@pytest.mark.parametrize(
    ("kind", "on", "clauses", "options"),
    [
        ("COPY_ON_WRITE", CONDITIONS[0], "all kinds", ALWAYS),
        ("MERGE_ON_READ", CONDITIONS[1], "all kinds", SMALL_BUDGET),
        ("MERGE_ON_READ", CONDITIONS[0], "deletes", ALWAYS),
    ],
)
def test_executors_change_the_same_rows_as_one_process(
    spark: SparkSession, tmp_path: Path, kind: str, on: str, clauses: str, options: dict[str, str]
) -> None:
    columns = ("id", "cast(id % 3 AS string) day", "id % 50 w", "id * 10 v", "IF(id < 25, 1L, 9L) seq")
    source = spark.range(20, 120, 1, 3).selectExpr(*columns)
    outcomes, tables = [], []
    for name, rows in (("executors", source), ("process", source.toArrow())):
        table = Table.create(
            str(tmp_path / name), name="t", record_key="id", partition_by="day", ordering="seq", table_type=kind
        )
        # A value of `w` occurs once in the table and twice in the source.
        table.upsert(spark.range(0, 40).selectExpr(*columns[:3], "id v", "5L seq").toArrow())
        merge = CLAUSES[clauses](table.merge(rows, on))
        if on == CONDITIONS[1]:
            with pytest.raises(UserError, match="rows of the source change the row with the key"):
                merge.execute(options=options if name == "executors" else {})
            once = rows.where("id < 70") if name == "executors" else rows.slice(0, 50)
            merge = CLAUSES[clauses](table.merge(once, on))
        outcomes.append(merge.execute(options=options if name == "executors" else {}))
        tables.append(stored(table))
        assert not table.timeline.where(pending=True)
    assert tables[0].equals(tables[1])
    assert outcomes[0].ignored_updates == outcomes[1].ignored_updates
    totals = [outcome.totals for outcome in outcomes]
    assert (totals[0].inserts, totals[0].deletes) == (totals[1].inserts, totals[1].deletes)


def test_small_sources_are_merged_in_the_driver_and_other_rows_never_reach_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", table_type="MERGE_ON_READ")
    table.upsert(STORED)
    source = spark.range(20, 2_000, 1, 3).selectExpr("id", "id * 10 AS v")
    read: list[object] = []

    def observed(frame: object, batch_bytes: int) -> pa.RecordBatchReader:
        read.append(frame)
        return frame_batches(frame, batch_bytes)

    monkeypatch.setattr("lakehouse.core.table.merge.frame_batches", observed)

    def by_key() -> dict[int, int]:
        rows = table.scan(columns=["id", "v"]).to_arrow()
        return dict(zip(*rows.to_pydict().values(), strict=True))

    upsert = table.merge(source, ["id"]).when_matched_update_all().when_not_matched_insert_all()
    upsert.execute()
    expected = {number: number for number in range(20)} | {number: number * 10 for number in range(20, 2_000)}
    assert by_key() == expected
    twice = table.merge(source.union(source), ["id"]).when_matched_update_all().when_not_matched_insert_all()
    with pytest.raises(UserError, match="2 rows of the source have the key"):
        twice.execute()
    assert not read
    for options in (ALWAYS, {"lakehouse.statement.driver.bytes": "1000"}, {}):
        changed = table.merge(source, "source.id = target.id").when_matched_update({"v": "target.v + source.v"})
        changed.execute(options=options)
        expected = {number: v if number < 20 else v + 10 * number for number, v in expected.items()}
        assert by_key() == expected
    # Only the last statement may read its source in the driver.
    assert len(read) == 1
    unequal = table.merge(source, "source.id > target.id + 1970").when_matched_update({"v": "-1"}, "source.id = 1999")
    with pytest.raises(UserError, match="`on` has no equality of columns by which executors can divide it"):
        unequal.execute(options={"lakehouse.write.memory.budget": "40000"})
    unequal.execute(options=ALWAYS)
    assert {number for number, v in by_key().items() if v == -1} == set(range(29))


def test_update_and_delete_on_a_session(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", options=ALWAYS)
    table.upsert(STORED)
    table.update({"v": "v * 100"}, where="id % 2 = 0", spark=spark)
    table.delete_where("v > 20 AND id % 4 = 1", spark=spark)
    rows = dict(zip(*table.scan(columns=["id", "v"]).to_arrow().to_pydict().values(), strict=True))
    expected = {number: number * 100 if number % 2 == 0 else number for number in range(40)}
    assert rows == {number: v for number, v in expected.items() if not (v > 20 and number % 4 == 1)}
    assert isinstance(table.update({"v": "0"}, where="id < 0", spark=spark), NothingToDo)


def test_only_a_statement_without_a_source_is_repeated_after_a_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", options={**WRITERS, **ALWAYS})
    table.upsert(STORED)
    other, original = Table.open(table.location, options=WRITERS), ExecutorRun._stored
    rivals = ["id = 1", "id = 2"]

    def stored_before_another_commit(run: ExecutorRun, *arguments: Any) -> Any:
        changes = original(run, *arguments)
        if rivals:
            other.update({"v": "v + 1000"}, rivals.pop())
        return changes

    monkeypatch.setattr(ExecutorRun, "_stored", stored_before_another_commit)
    merge = table.merge(spark.range(3), ["id"]).when_matched_update({"v": "target.v * 2"})
    with pytest.raises(ConflictError, match="changed file group"):
        merge.execute()
    table.update({"v": "v * 2"}, where="id < 3", spark=spark)
    rows = dict(zip(*table.scan(columns=["id", "v"]).to_arrow().to_pydict().values(), strict=True))
    assert [rows[number] for number in range(4)] == [0, 2002, 2004, 3]


def test_rows_joined_in_spark_are_upserted_and_deleted_by_key(spark: SparkSession, tmp_path: Path) -> None:
    # The way out that errors name for a condition without an equality.
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id")
    table.upsert(STORED)
    source = spark.range(20, 40).selectExpr("id AS least", "id * 10 AS v")
    joined = source.alias("s").join(
        table.scan(columns=["id", "v"]).to_spark(spark).alias("t"), F.expr("t.id > s.least + 17")
    )
    table.upsert(joined.where("t.v < 39").selectExpr("id", "s.v AS v"))
    table.delete(joined.where("t.v = 39").select("id"))
    rows = dict(zip(*table.scan(columns=["id", "v"]).to_arrow().to_pydict().values(), strict=True))
    assert rows == {number: number if number < 38 else 200 for number in range(39)}


def test_updates_that_lose_by_their_ordering_value_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="seq")
    table.upsert(STORED.append_column("seq", pa.array([5] * 40, pa.int64())))
    # Rows in memory are read by one task, the others by several.
    small = spark.createDataFrame([(1, 100, 6), (2, 100, 4), (50, 100, 1)], "id long, v long, seq long")
    large = spark.range(0, 2_000, 1, 3).selectExpr("id", "id * 10 AS v", "IF(id < 30, 3L, 7L) AS seq")
    for source, ignored in ((small, 1), (large, 30), (large, 30)):
        merge = table.merge(source, ["id"]).when_matched_update_all().when_not_matched_insert_all()
        assert merge.execute().ignored_updates == ignored
    lost = small.where("id = 2")
    outcome = table.merge(lost, ["id"]).when_matched_update_all().when_not_matched_insert_all().execute()
    assert outcome.ignored_updates == 1
    rows = dict(zip(*table.scan(columns=["id", "v"]).to_arrow().to_pydict().values(), strict=True))
    assert (rows[1], rows[2], rows[29], rows[30], rows[50]) == (100, 2, 29, 300, 500)
