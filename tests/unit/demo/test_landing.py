from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from demo.landing import LAST_DAYS, Feed

NOW = datetime(2026, 3, 10, 5, 30, tzinfo=UTC)


def feed_of(path: Path) -> Feed:
    return Feed(generated=path / "generated", landing=path / "landing", orders_per_hour=5)


def test_feed_starts_two_days_before_the_first_run(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    assert feed.generate_until(NOW) == 2 * 24 + 5
    assert feed.first_day(NOW) == feed.first_day(NOW.replace(day=12)) == datetime(2026, 3, 8, tzinfo=UTC)


def test_feed_delivers_each_passed_hour_once(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    feed.generate_until(NOW)
    assert feed.deliver("orders", datetime(2026, 3, 9, tzinfo=UTC)) == 24
    assert feed.deliver("orders", datetime(2026, 3, 9, tzinfo=UTC)) == 0
    assert feed.deliver("orders", NOW.replace(minute=0)) == 24 + 5
    assert not (tmp_path / "landing" / "trips").exists()
    delivered = sorted(path.name for path in (tmp_path / "landing" / "orders" / "2026-03-10").iterdir())
    assert delivered == [f"{hour:02d}.json" for hour in range(5)]


def test_feed_keeps_files_when_more_hours_pass(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    feed.generate_until(NOW)
    before = {path.name: path.read_bytes() for path in (tmp_path / "generated" / "trips" / "2026-03-09").iterdir()}
    assert feed.generate_until(NOW.replace(hour=7)) == 2 * 24 + 7
    after = {path.name: path.read_bytes() for path in (tmp_path / "generated" / "trips" / "2026-03-09").iterdir()}
    assert before == after


def test_feed_ends_after_the_last_day(tmp_path: Path) -> None:
    feed = feed_of(tmp_path)
    feed.generate_until(NOW)
    assert feed.generate_until(NOW.replace(month=4)) == LAST_DAYS * 24
