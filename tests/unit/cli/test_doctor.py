"""`lakehouse doctor`: table, JSON, exit codes."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.cli.doctor import text_table
from lakehouse.cli.main import main
from lakehouse.errors import UserError
from lakehouse.spec.contracts.doctor import CheckedEnvironment, CheckResult, CheckState, DoctorReport

SPARK = CheckedEnvironment.SPARK


def test_doctor_without_failure_ends_with_zero_and_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    assert main(["doctor", "--check", "python", "--check", "catalog", "--output", "json"]) == 0
    report = DoctorReport.from_json(capsys.readouterr().out)
    assert [(check.name, check.state) for check in report.checks] == [("python", "ok"), ("catalog", "warning")]


def test_doctor_with_a_failure_ends_with_a_user_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert main(["doctor", "--environment", "spark", "--check", "java"]) == UserError.exit_code
    printed = capsys.readouterr()
    assert "JAVA_HOME" in printed.out
    assert printed.err.startswith("UserError: 1 of 1 checks failed: java.")
    assert len(printed.err.splitlines()) == 1


def test_doctor_refuses_checks_of_the_other_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--environment", "spark", "--check", "pools"]) == UserError.exit_code
    assert "runs in Airflow's environment" in capsys.readouterr().err
    assert main(["doctor", "--environment", "airflow"]) == UserError.exit_code
    assert "there is no Airflow" in capsys.readouterr().err


def test_table_wraps_long_cells_below_their_columns() -> None:
    result = CheckResult(
        name="storage", environment=SPARK, state=CheckState.FAILED, found="word " * 40, advice="do this " * 20
    )
    report = DoctorReport(lakehouse_version="1", python_version="3", checks=(result,))
    lines = text_table(report, 120).splitlines()
    assert lines[0].split() == ["check", "state", "found", "what", "to", "do"]
    assert max(map(len, lines)) <= 120
    assert sum(line.count("word") for line in lines) == 40
    assert sum(line.count("do this") for line in lines) == 20
