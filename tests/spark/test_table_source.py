"""Incremental ETL: tables are derived from the changes of other tables, and equal their full recomputation."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from lakehouse.core.operations.write import staged
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.run import CHECKPOINT, DEAD_LETTERS, run_ingest
from lakehouse.platform.sources.tables.table_source import TABLES
from lakehouse.spark import changes, engine, table_changes
from lakehouse.spark.transforms import is_repeatable
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.contracts.lineage import LINEAGE
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

pytestmark = pytest.mark.spark


class Etl:
    """Source tables and derived tables below one folder."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        #: The tables that stay open between runs.
        self.tables: OpenedTables | None = None

    def source(self, name: str, *, key: str = "id", **declared: Any) -> Table:
        """Create a source table with change data."""
        return Table.create(str(self.root / name), name=name, record_key=key, cdc="DATA_BEFORE_AFTER", **declared)

    def spec(self, name: str, ingest: Mapping[str, Any], *, key: str = "id", **more: Any) -> TableSpec:
        """Return the spec of a derived table."""
        whole = {"table": name, "location": name, "record_key": key, "ingest": {"source": "table", **ingest}, **more}
        return parse_spec(json.dumps(whole), source=f"{name}.yaml")

    def run(self, spec: TableSpec, **command: Any) -> IngestReport:
        """Run the ingestion of a derived table once."""
        wanted = IngestCommand(table=spec.table, **command)
        return run_ingest(self.spark, spec, wanted, environ={"LAKEHOUSE_HOME": str(self.root)}, tables=self.tables)

    def table(self, name: str) -> Table:
        """Open a table."""
        return Table.open(str(self.root / name))

    def rows(self, name: str, *columns: str) -> list[tuple[Any, ...]]:
        """Return the rows of a table, sorted."""
        found = self.table(name).scan(columns=list(columns)).to_arrow().to_pylist()
        return sorted(tuple(row[column] for column in columns) for row in found)


@pytest.fixture
def etl(spark: SparkSession, tmp_path: Path) -> Etl:
    return Etl(spark, tmp_path)


def rows(*values: tuple[Any, ...], columns: str = "id city fare") -> pa.Table:
    """Return rows as a table."""
    return pa.table({name: [value[n] for value in values] for n, name in enumerate(columns.split())})


def test_changed_rows_are_transformed_by_sql_since_the_last_commit(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2)))
    sql = "SELECT id, upper(city) AS city, fare * 100 AS cents FROM raw WHERE fare > 0"
    spec = etl.spec("clean", {"tables": {"raw": "raw"}, "transform": {"sql": sql}})
    first = etl.run(spec)
    assert (first.status, first.rows) == (JobStatus.COMMITTED, 2)
    assert etl.run(spec).status is JobStatus.NOTHING_TO_DO
    raw.upsert(rows(("b", "Bern", 3), ("c", "Lima", 4)))
    raw.upsert(rows(("c", "Lima", 5)))
    second = etl.run(spec)
    assert (second.rows, second.inserts, second.updates) == (2, 1, 1)
    assert etl.rows("clean", "id", "city", "cents") == [("a", "ROME", 100), ("b", "BERN", 300), ("c", "LIMA", 500)]
    extra = etl.table("clean").commits()[-1][1].extra
    newest = raw.commits()[-1][0].completed
    assert json.loads(extra[CHECKPOINT])["commits"] == {"raw": newest}
    assert json.loads(extra[TABLES])["raw"]["commits"] == 2


def test_deletes_filters_and_changed_keys_of_source_rows_delete_rows(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2), ("c", "Bern", 3), ("d", "Lima", 4)))
    sql = "SELECT concat(id, '-', city) AS id, fare FROM raw WHERE fare > 0"
    spec = etl.spec("clean", {"tables": {"raw": "raw"}, "transform": {"sql": sql}})
    etl.run(spec)
    raw.delete(["a"])
    raw.upsert(rows(("b", "Oslo", -2), ("c", "Wien", 3)))
    report = etl.run(spec)
    assert report.deletes == 3
    assert etl.rows("clean", "id", "fare") == [("c-Wien", 3), ("d-Lima", 4)]


