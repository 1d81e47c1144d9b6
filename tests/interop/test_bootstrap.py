"""Bootstrapped tables: Hudi's are read and written here, and ours are read and written by Hudi."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from tests.support.hudi import Hudi
from tests.support.parquet_folders import orders, regions

pytestmark = pytest.mark.jvm

OPTIONS = {
    "hoodie.table.name": "orders",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "region",
    "hoodie.datasource.write.hive_style_partitioning": "true",
    "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.SimpleKeyGenerator",
}


def _content(rows: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in rows.select(["id", "amount", "ts", "region"]).to_pylist())


def _changes(number: int, amount: int) -> pa.Table:
    return orders(number, number + 1, region="north").set_column(1, "amount", pa.array([amount], pa.int64()))


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_table_that_hudi_bootstrapped_is_read_and_written(hudi: Hudi, tmp_path: Path, table_type: str) -> None:
    location = str(tmp_path / "table")
    bootstrap = {
        "hoodie.datasource.write.operation": "bootstrap",
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.bootstrap.base.path": str(regions(tmp_path / "source")),
        "hoodie.bootstrap.mode.selector": (
            "org.apache.hudi.client.bootstrap.selector.MetadataOnlyBootstrapModeSelector"
        ),
        # Hudi 1.2 fails to commit a bootstrap with column statistics.
        "hoodie.metadata.index.column.stats.enable": "false",
    }
    # The schema of the rows that are given is ignored, but becomes the schema of the table if it has columns.
    hudi.write(location, pa.table({"id": pa.array([], pa.string())}).select([]), OPTIONS | bootstrap, mode="overwrite")
    table = Table.open(location)
    assert _content(table.scan().to_arrow()) == _content(hudi.read(location))
    assert table.scan().to_arrow().num_rows == 100 and not table.validate().findings
    table.upsert(_changes(7, -7))
    assert _content(hudi.read(location)) == _content(table.scan().to_arrow())


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_reads_and_writes_table_that_was_bootstrapped_here(hudi: Hudi, tmp_path: Path, table_type: str) -> None:
    source = regions(tmp_path / "source")
    table = Table.bootstrap(
        tmp_path / "table", source=source, name="orders", record_key="id", ordering="ts", table_type=table_type
    )
    location = table.location
    assert _content(hudi.read(location)) == _content(table.scan().to_arrow())
    hudi.write(location, _changes(8, -8), OPTIONS | {"hoodie.datasource.write.table.type": table_type})
    rows = table.scan().to_arrow()
    assert rows.num_rows == 100 and ("k0008", -8, 1, "north") in _content(rows)
    assert _content(hudi.read(location)) == _content(rows) and not table.validate().findings
