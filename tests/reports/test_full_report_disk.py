"""A full disk does not make a job fail after its commit: the space of the report is reserved before the work."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from lakehouse.errors import UserError
from lakehouse.platform.jobs.run import run_job
from lakehouse.spec.contracts.job import IngestReport, JobStatus, parse_report
from lakehouse.spec.job_command import IngestCommand, JobCommand

DONE = IngestReport(status=JobStatus.COMMITTED, table="sales.orders", instant="20260131120000000", rows=3)


def full(*args: Any) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def job(path: Path, *, report: IngestReport = DONE) -> tuple[int, list[JobCommand]]:
    """Run a job with a report; return its exit code and the commands whose work was done."""
    worked: list[JobCommand] = []

    def work(command: JobCommand) -> IngestReport:
        worked.append(command)
        return report

    command = IngestCommand(table="orders.yaml", report=str(path))
    return run_job(command, work, lambda command: ()), worked


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports" / "report.json"


def test_job_does_not_begin_if_no_space_can_be_reserved_for_its_report(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pgbackrest/pgbackrest#672: a retry after a full disk meets what the first try has done."""
    monkeypatch.setattr(os, "posix_fallocate", full)
    assert job(path) == (75, [])
    assert "The job has not begun. Free space there, or set LAKEHOUSE_REPORTS" in capsys.readouterr().err
    assert list(path.parent.iterdir()) == []


@pytest.mark.parametrize("step", ["replace", "open"])
def test_job_that_committed_succeeds_and_logs_its_report_if_the_report_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, step: str
) -> None:
    """apache/spark#10080: an output whose commit is repeated fails at what exists already."""
    if step == "replace":
        monkeypatch.setattr(os, "replace", full)
    else:
        monkeypatch.setattr("lakehouse.spec.report_store.open", full, raising=False)
    code, worked = job(path)
    assert (code, len(worked)) == (0, 1)
    assert "the report cannot be written" in caplog.text and "20260131120000000" in caplog.text
    assert list(path.parent.iterdir()) == []


def test_error_of_a_job_is_printed_if_its_report_cannot_be_written(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pgbackrest/pgbackrest#672: the cause is in the log, although an operator usually reads it from the report."""
    monkeypatch.setattr(os, "replace", full)
    monkeypatch.setenv("LAKEHOUSE_JOB", "d/r/t")

    def work(command: JobCommand) -> IngestReport:
        raise UserError("the column is missing")

    command = IngestCommand(table="orders.yaml", report=str(path))
    assert run_job(command, work, lambda command: ()) == 64
    assert "UserError: the column is missing" in capsys.readouterr().err


def test_report_is_exact_and_leftovers_of_killed_tries_are_deleted(path: Path) -> None:
    """apache/spark#10080: what a killed try left behind does not disturb the next one."""
    path.parent.mkdir()
    (path.parent / ".report.json.abc.tmp").write_bytes(bytes(10))
    assert job(path)[0] == 0
    assert parse_report(path.read_text(encoding="utf-8")) == DONE
    assert [file.name for file in path.parent.iterdir()] == ["report.json"]
    assert path.stat().st_mode & 0o777 == 0o600
