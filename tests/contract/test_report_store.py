"""Contract of the stores of job documents, which a driver and Airflow share."""

from __future__ import annotations

import io
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.jobs import store_command as command
from lakehouse.platform.jobs.report_stores import KEPT_MS, RowStore, open_report_store
from lakehouse.platform.jobs.run import run_job
from lakehouse.spec.contracts.job import STORAGE_SETTINGS, IngestReport, JobStatus, parse_report
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.report_store import JobDocument, ReportStore
from lakehouse.spec.reports_folder import is_folder, report_address

REPORT, BEAT, STOP = JobDocument.REPORT, JobDocument.HEARTBEAT, JobDocument.STOP
DONE = IngestReport(status=JobStatus.COMMITTED, table="sales.orders", instant="20260131120000000", rows=3)
#: Parts of the id of a job with the characters of Airflow's run ids.
PARTS = ("ingest.sales.orders", "scheduled__2026-01-01T00:00:00+00:00", "ingest")
KINDS = (
    "folder",
    "file",
    "catalog",
    pytest.param("s3", marks=pytest.mark.s3),
    pytest.param("hdfs", marks=pytest.mark.slow),
)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A value of LAKEHOUSE_REPORTS, once for each kind of store."""
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        monkeypatch.setenv(STORAGE_SETTINGS, json.dumps(server.options))
        yield f"s3://{server.bucket}/{tmp_path.name}/reports/"
    elif request.param == "hdfs":
        yield f"{request.getfixturevalue('hdfs').place()}/reports"
    else:
        yield {"folder": str(tmp_path / "reports"), "file": f"file://{tmp_path}/urls", "catalog": "catalog"}[
            request.param
        ]


@pytest.fixture
def address(place: str) -> str:
    return report_address({"LAKEHOUSE_REPORTS": place}, *PARTS)


@pytest.fixture
def store(address: str) -> ReportStore:
    return open_report_store(address, os.environ)


def test_documents_are_absent_until_they_are_written_and_after_their_deletion(store: ReportStore, address: str) -> None:
    assert store.address == address
    assert store.read(*JobDocument) == {}
    store.change({BEAT: "1", STOP: None})
    assert store.read(*JobDocument) == {BEAT: "1"}
    store.change({BEAT: "2", REPORT: "né 語"})
    assert store.read(REPORT, BEAT, STOP) == {REPORT: "né 語", BEAT: "2"}
    assert store.read(REPORT) == {REPORT: "né 語"}
    store.change({BEAT: None, REPORT: None})
    assert store.read(*JobDocument) == {}


def test_store_is_the_same_for_the_address_of_each_document(store: ReportStore, address: str) -> None:
    store.change({BEAT: "1"})
    sibling = address.removesuffix("report.json") + "heartbeat"
    assert open_report_store(sibling, os.environ).read(BEAT) == {BEAT: "1"}


def test_jobs_do_not_share_documents(store: ReportStore, place: str) -> None:
    store.change({REPORT: "a"})
    other = open_report_store(report_address({"LAKEHOUSE_REPORTS": place}, *PARTS[:2], "ingest.1"), os.environ)
    assert other.read(REPORT) == {}
    other.change({REPORT: None})
    assert store.read(REPORT) == {REPORT: "a"}


def test_report_of_a_job_replaces_the_report_of_an_earlier_try(store: ReportStore, address: str) -> None:
    store.change({REPORT: "earlier"})
    reservation = store.reserve()
    assert store.read(REPORT) == {REPORT: "earlier"}
    reservation.write(DONE)
    reservation.discard()
    assert parse_report(store.read(REPORT)[REPORT]) == DONE
    again = open_report_store(address, os.environ).reserve()
    again.discard()
    assert parse_report(store.read(REPORT)[REPORT]) == DONE


def test_job_writes_its_report_after_success_and_after_failure(store: ReportStore, address: str) -> None:
    assert run_job(IngestCommand(table="t", report=address), lambda _: DONE, lambda _: ()) == 0
    assert parse_report(store.read(REPORT)[REPORT]) == DONE

    def fail(_: IngestCommand) -> IngestReport:
        raise UserError("the column is missing")

    assert run_job(IngestCommand(table="t", report=address), fail, lambda _: ()) == UserError.exit_code
    error = parse_report(store.read(REPORT)[REPORT]).error
    assert error is not None and error.message == "the column is missing"


def test_reader_never_gets_a_partial_document(store: ReportStore) -> None:
    texts = [str(number) * 100_000 for number in range(4)]
    store.change({REPORT: texts[0]})
    over = threading.Event()

    def write() -> None:
        for text in texts[1:] * 3:
            store.change({REPORT: text})
        over.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not over.is_set():
        assert store.read(REPORT)[REPORT] in texts
    writer.join()


def test_command_reads_and_changes_the_documents_of_a_job(store: ReportStore, address: str) -> None:
    def run(**request: object) -> dict[str, str]:
        output = io.StringIO()
        source = io.StringIO(json.dumps({"address": address, **request}))
        assert command.main(source, output, io.StringIO()) == 0
        return dict(json.loads(output.getvalue()))

    assert run(change={"heartbeat": "1", "stop": None}, read=["heartbeat", "report.json"]) == {"heartbeat": "1"}
    assert run(change={"heartbeat": None}) == {}
    assert store.read(BEAT) == {}


def test_command_prints_an_error_with_the_exit_code_of_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKEHOUSE_CATALOG", "LAKEHOUSE_HOME"):
        monkeypatch.delenv(name, raising=False)
    errors = io.StringIO()
    request = io.StringIO(json.dumps({"address": "catalog:a/report.json", "read": ["report.json"]}))
    assert command.main(request, io.StringIO(), errors) == UserError.exit_code
    assert errors.getvalue().startswith("UserError: no catalog 'default'")


def test_addresses_are_paths_urls_or_rows_of_the_catalog() -> None:
    assert [is_folder(text) for text in ("", "/a", "a:b/c", "catalogs")] == [True] * 4
    assert [is_folder(text) for text in ("s3://a", "hdfs://n:1/a", "catalog", "catalog:a")] == [False] * 4
    assert report_address({"LAKEHOUSE_REPORTS": "catalog"}, "a", "b") == "catalog:a/b/report.json"
    assert report_address({"LAKEHOUSE_REPORTS": "s3://x/y/"}, "a:1") == "s3://x/y/a=1/report.json"
    assert report_address({"LAKEHOUSE_REPORTS": "/x"}, "a") == "/x/a/report.json"


def test_old_documents_of_the_catalog_are_deleted_when_a_job_starts(tmp_path: Path) -> None:
    from lakehouse.platform.catalog.connect import Database

    class Clock:
        now = 1_000_000_000_000

        def now_ms(self) -> int:
            return self.now

        def monotonic_s(self) -> float:
            raise NotImplementedError

        def sleep(self, seconds: float) -> None:
            raise NotImplementedError

    clock, database = Clock(), Database(f"sqlite:///{tmp_path}/catalog.db")
    old, new = (RowStore(f"catalog:{job}/report.json", job, database, clock) for job in ("old", "new"))
    old.change({REPORT: "x"})
    clock.now += KEPT_MS
    new.reserve()
    assert old.read(REPORT) == {REPORT: "x"}
    clock.now += 1
    new.reserve()
    assert old.read(REPORT) == {}


def test_job_whose_store_cannot_be_written_does_not_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")

    def work(_: IngestCommand) -> IngestReport:
        raise AssertionError("the job has begun")

    code = run_job(IngestCommand(table="t", report=f"file://{tmp_path}/file/report.json"), work, lambda _: ())
    assert code != 0 and "AssertionError" not in capsys.readouterr().err
    with pytest.raises(LakehouseError):
        open_report_store(f"file://{tmp_path}/file/report.json", os.environ).reserve()