@pytest.mark.parametrize("changes", ["latest", "groups"])
def test_deletes_reach_a_table_with_required_columns_an_ordering_and_partitions(etl: Etl, changes: str) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 5), ("b", "Rome", 6), ("c", "Oslo", 7)))
    fields = [pa.field("id", pa.string()), pa.field("city", pa.string()), pa.field("fare", pa.int64())]
    schema = pa.schema([*fields, pa.field("note", pa.string(), nullable=False), pa.field("more", pa.string())])
    declared: dict[str, Any] = {"record_key": "id", "partition_by": "city", "ordering": "fare"}
    Table.create(str(etl.root / "clean"), name="clean", schema=schema, **declared)
    sql = "SELECT ID AS id, city, fare, concat('note ', id) AS note, upper(city) AS more FROM raw"
    settings: dict[str, Any] = {"tables": {"raw": "raw"}, "transform": {"sql": sql}}
    if changes == "groups":
        settings |= {"changes": "groups", "group_by": "city"}
    spec = etl.spec("clean", settings, partition_by="city", ordering="fare")
    etl.run(spec)
    raw.delete(["a"])
    raw.upsert(rows(("b", "Oslo", 6)))
    report = etl.run(spec)
    assert report.deletes == 2
    assert etl.rows("clean", "id", "city", "note", "more") == [
        ("b", "Oslo", "note b", "OSLO"),
        ("c", "Oslo", "note c", "OSLO"),
    ]


def test_deletes_of_large_inputs_yield_to_the_rows_of_their_keys(etl: Etl, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several tasks read the batch, write the files, and read the changes, as for large inputs.
    monkeypatch.setattr(engine, "SMALL_BYTES", -1)
    monkeypatch.setattr(staged, "_SEARCHED_HERE", -1)
    monkeypatch.setattr(staged, "_REWRITTEN_HERE", -1)
    monkeypatch.setattr(changes, "_BYTES_HERE", -1)
    for name in ("_STORED_HERE", "SMALL_BYTES"):
        monkeypatch.setattr(table_changes, name, -1)
    raw = etl.source("raw")
    raw.upsert(rows(*[(str(n), f"city {n % 3}", n) for n in range(60)]))
    declared: dict[str, Any] = {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT * FROM raw WHERE fare >= 0"}}
    clean = etl.spec("clean", declared, ordering="fare", options={"hoodie.table.cdc.enabled": "true"})
    sql = "SELECT city, count(*) AS trips FROM clean GROUP BY city"
    grouped = {"tables": {"clean": "clean"}, "changes": "groups", "group_by": "city", "transform": {"sql": sql}}
    totals = etl.spec("totals", grouped, key="city")
    for spec in (clean, totals):
        etl.run(spec)
    # Ten rows are filtered, twenty have smaller ordering values than the stored rows, ten larger ones, one is deleted.
    raw.upsert(rows(*[(str(n), f"city {n % 2}", n - 40) for n in range(30, 60)]))
    raw.upsert(rows(*[(str(n), "city 3", n + 100) for n in range(1, 11)]))
    raw.delete(["0"])
    assert etl.run(clean).deletes == 11
    assert etl.run(totals).status is JobStatus.COMMITTED
    kept = [(n + 100, "city 3") for n in range(1, 11)]
    kept += [(n, f"city {n % 3}") for n in (*range(11, 30), *range(40, 60))]
    assert etl.rows("clean", "fare", "city") == sorted(kept)
    assert etl.rows("totals", "city", "trips") == sorted(Counter(city for _, city in kept).items())


def test_deletes_of_the_transform_itself_do_not_yield(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2), ("c", "Bern", 3)))
    sql = "SELECT id, city, fare, fare < 0 AS _hoodie_is_deleted FROM raw WHERE fare < 9"
    spec = etl.spec("clean", {"tables": {"raw": "raw"}, "transform": {"sql": sql}})
    etl.run(spec)
    raw.upsert(rows(("a", "Rome", -1), ("b", "Oslo", 9), ("c", "Bern", 4)))
    assert etl.run(spec).deletes == 2
    assert etl.rows("clean", "id", "fare") == [("c", 4)]


