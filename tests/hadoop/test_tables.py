"""Tables on HDFS: services, killed and concurrent writers, tables of Apache Hudi, and Spark."""

from __future__ import annotations

import signal
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.rows.stored_names import is_skeleton
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.fixture_tables import FixtureTable, canonical_rows, load_fixture_tables
from tests.support.hadoop import Hadoop
from tests.support.killed import (
    CALLS,
    CHANGED,
    DELETED,
    base_table,
    batch,
    copy_of,
    insist,
    killed,
    leftovers,
    open_as,
    rows_of,
    run_verb,
    share,
)
from tests.support.parquet_folders import regions
from tests.support.processes import forked

FIXTURES = {table.name: table for table in load_fixture_tables()}
WRITERS = 3


def test_services_keep_the_rows_and_a_deep_validation_has_no_finding(hdfs: Hadoop) -> None:
    table = Table.create(
        hdfs.place(),
        name="t",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        table_type="MERGE_ON_READ",
        options={"hoodie.clean.commits.retained": "1", "hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"},
    )
    for turn in range(4):
        table.upsert(batch({("a", f"a{n}"): turn for n in range(turn, 6)} | {("b", f"b{turn}"): turn}))
    storage = open_storage(table.location)
    expected = rows_of(storage)
    for service in ("compaction", "clustering", "clean", "archive"):
        table.services.named(service).run(force=True)
        assert rows_of(storage) == expected, service
    savepoint = table.commits()[-1][0].requested
    table.savepoint(savepoint)
    table.upsert(batch({("c", "c1"): 9}))
    table.restore(savepoint)
    assert rows_of(storage) == expected
    report = Table.open(table.location).validate(deep=True)
    assert report.findings == ()
    # The clean deleted files of old commits.
    assert [left for left in leftovers(storage) if not left.startswith("missing")] == []


def test_killed_writes_are_rolled_back_by_the_next_write(hdfs: Hadoop) -> None:
    storage = base_table(open_storage(hdfs.place()), "SIMPLE")
    rehearsal = FaultyStorage(copy_of(storage))
    run_verb("upsert", open_as(rehearsal, 1))
    steps = rehearsal.steps
    for number, part in enumerate((0.3, 0.6, 0.85, 0.97)):
        before = rows_of(storage)
        assert killed(storage.root, "SIMPLE", "upsert", int(steps * part), FaultMode.KILL_BEFORE) == -signal.SIGKILL
        after = {key: value for key, value in {**before, **CHANGED}.items() if key not in DELETED}
        assert rows_of(storage) in (before, after)
        expected = {**rows_of(storage), ("z", "z1"): number}
        Table.open(storage.root, options=CALLS).upsert(batch({("z", "z1"): number}))
        assert rows_of(storage) == expected
    report = Table.open(storage.root).validate(deep=True)
    assert report.corrupt == ()


