"""Bucket counts per partition: Apache Hudi uses lakehouse's rules, and lakehouse uses rules that Hudi changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.hashing_config import (
    HASHING_CONFIGS,
    HashingConfig,
    decode_hashing_config,
    encode_hashing_config,
)
from lakehouse.core.index.hash.bucket import bucket_of
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.spec.options.clustering import BUCKETS
from lakehouse.spec.options.index import MERGE_THRESHOLD, SPLIT_THRESHOLD
from lakehouse.spec.table.bucket_rules import EXPRESSIONS
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.tables import Shape, batch, make_table, row

pytestmark = pytest.mark.jvm

RULE = r"^p=a,4;\Wb$|c,1"
COUNTS = {"p=a": 4, "p=b": 1, "p=c": 1, "p=d": 2}
COUNTS_AFTER_RESCALE = {"p=a": 1, "p=b": 2, "p=c": 2, "p=d": 5}
#: Options of Hudi's writer; it reads the rule from the table.
HUDI = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "2",
    "hoodie.metadata.enable": "false",
    # Hudi caches rule results in a map that is not safe for two tasks in one process.
    "hoodie.upsert.shuffle.parallelism": "1",
}
PLAIN = {"hoodie__metadata__enable": "false", "hoodie__upsert__shuffle__parallelism": "1"}


def groups(table: Table) -> dict[str, set[str]]:
    """Return the file ids of each partition."""
    found: dict[str, set[str]] = defaultdict(set)
    for file_slice in load_slices(table.refresh()):
        found[file_slice.partition].add(file_slice.file_id)
    return dict(found)


def counts(table: Table) -> dict[str, int]:
    """Return the number of file groups of each partition; assert that each bucket has one file group."""
    for file_ids in groups(table).values():
        assert {bucket_of(file_id) for file_id in file_ids} == set(range(len(file_ids)))
    return {partition: len(file_ids) for partition, file_ids in groups(table).items()}


def values(table: Table) -> dict[str, str | None]:
    """Return v by id; assert that each id occurs once."""
    rows = table.scan(["id", "v"]).to_arrow().to_pylist()
    assert max(Counter(r["id"] for r in rows).values()) == 1
    return {r["id"]: r["v"] for r in rows}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_and_lakehouse_use_the_same_buckets_after_a_rescale(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    shape = Shape(type=kind, hive_style=True, url_encode=False, index="BUCKET", buckets=2, options={EXPRESSIONS: RULE})
    table = make_table(shape, env=Env(storage=open_storage(str(tmp_path / "table"))))
    rows = [row(f"k{n}", p="abcd"[n // 20], v="ours") for n in range(80)]
    expected = {r["id"]: "ours" for r in rows}
    table.upsert(batch(rows))
    assert counts(table) == COUNTS
    before = groups(table)

    changes = [r | {"ts": 2, "v": "hudi"} for r in rows[::7]] + [
        row(f"n{n}", p="ad"[n % 2], v="hudi") for n in range(9)
    ]
    hudi.write(table.location, batch(changes), {**HUDI, "hoodie.datasource.write.table.type": kind})
    expected |= {r["id"]: "hudi" for r in changes}
    assert values(table) == expected
    assert groups(table) == before, "Hudi wrote to the existing file groups"
    hudi.sql(
        "UPDATE {table} SET v = 'sql', ts = 3 WHERE id = 'k5'", table=table.location, hoodie__metadata__enable="false"
    )
    expected["k5"] = "sql"
    table.upsert(batch(r | {"ts": 4, "v": "again"} for r in rows[::11]))
    expected |= {r["id"]: "again" for r in rows[::11]}
    assert (values(table), groups(table)) == (expected, before)
    assert_hudi_reads_the_same(hudi, table)
    found = hudi.query("SELECT v FROM {table} WHERE id = 'k7'", table=table.location)
    assert found.to_pylist() == [{"v": "hudi"}], "Hudi prunes its read by buckets"

    call = (
        "CALL partition_bucket_index_manager(table => '{table}', overwrite => 'p=a,1;p=d,5', bucket_number => 2, "
        "dry_run => false)"
    )
    hudi.query(call, table=table.location, **PLAIN)
    assert values(table) == expected
    table.upsert(batch(r | {"ts": 5, "v": "last"} for r in rows))
    expected |= {r["id"]: "last" for r in rows}
    assert values(table) == expected
    assert counts(table) == COUNTS_AFTER_RESCALE
    assert_hudi_reads_the_same(hudi, table)
    storage = open_storage(table.location)
    written = [storage.get(file.path) for file in storage.list(HASHING_CONFIGS) if not file.name.startswith(".")]
    decoded = [decode_hashing_config(data, "a rule") for data in written]
    assert [config.expressions for config in decoded] == [RULE, "p=a,1;p=d,5"]
    assert [encode_hashing_config(config) for config in decoded] == written
    assert decoded[0] == HashingConfig(expressions=RULE, default=2)

    grow = {SPLIT_THRESHOLD: "0.05", MERGE_THRESHOLD: "0", BUCKETS: "auto", "hoodie.parquet.max.file.size": "100000"}
    assert isinstance(table.with_options(grow).services.clustering.run(force=True), Committed)
    resized = counts(table)
    assert all(resized[partition] > count for partition, count in COUNTS_AFTER_RESCALE.items()), resized
    before = groups(table)
    changes = [r | {"ts": 6, "v": "hudi 2"} for r in rows[::5]] + [row("n20", p="b", v="hudi 2")]
    hudi.write(table.location, batch(changes), {**HUDI, "hoodie.datasource.write.table.type": kind})
    expected |= {r["id"]: "hudi 2" for r in changes}
    assert (values(table), groups(table)) == (expected, before), "Hudi wrote into the buckets of our resize"
    assert_hudi_reads_the_same(hudi, table)


def test_lakehouse_writes_a_hudi_table_whose_writers_set_the_bucket_rule(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    rows = [row(f"k{n}", p="abcd"[n // 20], v="hudi") for n in range(80)]
    hudi.write(location, batch(rows), {**HUDI, EXPRESSIONS: RULE}, mode="overwrite")
    # Hudi does not store the rule in the table, so each writer sets it as an option, like the index type.
    said = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2", EXPRESSIONS: RULE}
    table = Table.open(location, options=said)
    before = groups(table)
    assert counts(table) == COUNTS
    table.upsert(batch([*(r | {"ts": 2, "v": "ours"} for r in rows[::3]), row("n1", p="a", v="ours")]))
    assert values(table) == {r["id"]: "ours" if n % 3 == 0 else "hudi" for n, r in enumerate(rows)} | {"n1": "ours"}
    assert groups(table) == before
    assert_hudi_reads_the_same(hudi, table)