def test_row_that_had_no_key_before_its_change_is_not_deleted(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "", 1), ("b", "Oslo", 2)))
    declared = {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT city, fare FROM raw"}, "max_bad_records": 1}
    spec = etl.spec("clean", declared, key="city")
    assert etl.run(spec).bad_records == 1
    raw.upsert(rows(("a", "Rome", 1)))
    # The first run after bad records looks for them again, the next one does not.
    assert (etl.run(spec).bad_records, etl.rows("clean", "city")) == (0, [("Oslo",), ("Rome",)])


def test_group_by_of_a_column_that_the_source_lacks_is_refused(etl: Etl) -> None:
    trips = etl.source("trips")
    trips.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2)))
    sql = "SELECT city AS town, sum(fare) AS fare FROM trips GROUP BY city"
    settings = {"changes": "groups", "group_by": "town", "transform": {"sql": sql}}
    spec = etl.spec("totals", {"tables": {"trips": "trips"}, **settings}, key="town")
    etl.run(spec)
    trips.upsert(rows(("b", "Rome", 2)))
    with pytest.raises(UserError, match=r"ingest.group_by town: the table has no column 'town', .* id, city, fare"):
        etl.run(spec)
    assert etl.rows("totals", "town", "fare") == [("Oslo", 2), ("Rome", 1)]


def test_deletes_are_kept_with_deletes_ignore_and_without_change_data(etl: Etl) -> None:
    raw = Table.create(str(etl.root / "raw"), name="raw", record_key="id")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2)))
    declared: dict[str, Any] = {"tables": {"raw": "raw"}, "select": ["*", "fare + 1 AS more"]}
    with pytest.raises(UserError, match=r"keeps no change data, which deletes: apply .* deletes: ignore"):
        etl.run(etl.spec("clean", declared))
    spec = etl.spec("clean", {**declared, "deletes": "ignore"})
    etl.run(spec)
    raw.delete(["a"])
    raw.upsert(rows(("b", "Oslo", 3)))
    etl.run(spec)
    assert etl.rows("clean", "id", "more") == [("a", 2), ("b", 4)]


def test_groups_with_changes_are_computed_again_and_lost_rows_deleted(etl: Etl) -> None:
    trips, payments = etl.source("trips"), etl.source("payments")
    trips.upsert(rows(("a", "Rome", 1), ("b", "Rome", 2), ("c", "Oslo", 3), ("d", None, 4)))
    payments.upsert(rows(("p1", "Rome", 10), ("p2", "Lima", 20)))
    sql = """SELECT city, sum(t.fare) AS fare, max(p.paid) AS paid FROM trips t FULL JOIN
        (SELECT city AS city2, sum(fare) AS paid FROM payments GROUP BY city) p ON t.city <=> p.city2
        WHERE t.city IS NOT NULL GROUP BY city"""
    settings = {"changes": "groups", "group_by": "city", "transform": {"sql": sql}}
    spec = etl.spec("totals", {"tables": {"trips": "trips", "payments": "payments"}, **settings}, key="city")
    etl.run(spec)
    assert etl.rows("totals", "city", "fare", "paid") == [("Oslo", 3, None), ("Rome", 3, 10)]
    trips.upsert(rows(("b", "Lima", 2), ("c", "Rome", 5)))
    etl.run(spec)
    assert etl.rows("totals", "city", "fare", "paid") == [("Lima", 2, 20), ("Rome", 6, 10)]
    trips.delete(["b"])
    payments.upsert(rows(("p1", "Oslo", 10)))
    etl.run(spec)
    assert etl.rows("totals", "city", "fare", "paid") == [("Rome", 6, None)]


