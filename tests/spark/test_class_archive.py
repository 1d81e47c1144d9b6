"""Writing the archive of classes: `make classes` writes a real one for all tests; here spark-submit is a script."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakehouse.spark import class_archive

#: Writes the file that the flags of the driver name, if the environment names no archive to use.
WRITES = """#!/bin/sh
[ -z "$JDK_JAVA_OPTIONS" ] || exit 3
file="${2#-XX:ArchiveClassesAtExit=}"
echo classes > "${file%% *}"
"""
FAILS = "#!/bin/sh\necho 'no memory'\nexit 1\n"


def submit_at(place: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a script as spark-submit, beside the Python that runs."""
    (place / "spark-submit").write_text(script)
    (place / "spark-submit").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(place / "python"))


def test_archive_is_written_although_the_environment_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit_at(tmp_path, WRITES, monkeypatch)
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:SharedArchiveFile=/old.jsa")
    assert class_archive.main([str(tmp_path / "spark.jsa")]) == 0
    assert (tmp_path / "spark.jsa").read_text() == "classes\n"


def test_failed_job_keeps_the_old_archive_and_shows_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_at(tmp_path, FAILS, monkeypatch)
    (tmp_path / "spark.jsa").write_text("old")
    assert class_archive.main([str(tmp_path / "spark.jsa")]) == 1
    shown = capsys.readouterr().err
    assert "no memory" in shown and f"was written to {tmp_path}/spark.jsa" in shown
    assert (tmp_path / "spark.jsa").read_text() == "old"


def test_environment_without_spark_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert class_archive.main([str(tmp_path / "spark.jsa")]) == 1
    assert f"{tmp_path}/spark-submit does not exist" in capsys.readouterr().err
