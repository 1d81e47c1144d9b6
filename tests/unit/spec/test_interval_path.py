"""The folders of a data interval, from a path with placeholders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import UserError
from lakehouse.spec.sources.interval_path import MAX_FOLDERS, folders_of, problem_of


def moment(text: str) -> datetime:
    """Return a time in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def folders(path: str, start: str, end: str, *, once: bool = False) -> tuple[str, ...]:
    """Return the folders of an interval in UTC."""
    return folders_of(path, moment(start), moment(end), once=once)


def test_interval_of_23_hours_across_midnight_has_23_folders() -> None:
    found = folders("in/{start:%Y-%m-%d}/{start:%H}/", "2026-01-01T02:00", "2026-01-02T01:00")
    assert found == (*(f"in/2026-01-01/{hour:02}/" for hour in range(2, 24)), "in/2026-01-02/00/")


@pytest.mark.parametrize(
    ("path", "start", "end", "expected"),
    [
        ("{start:%Y}", "2024-01-01", "2027-01-01", ("2024", "2025", "2026")),
        ("{start:%Y/%m}", "2025-11-01", "2026-02-01", ("2025/11", "2025/12", "2026/01")),
        ("{start:%Y-%m-%d}", "2026-02-27", "2026-03-02", ("2026-02-27", "2026-02-28", "2026-03-01")),
        ("{start:%Y%j}", "2026-02-27", "2026-03-01", ("2026058", "2026059")),
        ("{start:%H%M}", "2026-01-01T00:58", "2026-01-01T01:01", ("0058", "0059", "0100")),
        ("{start:%G-W%V}", "2025-12-29", "2026-01-12", ("2026-W01", "2026-W02")),
        # A week that is in two years has a folder in each year.
        ("{start:%Y-W%W}", "2025-12-29", "2026-01-05", ("2025-W52", "2026-W00")),
        ("{end:%Y-%m-%d}", "2026-01-01", "2026-01-03", ("2026-01-02", "2026-01-03")),
        ("{start:%d}", "2026-01-31", "2026-03-01", (*(f"{day:02}" for day in (31, *range(1, 29))),)),
        ("landing/*.json", "2026-01-01", "2026-01-03", ("landing/*.json",)),
    ],
)
def test_finest_directive_determines_the_folders(path: str, start: str, end: str, expected: tuple[str, ...]) -> None:
    assert folders(path, start, end, once=True) == expected


def test_folders_have_times_in_utc_for_any_time_zone() -> None:
    zone = timezone(timedelta(hours=2))
    start, end = datetime(2026, 1, 1, 1, tzinfo=zone), datetime(2026, 1, 1, 3, tzinfo=zone)
    assert folders_of("{start:%Y-%m-%d/%H}", start, end) == ("2025-12-31/23", "2026-01-01/00")


def test_interval_that_begins_inside_a_step_has_the_folder_of_its_start() -> None:
    assert folders("{start:%Y-%m-%d}", "2026-01-01T03:00", "2026-01-02T03:00", once=True) == ("2026-01-01",)
    assert folders("{end:%Y-%m-%d}", "2026-01-01T03:00", "2026-01-02T03:00", once=True) == ("2026-01-02",)
    assert folders("{start:%Y-%m}", "2026-01-05T03:00", "2026-03-05T03:00") == ("2026-01", "2026-02")


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=8),
    st.integers(0, 59),
    st.sampled_from(["{start:%Y-%m-%d}/{start:%H}", "{start:%Y%m%d%H}/x"]),
)
def test_consecutive_intervals_have_every_folder_once(steps: list[int], minute: int, path: str) -> None:
    start = moment("2026-02-27T20:00") + timedelta(minutes=minute)
    whole = start + timedelta(hours=sum(steps))
    found: list[str] = []
    for step in steps:
        found += folders_of(path, start, start + timedelta(hours=step), once=True)
        start += timedelta(hours=step)
    assert tuple(found) == folders_of(path, moment("2026-02-27T20:00"), whole.replace(minute=0))
    assert len(set(found)) == sum(steps)


def test_partial_step_has_its_folder_and_is_refused_if_rows_would_be_inserted_twice() -> None:
    assert folders("{start:%Y-%m-%d}", "2026-01-01", "2026-01-02T12:00") == ("2026-01-01", "2026-01-02")
    assert folders("{start:%Y-%m-%d}", "2026-01-01T05:00", "2026-01-01T06:00") == ("2026-01-01",)
    with pytest.raises(UserError, match=r"is not a whole number of days.*inserted twice.*operation: upsert"):
        folders("{start:%Y-%m-%d}", "2026-01-01", "2026-01-02T12:00", once=True)
    with pytest.raises(UserError, match=r"is not a whole number of days, so \{end:...\} names no folder"):
        folders("{end:%Y-%m-%d}", "2026-01-01", "2026-01-02T12:00")


def test_path_with_both_complete_bounds_names_one_file_of_any_interval() -> None:
    path = "{start:%Y%m%d}_{end:%Y%m%d}.csv"
    assert folders(path, "2026-01-01", "2026-01-08", once=True) == ("20260101_20260108.csv",)
    assert folders("{start:%Y%m%d%H%M%S}-{end:%s}", "1970-01-01", "1970-01-02", once=True) == ("19700101000000-86400",)


def test_path_that_mixes_bounds_is_refused_unless_the_interval_is_one_step() -> None:
    path = "{start:%Y-%m-%d}/{start:%H}-{end:%H}.json"
    assert folders(path, "2026-01-01T05:00", "2026-01-01T06:00", once=True) == ("2026-01-01/05-06.json",)
    with pytest.raises(UserError, match=r"mixed, and the interval .* is not one hour"):
        folders(path, "2026-01-01T05:00", "2026-01-01T07:00")


def test_interval_with_too_many_folders_is_refused() -> None:
    with pytest.raises(UserError, match=f"more than {MAX_FOLDERS} folders, one per minute"):
        folders("{start:%Y%m%d%H%M}", "2026-01-01", "2026-01-06")


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("{start:%Y-%m-%dT%H%M%S}.json", "names seconds"),
        ("{start:%z}", "names no minute, hour"),
        ("{start:%Y-%Q}", "unknown directive %Q"),
        ("{start:%Y-%U}", "unknown directive %U"),
    ],
)
def test_path_without_a_step_is_refused_with_the_reason(path: str, reason: str) -> None:
    assert reason in str(problem_of(path))
    with pytest.raises(UserError, match=reason):
        folders(path, "2026-01-01", "2026-01-02")