def test_groups_without_a_value_and_of_another_type_are_computed_again(etl: Etl) -> None:
    trips = etl.source("trips")
    trips.upsert(rows(("a", "1", 1), ("b", "2", 2), ("c", None, 3)))
    sql = "SELECT int(city) AS city, coalesce(city, 'none') AS id, sum(fare) AS fare FROM trips GROUP BY city"
    settings = {"changes": "groups", "group_by": "city", "transform": {"sql": sql}}
    spec = etl.spec("totals", {"tables": {"trips": "trips"}, **settings})
    etl.run(spec)
    trips.upsert(rows(("b", "1", 2), ("c", "3", 3)))
    etl.run(spec)
    assert etl.rows("totals", "id", "city", "fare") == [("1", 1, 3), ("3", 3, 3)]


def test_incremental_runs_start_few_spark_jobs(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(*[(str(n), "RomeOslo"[n % 2 * 4 :][:4], n) for n in range(100)]))
    clean = etl.spec(
        "clean",
        {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT id, upper(city) AS city, fare FROM raw"}},
        options={"hoodie.table.cdc.enabled": "true"},
    )
    sql = "SELECT city, sum(fare) AS fare FROM clean GROUP BY city"
    totals = etl.spec(
        "totals",
        {"tables": {"clean": "clean"}, "changes": "groups", "group_by": "city", "transform": {"sql": sql}},
        key="city",
    )
    for spec in (clean, totals):
        etl.run(spec)
    raw.upsert(rows(("1", "Bern", 1), ("2", "Rome", 20)))
    found = []
    for spec in (clean, totals):
        before = _last_job(etl.spark)
        assert etl.run(spec).status is JobStatus.COMMITTED
        found.append(_last_job(etl.spark) - before)
    # This process looks few keys up and rewrites small files, and the rows to delete need no join.
    assert found == [1, 1]


def test_row_without_key_in_a_later_run_is_set_aside_and_the_other_rows_are_written(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2)))
    sql = "SELECT nullif(city, '') AS id, fare FROM raw"
    declared: dict[str, Any] = {"tables": {"raw": "raw"}, "transform": {"sql": sql}}
    strict = etl.spec("clean", declared)
    etl.run(strict)
    raw.upsert(rows(("b", "", 3), ("c", "Lima", 4)))
    before = etl.table("clean").commits()
    with pytest.raises(UserError, match=r"1 bad record.*no record key: id is null or empty"):
        etl.run(strict)
    assert etl.table("clean").commits() == before
    lenient = etl.spec("clean", {**declared, "max_bad_records": 1})
    report = etl.run(lenient)
    assert (report.bad_records, report.inserts, report.deletes) == (1, 1, 1)
    assert etl.rows("clean", "id", "fare") == [("Lima", 4), ("Rome", 1)]
    letters = etl.table("clean").commits()[-1][1].extra[DEAD_LETTERS]
    (line,) = [text for path in Path(letters).rglob("*.json") for text in path.read_text().splitlines()]
    assert json.loads(line)["reason"] == "no record key: id is null or empty"
    # After bad records the next run looks for them first, and the run after it does not.
    for fare in (5, 6):
        raw.upsert(rows(("c", "Lima", fare)))
        assert (report := etl.run(lenient)).bad_records == 0 and report.updates == 1


