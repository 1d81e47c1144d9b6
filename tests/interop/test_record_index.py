"""Record indexes and bloom filters: Apache Hudi finds keys by ours, and we find keys by those of Hudi (MDT-4)."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.placement import by_location
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.metadata_referee import MetadataReferee
from tests.support.shared import fixtures
from tests.support.tables import DELETED, batch, row

pytestmark = pytest.mark.jvm

GLOBAL = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
}
PARTITIONED = {"hoodie.metadata.enable": "true", "hoodie.metadata.record.level.index.enable": "true"}
BASE = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
}
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")


def created(path: Path, table_type: str, options: dict[str, str], index: str) -> Table:
    """Return a new table with an index."""
    return Table.create(
        str(path),
        name="events",
        record_key=["id"],
        partition_by=["p"],
        table_type=table_type,
        ordering="ts",
        options={**options, "hoodie.index.type": index},
    )


def values(table: Table) -> dict[str, str | None]:
    """Return v by id; assert that each id occurs once."""
    rows = Table.open(table.location).scan(["id", "v"]).to_arrow().to_pylist()
    assert max(Counter(r["id"] for r in rows).values()) == 1
    return {r["id"]: r["v"] for r in rows}


def indexed_keys(location: str) -> list[str]:
    """Return the keys in the record index, sorted."""
    metadata = metadata_of(Table.open(location)._loaded)
    assert metadata is not None
    return sorted(metadata.records("record_index").column("key").to_pylist())


def index_differences(referee: MetadataReferee, location: str) -> list[str]:
    """Return how the record index and the bloom filters differ from those that Hudi builds."""
    return [text for text in referee.differences(location) if "'record_index'" in text or "'bloom_filters'" in text]


def rows(ids: range, ts: int, v: str) -> pa.Table:
    """Return a batch with one row per number."""
    # A column whose values are all null has another type in the statistics of Hudi.
    return batch(row(f"k{i}", p="ab"[i % 2], ts=ts, v=v, **{DELETED: False}) for i in ids)


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize("index", ["RECORD_INDEX", "BLOOM"])
def test_hudi_and_lakehouse_upsert_a_table_of_ours_in_turn_by_its_indexes(
    index: str, table_type: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    table = created(tmp_path / "table", table_type, GLOBAL, index)
    table.bulk_insert(rows(range(40), 1, "ours"))
    table.upsert(rows(range(35, 45), 2, "ours 2"))
    table.delete(["k1", "k2"])
    expected: dict[str, str | None] = {f"k{i}": "ours 2" if i >= 35 else "ours" for i in range(45) if i not in (1, 2)}
    assert values(table) == expected
    assert index_differences(metadata_referee, table.location) == []
    options = BASE | GLOBAL | {"hoodie.index.type": index, "hoodie.datasource.write.table.type": table_type}
    hudi.write(table.location, rows(range(30, 50), 3, "theirs"), options)
    expected |= {f"k{i}": "theirs" for i in range(30, 50)}
    assert values(table) == expected
    again = Table.open(table.location, options={"hoodie.index.type": index})
    again.upsert(rows(range(20, 52), 4, "ours 4"))
    again.delete(["k40"])
    expected |= {f"k{i}": "ours 4" for i in range(20, 52)}
    expected.pop("k40")
    assert values(table) == expected
    assert indexed_keys(table.location) == sorted(expected)
    assert index_differences(metadata_referee, table.location) == []
    assert_hudi_reads_the_same(hudi, again)


def test_hudi_upserts_by_the_partitioned_record_index_of_a_table_of_ours(hudi: Hudi, tmp_path: Path) -> None:
    table = created(tmp_path / "table", "COPY_ON_WRITE", PARTITIONED, "RECORD_LEVEL_INDEX")
    table.bulk_insert(rows(range(20), 1, "ours"))
    table.upsert(
        batch(
            [
                row("k1", p="c-d", ts=2, v="other partition", **{DELETED: False}),
                row("k3", p="b", ts=2, v="ours 2", **{DELETED: False}),
            ]
        )
    )
    options = BASE | PARTITIONED | {"hoodie.index.type": "RECORD_LEVEL_INDEX"}
    hudi.write(table.location, rows(range(15, 25), 3, "theirs"), options)
    again = Table.open(table.location, options={"hoodie.index.type": "RECORD_LEVEL_INDEX"})
    again.upsert(rows(range(18, 28), 4, "ours 4"))
    found = Counter((r["id"], r["p"]) for r in again.scan(["id", "p"]).to_arrow().to_pylist())
    assert set(found.values()) == {1}
    assert len(found) == 29
    assert indexed_keys(table.location) == sorted(key for key, _ in found)
    assert_hudi_reads_the_same(hudi, again)


def test_lakehouse_upserts_by_the_partitioned_record_index_of_a_table_of_hudi(
    monkeypatch: pytest.MonkeyPatch, hudi: Hudi, tmp_path: Path
) -> None:
    name = "cow_partitioned_record_index"
    with zipfile.ZipFile(fixtures("hudi_metadata") / "tables" / f"{name}.zip") as archive:
        archive.extractall(tmp_path)
    table = Table.open(str(tmp_path / name), options={"hoodie.index.type": "RECORD_LEVEL_INDEX"})
    monkeypatch.setattr(by_location, "SIMPLE", None)  # a fallback to the simple index would fail
    before = table.scan().to_arrow()
    kept = before.drop_columns([column for column in before.column_names if column.startswith("_hoodie_")])
    table.upsert(kept.slice(0, 5))
    after = Table.open(table.location).scan().to_arrow()
    assert after.num_rows == before.num_rows == 14
    assert indexed_keys(table.location) == sorted(after.column("_hoodie_record_key").to_pylist())
    assert_hudi_reads_the_same(hudi, Table.open(table.location))


def test_lakehouse_upserts_by_the_indexes_of_a_table_of_hudi(
    hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    location, options = str(tmp_path / "table"), BASE | GLOBAL | {"hoodie.index.type": "RECORD_INDEX"}
    hudi.write(location, rows(range(30), 1, "theirs"), options, mode="overwrite")
    for index in ("RECORD_INDEX", "GLOBAL_BLOOM", "BLOOM"):
        table = Table.open(location, options={"hoodie.index.type": index})
        ts = int(max(table.scan(["ts"]).to_arrow().column("ts").to_pylist())) + 1
        table.upsert(rows(range(25, 30 + ts), ts, index))
        expected = {f"k{i}": "theirs" for i in range(25)} | {f"k{i}": index for i in range(25, 30 + ts)}
        assert values(table) == expected
        assert indexed_keys(location) == sorted(expected)
    assert index_differences(metadata_referee, location) == []
    hudi.write(location, rows(range(20, 40), 9, "theirs 9"), options)
    assert values(table) == expected | {f"k{i}": "theirs 9" for i in range(20, 40)}
