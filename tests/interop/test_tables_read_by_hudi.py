"""Apache Hudi reads tables of lakehouse like lakehouse does: the latest snapshot, each instant and each range."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.files.base import group_rewrite
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.rows import EVERYTHING, everything, nothing
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, SCHEMA, Shape, batch, make_table, row

pytestmark = pytest.mark.jvm

SHAPES = {
    "simple": Shape(keys="simple"),
    "simple-hive-8": Shape(keys="simple", version=8, hive_style=True),
    "simple-commit-time": Shape(keys="simple", url_encode=False, merge="commit"),
    "complex": Shape(keys="complex", hive_style=True),
    "complex-single": Shape(keys="complex_single"),
    "complex-single-8": Shape(keys="complex_single", version=8),
    "timestamp": Shape(keys="timestamp", url_encode=False),
    "timestamp-hive-8": Shape(keys="timestamp", version=8, hive_style=True),
    "custom": Shape(keys="custom", url_encode=False, hive_style=True),
    "flat": Shape(keys="non_partition"),
    "flat-pair-8": Shape(keys="non_partition_pair", version=8),
    "bucket": Shape(keys="simple", index="BUCKET"),
    "flat-bucket-8": Shape(keys="non_partition", index="BUCKET", version=8),
    "global": Shape(keys="simple", index="GLOBAL_SIMPLE"),
}
PARTITIONS = ("a", "b c ü", None)
# If the partition path has more levels than fields, Hudi does not decode its values: no escapes and no null name here.
PLAIN_PARTITIONS = ("a", "b", "c")


class BrokenInputError(Exception):
    """Raised by the input of a failing write."""


def on_disk(shape: Shape, directory: Path) -> Table:
    """Return a table with the system clock, because Hudi compares the ages of instants and files with it."""
    return make_table(shape, env=Env(storage=open_storage(str(directory / "table"))))


def broken_input(partitions: tuple[str | None, ...]) -> pa.RecordBatchReader:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from batch([row("lost", p=value) for value in partitions]).to_batches()
        raise BrokenInputError("the input fails after its first batch")

    return pa.RecordBatchReader.from_batches(SCHEMA, batches())


def run_all_operations(table: Table, partitions: tuple[str | None, ...] = PARTITIONS) -> None:
    """Run every write operation, and one that fails after it has written files."""
    spread = [row(f"k{i}", p=partitions[i % 3], at=i % 3 * 86_400_000, v=f"v{i}") for i in range(9)]
    table.upsert(batch(spread))
    later = [r | {"ts": 5, "v": "later"} for r in spread[:2]] + [spread[2] | {"ts": 6, DELETED: True}]
    table.upsert(batch([*later, row("k9", at=86_400_000, amount=-0.5)]))
    with pytest.raises(BrokenInputError):
        table.bulk_insert(broken_input(partitions))
    table.delete([table.scan(["_hoodie_record_key"]).to_arrow().column(0)[0].as_py()])
    table.insert_overwrite(batch([row("o1", v="overwritten", at=2 * 86_400_000)]))
    table.bulk_insert(batch([row(f"b{i}", p=partitions[i], at=i * 86_400_000) for i in range(3)]))
    if table.config.is_partitioned:
        table.delete_partitions(table.partitions()[:1])
    table.insert(batch([row("last", p="z", at=5 * 86_400_000)]))


@pytest.mark.parametrize("name", SHAPES)
def test_hudi_reads_tables_of_all_shapes_like_lakehouse(name: str, hudi: Hudi, tmp_path: Path) -> None:
    table = on_disk(SHAPES[name], tmp_path)
    run_all_operations(table, PLAIN_PARTITIONS if name == "custom" else PARTITIONS)
    rows = assert_hudi_reads_the_same(hudi, table, past=True)
    assert len(rows) > 3 and len(table.commits()) >= 6


def test_hudi_reads_escaped_partition_values_like_lakehouse(hudi: Hudi, tmp_path: Path) -> None:
    table = on_disk(Shape(keys="simple", hive_style=True, url_encode=True), tmp_path)
    values = ["a/b", "x=y z", "100%", "q?#", 'say "hi"', "[1]", "ü:ö", "c\\d"]
    table.upsert(batch([row(f"k{i}", p=value) for i, value in enumerate(values)]))
    table.upsert(batch([row(f"k{i}", p=value, ts=2) for i, value in enumerate(values[:4])]))
    rows = assert_hudi_reads_the_same(hudi, table)
    assert sorted(rows.column("p").to_pylist()) == sorted(values)


@pytest.mark.parametrize("version", [8, 9])
def test_hudi_reads_all_types_like_lakehouse(version: int, hudi: Hudi, tmp_path: Path) -> None:
    options = {"hoodie.write.table.version": str(version)}
    table = Table.create(str(tmp_path / "t"), name="all", record_key=["id"], ordering="ts", options=options)
    table.upsert(pa.Table.from_pylist([everything(1), everything(2), nothing(1)], schema=EVERYTHING))
    table.upsert(pa.Table.from_pylist([everything(2) | {"items": []}, nothing(1), everything(3)], schema=EVERYTHING))
    assert len(assert_hudi_reads_the_same(hudi, table, past=True)) == 4


@pytest.mark.parametrize("version", [8, 9])
def test_hudi_reads_an_evolved_schema_like_lakehouse(version: int, hudi: Hudi, tmp_path: Path) -> None:
    options = {"hoodie.write.table.version": str(version), "hoodie.parquet.small.file.limit": "0"}
    table = Table.create(str(tmp_path / "t"), name="grown", record_key=["id"], ordering="ts", options=options)
    person = pa.struct([("name", pa.string())])
    first = pa.schema([("id", pa.string()), ("ts", pa.int64()), ("n", pa.int32()), ("f", pa.float32()), ("p", person)])
    table.upsert(pa.Table.from_pylist([{"id": i, "ts": 1, "n": 7, "f": 0.5, "p": {"name": i}} for i in "ab"], first))
    wider = pa.struct([("name", pa.string()), ("age", pa.int32())])
    second = pa.schema(
        [("id", pa.string()), ("ts", pa.int64()), ("n", pa.int64()), ("f", pa.float64()), ("p", wider), ("x", person)]
    )
    grown = {"ts": 2, "n": 1 << 40, "f": 1e300, "p": {"name": "q", "age": 3}, "x": {"name": "y"}}
    table.upsert(pa.Table.from_pylist([{"id": "c", **grown}], second))
    table.upsert(pa.Table.from_pylist([{"id": "a", **grown}], second))
    rows = assert_hudi_reads_the_same(hudi, table)
    assert sorted(zip(rows.column("id").to_pylist(), rows.column("n").to_pylist(), strict=True)) == [
        ("a", 1 << 40),
        ("b", 7),
        ("c", 1 << 40),
    ]


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
def test_hudi_reads_and_updates_files_whose_chunks_were_copied(codec: str, hudi: Hudi, tmp_path: Path) -> None:
    shape = Shape(
        keys="simple", rows_per_file=1_000_000, options={"hoodie.parquet.compression.codec": codec}, index="BLOOM"
    )
    table = on_disk(shape, tmp_path)
    noise = random.Random(1)
    values = [noise.randbytes(24).hex() for _ in range(60_000)]
    rows = [row(f"k{number:05d}", p="a", v=value, amount=number / 3) for number, value in enumerate(values)]
    table.bulk_insert(batch(rows))
    changed: list[set[str]] = []
    copy = group_rewrite._copy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_rewrite, "_copy", lambda *given: (changed.append(set(given[2])), copy(*given))[1])
        table.upsert(batch([old | {"ts": 2, "v": "new"} for old in rows[100:60_000:997]]))
    (columns,) = changed
    assert "v" in columns and not {"id", "p", "_hoodie_record_key"} & columns
    assert_hudi_reads_the_same(hudi, table)
    table.delete([f"k{number:05d}" for number in range(0, 60_000, 1_999)])
    table.upsert(batch([row(f"new{number}", p="a", v="inserted") for number in range(50)]))
    assert_hudi_reads_the_same(hudi, table, past=True)
    options = {
        "hoodie.table.name": "events",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.index.type": "BLOOM",
    }
    hudi.write(table.location, batch([old | {"ts": 9, "v": "theirs"} for old in rows[1:60_000:5_003]]), options)
    theirs = table.scan(["v"], where="v = 'theirs'").count()
    assert theirs == len(rows[1:60_000:5_003])
    assert_hudi_reads_the_same(hudi, table)
