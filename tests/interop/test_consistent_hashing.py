"""Consistent hashing both ways: Apache Hudi writes into our tables, also while a resize is pending, and reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.placement.rings import load_rings
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.model.index_type import BUCKET_ENGINE, CONSISTENT_HASHING
from lakehouse.model.instant import Instant
from lakehouse.spec.options.index import MERGE_THRESHOLD, MIN_NUM_BUCKETS, SPLIT_THRESHOLD
from tests.interop.agreement import assert_hudi_reads_the_same, assert_same
from tests.support import hudi_rs
from tests.support.hudi import Hudi
from tests.support.tables import Shape, batch, make_table, row

pytestmark = pytest.mark.jvm

SPLIT = {SPLIT_THRESHOLD: "0.2", MERGE_THRESHOLD: "0", "hoodie.parquet.max.file.size": "1000"}
MERGE = {SPLIT_THRESHOLD: "1e9", MERGE_THRESHOLD: "1e8", MIN_NUM_BUCKETS: "1"}
#: Hudi's writer with the strategy that copies rows while a resize is pending.
HUDI = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.index.type": "BUCKET",
    BUCKET_ENGINE: CONSISTENT_HASHING,
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.clustering.updates.strategy": (
        "org.apache.hudi.client.clustering.update.strategy.SparkConsistentBucketDuplicateUpdateStrategy"
    ),
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
}


def values(table: Table) -> dict[str, str | None]:
    """Return v by id; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert len(rows) == len({r["id"] for r in rows})
    return {r["id"]: r["v"] for r in rows}


@pytest.mark.parametrize("metadata", ["false", "true"])
def test_hudi_writes_into_our_ring_before_during_and_after_resizes(hudi: Hudi, tmp_path: Path, metadata: str) -> None:
    options = {BUCKET_ENGINE: CONSISTENT_HASHING, "hoodie.metadata.enable": metadata}
    writer = HUDI | {"hoodie.metadata.enable": metadata}
    shape = Shape(type="MERGE_ON_READ", hive_style=True, url_encode=False, index="BUCKET", buckets=2, options=options)
    table = make_table(shape, env=Env(storage=open_storage(str(tmp_path / "table"))))
    table.upsert(batch(row(f"k{n}", p="ab"[n % 2], v="ours") for n in range(60)))
    groups = {s.file_id for s in load_slices(table.refresh())}

    hudi.write(table.location, batch(row(f"k{n}", p="ab"[n % 2], ts=2, v="hudi") for n in range(0, 60, 3)), writer)
    expected = {f"k{n}": "hudi" if n % 3 == 0 else "ours" for n in range(60)}
    assert values(table) == expected
    assert {s.file_id for s in load_slices(table.refresh())} == groups, "Hudi found the groups of our ring"

    planned = table.with_options(SPLIT).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    hudi.write(table.location, batch(row(f"k{n}", p="ab"[n % 2], ts=3, v="copied") for n in range(0, 60, 5)), writer)
    table.upsert(batch(row(f"k{n}", p="ab"[n % 2], ts=4, v="both") for n in range(0, 60, 7)))
    expected |= {f"k{n}": "copied" for n in range(0, 60, 5)} | {f"k{n}": "both" for n in range(0, 60, 7)}
    assert values(table) == expected
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert_hudi_reads_the_same(hudi, table)

    assert isinstance(table.services.clustering.run(instant=planned.requested), Committed)
    assert values(table) == expected, "the copies that Hudi wrote are read"
    assert_hudi_reads_the_same(hudi, table)
    rings = load_rings(table.refresh(), ["p=a", "p=b"])
    assert {len(ring.metadata.nodes) for ring in rings.values()} == {4}

    hudi.write(table.location, batch(row(f"k{n}", p="ab"[n % 2], ts=5, v="last") for n in range(0, 60, 2)), writer)
    expected |= {f"k{n}": "last" for n in range(0, 60, 2)}
    assert values(table) == expected
    nodes = {node.file_id for ring in rings.values() for node in ring.metadata.nodes}
    assert {s.file_id for s in load_slices(table.refresh())} <= nodes, "Hudi used the ring after the split"

    assert isinstance(table.with_options(MERGE).services.clustering.run(force=True), Committed)
    rings = load_rings(table.refresh(), ["p=a", "p=b"])
    assert all(len(ring.metadata.nodes) < 4 for ring in rings.values())
    hudi.write(table.location, batch(row(f"k{n}", p="ab"[n % 2], ts=6, v="merged") for n in range(0, 70, 4)), writer)
    expected |= {f"k{n}": "merged" for n in range(0, 70, 4)}
    assert values(table) == expected
    nodes = {node.file_id for ring in rings.values() for node in ring.metadata.nodes}
    assert {s.file_id for s in load_slices(table.refresh())} <= nodes, "Hudi used the ring after the merge"
    assert_same(table.scan().to_arrow(), hudi_rs.read(table.location))
    assert_hudi_reads_the_same(hudi, table)
    assert [finding for finding in table.validate(deep=True).findings if finding.invariant != "timeline.dead"] == []
