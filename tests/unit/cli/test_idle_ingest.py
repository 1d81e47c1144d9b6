"""An ingestion that has nothing to read ends before a Spark session starts, with the report of the run."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path

import pytest

from lakehouse import load_catalog
from lakehouse.cli import ingest as ingest_command
from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.ingest.run import IngestContext, ingest
from lakehouse.spec.contracts.job import ErrorCode, IngestReport, JobReason, JobStatus, interval_text, parse_report
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import load_spec
from tests.support.ingested import files_source

RUN = "ingest.t/scheduled__2026-01-01/ingest"


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fail a test that starts a Spark session."""
    monkeypatch.setattr(ingest_command, "job_session", lambda name: pytest.fail("a Spark session was started"))
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))


def declare(folder: Path, *, path: str = "landing/", more: str = "") -> Path:
    (folder / "landing").mkdir()
    spec = folder / "t.yaml"
    spec.write_text(
        f"table: t\nlocation: {folder}/t\nrecord_key: id\npartition_by: p\nordering: ts\n"
        f"schema: {{id: string, p: string, ts: bigint}}\n"
        f"ingest: {{path: '{folder}/{path}', format: json, operation: insert{more}}}\n"
    )
    return spec


def land(folder: Path, name: str, *keys: str) -> None:
    file = folder / "landing" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f'{{"id": "{key}", "p": "p", "ts": 1}}\n' for key in keys))


def ingested(spec: Path, run_id: str, *interval: str) -> IngestReport:
    """Run the ingestion with a reader that needs no Spark; it is the run that `idle` must repeat."""
    loaded = load_spec(spec)
    start, end = interval or (None, None)
    command = IngestCommand(table=str(spec), run_id=run_id, interval_start=start, interval_end=end)
    return ingest(
        IngestContext(
            source=files_source(loaded),
            spec=loaded,
            command=command,
            options=loaded.write_options(),
            env=Env(storage=open_storage(loaded.location)),
            open=open_storage,
        )
    )


def idle(spec: Path, *words: str, run_id: str = RUN) -> tuple[int, IngestReport | None]:
    """Run the check of an Airflow task, and return its exit code and the report that it leaves."""
    path = spec.parent / "reports" / "report.json"
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    job = ["ingest", "run", "--table", str(spec), "--run-id", run_id, "--report", str(path)]
    code = main([*job, "--check", "--end-if-idle", *words])
    return code, parse_report(path.read_text()) if path.exists() else None


def test_run_without_new_files_ends_in_its_check_with_a_report_and_a_record(tmp_path: Path) -> None:
    spec = declare(tmp_path)
    land(tmp_path, "1.json", "a")
    assert idle(spec) == (0, None)
    commit = ingested(spec, "first")
    code, report = idle(spec)
    assert code == 0 and report is not None
    assert (report.status, report.code) == (JobStatus.NOTHING_TO_DO, JobReason.NO_NEW_DATA)
    # The asset event of the commit before is compared with those of Airflow.
    assert report.previous == commit.instant
    assert report.lag[0].left == 0
    with load_catalog() as catalog:
        runs = {run.run_id: run for run in catalog.history.runs(catalog.entry("t").id, "ingest")}
    assert runs[RUN].state is RunState.NOTHING_TO_DO
    land(tmp_path, "2.json", "b")
    assert idle(spec) == (0, None)


def test_check_of_a_run_with_new_files_records_nothing(tmp_path: Path) -> None:
    spec = declare(tmp_path)
    land(tmp_path, "1.json", "a")
    assert idle(spec) == (0, None)
    with load_catalog() as catalog:
        assert not catalog.table_exists("t")


def test_retry_after_its_commit_ends_in_its_check_with_the_commit(tmp_path: Path) -> None:
    spec = declare(tmp_path)
    land(tmp_path, "1.json", "a", "b")
    commit = ingested(spec, RUN)
    _, report = idle(spec)
    assert report is not None
    assert (report.instant, report.rows, report.files) == (commit.instant, 2, 1)


def days(number: int) -> tuple[str, str]:
    first = date(2026, 1, 1) + timedelta(days=number)
    return f"{first}T00:00:00+00:00", f"{first + timedelta(days=1)}T00:00:00+00:00"


@pytest.mark.parametrize("number", [0, 1], ids=["ingested", "without files"])
def test_report_of_an_interval_without_new_data_equals_that_of_the_run(tmp_path: Path, number: int) -> None:
    spec = declare(tmp_path, path="landing/{start:%Y-%m-%d}/", more=", missing: skip")
    land(tmp_path, "2026-01-01/1.json", "a")
    ingested(spec, "first", *days(0))
    code, report = idle(spec, "--interval-start", days(number)[0], "--interval-end", days(number)[1])
    expected = ingested(spec, RUN, *days(number))
    assert code == 0 and report is not None
    assert report.interval == interval_text(
        (datetime.fromisoformat(days(number)[0]), datetime.fromisoformat(days(number)[1]))
    )
    for name in ("status", "code", "reason", "instant", "previous", "missing", "folders", "warning", "lag", "rows"):
        assert getattr(report, name) == getattr(expected, name), name


def test_wait_for_missing_data_ends_in_the_check_and_is_recorded(tmp_path: Path) -> None:
    spec = declare(tmp_path, path="landing/{start:%Y-%m-%d}/", more=", missing: wait, wait_for: 2h")
    land(tmp_path, "2026-01-01/1.json", "a")
    interval = ("--interval-start", days(0)[0], "--interval-end", days(0)[1])
    assert idle(spec, *interval) == (0, None)
    with load_catalog() as catalog:
        catalog.ensure_table(load_spec(spec), author="test", create=False)
    code, report = idle(spec, "--interval-start", days(1)[0], "--interval-end", days(1)[1])
    assert code == 75 and report is not None and report.error is not None
    assert (report.error.code, report.error.wait_for_s) == (ErrorCode.SOURCE_MISSING, 7200)
    with load_catalog() as catalog:
        (run,) = catalog.history.runs(catalog.entry("t").id, "ingest")
    assert run.state is RunState.WAITING


def test_run_by_hand_without_new_files_starts_no_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = declare(tmp_path)
    land(tmp_path, "1.json", "a")
    ingested(spec, "first")
    capsys.readouterr()
    assert main(["ingest", "run", "--table", str(spec)]) == 0
    assert "nothing to do" in capsys.readouterr().out.lower()


@pytest.mark.parametrize(
    "words", [["ingest", "run"], ["clean", "run", "--check"], ["ingest", "replay", "--check"]], ids=" ".join
)
def test_end_if_idle_is_refused_for_another_job(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--table", str(tmp_path), "--end-if-idle"]) == 64
    assert "--end-if-idle" in capsys.readouterr().err