def test_wrong_value_that_only_the_write_meets_ends_the_run_with_its_cause(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1)))
    spec = etl.spec(
        "clean", {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT id, 100 DIV fare AS share FROM raw"}}
    )
    etl.run(spec)
    raw.upsert(rows(("b", "Oslo", 0)))
    with pytest.raises(UserError, match="Division by zero"):
        etl.run(spec)
    assert etl.rows("clean", "id", "share") == [("a", 100)]


@pytest.mark.parametrize(
    ("sql", "is_same"),
    [
        ("SELECT id, sum(n) AS n FROM (SELECT * FROM t UNION ALL SELECT * FROM t) GROUP BY id", True),
        ("SELECT DISTINCT a.id FROM t a LEFT ANTI JOIN (SELECT id FROM t WHERE n > 3) b USING (id)", True),
        ("SELECT id, current_timestamp() AS at FROM t WHERE n IN (SELECT max(n) FROM t)", True),
        (f"SELECT {', '.join(f'id AS c{n}' for n in range(40))} FROM t", False),
        ("SELECT id, rand() AS n FROM t", False),
        ("SELECT id, first(n) AS n FROM t GROUP BY id", False),
        ("SELECT max_by(id, n) AS id FROM t GROUP BY n", False),
        ("SELECT id FROM t LIMIT 3", False),
        ("SELECT id FROM t WHERE n IN (SELECT n FROM t LIMIT 3)", False),
        ("SELECT id, row_number() OVER (PARTITION BY n ORDER BY id) AS n FROM t", False),
        ("SELECT * FROM t TABLESAMPLE (10 PERCENT)", False),
    ],
)
def test_plan_shows_whether_a_query_gives_the_same_rows_each_time(spark: SparkSession, sql: str, is_same: bool) -> None:
    spark.range(10).selectExpr("id", "id % 5 AS n").createOrReplaceTempView("t")
    assert is_repeatable(spark.sql(sql)) is is_same


def _last_job(spark: SparkSession) -> int:
    """Return the highest id of a Spark job so far."""
    jobs = spark.sparkContext._jsc.sc().statusStore().jobsList(None)
    return max((jobs.apply(number).jobId() for number in range(jobs.size())), default=-1)


def test_changes_are_joined_with_the_snapshot_of_another_table(etl: Etl) -> None:
    raw, cities = etl.source("raw"), etl.source("cities", key="city")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2)))
    cities.upsert(rows(("Rome", "IT"), ("Oslo", "NO"), columns="city country"))
    sql = "SELECT id, country, fare FROM raw JOIN cities USING (city)"
    spec = etl.spec("joined", {"tables": {"raw": "raw"}, "join": {"cities": "cities"}, "transform": {"sql": sql}})
    etl.run(spec)
    cities.upsert(rows(("Rome", "VA"), columns="city country"))
    assert etl.run(spec).status is JobStatus.NOTHING_TO_DO
    raw.upsert(rows(("c", "Rome", 3)))
    raw.delete(["b"])
    etl.run(spec)
    assert etl.rows("joined", "id", "country", "fare") == [("a", "IT", 1), ("c", "VA", 3)]


def test_every_change_reaches_the_transform_with_its_type_and_commit(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1), ("b", "Oslo", 2)))
    sql = "SELECT concat_ws('-', id, _commit_time, _change_type) AS id, id AS of, fare, _change_type AS kind FROM raw"
    spec = etl.spec(
        "log", {"tables": {"raw": "raw"}, "changes": "cdc", "operation": "insert", "transform": {"sql": sql}}
    )
    etl.run(spec)
    raw.upsert(rows(("a", "Rome", 3)))
    raw.delete(["b"])
    etl.run(spec)
    raw.upsert(rows(("b", "Oslo", 4)))
    etl.run(spec)
    assert etl.rows("log", "of", "fare", "kind") == [
        ("a", 1, "insert"),
        ("a", 1, "update_preimage"),
        ("a", 3, "update_postimage"),
        ("b", 2, "delete"),
        ("b", 2, "insert"),
        ("b", 4, "insert"),
    ]


def test_full_refresh_replaces_the_rows_after_the_source_was_restored(etl: Etl) -> None:
    raw = etl.source("raw", ordering="fare")
    raw.upsert(rows(("a", "Rome", 1)))
    first = raw.commits()[-1][0].requested
    raw.upsert(rows(("a", "Rome", 5), ("b", "Oslo", 2)))
    spec = etl.spec("clean", {"tables": {"raw": "raw"}}, ordering="fare")
    etl.run(spec)
    raw.restore(first)
    with pytest.raises(UserError, match=r"restored, rolled back or created again.*--full-refresh"):
        etl.run(spec)
    etl.run(spec, full_refresh=True)
    assert etl.rows("clean", "id", "fare") == [("a", 1)]
    assert etl.run(spec).status is JobStatus.NOTHING_TO_DO
    raw.upsert(rows(("c", "Bern", 3)))
    etl.run(spec)
    assert etl.rows("clean", "id", "fare") == [("a", 1), ("c", 3)]


