"""hudi-rs reads no rows of file groups without base file through a metadata table, also of one that Hudi wrote."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from tests.support import hudi_rs
from tests.support.hudi import Hudi
from tests.support.tables import Shape, batch, make_env, make_table, row

ROWS = pa.table({"id": ["a", "b", "c"], "p": ["x", "x", "y"], "ts": pa.array([1, 2, 3], pa.int64())})
WRITES = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.table.ordering.fields": "ts",
    "hoodie.index.type": "BUCKET",
    "hoodie.bucket.index.num.buckets": "1",
    "hoodie.index.bucket.engine": "SIMPLE",
    # With it, Hudi writes the first rows of a bucket to a log file.
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "hoodie.write.lock.provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider",
}


def ids(rows: pa.Table) -> list[str]:
    return sorted(rows.column("id").to_pylist()) if "id" in rows.column_names and rows.num_rows else []


def bases(location: Path) -> list[Path]:
    """Return the base files of the table, without those of its metadata table."""
    return [path for path in location.rglob("*.parquet") if ".hoodie" not in path.parts]


@pytest.mark.jvm
@pytest.mark.parametrize("has_metadata", [True, False])
def test_hudi_rs_reads_log_only_groups_of_hudi_without_a_metadata_table_only(
    has_metadata: bool, hudi: Hudi, tmp_path: Path
) -> None:
    location = tmp_path / "t"
    enabled = {"hoodie.metadata.enable": str(has_metadata).lower()}
    hudi.write(str(location), ROWS, {**WRITES, **enabled}, mode="overwrite")
    assert not bases(location), "Hudi wrote the first rows of each bucket to a log file"
    assert ids(hudi.read(str(location))) == ids(Table.open(str(location)).scan().to_arrow()) == ["a", "b", "c"]
    assert ids(hudi_rs.read(str(location))) == ([] if has_metadata else ["a", "b", "c"])


def test_hudi_rs_reads_log_only_groups_of_lakehouse_after_a_compaction(tmp_path: Path) -> None:
    shape = Shape(type="MERGE_ON_READ", index="BUCKET", new_buckets="log")
    table = make_table(shape, env=make_env(str(tmp_path / "t")))
    table.upsert(batch([row("a"), row("b")]))
    assert not bases(tmp_path / "t")
    assert (ids(table.scan().to_arrow()), ids(hudi_rs.read(table.location))) == (["a", "b"], [])
    table.services.compaction.run(force=True)
    assert ids(hudi_rs.read(table.location)) == ["a", "b"]
