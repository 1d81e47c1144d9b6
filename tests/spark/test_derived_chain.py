"""The example chain raw -> clean -> daily equals its full recomputation after any history of the raw table."""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import load_spec

pytestmark = pytest.mark.spark
CHAIN = Path(__file__).parents[2] / "dags" / "examples" / "etl"
COLUMNS = ("trip_id", "email", "day", "zone", "cents")
Trip = tuple[str, str, str, str, int]
ROUNDS, MOST_COMMITS, IDS = 3, 3, 12


def random_trip(chance: random.Random, trip_id: str) -> Trip:
    """Return a version of a trip; one in four is invalid, and days and zones change often."""
    email = chance.choice(["Ada@x.org", " ada@x.org", "bo@x.org", "eve@x.org"])
    day = f"2026-01-0{chance.randint(1, 4)}"
    return trip_id, email, day, chance.choice(["north", "south"]), chance.choice([-1, 1, 2, 3])


def change(chance: random.Random, raw: Table, trips: dict[str, Trip]) -> None:
    """Make one commit of the raw table: changed and new trips, or deletes."""
    if trips and chance.random() < 0.4:
        gone = chance.sample(sorted(trips), min(len(trips), 3))
        raw.delete(gone)
        for key in gone:
            del trips[key]
        return
    chosen = [random_trip(chance, f"t{number}") for number in chance.sample(range(IDS), 4)]
    raw.upsert(pa.table({name: [trip[n] for trip in chosen] for n, name in enumerate(COLUMNS)}))
    trips.update({trip[0]: trip for trip in chosen})


def clean_rows(trips: dict[str, Trip]) -> list[Trip]:
    """Return the rows of clean_trips for the trips of the raw table."""
    return sorted(
        (trip_id, hashlib.sha256(email.strip(" ").lower().encode()).hexdigest(), day, zone.upper(), cents)
        for trip_id, email, day, zone, cents in trips.values()
        if cents >= 0
    )


def daily_rows(clean: list[Trip]) -> list[tuple[object, ...]]:
    """Return the rows of daily_trips for the rows of clean_trips."""
    groups = defaultdict(list)
    for _, rider, day, zone, cents in clean:
        groups[day, zone].append((rider, cents))
    return sorted((*key, len(of), len({rider for rider, _ in of}), sum(c for _, c in of)) for key, of in groups.items())


def rows(location: Path, *columns: str) -> list[tuple[object, ...]]:
    """Return the rows of a table, sorted."""
    found = Table.open(location).scan(columns=list(columns)).to_arrow().to_pylist()
    return sorted(tuple(row[column] for column in columns) for row in found)


@pytest.mark.parametrize("seed", [13])
def test_chain_of_derived_tables_equals_full_recomputation(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    chance, lake, trips = random.Random(seed), tmp_path / "lake", dict[str, Trip]()
    raw = Table.create(lake / "raw_trips", name="raw_trips", record_key="trip_id", cdc="DATA_BEFORE_AFTER")
    before: list[Trip] = []
    lost, moved = 0, 0
    for _ in range(ROUNDS):
        for _ in range(chance.randint(1, MOST_COMMITS)):
            change(chance, raw, trips)
        for name in ("clean_trips", "daily_trips"):
            command = IngestCommand(table=name)
            run_ingest(spark, load_spec(CHAIN / f"{name}.yaml"), command, environ={"LAKEHOUSE_HOME": str(tmp_path)})
        clean = clean_rows(trips)
        assert rows(lake / "clean_trips", "trip_id", "rider", "day", "zone", "cents") == clean
        assert rows(lake / "daily_trips", "day", "zone", "trips", "riders", "cents") == daily_rows(clean)
        days = {row[0]: row[2] for row in clean}
        lost += sum(row[0] not in days for row in before)
        moved += sum(days.get(row[0], row[2]) != row[2] for row in before)
        before = clean
    # The history has the cases that are difficult: rows that disappear, and rows that change their partition.
    assert lost > 0
    assert moved > 0