def test_runs_that_keep_their_tables_open_see_what_other_processes_did(etl: Etl) -> None:
    etl.tables = OpenedTables()
    raw = etl.source("raw", ordering="fare", table_type="MERGE_ON_READ")
    spec = etl.spec("clean", {"tables": {"raw": "raw"}, "operation": "upsert"}, ordering="fare")
    for fare in range(4):
        raw.upsert(rows(("a", "Rome", fare), (f"k{fare}", "Oslo", fare)))
        assert etl.run(spec).status is JobStatus.COMMITTED
        assert etl.rows("clean", "id", "fare") == etl.rows("raw", "id", "fare")
        # Other processes service both tables between the runs.
        etl.table("raw").services.compaction.run(force=True)
        etl.table("clean").services.clean.run()
        assert etl.run(spec).status is JobStatus.NOTHING_TO_DO
    # A commit of another writer to the target keeps the checkpoint.
    etl.table("clean").upsert(rows(("own", "Bern", 1)))
    raw.delete(["k1"])
    etl.run(spec)
    assert etl.rows("clean", "id", "fare") == [("a", 3), ("k0", 0), ("k2", 2), ("k3", 3), ("own", 1)]
    shutil.rmtree(etl.root / "raw")
    etl.source("raw", ordering="fare", table_type="MERGE_ON_READ").upsert(rows(("new", "Lima", 9)))
    with pytest.raises(UserError, match=r"created again.*--full-refresh"):
        etl.run(spec)
    shutil.rmtree(etl.root / "clean")
    assert etl.run(spec).status is JobStatus.COMMITTED
    assert etl.rows("clean", "id", "fare") == [("new", 9)]


def test_cleaned_history_is_refused_with_the_way_out(etl: Etl) -> None:
    raw = etl.source("raw", options={"hoodie.clean.commits.retained": "1"})
    raw.upsert(rows(("a", "Rome", 0)))
    spec = etl.spec("clean", {"tables": {"raw": "raw"}})
    etl.run(spec)
    for fare in range(1, 6):
        raw.upsert(rows(("a", "Rome", fare)))
    raw.services.clean.run()
    with pytest.raises(UserError, match=r"cleaned.*run once with --full-refresh"):
        etl.run(spec)
    etl.run(spec, full_refresh=True)
    assert etl.rows("clean", "id", "fare") == [("a", 5)]


