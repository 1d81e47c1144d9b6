"""Time zones of data intervals: those of Airflow, of a spec, and of dates without an offset."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import CronDataIntervalTimetable
from airflow.timetables.base import TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable as Timetable

from lakehouse.errors import UserError
from lakehouse.spec.contracts.doctor import CheckState
from lakehouse.spec.sources.interval_path import folders_of
from lakehouse.spec.table.table_spec import TableSpec, load_spec
from lakehouse_airflow import doctor
from lakehouse_airflow.dags_ingest import ingest_dag
from lakehouse_airflow.data_intervals import data_interval

ROOT = Path(__file__).resolve().parents[2]
BERLIN = "Europe/Berlin"


@pytest.fixture
def spec(tmp_path: Path) -> TableSpec:
    path = tmp_path / "t.yaml"
    path.write_text(
        '{table: t, location: t, record_key: id, ingest: {path: "in/{start:%Y-%m-%d}/", schedule: "@daily", '
        "start_date: 2026-03-01, timezone: Europe/Berlin}}"
    )
    return load_spec(path)


def test_bounds_without_an_offset_are_in_the_time_zone_of_airflow(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """apache/airflow#16961: Airflow reads dates in its own time zone, and so does a run's conf."""
    naive = {"interval_start": "2026-10-25", "interval_end": "2026-10-26T00:00:00"}
    context = {"params": naive}
    assert data_interval(context, by_interval=True) == ("2026-10-25T00:00:00+00:00", "2026-10-26T00:00:00+00:00")
    monkeypatch.setenv("AIRFLOW__CORE__DEFAULT_TIMEZONE", BERLIN)
    with caplog.at_level(logging.INFO, logger="lakehouse_airflow.data_intervals"):
        assert data_interval(context, by_interval=True) == ("2026-10-24T22:00:00+00:00", "2026-10-25T23:00:00+00:00")
    assert "interval_start=2026-10-25 has no offset, so it is in Airflow's time zone Europe/Berlin" in caplog.text
    exact = {"interval_start": "2026-10-25T00:00:00Z", "interval_end": "2026-10-26T00:00:00+00:00"}
    assert data_interval({"params": exact}, by_interval=True) == (
        "2026-10-25T00:00:00+00:00",
        "2026-10-26T00:00:00+00:00",
    )
    with pytest.raises(UserError, match="give both, or none"):
        data_interval({"params": {"interval_start": "2026-10-25"}}, by_interval=True)


def test_dag_of_a_spec_with_a_time_zone_has_local_days_of_23_and_25_hours(spec: TableSpec) -> None:
    """apache/airflow#70089: the days on which the clock is changed."""
    assert spec.ingest is not None
    dag = ingest_dag(spec, spec.ingest)
    assert isinstance(dag.timetable, CronDataIntervalTimetable)
    assert dag.timetable.timezone == BERLIN
    assert "in the time zone Europe/Berlin. Write the dates of a backfill with their offset" in str(dag.doc_md)
    timetable = Timetable("@daily", timezone=BERLIN)
    lengths: dict[str, timedelta] = {}
    for month in (3, 10):
        begin = datetime(2026, month, 23, 12, tzinfo=UTC)
        info: Any = None
        for _ in range(8):
            restriction: Any = TimeRestriction(earliest=begin, latest=None, catchup=True)
            last = None if info is None else info.data_interval
            info = timetable.next_dagrun_info(last_automated_data_interval=last, restriction=restriction)
            interval = info.data_interval
            (folder,) = folders_of("{start:%Y-%m-%d}", *interval, once=True, timezone=spec.ingest.timezone)
            lengths[folder] = interval.end - interval.start
    hours = {folder: length.total_seconds() / 3600 for folder, length in lengths.items()}
    assert len(hours) == 16
    assert {folder: length for folder, length in hours.items() if length != 24} == {"2026-03-29": 23, "2026-10-25": 25}


def test_documented_backfill_commands_have_dates_with_an_offset() -> None:
    """apache/airflow#49462: a date without an offset is read in the time zone of Airflow, and a day is missing."""
    folders = [ROOT / "docs", ROOT / "plugins", ROOT / "demo", ROOT / "dags"]
    found: list[str] = []
    for path in (path for folder in folders for path in folder.rglob("*") if path.suffix in (".md", ".py")):
        dates = re.findall(r"--(?:from|to)-date\s+(\S+)", path.read_text(encoding="utf-8"))
        found += [f"{path.relative_to(ROOT)}: {date}" for date in dates if re.match(r"\d", date)]
    assert len(found) > 10
    assert [line for line in found if not re.search(r": \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+\d\d:\d\d", line)] == []


def test_doctor_warns_of_an_airflow_with_another_time_zone_than_its_intervals(
    spec: TableSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """apache/airflow#16961: the default time zone of a deployment decides which days a command names."""
    assert spec.ingest is not None
    utc = replace(spec, ingest=replace(spec.ingest, timezone="UTC"))
    facts = doctor.AirflowFacts(environ={}, specs=(utc,), report=None, report_problem="")
    assert doctor.check_time_zone(facts) == (CheckState.OK, "UTC")
    state, text = doctor.check_time_zone(replace(facts, specs=(spec,)))
    assert state is CheckState.WARNING
    assert text == "Airflow's time zone is UTC, and DAGs have intervals in Europe/Berlin"
    monkeypatch.setenv("AIRFLOW__CORE__DEFAULT_TIMEZONE", BERLIN)
    state, text = doctor.check_time_zone(replace(facts, specs=(spec,)))
    assert text == "Airflow's time zone is Europe/Berlin, and DAGs have intervals in UTC"
