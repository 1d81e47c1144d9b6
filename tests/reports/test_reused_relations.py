"""Queries of one Spark relation do not change each other's rows, and all of them read one version of the table.

Spark 4.1 stores the planned read of a Python data source in an object that all scans of a relation share
(apache/spark#50340). apache/spark#57752 describes how rows are lost then. Each test here queries relations that other
queries used before, with the setting under which Spark pushes filters into Python data sources.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from tests.support.spark import used_relation

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("n", pa.int64())])
ROWS = [
    {"id": "a", "p": "1", "n": 1},
    {"id": "b", "p": "1", "n": 2},
    {"id": "c", "p": "2", "n": None},
    {"id": "d", "p": "2", "n": 9},
]
QUERY, BEGIN = "hoodie.datasource.query.type", "hoodie.datasource.read.begin.instanttime"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"
#: Statements with several scans of the view `used`, and the ids of their rows.
STATEMENTS = {
    "SELECT id FROM used WHERE id = 'a' UNION ALL SELECT id FROM used": "aabcd",
    "SELECT id FROM used WHERE id NOT IN (SELECT id FROM used WHERE p = '1')": "cd",
    "SELECT concat((SELECT count(*) FROM used WHERE id = 'a'), (SELECT count(*) FROM used)) id": "14",
    "SELECT other.id FROM used JOIN used other ON used.p = other.p WHERE used.n = 2": "ab",
    "SELECT used.id FROM used LEFT ANTI JOIN used other ON used.id = other.id AND other.n > 1": "ac",
    "SELECT id FROM used WHERE n IS NULL OR n > 5": "cd",
    "SELECT id FROM used EXCEPT SELECT id FROM used WHERE n IS NOT NULL": "c",
    "WITH few AS (SELECT * FROM used WHERE id LIKE 'a%') SELECT used.id FROM used CROSS JOIN few": "abcd",
}


def upserted(table: Table, *rows: dict[str, Any]) -> Table:
    table.upsert(pa.Table.from_pylist(list(rows), SCHEMA))
    return table


def created(path: Path) -> Table:
    """Return a merge-on-read table of two partitions, whose second commit writes one row to a log."""
    table = Table.create(
        str(path),
        name="t",
        record_key="id",
        partition_by="p",
        ordering="id",
        table_type="MERGE_ON_READ",
        schema=SCHEMA,
        cdc="DATA_BEFORE_AFTER",
    )
    upserted(table, *[row | {"n": -1} if row["id"] == "b" else row for row in ROWS])
    return upserted(table, ROWS[1])


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """Return a table with the rows `ROWS`."""
    return created(tmp_path_factory.mktemp("reused") / "t")


@pytest.fixture(scope="module")
def used(spark: Any, table: Table) -> Any:
    """Return one relation of the table for all tests of this module."""
    return used_relation(spark, table.location, columns="id,p,n")


@contextmanager
def pushdown(spark: Any, enabled: bool) -> Iterator[None]:
    before = spark.conf.get(PUSHDOWN)
    spark.conf.set(PUSHDOWN, str(enabled).lower())
    try:
        yield
    finally:
        spark.conf.set(PUSHDOWN, before)


def numbers(frame: Any) -> dict[str, int | None]:
    return {row.id: row.n for row in frame.select("id", "n").collect()}


def test_count_of_all_rows_is_right_after_a_filtered_count(spark: Any, used: Any) -> None:
    """apache/spark#50340: pushed filters become part of the read that the next query uses."""
    assert [used.where("id = 'a'").count(), used.count(), used.where("n > 1").count()] == [1, 4, 2]
    assert used.where("p = '2'").where("n IS NULL").count() == 1
    assert used.limit(1).count() == 1, "apache/spark#57752: a limit"
    assert used.count() == 4
    cached = used.where("id = 'a'").cache()
    assert [cached.count(), used.where("id = 'b'").count(), cached.count(), used.count()] == [1, 1, 1, 4]
    cached.unpersist()


@pytest.mark.parametrize(("view", "statements"), [("frame", list(STATEMENTS)), ("SQL", list(STATEMENTS)[:3])])
def test_each_scan_of_a_statement_has_its_own_filter(
    spark: Any, table: Table, used: Any, view: str, statements: list[str]
) -> None:
    """apache/spark#20466, apache/spark#49961: self joins and subqueries scan one relation with different filters."""
    if view == "frame":
        used.createOrReplaceTempView("used")
    else:
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW used USING lakehouse OPTIONS (path '{table.location}')")
    for statement in statements:
        # The view stays the same for all statements.
        assert "".join(sorted(row.id for row in spark.sql(statement).collect())) == STATEMENTS[statement], statement
        assert spark.table("used").count() == 4, statement


