"""Tables created by Apache Hudi: lakehouse reads and writes them, and Hudi reads and writes them afterwards."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.interop.agreement import assert_hudi_reads_the_same, assert_same
from tests.interop.rows import EVERYTHING, everything_writable, nothing
from tests.support.hudi import Hudi
from tests.support.tables import batch, row

pytestmark = pytest.mark.jvm

Options = dict[str, str]
KEY = "_hoodie_record_key"
BASE = {
    "hoodie.table.name": "theirs",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
}
PARTITIONED = {"hoodie.datasource.write.partitionpath.field": "p"}
VERSION_8 = {"hoodie.write.table.version": "8", "hoodie.write.auto.upgrade": "false"}
WITHOUT_METADATA_TABLE = {"hoodie.metadata.enable": "false"}
BLOOM = {"hoodie.index.type": "BLOOM"}
COMPLEX = {
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.ComplexKeyGenerator",
    "hoodie.datasource.write.partitionpath.field": "p,region",
}
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
HIVE = {"hoodie.datasource.write.hive_style_partitioning": "true"}
TABLES: dict[str, Options] = {
    "default": PARTITIONED | BLOOM,
    "version-8": PARTITIONED | BLOOM | HIVE | VERSION_8 | WITHOUT_METADATA_TABLE,
    "complex-single": COMPLEX | BLOOM | WITHOUT_METADATA_TABLE,
    "complex-single-8": COMPLEX
    | VERSION_8
    | WITHOUT_METADATA_TABLE
    | {"hoodie.write.complex.keygen.validation.enable": "false"},
    "flat": BLOOM | WITHOUT_METADATA_TABLE,
    "bucket": PARTITIONED | BUCKET | WITHOUT_METADATA_TABLE,
}


def values(table: Table) -> dict[str, str | None]:
    """Return v by id; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert max(Counter(r["id"] for r in rows).values()) == 1
    return {r["id"]: r["v"] for r in rows}


@pytest.mark.parametrize("name", TABLES)
def test_hudi_and_lakehouse_write_a_hudi_table_in_turn(name: str, hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), BASE | TABLES[name]
    theirs = [row(f"k{i}", p="ab"[i % 2], v="theirs") for i in range(6)]
    hudi.write(location, batch(theirs), options, mode="overwrite")
    hudi.write(location, batch([theirs[0] | {"ts": 2, "v": "theirs 2"}]), options)
    table = Table.open(location, options=BUCKET if name == "bucket" else {})
    expected: dict[str, str | None] = {r["id"]: r["v"] for r in theirs} | {"k0": "theirs 2"}
    assert values(table) == expected
    assert bool(table.config.metadata_partitions) == (name == "default")
    assert_hudi_reads_the_same(hudi, table, past=True)

    ours = [row("k0", p="a", ts=3, v="ours"), row("k1", p="b", ts=3, v="ours"), row("o1", p="c", v="ours")]
    table.upsert(batch(ours))
    keys = table.scan([KEY, "id"]).to_arrow().to_pylist()
    table.delete([r[KEY] for r in keys if r["id"] == "k2"])
    expected = {k: v for k, v in expected.items() if k != "k2"} | {r["id"]: "ours" for r in ours}
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table)

    # Hudi finds keys through lakehouse's file footers, so its upsert updates rows and does not duplicate them.
    again = [r | {"ts": 4, "v": "theirs 4"} for r in (*ours, row("k3", p="b"))] + [row("t1", p="c", v="theirs 4")]
    hudi.write(location, batch(again), options)
    expected.update({r["id"]: "theirs 4" for r in again})
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table)

    table.upsert(batch([row("t1", p="c", ts=5, v="last"), row("k5", p="b", ts=5, v="last")]))
    assert values(table) == expected | {"t1": "last", "k5": "last"}
    assert_hudi_reads_the_same(hudi, table)


@pytest.mark.parametrize("operation", ["upsert", "bulk_insert"])
def test_rewrite_keeps_all_types_of_hudi_files(operation: str, hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), BASE | WITHOUT_METADATA_TABLE
    rows = pa.Table.from_pylist([*map(everything_writable, (1, 2, 3)), nothing(1)], schema=EVERYTHING)
    hudi.write(location, rows, options | {"hoodie.datasource.write.operation": operation}, mode="overwrite")
    table = Table.open(location)
    assert_same(rows, table.scan(rows.column_names).to_arrow())
    table.upsert(
        pa.Table.from_pylist([everything_writable(2) | {"ts": 9, "items": [], "raw": None}], schema=EVERYTHING)
    )
    assert len(assert_hudi_reads_the_same(hudi, table, past=True)) == 4
    hudi.write(location, rows.slice(0, 1), options)
    assert len(assert_hudi_reads_the_same(hudi, table)) == 4


def test_lakehouse_writes_after_hudi_cleaned_archived_and_clustered(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    options = BASE | PARTITIONED | WITHOUT_METADATA_TABLE
    services = {
        "hoodie.clean.commits.retained": "1",
        "hoodie.keep.min.commits": "2",
        "hoodie.keep.max.commits": "3",
        "hoodie.clustering.inline": "true",
        "hoodie.clustering.inline.max.commits": "3",
    }
    for turn in range(7):
        rows = [row(f"k{i}", p="ab"[i % 2], ts=turn, v=f"turn {turn}") for i in range(turn, turn + 3)]
        hudi.write(location, batch(rows), options | services, mode="append" if turn else "overwrite")
    table = Table.open(location)
    actions = Counter(instant.action.value for instant in table.timeline)
    assert actions["clean"] and actions["replacecommit"] and actions["commit"] < 7
    assert values(table) == {f"k{i}": f"turn {min(i, 6)}" for i in range(9)}
    assert_hudi_reads_the_same(hudi, table)
    table.upsert(batch([row("k0", p="a", ts=9, v="ours"), row("k8", p="a", ts=9, v="ours")]))
    assert values(table)["k0"] == values(table)["k8"] == "ours"
    assert_hudi_reads_the_same(hudi, table)
    hudi.write(location, batch([row("k0", p="a", ts=10, v="theirs")]), options | services)
    assert values(table)["k0"] == "theirs"
    assert_hudi_reads_the_same(hudi, table)


def test_upsert_into_a_bucketed_table_fails_with_another_index(hudi: Hudi, tmp_path: Path) -> None:
    location, options = str(tmp_path / "table"), BASE | TABLES["bucket"]
    hudi.write(location, batch([row(f"k{i}") for i in range(9)]), options, mode="overwrite")
    table = Table.open(location)
    with pytest.raises(UserError, match=r"hoodie\.index\.type=BUCKET"):
        table.upsert(batch([row("k1", ts=2)]))
    assert not tuple(table.timeline.where(pending=True))
