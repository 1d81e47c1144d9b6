"""Ingestions by data interval in a local time zone: bounds without an offset, and folders of days of 25 hours."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lakehouse.cli.ingest import zoned
from lakehouse.errors import UserError
from lakehouse.platform.sources.files.file_check import check_files_source
from lakehouse.platform.sources.files.file_columns import file_source_of
from lakehouse.platform.sources.files.file_source import FilesSource
from lakehouse.spec.job_command import IngestCommand, JobCommand
from lakehouse.spec.table.table_spec import TableSpec, load_spec


@pytest.fixture
def spec(tmp_path: Path) -> TableSpec:
    path = tmp_path / "t.yaml"
    landing = f"{tmp_path}/in/{{start:%Y-%m-%d}}/{{start:%H}}"
    path.write_text(
        f'{{table: t, location: t, record_key: id, ingest: {{path: "{landing}", operation: insert, missing: skip, '
        "timezone: Europe/Berlin}}"
    )
    return load_spec(path)


def command(spec: TableSpec, start: str, end: str) -> JobCommand:
    """Return the command of a run with this interval."""
    return zoned(IngestCommand(table=spec.source, interval_start=start, interval_end=end))


def test_bounds_without_an_offset_are_in_the_time_zone_of_the_spec(spec: TableSpec) -> None:
    """apache/airflow#16961: the time zone of a date depends on the place that reads it."""
    local = command(spec, "2026-10-25", "2026-10-26")
    assert local.interval == (datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 23, tzinfo=UTC))
    exact = command(spec, "2026-10-25T00:00:00Z", "2026-10-25T02:00:00+01:00")
    assert exact.interval == (datetime(2026, 10, 25, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC))
    wrong = IngestCommand(table="nowhere.yaml")
    assert zoned(wrong) == wrong


def test_day_of_25_hours_reads_each_folder_once_and_half_of_its_double_hour_is_refused(
    spec: TableSpec, tmp_path: Path
) -> None:
    """apache/airflow#70089: two days a year have another number of hours."""
    folders = [tmp_path / "in" / "2026-10-25" / f"{hour:02}" for hour in range(24)]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "a.json").write_text('{"id": 1}\n')
    reader: Any = None
    source = FilesSource(spec=spec, settings=file_source_of(spec), storage_options={}, reader=reader, environ={})
    day = command(spec, "2026-10-25", "2026-10-26").interval
    plan = source.plan(None, day, full_refresh=False)
    assert (plan.units, plan.names, plan.missing) == (24, tuple(map(str, folders)), ())
    hour = command(spec, "2026-10-25T02:00:00+02:00", "2026-10-25T02:00:00+01:00").interval
    with pytest.raises(UserError, match="one of the two hours 2026-10-25 02 of Europe/Berlin"):
        source.plan(None, hour, full_refresh=False)
    with pytest.raises(UserError, match="one of the two hours 2026-10-25 02 of Europe/Berlin"):
        check_files_source(spec, hour, {}, {})