def test_aggregates_of_two_conditions_are_not_exchanged(spark: Any, table: Table) -> None:
    """apache/spark#29430: Spark took two scans with different pushed filters for the same scan."""
    one, other = (
        used_relation(spark, table.location, columns="id,p,n", where=f"p = '{p}'").groupBy().agg({"n": "max"})
        for p in "12"
    )
    assert [tuple(row) for row in one.crossJoin(other).collect()] == [(2, 9)]


def test_incremental_read_returns_all_changes_after_a_filtered_read(spark: Any, table: Table) -> None:
    """apache/spark#50340: the same for a range of commits, as rows and as changes."""
    options = {QUERY: "incremental", BEGIN: "earliest"}
    frame = used_relation(spark, table.location, **options)
    assert frame.where("id = 'a'").count() == 1
    assert numbers(frame) == {row["id"]: row["n"] for row in ROWS}
    changes = used_relation(spark, table.location, **options, **{"hoodie.datasource.query.incremental.format": "cdc"})
    assert changes.where("op = 'u'").count() == 1
    assert changes.count() == 5


def test_upsert_of_a_used_frame_stores_all_of_its_rows(spark: Any, used: Any, tmp_path: Path) -> None:
    """apache/spark#50340: a write from a relation stored the rows of an earlier filter only."""
    copy = Table.create(str(tmp_path / "copy"), name="copy", record_key="id", schema=SCHEMA)
    assert used.where("id = 'd'").count() == 1
    copy.upsert(used)
    assert sorted(copy.scan(["id"]).to_arrow().column(0).to_pylist()) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("enabled", [True, False])
def test_queries_of_one_frame_read_the_version_at_load(spark: Any, tmp_path: Path, enabled: bool) -> None:
    """apache/spark#50340: filters decide whether Spark plans again, so a commit must not show in some queries only."""
    table = created(tmp_path / "t")
    old, new = {row["id"]: row["n"] for row in ROWS}, {"a": 100, "e": 5}
    last = {QUERY: "incremental"}
    with pushdown(spark, enabled):
        used, unused = used_relation(spark, table.location), spark.read.format("lakehouse").load(table.location)
        base = spark.read.format("lakehouse").option(QUERY, "read_optimized").load(table.location)
        changed = spark.read.format("lakehouse").options(**last).load(table.location)
        upserted(table, {"id": "a", "p": "1", "n": 100}, {"id": "e", "p": "3", "n": 5})
        table.services.compaction.run(force=True)
        for frame in (used, unused):
            assert numbers(frame.where("n > 0 OR n IS NULL")) == old
            assert numbers(frame) == old
        assert numbers(base) == {**old, "b": -1}
        assert numbers(changed) == {"b": 2}
        # Without a call of `schema`, the first query plans the read of the newest version.
        assert numbers(spark.read.schema("id string, n long").format("lakehouse").load(table.location)) == old | new


def test_frame_of_a_table_without_rows_stays_empty(spark: Any, tmp_path: Path) -> None:
    """apache/spark#50340: the version at load may have no commits."""
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", schema=SCHEMA)
    frame = spark.read.format("lakehouse").load(table.location)
    changed = spark.read.format("lakehouse").options(**{QUERY: "incremental", BEGIN: "earliest"}).load(table.location)
    upserted(table, *ROWS)
    assert [frame.count(), frame.where("id = 'a'").count(), changed.count()] == [0, 0, 0]


def test_frame_whose_files_were_cleaned_is_to_be_loaded_again(spark: Any, tmp_path: Path) -> None:
    """apache/spark#50340: a read of removed files is refused with the way out."""
    options = {"hoodie.clean.commits.retained": "1"}
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", schema=SCHEMA, options=options)
    frame = spark.read.format("lakehouse").load(upserted(table, *ROWS).location)
    for number in range(3):
        upserted(table, ROWS[0] | {"n": number})
    table.services.clean.run(force=True)
    with pytest.raises(Exception, match=r"cleans removed .* load it again"):
        frame.count()
    assert spark.read.format("lakehouse").load(table.location).count() == 4


def test_two_streams_of_one_relation_return_the_rows_of_their_own_filters(
    spark: Any, table: Table, tmp_path: Path
) -> None:
    """apache/spark#49961: streams have no pushed filters, and each query has a reader of its own."""
    source = spark.readStream.format("lakehouse").option("columns", "id,p,n").load(table.location)
    queries = {"few": (source.where("id = 'a'"), 1), "both": (source.where("n > 1").union(source), 6)}
    for name, (rows, _) in queries.items():
        sink = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / f"{name}.offsets"))
        sink.trigger(availableNow=True).start(str(tmp_path / name)).awaitTermination()
    assert {name: spark.read.parquet(str(tmp_path / name)).count() for name in queries} == {
        name: count for name, (_, count) in queries.items()
    }
