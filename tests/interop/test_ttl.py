"""TTL: Hudi and lakehouse expire the same partitions of a table of taxi trips and read the table afterwards.

The partitions are days of January 2019 that were written 30, 20 and 5 days ago; Hudi uses the system clock.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.shared import shared_dir
from tests.support.tables import SeededIds, SteadyClock

pytestmark = pytest.mark.jvm

NO_METADATA_TABLE = {"hoodie__metadata__enable": "false"}
DAY_S = 86_400
KEY = ("vendor_id", "pickup_datetime", "dropoff_datetime", "pickup_location_id", "dropoff_location_id")
STRATEGY, DAYS = "hoodie.partition.ttl.management.strategy.type", "hoodie.partition.ttl.strategy.days.retain"


def trips(*days: int) -> pa.Table:
    """Return the trips of some days of January 2019, with the day as a column."""
    found = csv.read_csv(shared_dir() / "data" / "nyc_taxi" / "yellow_tripdata_sample_2019-01.csv.gz")
    texts = {name: found.column(name).cast(pa.string()) for name in KEY}
    for name, column in texts.items():
        found = found.set_column(found.column_names.index(name), name, column)
    found = found.select([*KEY, "passenger_count", "trip_distance", "total_amount"])
    found = found.append_column("day", pc.utf8_slice_codeunits(found.column("pickup_datetime"), 0, 10))
    return found.filter(pc.is_in(found.column("day"), pa.array(paths(*days)))).combine_chunks()


def paths(*days: int) -> list[str]:
    return [f"2019-01-{day:02d}" for day in days]


def partitions(*days: int) -> list[str]:
    return [f"day={path}" for path in paths(*days)]


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    """Return a table with ten days.

    Days 1 to 6 were created 30 days ago, 7 and 8 20 days ago, 9 and 10 5 days ago. Day 2 was overwritten 20 days ago,
    day 3 was overwritten 5 days ago.
    """
    clock, now_ms = SteadyClock(), int(time.time() * 1000)
    clock.now = now_ms - 30 * DAY_S * 1000
    made = Table.create(
        str(tmp_path / "trips"),
        name="trips",
        record_key=KEY,
        partition_by=["day"],
        table_type=request.param,
        options={"hoodie.datasource.write.hive_style_partitioning": "true", "lakehouse.bucket.inserts": "base"},
        env=Env(storage=open_storage(str(tmp_path / "trips")), clock=clock, ids=SeededIds()),
    )
    made.bulk_insert(trips(*range(1, 7)))
    clock.now = now_ms - 20 * DAY_S * 1000
    made.bulk_insert(trips(7, 8))
    made.insert_overwrite(trips(2))
    clock.now = now_ms - 5 * DAY_S * 1000
    made.bulk_insert(trips(9, 10))
    made.insert_overwrite(trips(3))
    clock.now = now_ms
    made.services.set_ttl("day=2018-*", rule_id="another year", max_partitions=1)
    made.services.ttl.due()
    return made


def copied(table: Table, name: str) -> str:
    location = Path(table.location).with_name(name)
    shutil.copytree(table.location, location)
    return str(location)


def run_ttl(hudi: Hudi, location: str, strategy: str) -> list[str]:
    """Run Hudi's TTL with an age of ten days, and return the partitions that it reports as deleted."""
    text = f"CALL run_ttl(table => '{{table}}', ttl_policy => '{strategy}', retain_days => 10)"
    deleted = hudi.query(text, table=location, **NO_METADATA_TABLE).column("deleted_partitions").to_pylist()
    return sorted(map(str, deleted))


@pytest.mark.parametrize(
    ("strategy", "expired"),
    [
        ("KEEP_BY_TIME", partitions(1, 2, 4, 5, 6, 7, 8)),
        ("KEEP_BY_CREATION_TIME", partitions(1, 2, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_hudi_and_lakehouse_expire_the_same_partitions(
    strategy: str, expired: list[str], table: Table, hudi: Hudi
) -> None:
    theirs = copied(table, "theirs")
    assert run_ttl(hudi, theirs, strategy) == expired
    ours = Table.open(table.location, env=table.refresh().env, options={STRATEGY: strategy, DAYS: "10"})
    done = ours.services.ttl.run()
    assert isinstance(done, Committed) and sorted(done.metadata.replaced) == expired
    left = assert_hudi_reads_the_same(hudi, ours)
    assert left.num_rows == trips(*range(1, 11)).num_rows - trips(*(int(p[-2:]) for p in expired)).num_rows
    # After Hudi's TTL lakehouse has the same rows and statistics as after its own.
    by_hudi = Table.open(theirs, options={STRATEGY: strategy, DAYS: "10"})
    assert assert_hudi_reads_the_same(hudi, by_hudi).num_rows == left.num_rows
    assert by_hudi.services.ttl.due().due is False
    last = by_hudi.commits()[-1][1]
    assert (last.operation, sorted(last.replaced)) == (done.metadata.operation, expired)


@pytest.mark.parametrize("table", ["MERGE_ON_READ"], indirect=True)
def test_log_files_extend_the_age_of_a_partition_only_in_lakehouse(table: Table, hudi: Hudi) -> None:
    table.upsert(trips(1).slice(0, 1))
    assert any(file_slice.logs for file_slice in load_slices(table.refresh(), partitions(1)))
    theirs = copied(table, "theirs")
    ours = Table.open(table.location, env=table.refresh().env, options={STRATEGY: "KEEP_BY_TIME", DAYS: "10"})
    assert set(run_ttl(hudi, theirs, "KEEP_BY_TIME")) - set(ours.services.ttl.plan().partitions) == set(partitions(1))


@pytest.mark.parametrize("table", ["COPY_ON_WRITE"], indirect=True)
def test_hudi_writes_after_lakehouse_expired_partitions(table: Table, hudi: Hudi) -> None:
    ours = Table.open(
        table.location,
        env=table.refresh().env,
        options={"lakehouse.ttl.partition.age": "1d", "lakehouse.ttl.max.partitions": "4"},
    )
    assert isinstance(ours.services.ttl.run(), Committed) and ours.partitions() == ()
    options = {
        "hoodie.table.name": "trips",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.metadata.enable": "false",
        "hoodie.clean.commits.retained": "1",
        "hoodie.clean.automatic": "true",
    }
    for _ in range(2):
        hudi.write(table.location, trips(4), options)
    assert list(ours.partitions()) == partitions(4)
    assert assert_hudi_reads_the_same(hudi, ours).num_rows == trips(4).num_rows
    assert ours.services.ttl_rules()[0].id == "another year"
    assert list(ours.services.ttl.plan().partitions) == partitions(4)
