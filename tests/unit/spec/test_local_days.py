"""Data intervals and folders of a local time zone, on days of 23, 24 and 25 hours."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import UserError
from lakehouse.spec.cron import next_time_ms
from lakehouse.spec.sources.ingest import ingest_mapping
from lakehouse.spec.sources.interval_path import folders_of
from lakehouse.spec.table.table_spec import load_spec

BERLIN = "Europe/Berlin"
#: The clock is turned forward on the first day, and back on the second one.
SHORT, LONG = date(2026, 3, 29), date(2026, 10, 25)
#: Zones with other offsets: half an hour of daylight saving time, and days without midnight.
ZONES = (BERLIN, "America/New_York", "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu", "UTC")


def midnight(day: date, zone: str = BERLIN, hour: int = 0) -> datetime:
    """Return a time of a day in UTC, as Airflow's timetables have it."""
    return datetime(day.year, day.month, day.day, hour, tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(("day", "hours", "folders"), [(SHORT, 23, 23), (LONG, 25, 24), (date(2026, 6, 1), 24, 24)])
def test_local_day_has_its_folder_and_the_folders_of_its_hours(day: date, hours: int, folders: int) -> None:
    """apache/airflow#70089: on two days a year a data interval has another length."""
    start, end = midnight(day), midnight(day + timedelta(days=1))
    assert (end - start) == timedelta(hours=hours)
    assert folders_of("{start:%Y-%m-%d}", start, end, once=True, timezone=BERLIN) == (str(day),)
    named = folders_of("{start:%Y-%m-%d/%H}", start, end, once=True, timezone=BERLIN)
    assert len(named) == folders and (named[0], named[-1]) == (f"{day}/00", f"{day}/23")
    assert (f"{day}/02" in named) == (day != SHORT)
    # In UTC the same interval begins on the day before.
    assert folders_of("{start:%Y-%m-%d}", start, end)[0] == str(day - timedelta(days=1))


@given(st.dates(date(2026, 1, 1), date(2027, 12, 1)), st.integers(1, 40), st.sampled_from(ZONES), st.integers(0, 23))
def test_consecutive_local_days_have_every_folder_once(first: date, days: int, zone: str, hour: int) -> None:
    """apache/airflow#70089: a schedule at a time that the clock skips runs later on that day."""
    found: list[str] = []
    for number in range(days):
        start, end = (midnight(first + timedelta(days=number + more), zone, hour) for more in (0, 1))
        found += folders_of("{start:%Y-%m-%d}", start, end, once=True, timezone=zone)
    assert found == [str(first + timedelta(days=number)) for number in range(days)]


@given(st.dates(date(2026, 1, 1), date(2027, 12, 1)), st.sampled_from(ZONES))
def test_hours_of_a_local_day_are_those_of_its_clock(day: date, zone: str) -> None:
    """apache/airflow#70089: hours pass without gaps, also when the clock is changed."""
    start, end = midnight(day, zone), midnight(day + timedelta(days=1), zone)
    moments = [start + timedelta(minutes=15 * n) for n in range(int((end - start) / timedelta(minutes=15)))]
    expected = dict.fromkeys(f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d/%H}" for moment in moments)
    assert folders_of("{start:%Y-%m-%d/%H}", start, end, timezone=zone) == tuple(expected)


def test_hour_that_occurs_twice_is_refused_if_its_rows_would_be_inserted_twice() -> None:
    """open-source-cron/ocps#7: an hourly schedule runs twice in this hour."""
    path, first = "{start:%Y-%m-%d/%H}", midnight(LONG, hour=2)
    hours = [first + timedelta(hours=number) for number in range(-1, 4)]
    refused = []
    for start, end in pairwise(hours):
        try:
            folders_of(path, start, end, once=True, timezone=BERLIN)
        except UserError as error:
            assert "one of the two hours 2026-10-25 02 of Europe/Berlin" in error.message
            assert "Add the offset %z to the path" in error.message
            refused.append(start)
        assert len(folders_of(path, start, end, timezone=BERLIN)) == 1
    assert refused == [first, first + timedelta(hours=1)]
    with_offset = "{start:%Y-%m-%d/%H%z}"
    names = [folders_of(with_offset, start, start + timedelta(hours=1), once=True, timezone=BERLIN) for start in hours]
    assert len({*names}) == len(hours)


def test_spec_has_the_time_zone_of_its_schedule_and_start(tmp_path: Path) -> None:
    """apache/airflow#49462: a date without a zone is another moment in each place that reads it."""
    path = tmp_path / "t.yaml"
    text = 'path: "in/{start:%Y-%m-%d}/", schedule: "@daily", start_date: 2026-10-24'
    path.write_text(f"{{table: t, location: t, record_key: id, ingest: {{{text}, timezone: Europe/Berlin}}}}")
    ingest = load_spec(path).ingest
    assert ingest is not None
    assert (ingest.timezone, ingest.start_date) == (BERLIN, datetime(2026, 10, 23, 22, tzinfo=UTC))
    assert ingest_mapping(ingest)["timezone"] == BERLIN
    now = datetime(2026, 10, 24, 12, tzinfo=UTC)
    following = next_time_ms("0 3 * * *", int(now.timestamp() * 1000), BERLIN)
    assert following == int(midnight(LONG, hour=3).timestamp() * 1000)
    path.write_text(f"{{table: t, location: t, record_key: id, ingest: {{{text}, timezone: Europe/Berlinn}}}}")
    with pytest.raises(UserError, match=r"timezone: 'Europe/Berlinn' is unknown; zones are like UTC or Europe/Berlin"):
        load_spec(path)