def test_concurrent_writers_lose_no_row(hdfs: Hadoop) -> None:
    storage = base_table(open_storage(hdfs.place()), "SIMPLE")
    before = rows_of(storage)
    processes = forked()
    writers = [processes.Process(target=insist, args=(storage.root, number)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * WRITERS
    expected = dict(before)
    for number in range(WRITERS):
        expected |= share(number)
    assert rows_of(storage) == expected
    assert Table.open(storage.root).validate(deep=True).findings == ()


def on_hdfs(table: FixtureTable, directory: Path, storage: Storage) -> None:
    """Copy a table of a fixture to HDFS."""
    source = open_storage(str(table.unpack(directory)))
    for file in source.list(""):
        storage.put(file.path, source.get(file.path))


@pytest.mark.parametrize("name", ["mor_v8_trips_8i3u1d", "cow_v8_simplekeygen_nonhivestyle"])
def test_table_of_hudi_is_read_written_and_serviced(hdfs: Hadoop, tmp_path: Path, name: str) -> None:
    fixture, storage = FIXTURES[name], open_storage(hdfs.place())
    on_hdfs(fixture, tmp_path, storage)
    table = Table.open(storage.root)
    rows = table.scan().to_arrow()
    expected = fixture.expected()
    assert expected is not None
    assert canonical_rows(rows) == canonical_rows(expected)
    data = [column for column in rows.column_names if not column.startswith("_hoodie_")]
    table.upsert(rows.select(data).slice(0, 1))
    assert canonical_rows(table.scan().to_arrow()) == canonical_rows(expected)
    if name.startswith("mor"):
        table.services.compaction.run(force=True)
    table.services.clean.run(force=True)
    table = Table.open(storage.root)
    assert canonical_rows(table.scan().to_arrow()) == canonical_rows(expected)
    assert table.validate(deep=True).corrupt == ()


@pytest.mark.spark
def test_spark_writes_and_reads_a_table_on_hdfs(hdfs: Hadoop, spark: SparkSession) -> None:
    table = Table.create(
        hdfs.place(), name="rides", record_key=["id"], partition_by=["city"], ordering="ts", table_type="MERGE_ON_READ"
    )
    columns = "id string, city string, fare double, ts long"
    rides = [(f"r{i}", ("Lyon", "São Paulo")[i % 2], float(i), 1) for i in range(50)]
    table.bulk_insert(spark.createDataFrame(rides, columns))
    table.upsert(spark.createDataFrame([("r1", "São Paulo", 99.0, 2), ("r90", "Köln", 5.0, 1)], columns))
    rows = table.scan(columns=["id", "fare"]).to_arrow()
    fares = dict(zip(rows["id"].to_pylist(), rows["fare"].to_pylist(), strict=True))
    assert (len(fares), fares["r1"], fares["r90"]) == (51, 99.0, 5.0)
    read = table.scan(columns=["id", "fare"]).to_spark(spark).toArrow()
    assert dict(zip(read["id"].to_pylist(), read["fare"].to_pylist(), strict=True)) == fares
    table.services.compaction.run(force=True, spark=spark)
    optimized = table.scan(columns=["id", "fare"], read_optimized=True).to_spark(spark)
    # Spark's own scan opens the files by its HDFS client.
    assert dict(zip(*(pa.table(optimized.toArrow())[c].to_pylist() for c in ("id", "fare")), strict=True)) == fares
    assert all(path.startswith(hdfs.root) for path in optimized.inputFiles())


def sources_on_hdfs(hdfs: Hadoop, directory: Path) -> str:
    """Copy folders of Parquet files to HDFS, and return their URL."""
    local, storage = open_storage(str(regions(directory / "source"))), open_storage(hdfs.place())
    for file in local.list(""):
        storage.put(file.path, local.get(file.path))
    return storage.root


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["metadata", "full"])
def test_parquet_files_on_hdfs_become_a_table_on_hdfs(
    hdfs: Hadoop, tmp_path: Path, spark: SparkSession, mode: str
) -> None:
    source, place = sources_on_hdfs(hdfs, tmp_path), hdfs.place()
    # The other partition has the other mode.
    request = {"mode": mode, "partition_pattern": "region=north", "record_key": "id", "ordering": "ts"}
    retained = {"hoodie.clean.commits.retained": "1"}
    table = Table.bootstrap(place, source=source, name="orders", options=retained, **request)
    before = {file.path: file.size_bytes for file in open_storage(source).list("")}

    def amounts(rows: pa.Table) -> dict[str, int]:
        return dict(zip(rows["id"].to_pylist(), rows["amount"].to_pylist(), strict=True))

    expected = {f"k{number:04d}": number for number in range(100)}
    assert amounts(table.scan(["id", "amount"]).to_arrow()) == expected
    assert amounts(table.scan(["id", "amount"]).to_spark(spark).toArrow()) == expected
    skeletons = [base.name for base in load_slices(table.refresh()).bases() if is_skeleton(base.name)]
    assert len(skeletons) == (2 if mode == "metadata" else 1)
    changed = pa.table({"id": ["k0005", "k0070"], "amount": [-5, -70], "ts": [2, 2], "region": ["north", "south"]})
    table.upsert(changed)
    expected |= {"k0005": -5, "k0070": -70}
    for service in ("clustering", "clean"):
        table.services.named(service).run(force=True)
        assert amounts(Table.open(place).scan(["id", "amount"]).to_arrow()) == expected, service
    assert Table.open(place).validate(deep=True).findings == ()
    assert {file.path: file.size_bytes for file in open_storage(source).list("")} == before
    with pytest.raises(UserError, match="table"):
        Table.bootstrap(place, source=source, name="orders", **request)
