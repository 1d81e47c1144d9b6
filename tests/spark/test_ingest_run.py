"""Complete ingest runs: no record is lost or duplicated, and the checkpoint is in the commit that it describes."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.planning.event_time import Watermark
from lakehouse.core.table.table import Table
from lakehouse.demo.sample_data import generate
from lakehouse.errors import ConflictError, UserError
from lakehouse.platform.ingest import run as run_module
from lakehouse.platform.ingest.run import (
    BAD_RECORDS,
    CHECKPOINT,
    DEAD_LETTERS,
    INTERVAL,
    RUN_ID,
    run_ingest,
)
from lakehouse.platform.sources.files.file_source import FILES
from lakehouse.platform.sources.source import SCHEMA
from lakehouse.spec.contracts.job import IngestReport, JobStatus, parse_report
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import PartitionField, TableSpec, load_spec
from tests.support.file_ingest import changed_ingest, file_ingest
from tests.support.s3 import S3Server
from tests.support.shared import shared_dir

pytestmark = pytest.mark.spark
SPECS = Path(__file__).parents[1] / "support" / "specs"


class Ingestion:
    """A spec with a landing folder that several runs ingest."""

    def __init__(self, spark: SparkSession, root: Path, spec: TableSpec, environ: Mapping[str, str] | None = None):
        self.spark, self.root, self.spec = spark, root, spec
        self.landing = root / "landing"
        self.landing.mkdir(exist_ok=True)
        self.environ = {"LAKEHOUSE_HOME": str(root), **(environ or {})}

    def land(self, name: str, *records: object, modified_s: int | None = None) -> Path:
        """Write a file of JSON lines; text is written unchanged."""
        path = self.landing / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records))
        if modified_s is not None:
            os.utime(path, (modified_s, modified_s))
        return path

    def run(self, start: str | None = None, end: str | None = None, **command: Any) -> IngestReport:
        """Run once."""
        wanted = IngestCommand(table="x", interval_start=start, interval_end=end, **command)
        return run_ingest(self.spark, self.spec, wanted, environ=self.environ)

    def change(self, **ingest: Any) -> None:
        """Change the ingest part of the spec."""
        self.spec = replace(self.spec, ingest=changed_ingest(self.spec.ingest, **ingest))

    @property
    def table(self) -> Table:
        """Return the table."""
        return Table.open(self.spec.location.replace("${LAKEHOUSE_HOME}", str(self.root)))

    def rows(self) -> dict[int, object]:
        """Return the rows of the table as a mapping of id to name."""
        rows = self.table.scan(columns=["id", "name"]).to_arrow()
        assert rows.num_rows == len(set(rows.column("id").to_pylist()))
        return dict(zip(rows.column("id").to_pylist(), rows.column("name").to_pylist(), strict=True))

    def extra(self) -> Mapping[str, str]:
        """Return the extra metadata of the newest commit."""
        return self.table.commits()[-1][1].extra


@pytest.fixture
def ingestion(spark: SparkSession, tmp_path: Path) -> Ingestion:
    spec = TableSpec(
        table="t",
        location="${LAKEHOUSE_HOME}/table",
        record_key=("id",),
        schema={"id": "bigint", "name": "string"},
        ingest=file_ingest(path="landing"),
    )
    return Ingestion(spark, tmp_path, spec)


def test_files_are_ingested_once_by_repeated_runs(ingestion: Ingestion) -> None:
    ingestion.land("a.json", {"id": 1, "name": "a"}, {"id": 2, "name": "a"})
    first = ingestion.run(run_id="manual-1")
    assert (first.status, first.rows, first.inserts, first.files) == (JobStatus.COMMITTED, 2, 2, 1)
    assert first.instant == ingestion.table.commits()[-1][0].requested
    assert ingestion.run().status is JobStatus.NOTHING_TO_DO
    ingestion.land("b.json", {"id": 2, "name": "b"}, {"id": 3, "name": "b"})
    second = ingestion.run()
    assert (second.rows, second.inserts, second.updates) == (2, 1, 1)
    assert ingestion.run().status is JobStatus.NOTHING_TO_DO
    assert ingestion.rows() == {1: "a", 2: "b", 3: "b"}
    assert len(ingestion.table.commits()) == 2


def test_commit_stores_checkpoint_and_ingested_files(ingestion: Ingestion) -> None:
    path = ingestion.land("a.json", {"id": 1, "name": "a"})
    ingestion.run(run_id="manual-1")
    extra = ingestion.extra()
    assert json.loads(extra[FILES]) == {"count": 1, "bytes": path.stat().st_size, "names": [str(path)]}
    assert (extra[BAD_RECORDS], extra[RUN_ID]) == ("0", "manual-1")
    assert json.loads(extra[CHECKPOINT])["files"] == 1
    assert extra.keys().isdisjoint({INTERVAL, DEAD_LETTERS, SCHEMA})


def test_file_with_an_old_time_and_rewritten_file_are_ingested(ingestion: Ingestion) -> None:
    ingestion.land("b.json", {"id": 1, "name": "first"}, modified_s=2_000_000)
    ingestion.run()
    ingestion.land("a.json", {"id": 2, "name": "late"}, modified_s=1_000_000)
    assert ingestion.run().inserts == 1
    ingestion.land("b.json", {"id": 1, "name": "again"}, modified_s=2_000_001)
    assert ingestion.run().updates == 1
    assert ingestion.rows() == {1: "again", 2: "late"}


def test_late_files_change_the_version_of_midnight_and_never_decrease_the_watermark(ingestion: Ingestion) -> None:
    ingestion.spec = replace(ingestion.spec, schema={"id": "bigint", "name": "string", "at": "timestamp"})
    ingestion.change(event_time="at", lateness_s=600)
    ingestion.land("a.json", {"id": 1, "name": "a", "at": "2025-02-28T20:00:00Z"})
    evening = ingestion.run()
    ingestion.land("b.json", {"id": 2, "name": "b", "at": "2025-03-01T00:30:00Z"})
    night = ingestion.run()
    before = ingestion.table.version_at("2025-03-01")
    assert before.instant is not None and before.is_clean
    assert before.instant.requested == evening.instant
    assert before.first_later is not None and before.first_later.requested == night.instant
    assert before.watermark == datetime(2025, 3, 1, 0, 20, tzinfo=UTC), "midnight is complete but for later files"
    ingestion.land("late.json", {"id": 3, "name": "c", "at": "2025-02-28T23:50:00Z"}, {"id": 4, "name": "no time"})
    late = ingestion.run()
    after = ingestion.table.version_at("2025-03-01")
    assert after.instant is not None and not after.is_clean
    assert after.instant.requested == late.instant
    assert ingestion.table.watermark().sources == {"t": before.watermark}
    rows = ingestion.table.scan(["id"], as_of_event_time="2025-03-01").to_arrow()
    assert sorted(rows.column("id").to_pylist()) == [1, 2, 3, 4]
    ingestion.land("bad.json", "{not json")
    ingestion.change(max_bad_records=1)
    assert ingestion.run().bad_records == 1
    assert ingestion.table.watermark() == Watermark(value=before.watermark, sources={"t": before.watermark})


def test_late_rows_of_deleted_keys_are_dropped_and_counted(ingestion: Ingestion) -> None:
    schema = {"id": "bigint", "name": "string", "at": "bigint", "_hoodie_is_deleted": "boolean"}
    ingestion.spec = replace(ingestion.spec, schema=schema, ordering=("at",), delete_retention="7d")
    ingestion.land("a.json", {"id": 1, "name": "a", "at": 5}, {"id": 2, "name": "a", "at": 5})
    ingestion.run()
    ingestion.land(
        "b.json", {"id": 1, "at": 9, "_hoodie_is_deleted": True}, {"id": 3, "at": 9, "_hoodie_is_deleted": True}
    )
    assert (deleting := ingestion.run()).deletes == 1 and deleting.late_rows_dropped == 0
    ingestion.land("c.json", *({"id": number, "name": "late", "at": 7} for number in (1, 2, 3)))
    late = ingestion.run()
    assert (late.status, late.rows, late.late_rows_dropped) == (JobStatus.COMMITTED, 1, 2)
    assert parse_report(late.to_json()).late_rows_dropped == 2
    assert ingestion.rows() == {2: "late"}


def test_interval_ingests_its_files_and_is_stored_in_the_commit(ingestion: Ingestion) -> None:
    ingestion.change(path="landing/{start:%Y-%m-%d}.json")
    ingestion.land("2026-01-01.json", {"id": 1, "name": "a"})
    ingestion.land("2026-01-02.json", {"id": 2, "name": "b"})
    # Runs of a backfill have any order.
    second, first = ("2026-01-02", "2026-01-03"), ("2026-01-01", "2026-01-02T00:00:00Z")
    assert ingestion.run(*second).inserts == 1
    assert ingestion.run(*first).inserts == 1
    assert ingestion.extra()[INTERVAL] == "2026-01-01T00:00:00Z/2026-01-02T00:00:00Z"
    assert CHECKPOINT not in ingestion.extra()
    assert ingestion.run(*second).status is JobStatus.NOTHING_TO_DO
    assert ingestion.run(*first).status is JobStatus.NOTHING_TO_DO
    assert ingestion.rows() == {1: "a", 2: "b"}


def test_interval_is_ingested_again_by_spec_or_command(ingestion: Ingestion) -> None:
    ingestion.change(path="landing/{start:%Y-%m-%d}.json")
    ingestion.land("2026-01-01.json", {"id": 1, "name": "a"})
    day = ("2026-01-01", "2026-01-02")
    ingestion.run(*day)
    ingestion.land("2026-01-01.json", {"id": 1, "name": "corrected"})
    assert ingestion.run(*day).status is JobStatus.NOTHING_TO_DO
    assert ingestion.run(*day, full_refresh=True).updates == 1
    ingestion.land("2026-01-01.json", {"id": 1, "name": "corrected again"})
    ingestion.change(replace=True)
    assert ingestion.run(*day).updates == 1
    assert ingestion.rows() == {1: "corrected again"}


def test_path_without_placeholders_uses_the_checkpoint_with_an_interval_too(ingestion: Ingestion) -> None:
    ingestion.land("a.json", {"id": 1, "name": "a"})
    ingestion.run("2026-01-01", "2026-01-02")
    ingestion.land("b.json", {"id": 2, "name": "b"})
    assert ingestion.run("2026-01-01", "2026-01-02").status is JobStatus.NOTHING_TO_DO
    assert ingestion.run("2026-01-02", "2026-01-03").rows == 1
    assert ingestion.rows() == {1: "a", 2: "b"}


def test_bad_records_within_the_limit_are_counted_in_commit_and_report(ingestion: Ingestion) -> None:
    ingestion.change(max_bad_records=2)
    ingestion.land("a.json", {"id": 1, "name": "a"}, "nonsense", {"name": "no key"})
    report = ingestion.run(run_id="manual/2026:1")
    assert (report.rows, report.bad_records) == (1, 2)
    folder = Path(ingestion.extra()[DEAD_LETTERS])
    assert folder.parent.parent == ingestion.root / "table_dead_letters"
    assert folder.parent.name.startswith("manual_2026-1-")
    assert ingestion.extra()[BAD_RECORDS] == "2"
    letters = [json.loads(line) for file in folder.iterdir() for line in file.read_text().splitlines()]
    assert {letter["record"] for letter in letters} == {"nonsense", '{"id":null,"name":"no key"}'}


def test_runs_keep_dead_letters_of_earlier_commits(ingestion: Ingestion) -> None:
    ingestion.change(max_bad_records=1)
    ingestion.land("a.json", {"id": 1, "name": "a"}, "nonsense")
    ingestion.run(run_id="same")
    ingestion.land("b.json", {"id": 2, "name": "b"})
    ingestion.run(run_id="same")
    boxes = [metadata.extra.get(DEAD_LETTERS) for _, metadata in ingestion.table.commits()]
    assert boxes[1] is None
    assert boxes[0] is not None and len(list(Path(boxes[0]).iterdir())) == 1


def test_too_many_bad_records_create_no_table_and_the_corrected_file_is_ingested(ingestion: Ingestion) -> None:
    ingestion.land("a.json", {"id": 1, "name": "a"}, "nonsense")
    with pytest.raises(UserError, match="1 bad record, max_bad_records is 0"):
        ingestion.run()
    assert not (ingestion.root / "table").exists()
    ingestion.land("a.json", {"id": 1, "name": "a"})
    assert ingestion.run().rows == 1


def test_inferred_columns_are_kept_for_later_runs(ingestion: Ingestion) -> None:
    ingestion.spec = replace(ingestion.spec, schema={})
    ingestion.change(select=("id", "upper(name) as name"))
    ingestion.land("a.json", {"id": 1, "name": "a"})
    ingestion.run()
    # Inference from this file only would return a text column.
    ingestion.land("b.json", {"id": "2", "name": "b"})
    with pytest.raises(UserError, match="does not parse"):
        ingestion.run()
    ingestion.land("b.json", {"id": 2, "name": "b"})
    ingestion.run()
    assert ingestion.rows() == {1: "A", 2: "B"}
    assert [column["name"] for column in json.loads(ingestion.extra()[SCHEMA])["fields"]] == ["id", "name"]


def test_empty_folder_and_empty_files_are_nothing_to_do(ingestion: Ingestion) -> None:
    assert ingestion.run().status is JobStatus.NOTHING_TO_DO
    ingestion.land("a.json")
    ingestion.land("b.json", "", "")
    assert ingestion.run().status is JobStatus.NOTHING_TO_DO
    assert not (ingestion.root / "table").exists()


def test_spec_that_contradicts_the_table_is_refused(ingestion: Ingestion) -> None:
    ingestion.land("a.json", {"id": 1, "name": "a"})
    good = ingestion.spec
    ingestion.run()
    ingestion.land("b.json", {"id": 2, "name": "b"})
    for changed in (
        replace(good, type="MERGE_ON_READ"),
        replace(good, record_key=("name",)),
        replace(good, partition_by=(PartitionField(name="name"),)),
        replace(good, ordering=("name",)),
        replace(good, merge_mode="CUSTOM", merger="os.path:join"),
        replace(good, partial_update="IGNORE_DEFAULTS"),
        replace(good, delete_field="name", delete_marker="gone"),
    ):
        ingestion.spec = changed
        with pytest.raises(UserError, match=r"but the table at .* was created with"):
            ingestion.run()
    ingestion.spec = replace(good, options={"hoodie.parquet.max.file.sise": "1"})
    with pytest.raises(UserError, match=r"hoodie\.parquet\.max\.file\.size"):
        ingestion.run()
    ingestion.spec = replace(good, ingest=None)
    with pytest.raises(UserError, match="declares no ingestion"):
        ingestion.run()


@pytest.mark.parametrize("operation", ["insert", "bulk_insert"])
def test_run_writes_by_the_operation_of_the_spec(ingestion: Ingestion, operation: str) -> None:
    ingestion.change(operation=operation)
    ingestion.land("a.json", {"id": 1, "name": "a"})
    ingestion.run()
    ingestion.land("b.json", {"id": 1, "name": "b"})
    ingestion.run()
    assert sorted(ingestion.table.scan(columns=["name"]).to_arrow().column("name").to_pylist()) == ["a", "b"]


def test_value_that_an_expression_refuses_is_a_user_error(ingestion: Ingestion) -> None:
    table = pa.table({"id": pa.array([1, 2]), "name": ["7", "seven"]})
    pq.write_table(table, ingestion.landing / "a.parquet")
    ingestion.spec = replace(ingestion.spec, schema={})
    ingestion.change(format="parquet", select=("id", "cast(name as int) as name"))
    with pytest.raises(UserError, match=r"reading the batch: .*'seven'"):
        ingestion.run()
    ingestion.change(select=("id", "try_cast(name as int) as name"))
    ingestion.run()
    assert ingestion.rows() == {1: 7, 2: None}


def test_times_without_zone_are_utc_for_any_session_zone(ingestion: Ingestion) -> None:
    ingestion.spec = replace(
        ingestion.spec, schema={"id": "bigint", "at": "timestamp"}, partition_by=(PartitionField(name="name"),)
    )
    ingestion.change(select=("*", "date_format(at, 'yyyy-MM-dd') as name"))
    ingestion.land("a.json", {"id": 1, "at": "2026-01-01 23:30:00"})
    ingestion.spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        ingestion.run()
        assert ingestion.spark.conf.get("spark.sql.session.timeZone") == "Asia/Tokyo"
    finally:
        ingestion.spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert ingestion.rows() == {1: "2026-01-01"}


def test_run_plans_again_after_a_conflict(ingestion: Ingestion, monkeypatch: pytest.MonkeyPatch) -> None:
    ingestion.land("a.json", {"id": 1, "name": "a"})
    ingestion.run()
    ingestion.land("b.json", {"id": 1, "name": "b"})
    original = run_module.write_batch
    rivals = [ingestion.run]

    def racing(*arguments: Any) -> Any:
        if rivals:
            rivals.pop()()
            raise ConflictError("another writer won", winner="x")
        return original(*arguments)

    monkeypatch.setattr(run_module, "write_batch", racing)
    report = ingestion.run()
    assert report.status is JobStatus.NOTHING_TO_DO
    assert ingestion.rows() == {1: "b"}
    assert len(ingestion.table.commits()) == 2


@pytest.mark.parametrize("format", ["json", "parquet"])
def test_file_rewritten_during_its_read_is_read_again(
    ingestion: Ingestion, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ingestion.change(operation="insert", format=format)
    place = ingestion.landing / f"a.{format}"

    def land(*ids: int) -> None:
        if format == "json":
            ingestion.land(place.name, *[{"id": key, "name": "a"} for key in ids])
        else:
            pq.write_table(pa.table({"id": pa.array(ids, pa.int64()), "name": ["a"] * len(ids)}), place)

    land(1, 2)
    original = run_module.write_batch
    versions = [(3, 4, 5)]

    def overtaken(*arguments: Any) -> Any:
        if versions:
            land(*versions.pop())
        return original(*arguments)

    monkeypatch.setattr(run_module, "write_batch", overtaken)
    assert ingestion.run().inserts == 3
    assert ingestion.run().status is JobStatus.NOTHING_TO_DO
    assert ingestion.rows() == {3: "a", 4: "a", 5: "a"}


@pytest.mark.s3
def test_runs_ingest_files_on_s3(spark: SparkSession, s3_server: S3Server, tmp_path: Path) -> None:
    root = f"s3://{s3_server.bucket}/ingest-run"
    spec = TableSpec(
        table="t",
        location=f"{root}/table",
        record_key=("id",),
        ingest=file_ingest(path=f"{root}/landing/", max_bad_records=1),
    )
    from lakehouse.core.storage.locate import open_storage

    landing = open_storage(f"{root}/landing", s3_server.options)
    landing.put("a.json", b'{"id": 1, "name": "a"}\nnonsense\n')
    command = IngestCommand(table="x", run_id="r1")

    def run() -> IngestReport:
        return run_ingest(spark, spec, command, environ={}, storage_options=s3_server.options)

    assert (run().rows, run().status) == (1, JobStatus.NOTHING_TO_DO)
    landing.put("b.json", b'{"id": 1, "name": "b"}\n{"id": 2, "name": "b"}\n')
    assert (run().rows, run().status) == (2, JobStatus.NOTHING_TO_DO)
    table = Table.open(spec.location, storage_options=s3_server.options)
    assert sorted(table.scan().to_arrow().column("id").to_pylist()) == [1, 2]
    letters = open_storage(f"{root}/table_dead_letters", s3_server.options)
    assert [json.loads(letters.get(file.path))["record"] for file in letters.list("")] == ["nonsense"]


def test_stock_ticks_in_two_batches_make_197_rows(spark: SparkSession, tmp_path: Path) -> None:
    shared = shared_dir()
    environ = {"LAKEHOUSE_TABLES": str(tmp_path), "LAKEHOUSE_LANDING": str(tmp_path / "landing")}
    ticks = Ingestion(spark, tmp_path, load_spec(SPECS / "stock_ticks.yaml"), environ)
    (ticks.landing / "stock_ticks").mkdir()
    for batch, inserts, updates in ((1, 197, 0), (2, 0, 99)):
        shutil.copy(shared / f"data/stock_ticks/batch_{batch}.json", ticks.landing / "stock_ticks")
        report = ticks.run()
        assert (report.inserts, report.updates) == (inserts, updates)
    table = Table.open(str(tmp_path / "stock_ticks"))
    rows = table.scan(columns=["key", "ts"]).to_arrow()
    assert rows.num_rows == 197
    assert pc.max(rows.column("ts")).as_py() == "2018-08-31 10:59:00"
    assert table.partitions() == ("2018/08/31",)


def test_taxi_months_are_backfilled_and_voided_trips_deleted(spark: SparkSession, tmp_path: Path) -> None:
    environ = {"LAKEHOUSE_TABLES": str(tmp_path), "LAKEHOUSE_SHARED": str(shared_dir())}
    taxi = Ingestion(spark, tmp_path, load_spec(SPECS / "nyc_taxi.yaml"), environ)
    for month in (("2018-11-01", "2018-12-01"), ("2019-01-01", "2019-02-01")):
        assert taxi.run(*month).inserts == 10_000
        assert taxi.run(*month).status is JobStatus.NOTHING_TO_DO
    table = Table.open(str(tmp_path / "nyc_taxi"))
    rows = table.scan().to_arrow()
    assert rows.num_rows == 20_000
    surcharge = rows.filter(pc.less(rows.column("pickup_date"), "2018-12-01")).column("congestion_surcharge")
    assert surcharge.null_count == len(surcharge) == 10_000
    voided = rows.filter(pc.less(rows.column("total_amount"), 0))
    assert 12 <= voided.num_rows <= 30
    table.delete(voided)
    assert table.scan().count() == 20_000 - voided.num_rows


def test_generated_rides_have_the_last_state_of_every_order(spark: SparkSession, tmp_path: Path) -> None:
    generate(tmp_path / "landing", hours=6, orders_per_hour=100, seed=5)
    spec = TableSpec(
        table="rides.orders",
        location=str(tmp_path / "orders"),
        record_key=("order_id",),
        ordering=("updated_at",),
        partition_by=(PartitionField(name="order_date"),),
        ingest=file_ingest(path="landing/orders/{start:%Y-%m-%d}/{start:%H}.json"),
    )
    rides = Ingestion(spark, tmp_path, spec)
    newest: dict[str, dict[str, Any]] = {}
    for hour in range(6):
        rides.run(f"2026-01-01T{hour:02}:00:00", f"2026-01-01T{hour + 1:02}:00:00")
        for line in (tmp_path / f"landing/orders/2026-01-01/{hour:02}.json").read_text().splitlines():
            event = json.loads(line)
            if event["order_id"] not in newest or event["updated_at"] > newest[event["order_id"]]["updated_at"]:
                newest[event["order_id"]] = event
    rows = Table.open(str(tmp_path / "orders")).scan(columns=["order_id", "status", "fare"]).to_arrow().to_pylist()
    assert {row["order_id"]: (row["status"], row["fare"]) for row in rows} == {
        order: (event["status"], event["fare"]) for order, event in newest.items()
    }
    assert len(rows) == len(newest)
