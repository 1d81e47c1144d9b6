from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from demo.sample_data import generate
from lakehouse.errors import UserError


def _read(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    return [
        (f"{path.parent.name}T{path.stem}", json.loads(line))
        for path in sorted(folder.rglob("*.json"))
        for line in path.read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def rides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rides")
    generate(folder, hours=26, orders_per_hour=200, seed=3)
    return folder


def test_generate_depends_on_the_seed_only(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        generate(tmp_path / name, hours=3, orders_per_hour=50, seed=seed)
    texts = {name: [p.read_bytes() for p in sorted((tmp_path / name).rglob("*.json"))] for name in ("a", "b", "c")}
    assert texts["a"] == texts["b"]
    assert all(a != c for a, c in zip(texts["a"], texts["c"], strict=True))


def test_events_of_an_hour_do_not_depend_on_the_number_of_hours(tmp_path: Path) -> None:
    generate(tmp_path / "short", hours=2, orders_per_hour=50, seed=1)
    generate(tmp_path / "long", hours=5, orders_per_hour=50, seed=1)
    for path in (tmp_path / "short").rglob("*.json"):
        assert path.read_bytes() == (tmp_path / "long" / path.relative_to(tmp_path / "short")).read_bytes()


def test_generate_writes_one_file_per_stream_and_hour_and_counts_lines(tmp_path: Path) -> None:
    generated = generate(tmp_path, hours=26, orders_per_hour=20, seed=1)
    assert len(generated.files) == 52
    assert {p.relative_to(tmp_path).as_posix() for p in generated.files} >= {
        "orders/2026-01-01/00.json",
        "trips/2026-01-01/23.json",
        "orders/2026-01-02/01.json",
    }
    assert sorted(p for p in tmp_path.rglob("*") if p.is_file()) == sorted(generated.files)
    assert generated.orders == len(_read(tmp_path / "orders"))
    assert generated.trips == len(_read(tmp_path / "trips"))


def test_orders_have_events_in_several_files(rides: Path) -> None:
    hours: dict[str, set[str]] = {}
    for hour, event in _read(rides / "orders"):
        hours.setdefault(event["order_id"], set()).add(hour)
    assert len(hours) >= 26 * 195
    assert sum(len(h) > 1 for h in hours.values()) > 0.2 * len(hours)


def test_some_events_arrive_hours_after_they_happened(rides: Path) -> None:
    events = _read(rides / "orders")
    late = sum(event["updated_at"][:13] < hour for hour, event in events)
    assert 0.01 * len(events) < late < 0.06 * len(events)
    assert all(event["updated_at"][:13] <= hour for hour, event in events)


def test_some_events_are_duplicated_in_one_file(rides: Path) -> None:
    counts = Counter((hour, json.dumps(event)) for hour, event in _read(rides / "orders"))
    assert sum(n == 2 for n in counts.values()) > 20


def test_zones_are_skewed(rides: Path) -> None:
    zones = Counter(event["zone"] for _, event in _read(rides / "orders"))
    largest = [n for _, n in zones.most_common(3)]
    assert sum(largest) > 0.3 * zones.total()
    assert len(zones) > 80


def test_partition_of_an_order_never_changes(rides: Path) -> None:
    dates: dict[str, set[str]] = {}
    for _, event in _read(rides / "orders"):
        dates.setdefault(event["order_id"], set()).add(event["order_date"])
        assert event["order_date"] == event["created_at"][:10]
    assert all(len(d) == 1 for d in dates.values())


def test_events_of_an_order_have_different_times(rides: Path) -> None:
    versions: dict[tuple[str, str], set[str]] = {}
    for _, event in _read(rides / "orders"):
        versions.setdefault((event["order_id"], event["updated_at"]), set()).add(event["status"])
    assert all(len(statuses) == 1 for statuses in versions.values())
    assert {s for v in versions.values() for s in v} == {
        "requested", "accepted", "picked_up", "completed", "cancelled", "tipped",
    }  # fmt: skip


def test_first_event_of_a_trip_has_no_dropoff(rides: Path) -> None:
    events: dict[str, list[dict[str, Any]]] = {}
    for _, event in _read(rides / "trips"):
        events.setdefault(event["trip_id"], []).append(event)
    both = [sorted(e, key=lambda x: str(x["updated_at"])) for e in events.values() if len(e) > 1]
    assert len(both) > 0.8 * len(events)
    for first, *_, last in both:
        if first["updated_at"] < last["updated_at"]:
            assert first["dropoff_at"] is None and first["distance_km"] is None
            assert last["dropoff_at"] > last["pickup_at"] and last["distance_km"] > 0


def test_parquet_files_have_the_same_rows_with_types(tmp_path: Path) -> None:
    generate(tmp_path / "json", hours=2, orders_per_hour=50, seed=1)
    generate(tmp_path / "parquet", hours=2, orders_per_hour=50, seed=1, format="parquet")
    table = pq.read_table(tmp_path / "parquet/orders/2026-01-01/01.parquet")
    lines = (tmp_path / "json/orders/2026-01-01/01.json").read_text().splitlines()
    assert str(table.schema.field("updated_at").type) == "timestamp[us, tz=UTC]"
    for name in ("order_id", "driver_id", "status", "fare"):
        assert table.column(name).to_pylist() == [json.loads(line)[name] for line in lines]
    assert pc.strftime(table.column("updated_at"), format="%Y-%m-%dT%H:%M:%SZ").to_pylist() == [
        json.loads(line)["updated_at"] for line in lines
    ]


@pytest.mark.parametrize(("hours", "orders"), [(0, 5), (5, 0)])
def test_sizes_below_one_are_refused(tmp_path: Path, hours: int, orders: int) -> None:
    with pytest.raises(UserError, match="at least 1 hour and 1 order"):
        generate(tmp_path, hours=hours, orders_per_hour=orders)
