"""A repeated try of a run reports what the commit of the earlier try wrote, not zeros."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.core.operations.commit.results import Committed
from lakehouse.errors import RetryableError
from lakehouse.platform.ingest.commit_reports import recent_commits
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.service_run import runner
from lakehouse.spec.contracts.ingest_commits import IngestCommits
from lakehouse.spec.contracts.job import IngestReport, JobStatus, ServiceReport
from lakehouse.spec.job_command import JobCommand, ServiceCommand, command_of
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import changed_ingest, file_ingest

#: The facts of a commit; a repeated try has other durations and texts.
NUMBERS = ("instant", "rows", "inserts", "updates", "deletes", "files", "bytes")
INGESTED = ("bad_records", "late_rows_dropped", "drift")


def numbers(report: IngestReport | ServiceReport) -> dict[str, Any]:
    """Return the facts of a commit from the report of its job."""
    names = (*NUMBERS, *INGESTED) if isinstance(report, IngestReport) else NUMBERS
    return {name: getattr(report, name) for name in names}


class Ingestion:
    """A table that JSON files of a landing folder fill."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.spec = TableSpec(
            table="t",
            location=str(root / "table"),
            record_key=("id",),
            schema={"id": "bigint", "name": "string"},
            ingest=changed_ingest(file_ingest(path="landing"), max_bad_records=1, new_column="add"),
        )
        (root / "landing").mkdir()

    def land(self, name: str, *records: Mapping[str, Any] | str) -> None:
        """Write a file of JSON lines; text is written unchanged."""
        lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
        (self.root / "landing" / name).write_text("\n".join(lines))

    def run(self, run_id: str, action: str = "run") -> IngestReport:
        """Run once."""
        command = command_of("ingest", action, table="x", run_id=run_id)
        verb = run_replay if action == "replay" else run_ingest
        return verb(self.spark, self.spec, command, environ={"LAKEHOUSE_HOME": str(self.root)})

    @property
    def table(self) -> Table:
        """Return the table."""
        return Table.open(self.spec.location)


@pytest.fixture
def ingestion(spark: SparkSession, tmp_path: Path) -> Ingestion:
    return Ingestion(spark, tmp_path)


@pytest.mark.spark
def test_repeated_ingestion_reports_the_numbers_of_its_commit(ingestion: Ingestion) -> None:
    """apache/hudi#9101: a job that fails after its commit is retried, and the commit stays."""
    ingestion.land("a.json", {"id": 1, "name": "a"}, {"id": 2, "name": "a"})
    first = ingestion.run("dag/one/ingest")
    ingestion.land("b.json", {"id": 2, "name": "b"}, {"id": 3, "name": "b", "more": 1}, "{broken")
    second = ingestion.run("dag/two/ingest")
    assert (second.rows, second.inserts, second.updates, second.bad_records) == (2, 1, 1, 1)
    assert len(second.drift) == 1
    assert (first.previous, second.previous) == (None, first.instant)

    for run_id, committed in (("dag/two/ingest", second), ("dag/one/ingest", first)):
        again = ingestion.run(run_id)
        assert (again.status, again.previous) == (JobStatus.NOTHING_TO_DO, second.instant)
        assert numbers(again) == numbers(committed)
    other = ingestion.run("dag/three/ingest")
    assert (other.status, other.instant, other.rows, other.previous) == (
        JobStatus.NOTHING_TO_DO,
        None,
        0,
        second.instant,
    )
    listed = recent_commits(ingestion.table, ingestion.spec, 10).commits
    assert [(commit.run_id, commit.instant, commit.rows, commit.bad_records) for commit in listed] == [
        ("dag/two/ingest", second.instant, 2, 1),
        ("dag/one/ingest", first.instant, 2, 0),
    ]


