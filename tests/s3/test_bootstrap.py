"""Bootstrap of Parquet files in a bucket, by metadata and with copied rows."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.rows.stored_names import is_skeleton
from lakehouse.core.storage.locate import open_storage
from tests.support.parquet_folders import orders, regions
from tests.support.s3 import S3Server

pytestmark = pytest.mark.s3
OPTIONS = {"hoodie.metadata.enable": "false"}
_numbers = count()


@pytest.fixture
def source(s3_server: S3Server, tmp_path: Path) -> str:
    """The URL of a folder with partitions of Parquet files, of 100 rows."""
    local = regions(tmp_path / "source")
    location = f"s3://{s3_server.bucket}/raw-{next(_numbers)}"
    storage = open_storage(location, s3_server.options)
    for file in local.rglob("*.parquet"):
        storage.put(str(file.relative_to(local)), file.read_bytes())
    return location


def amounts(table: Table) -> dict[str, int]:
    rows = table.scan(columns=["id", "amount"]).to_arrow().to_pylist()
    return {row["id"]: row["amount"] for row in rows}


def skeletons(table: Table) -> int:
    return sum(is_skeleton(base.name) for base in load_slices(table.refresh()).bases())


@pytest.mark.parametrize("mode", ["metadata", "full"])
def test_source_in_a_bucket_becomes_a_table_in_the_bucket(source: str, s3_server: S3Server, mode: str) -> None:
    location = f"s3://{s3_server.bucket}/table-{next(_numbers)}"
    table = Table.bootstrap(
        location,
        source=source,
        name="orders",
        record_key="id",
        ordering="ts",
        mode=mode,
        table_type="MERGE_ON_READ",
        options=OPTIONS,
        storage_options=s3_server.options,
    )
    expected = {f"k{number:04d}": number for number in range(100)}
    assert amounts(table) == expected
    assert (skeletons(table) > 0) is (mode == "metadata")
    changed = orders(5, 6).set_column(1, "amount", pa.array([-5], pa.int64()))
    table.upsert(
        changed.append_column("region", pa.array(["north"])) if "region" not in changed.column_names else changed
    )
    again = Table.open(location, storage_options=s3_server.options)
    assert amounts(again) == expected | {"k0005": -5}
    again.services.compaction.run(force=True)
    assert amounts(again) == expected | {"k0005": -5}
    assert again.validate(deep=True).findings == ()
    # The source files are never changed.
    assert len(list(open_storage(source, s3_server.options).list(""))) > 0


def test_rows_of_a_bucket_are_copied_to_a_local_table(source: str, s3_server: S3Server, tmp_path: Path) -> None:
    table = Table.bootstrap(
        tmp_path / "table",
        source=source,
        name="orders",
        record_key="id",
        mode="full",
        options=OPTIONS,
        storage_options=s3_server.options,
    )
    assert amounts(Table.open(table.location)) == {f"k{number:04d}": number for number in range(100)}