def test_batches_that_the_transform_empties_move_the_checkpoint(etl: Etl) -> None:
    raw = etl.source("raw")
    spec = etl.spec("clean", {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT * FROM raw WHERE fare > 0"}})
    assert etl.run(spec).status is JobStatus.NOTHING_TO_DO
    raw.upsert(rows(("b", "Oslo", -1)))
    assert etl.run(spec).status is JobStatus.COMMITTED
    assert etl.run(spec).status is JobStatus.NOTHING_TO_DO
    raw.upsert(rows(("a", "Rome", 1)))
    assert etl.run(spec).rows == 1
    assert etl.rows("clean", "id") == [("a",)]


def test_rows_without_a_key_of_a_transform_become_dead_letters(etl: Etl) -> None:
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1), ("b", None, 2)))
    declared = {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT city, fare FROM raw"}}
    with pytest.raises(UserError, match=r"1 bad record.*no record key: city.*in changes of raw"):
        etl.run(etl.spec("clean", declared, key="city"))
    report = etl.run(etl.spec("clean", {**declared, "max_bad_records": 1}, key="city"))
    assert (report.rows, report.bad_records) == (1, 1)
    extra = etl.table("clean").commits()[-1][1].extra
    letters = open_storage(extra[DEAD_LETTERS])
    lines = [json.loads(line) for file in letters.list("") for line in letters.get(file.path).decode().splitlines()]
    assert [json.loads(letter["record"]) for letter in lines] == [{"city": None, "fare": 2}]


def masked(views: Mapping[str, DataFrame]) -> DataFrame:
    """Hide the city; a transform of the tests."""
    return next(iter(views.values())).selectExpr("id", "sha2(city, 256) AS city", "fare")


def test_function_transforms_tables_and_files(etl: Etl) -> None:
    function = {"function": f"{__name__}:masked"}
    raw = etl.source("raw")
    raw.upsert(rows(("a", "Rome", 1)))
    etl.run(etl.spec("clean", {"tables": {"raw": "raw"}, "transform": function}))
    (etl.root / "landing").mkdir()
    (etl.root / "landing" / "one.json").write_text('{"id": "a", "city": "Rome", "fare": 1}\n')
    etl.run(etl.spec("filed", {"source": "files", "path": "landing", "transform": function}))
    hidden = hashlib.sha256(b"Rome").hexdigest()
    assert etl.rows("clean", "id", "city", "fare") == etl.rows("filed", "id", "city", "fare") == [("a", hidden, 1)]
    with pytest.raises(UserError, match="returned int; it must return a DataFrame"):
        etl.run(etl.spec("other", {"tables": {"raw": "raw"}, "transform": {"function": "builtins:len"}}))
    with pytest.raises(UserError, match=r"ingest\.transform\.sql: .*no_such_column"):
        etl.run(etl.spec("other", {"tables": {"raw": "raw"}, "transform": {"sql": "SELECT no_such_column FROM raw"}}))


def traced(report: IngestReport) -> dict[str, Any]:
    """Return the sources of each column of a report by view, or why they are unknown."""
    assert report.status is JobStatus.COMMITTED and report.lineage is not None
    (made,) = report.lineage.outputs
    columns = {c.name: c.unknown or [f"{s.name}.{s.field}:{s.kind}" for s in c.sources] for c in made.columns}
    return {**columns, "rows": [f"{one.name}.{one.field}:{one.kind}" for one in made.influences]}


def test_report_of_a_run_has_the_lineage_of_its_transform_if_it_is_wanted(
    etl: Etl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LINEAGE, "true")
    etl.source("raw").upsert(rows(("a", "Rome", 1)))
    raw: dict[str, Any] = {"tables": {"raw": "raw"}}
    sql = "SELECT id, upper(city) AS city, 1 AS one FROM raw WHERE fare > 0"
    made = {"city": ["raw.city:TRANSFORMATION"], "id": ["raw.id:IDENTITY"]}
    assert traced(etl.run(etl.spec("by_sql", {**raw, "transform": {"sql": sql}}))) == {
        **made,
        "one": [],
        "rows": ["raw.fare:FILTER"],
    }
    selected = etl.run(etl.spec("by_select", {**raw, "select": ["id", "upper(city) AS city"]}))
    assert traced(selected) == {**made, "rows": []}
    assert etl.run(etl.spec("copied", raw)).lineage is None, "the caller knows that columns are copied"
    function = {"transform": {"function": f"{__name__}:masked"}}
    by_function = etl.run(etl.spec("by_function", {**raw, **function}))
    assert traced(by_function)["*"] == "the transform is a Python function"


def test_failed_analysis_of_lineage_does_not_fail_the_run(
    etl: Etl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(LINEAGE, "true")

    def fails(*given: Any) -> None:
        raise RuntimeError("the plan has no JSON")

    monkeypatch.setattr("lakehouse.platform.ingest.lineage.query_lineage", fails)
    etl.source("raw").upsert(rows(("a", "Rome", 1)))
    sql = {"transform": {"sql": "SELECT id, fare FROM raw"}}
    report = etl.run(etl.spec("clean", {"tables": {"raw": "raw"}, **sql}))
    assert traced(report)["*"] == "the analysis failed: RuntimeError"
    assert "the plan has no JSON" in caplog.text
    assert etl.rows("clean", "id", "fare") == [("a", 1)]
