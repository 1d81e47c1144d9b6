"""Folders of a data interval: all are read, and missing ones are skipped, refused or waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, SourceMissingError, UserError
from lakehouse.platform.ingest.run import IngestContext, ingest
from lakehouse.platform.sources.files.file_listing import list_source
from lakehouse.platform.sources.files.file_source import MISSING
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus, parse_report
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.file_ingest import file_ingest, files_of
from tests.support.ingested import files_source

DAY = ("2026-01-01T00:00:00", "2026-01-01T23:00:00")


class Hours:
    """A landing zone with a folder per hour, and the table that reads it."""

    def __init__(self, name: str) -> None:
        self.root = f"memory://{name}"
        self.lake = MemoryStorage(self.root)
        self.lake.delete_many([file.path for file in self.lake.list("")])

    def land(self, *hours: int, day: str = "2026-01-01") -> None:
        for hour in hours:
            row = {"id": f"{day}-{hour}", "p": "p", "ts": hour}
            self.lake.put(f"landing/{day}/{hour:02}/a.json", json.dumps(row).encode() + b"\n")

    def run(self, interval: tuple[str, str] | None = DAY, **settings: Any) -> IngestReport:
        path = settings.pop("path", "landing/{start:%Y-%m-%d}/{start:%H}/")
        spec = TableSpec(
            table="t",
            location=f"{self.root}/table",
            record_key=("id",),
            schema={"id": "string", "p": "string", "ts": "bigint"},
            ingest=file_ingest(path=f"{self.root}/{path}", **settings),
        )
        start, end = interval or (None, None)
        command = IngestCommand(table="t", interval_start=start, interval_end=end)
        context = IngestContext(
            source=files_source(spec),
            spec=spec,
            command=command,
            options=spec.write_options(),
            env=Env(storage=open_storage(spec.location)),
            open=open_storage,
        )
        return ingest(context)

    def table(self) -> Table:
        return Table.open(f"{self.root}/table")

    def rows(self) -> list[str]:
        return sorted(self.table().scan(columns=["id"]).to_arrow().column("id").to_pylist())


@pytest.fixture
def hours(request: pytest.FixtureRequest) -> Iterator[Hours]:
    yield Hours(f"hours-{abs(hash(request.node.name))}")


def test_run_reads_all_folders_of_an_interval_and_reports_them(hours: Hours) -> None:
    hours.land(*range(24))
    report = hours.run()
    assert hours.rows() == sorted(f"2026-01-01-{hour}" for hour in range(23))
    assert report.rows == 23
    assert report.folders == tuple(f"{hours.root}/landing/2026-01-01/{hour:02}/" for hour in range(23))
    assert report.missing == ()
    assert parse_report(report.to_json()) == report
    assert hours.run().status is JobStatus.NOTHING_TO_DO


def test_run_refuses_to_insert_an_interval_that_shares_a_folder(hours: Hours) -> None:
    hours.land(0, 1, 2)
    with pytest.raises(UserError, match="rows would be inserted twice"):
        hours.run(("2026-01-01T00:00", "2026-01-01T01:30"), operation="insert")
    assert hours.run(("2026-01-01T00:00", "2026-01-01T01:30")).rows == 2


@pytest.mark.parametrize("missing", [None, "fail"])
def test_missing_folder_of_an_interval_fails_by_default_before_reading(hours: Hours, missing: str | None) -> None:
    hours.land(*range(20))
    with pytest.raises(
        UserError, match=r"3 of 23 folders have nothing to read: .*01-01/20/.*`missing: skip`"
    ) as raised:
        hours.run(missing=missing)
    assert not isinstance(raised.value, RetryableError)
    assert hours.lake.list("table") == []


def test_skipped_folders_are_in_the_report_and_in_the_commit(hours: Hours) -> None:
    hours.land(*range(20))
    report = hours.run(missing="skip")
    assert (report.rows, len(report.folders)) == (20, 20)
    missing = [f"{hours.root}/landing/2026-01-01/{hour:02}/" for hour in (20, 21, 22)]
    assert list(report.missing) == missing
    assert json.loads(hours.table().commits()[-1][1].extra[MISSING]) == {"count": 3, "names": missing}


def test_run_has_nothing_to_do_if_all_folders_are_skipped_and_reads_them_later(hours: Hours) -> None:
    report = hours.run(missing="skip")
    assert (report.status, len(report.missing)) == (JobStatus.NOTHING_TO_DO, 23)
    assert "no files" in report.reason
    hours.land(*range(23))
    assert hours.run(missing="skip").rows == 23


def test_waiting_for_a_missing_folder_is_retryable_and_has_a_limit(hours: Hours) -> None:
    hours.land(*range(22))
    with pytest.raises(SourceMissingError, match=r"1 of 23 folders .*up to 2h in all") as raised:
        hours.run(missing="wait", wait_for_s=7200)
    error = JobError.of(raised.value)
    assert (error.kind, error.retryable, error.wait_for_s, raised.value.exit_code) == (
        "SourceMissingError",
        True,
        7200,
        75,
    )
    failed = IngestReport(status=JobStatus.FAILED, table="t", error=error)
    assert parse_report(failed.to_json()) == failed
    hours.land(22)
    assert hours.run(missing="wait", wait_for_s=7200).rows == 23


@pytest.mark.parametrize("state", ["missing", "empty"])
@pytest.mark.parametrize("rule", ["skip", "fail", "wait"])
def test_missing_and_empty_folders_have_the_same_result(hours: Hours, tmp_path: Path, rule: str, state: str) -> None:
    if state == "empty":
        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "_SUCCESS").touch()
    (folder,) = list_source((f"{tmp_path}/in",), {}).folders
    assert (folder.files, folder.exists) == (0, state == "empty")
    hours.root, path = str(tmp_path), "in"
    if rule == "skip":
        assert hours.run(None, path=path, missing=rule).status is JobStatus.NOTHING_TO_DO
        return
    with pytest.raises(SourceMissingError if rule == "wait" else UserError, match="in'"):
        hours.run(None, path=path, missing=rule)


def test_path_read_by_checkpoint_may_be_empty_and_must_exist(hours: Hours, tmp_path: Path) -> None:
    hours.root = str(tmp_path)
    with pytest.raises(UserError, match="no file or directory"):
        hours.run(None, path="landing")
    (tmp_path / "landing").mkdir()
    assert hours.run(None, path="landing").status is JobStatus.NOTHING_TO_DO


def test_list_source_lists_several_paths_of_one_storage(tmp_path: Path) -> None:
    for name in ("a/1.json", "a/deep/2.json", "b.json", "c/3.csv", "c/4.json", "_d/5.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    names = ["a", "b.json", "c/*.json", "_d", "e", "c/*.parquet"]
    listing = list_source([f"{tmp_path}/{name}" for name in names], {})
    assert [(folder.files, folder.exists) for folder in listing.folders] == [
        (2, True),
        (1, True),
        (1, True),
        (1, True),
        (0, False),
        (0, True),
    ]
    found = sorted(file.url.removeprefix(f"{tmp_path}/") for file in listing.files)
    assert found == ["_d/5.json", "a/1.json", "a/deep/2.json", "b.json", "c/4.json"]
    assert all(listing.storage.get(file.path) == b"{}" for file in listing.files)
    assert [folder.path for folder in listing.missing] == [f"{tmp_path}/e", f"{tmp_path}/c/*.parquet"]


def test_list_source_refuses_paths_in_two_buckets() -> None:
    with pytest.raises(UserError, match="in two buckets"):
        list_source(("s3://day-1", "s3://day-2"), {})


def test_spec_declares_the_rule_for_missing_folders() -> None:
    text = "table: t\nlocation: x\nrecord_key: id\ningest: {path: 'in/{start:%Y}/', missing: wait, wait_for: 90m}"
    spec = parse_spec(text, source="t.yaml")
    files = files_of(spec.ingest)
    assert (files.missing, files.wait_for_s) == ("wait", 5400)
    with pytest.raises(UserError, match=r"t.yaml:4: wait_for: needs 'missing: wait'"):
        parse_spec(text.replace("missing: wait, ", ""), source="t.yaml")
    with pytest.raises(UserError, match="'ignore' is not one of"):
        parse_spec(text.replace("missing: wait", "missing: ignore"), source="t.yaml")
    with pytest.raises(UserError, match=r"t\.yaml:4: path: .*names seconds"):
        parse_spec(text.replace("%Y", "%S"), source="t.yaml")