@pytest.mark.spark
def test_repeated_replay_finds_its_own_commit(ingestion: Ingestion) -> None:
    """apache/hudi#9101: a replay has no checkpoint, so its commit is found by the id of the run."""
    ingestion.land("a.json", {"id": 1, "name": "a"}, '{"id": "x", "name": "b"}')
    ingested = ingestion.run("dag/one/ingest")
    assert (ingested.rows, ingested.bad_records) == (1, 1)
    ingestion.spec = replace(ingestion.spec, schema={"id": "bigint", "name": "string"})
    letters = next((ingestion.root / "table_dead_letters").rglob("*.json"))
    letters.write_text(letters.read_text().replace('\\"x\\"', "2"))
    replayed = ingestion.run("dag/two/ingest", "replay")
    assert (replayed.status, replayed.rows, replayed.previous) == (JobStatus.COMMITTED, 1, ingested.instant)
    again = ingestion.run("dag/two/ingest", "replay")
    assert again.status is JobStatus.NOTHING_TO_DO
    assert numbers(again) == numbers(replayed)


@pytest.mark.parametrize("service", ["compaction", "clean"])
def test_service_that_crashed_after_its_commit_reports_the_numbers_at_the_retry(
    service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/hudi#8604: a service whose process ended after its commit is retried."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    kind = "MERGE_ON_READ" if service == "compaction" else "COPY_ON_WRITE"
    table = Table.create(str(tmp_path / "orders"), name="orders", record_key=["id"], table_type=kind)
    for value in range(6):
        table.upsert(pa.table({"id": ["a", "b"], "v": [value, value]}))
    command = ServiceCommand(
        service=service,
        table="sales.orders",
        run_id="run",
        force=True,
        options={"hoodie.clean.commits.retained": "2", "hoodie.cleaner.commits.retained": "2"}
        if service == "clean"
        else {},
    )
    done: list[IngestReport] = []

    def crashes(opened: Table, given: JobCommand) -> IngestReport:
        done.append(runner(service)(opened, given))
        raise RetryableError("the process ended after its commit")

    with load_catalog() as catalog:
        catalog.register_table("sales.orders", str(tmp_path / "orders"))
        (failed,) = run_tables(catalog, ["sales.orders"], command, crashes)
        (again,) = run_tables(catalog, ["sales.orders"], replace(command, force=False), runner(service))
    assert (failed.status, again.status) == (JobStatus.FAILED, JobStatus.NOTHING_TO_DO)
    assert done[0].status is JobStatus.COMMITTED and done[0].files > 0
    assert numbers(again) == numbers(done[0])


def test_commits_of_an_ingestion_are_listed_without_those_of_other_writers_and_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """apache/hudi#9101: what a failed job committed is read from the timeline."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    inputs = "{app: {path: in/app}, web: {path: in/web}}"
    spec = tmp_path / "trips.yaml"
    spec.write_text(f"{{table: trips, location: trips, record_key: id, ordering: v, ingest: {{inputs: {inputs}}}}}")
    table = Table.create(str(tmp_path / "trips"), name="trips", record_key=["id"], ordering=["v"])

    def write(value: int, **extra: str) -> str:
        named = {f"lakehouse.ingest.{name.replace('__', '.')}": text for name, text in extra.items()}
        outcome = table.upsert(pa.table({"id": ["a", "b"], "v": [value, value]}), commit_metadata=named)
        assert isinstance(outcome, Committed)
        return outcome.instant.requested

    first = write(1, run_id__app="ingest.trips.app/one/ingest", checkpoint__app="1", bad_records="3")
    write(2, run_id__web="ingest.trips.web/one/ingest", checkpoint__web="1", bad_records="0")
    last = write(3, checkpoint__app="2", bad_records="0")
    write(4)
    assert main(["ingest", "commits", "--table", str(spec), "--input", "app", "--output", "json"]) == 0
    listed = IngestCommits.from_json(capsys.readouterr().out)
    assert [(commit.instant, commit.run_id, commit.rows, commit.bad_records) for commit in listed.commits] == [
        (last, None, 2, 0),
        (first, "ingest.trips.app/one/ingest", 2, 3),
    ]
    command = ["ingest", "commits", "--table", str(spec), "--input", "app"]
    assert main([*command, "--limit", "1", "--output", "json"]) == 0
    assert len(IngestCommits.from_json(capsys.readouterr().out).commits) == 1
    assert main([*command, "--target", "trips"]) == 64
    assert "--target trips: the spec of trips fills one table only; remove the flag" in capsys.readouterr().err
