"""Flags of short JVMs."""

from __future__ import annotations

from pathlib import Path

from demo.jvm import short_job_flags


def test_flags_name_the_archive_of_the_environment(tmp_path: Path) -> None:
    without = short_job_flags(tmp_path)
    assert "SharedArchiveFile" not in without
    (tmp_path / "spark.jsa").write_bytes(b"")
    assert short_job_flags(tmp_path).startswith(f"{without} -XX:SharedArchiveFile={tmp_path}/spark.jsa ")


def test_archive_at_a_path_with_a_space_is_not_used(tmp_path: Path) -> None:
    # The launcher of Java splits the variable at spaces.
    place = tmp_path / "a b"
    place.mkdir()
    (place / "spark.jsa").write_bytes(b"")
    assert short_job_flags(place) == short_job_flags(tmp_path)
