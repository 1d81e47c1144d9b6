"""Failed writes, services and upgrades: each implementation continues after failures and changes of the other."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, State
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.test_writes_to_hudi_tables import BASE, PARTITIONED, WITHOUT_METADATA_TABLE, values
from tests.support.hudi import Hudi, HudiError
from tests.support.tables import Shape, base_files, batch, log_files, make_table, row

pytestmark = pytest.mark.jvm

HUDI_UPSERT = {"hoodie.table.name": "events", "hoodie.datasource.write.operation": "upsert", **WITHOUT_METADATA_TABLE}
# A process that ends after it has written its files but before the commit, or after it has only created markers.
KILLED_WRITER = """
import os, sys
from lakehouse.core.operations.write import staged, write
from lakehouse.core.table.table import Table
from tests.support.tables import batch, row
location, verb, when, markers = sys.argv[1:]
module, name = {"written": (write, "complete_commit"), "named": (staged, "_write_task")}[when]
setattr(module, name, lambda *args: os._exit(9))
table = Table.open(location, options={"hoodie.write.markers.type": markers})
getattr(table, verb)(batch([row("k0", p="a", ts=9, v="dead"), row("dead", p="new")]))
"""


def on_disk(shape: Shape, directory: Path) -> Table:
    return make_table(shape, env=Env(storage=open_storage(str(directory / "table"))))


def made_by_hudi(hudi: Hudi, directory: Path) -> Table:
    location = str(directory / "table")
    rows = batch([row(f"k{i}", p="abc"[i % 3], v="theirs") for i in range(6)])
    hudi.write(location, rows, BASE | PARTITIONED | WITHOUT_METADATA_TABLE, mode="overwrite")
    return Table.open(location)


def assert_no_leftover_file(table: Table) -> None:
    known = {instant.requested for instant, _ in table.commits()}
    assert {base.instant for base in base_files(table.refresh().env.storage)} <= known


def test_failed_write_of_hudi_is_rolled_back_by_the_next_write_of_lakehouse(hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), BASE | PARTITIONED | WITHOUT_METADATA_TABLE
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("items", pa.list_(pa.int32()))])

    def rows(ts: int, items: list[int | None]) -> pa.Table:
        return pa.Table.from_pylist([{"id": k, "p": k, "ts": ts, "items": items} for k in "ab"], schema=schema)

    hudi.write(location, rows(1, [1]), options, mode="overwrite")
    table = Table.open(location)
    with pytest.raises(HudiError):  # Hudi's default list structure allows no null elements
        hudi.write(location, rows(2, [1, None]), options)
    assert len(tuple(table.timeline.where(pending=True))) == 1
    table.upsert(rows(3, [3, None]))
    assert_no_leftover_file(table)
    assert assert_hudi_reads_the_same(hudi, table).column("items").to_pylist() == [[3, None]] * 2


@pytest.mark.parametrize(
    ("type", "verb", "when", "markers"),
    [
        ("COPY_ON_WRITE", "upsert", "written", "TIMELINE_SERVER_BASED"),
        ("COPY_ON_WRITE", "upsert", "named", "TIMELINE_SERVER_BASED"),
        ("COPY_ON_WRITE", "bulk_insert", "written", "TIMELINE_SERVER_BASED"),
        ("MERGE_ON_READ", "upsert", "written", "TIMELINE_SERVER_BASED"),
        ("COPY_ON_WRITE", "upsert", "written", "DIRECT"),
    ],
)
def test_killed_write_of_lakehouse_is_rolled_back_by_the_next_write_of_hudi(
    type: str, verb: str, when: str, markers: str, hudi: Hudi, tmp_path: Path
) -> None:
    table = on_disk(Shape(keys="simple", type=type), tmp_path)
    table.upsert(batch([row(f"k{i}", p="a", v="ours") for i in range(2)]))
    root = Path(__file__).resolve().parents[2]
    died = subprocess.run(
        [sys.executable, "-c", KILLED_WRITER, table.location, verb, when, markers], cwd=root, check=False
    )
    (dead,) = table.timeline.where(pending=True)
    assert died.returncode == 9
    left = {file.relative_to(table.location).as_posix() for file in Path(table.location).rglob(f"*{dead.requested}*")}
    assert len([path for path in left if not path.startswith(".hoodie")]) == (2 if when == "written" else 0)
    marked = {file.name for file in Path(table.location, ".hoodie/.temp", dead.requested).iterdir()}
    assert ("MARKERS.type" in marked) == (markers != "DIRECT")
    kind = {"hoodie.datasource.write.table.type": type}
    hudi.write(table.location, batch([row("k0", p="a", ts=2, v="theirs")]), HUDI_UPSERT | kind)
    assert_no_leftover_file(table)
    known = {instant.requested for instant, _ in table.commits()}
    assert {log.instant for log in log_files(table.refresh().env.storage)} <= known
    assert len(table.timeline.where(action=Action.ROLLBACK, state=State.COMPLETED)) == 1
    table.upsert(batch([row("k1", p="a", ts=2, v="ours 2")]))
    assert values(table) == {"k0": "theirs", "k1": "ours 2"}
    assert_hudi_reads_the_same(hudi, table)
    left = {d for d in (".staging", ".temp", ".heartbeat") if any(Path(table.location, ".hoodie", d).rglob("*.*"))}
    assert left == set()


def test_lakehouse_reads_overwrites_drops_and_clustering_of_hudi(hudi: Hudi, tmp_path: Path) -> None:
    table = made_by_hudi(hudi, tmp_path)
    options = BASE | PARTITIONED | WITHOUT_METADATA_TABLE
    overwrite = options | {"hoodie.datasource.write.operation": "insert_overwrite"}
    hudi.write(table.location, batch([row("z", p="a", v="overwritten")]), overwrite)
    hudi.sql("ALTER TABLE {table} DROP PARTITION (p='b')", table=table.location, hoodie__metadata__enable="false")
    table.insert_overwrite(batch([row("y", p="c", v="ours")]))
    hudi.sql(f"CALL run_clustering(path => '{table.location}')", hoodie__metadata__enable="false")
    assert values(table) == {"z": "overwritten", "y": "ours"}
    assert_hudi_reads_the_same(hudi, table, past=True)


def test_lakehouse_writes_after_hudi_cleaned_and_restored(hudi: Hudi, tmp_path: Path) -> None:
    table = made_by_hudi(hudi, tmp_path)
    for number in range(3):
        table.upsert(batch([row("k0", p="a", ts=number + 2, v=f"ours {number}")]))
    kept = table.commits()[1][0].requested
    without = {"hoodie__metadata__enable": "false"}
    hudi.sql(f"CALL create_savepoint(path => '{table.location}', commit_time => '{kept}')", **without)
    hudi.sql("CALL run_clean(table => '{table}', retain_commits => 1)", table=table.location, **without)
    table.upsert(batch([row("k0", p="a", ts=8, v="after the clean")]))
    assert values(table)["k0"] == "after the clean"
    assert_hudi_reads_the_same(hudi, table)
    hudi.sql(f"CALL rollback_to_savepoint(path => '{table.location}', instant_time => '{kept}')", **without)
    assert values(table)["k0"] == "ours 0"
    assert_hudi_reads_the_same(hudi, table)
    table.upsert(batch([row("k0", p="a", ts=9, v="after the restore")]))
    assert values(table)["k0"] == "after the restore"
    assert_hudi_reads_the_same(hudi, table)


def test_open_table_is_writable_after_hudi_upgraded_it(hudi: Hudi, tmp_path: Path) -> None:
    table = on_disk(Shape(keys="simple", version=8), tmp_path)
    rows = [row(f"k{i}", p="ab"[i % 2], v="ours") for i in range(4)]
    table.upsert(batch(rows))
    hudi.write(table.location, batch([rows[0] | {"ts": 2, "v": "theirs"}]), HUDI_UPSERT)
    table.upsert(batch([rows[1] | {"ts": 2, "v": "ours 2"}]))
    assert table.config.version == 9
    assert values(table) == {"k0": "theirs", "k1": "ours 2", "k2": "ours", "k3": "ours"}
    assert_hudi_reads_the_same(hudi, table)


@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(Shape(keys="timestamp", url_encode=False), id="timestamp"),
        pytest.param(Shape(keys="timestamp", hive_style=True), id="timestamp-encoded"),
        pytest.param(Shape(keys="custom", url_encode=False, hive_style=True), id="custom"),
        pytest.param(Shape(keys="complex", index="BUCKET"), id="complex-bucket"),
        pytest.param(Shape(keys="complex_single", index="BUCKET"), id="complex-single-bucket"),
        pytest.param(
            Shape(keys="complex", index="BUCKET", options={"hoodie.bucket.index.hash.field": "id"}), id="bucket-by-id"
        ),
    ],
)
def test_hudi_updates_rows_of_lakehouse_by_key(shape: Shape, hudi: Hudi, tmp_path: Path) -> None:
    table = on_disk(shape, tmp_path)
    rows = [row(f"k{i}", p="ab"[i % 2], at=86_400_000 * (i % 3) + 5, v="ours") for i in range(8)]
    table.upsert(batch(rows))
    index = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"} if shape.index == "BUCKET" else {}
    theirs = [r | {"ts": 2, "v": "theirs"} for r in rows] + [row("new", p="c", at=86_400_000 * 400, v="theirs")]
    hudi.write(table.location, batch(theirs), HUDI_UPSERT | index | dict(shape.options))
    assert values(table) == {r["id"]: "theirs" for r in theirs}
    table.upsert(batch([theirs[0] | {"ts": 3, "v": "ours"}, theirs[-1] | {"ts": 3, "v": "ours"}]))
    assert values(table) == {r["id"]: "theirs" for r in theirs} | {"k0": "ours", "new": "ours"}
    assert_hudi_reads_the_same(hudi, table)
