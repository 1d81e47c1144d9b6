"""Metadata tables of Hudi 0.15 and 1.0 in tables that Hudi 1.2 and lakehouse write in turn."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.operations.metadata.validation import Validated
from lakehouse.core.table.table import Table
from tests.support.fixture_tables import canonical_rows
from tests.support.hudi import Hudi
from tests.support.shared import fixtures

pytestmark = pytest.mark.jvm

INDEXES = {
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.partition.stats.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.datasource.write.operation": "upsert",
}


def unpacked(name: str, directory: Path) -> str:
    with zipfile.ZipFile(fixtures(f"{name}.zip")) as archive:
        archive.extractall(directory)
    (properties,) = [path for path in directory.rglob("hoodie.properties") if path.parent.parent.name != "metadata"]
    return str(properties.parents[1])


def options_of(table: Table) -> dict[str, str]:
    """Return the options with which Hudi writes to a table."""
    raw = table.refresh().config.raw
    return {
        **INDEXES,
        "hoodie.table.name": raw["hoodie.table.name"],
        "hoodie.datasource.write.table.type": raw["hoodie.table.type"],
        "hoodie.datasource.write.recordkey.field": raw["hoodie.table.recordkey.fields"],
        "hoodie.datasource.write.precombine.field": raw["hoodie.table.precombine.field"],
        "hoodie.datasource.write.partitionpath.field": raw["hoodie.table.partition.fields"],
    }


def data_of(rows: pa.Table) -> pa.Table:
    return rows.select([name for name in rows.column_names if not name.startswith("_hoodie_")])


def assert_healthy(table: Table, hudi: Hudi) -> None:
    report = table.metadata.validate()
    assert report.ok, [(check.partition, check.error, check.examples) for check in report.checks if not check.ok]
    assert isinstance(table.services.validation.run(force=True), Validated)
    assert canonical_rows(data_of(table.scan().to_arrow())) == canonical_rows(data_of(hudi.read(table.location)))


def test_table_of_hudi_0_15_is_healthy_after_hudi_upgraded_and_wrote_it(hudi: Hudi, tmp_path: Path) -> None:
    """Statistics of version 6 have no definition and more columns, and equal files have equal completion times."""
    location = unpacked("hudi_v6/cow_v6_h015_mdt_services", tmp_path)
    table = Table.open(location)
    rows = data_of(table.scan().to_arrow())
    hudi.write(location, rows.slice(0, 1), options_of(table))
    table = Table.open(location)
    assert table.refresh().config.version == 9
    assert_healthy(table, hudi)
    table.upsert(rows.slice(1, 1))
    assert_healthy(table, hudi)


def test_table_of_hudi_1_0_is_written_by_lakehouse_and_hudi_in_turn(hudi: Hudi, tmp_path: Path) -> None:
    """Hudi 1.2 merges log blocks with the record schema of Hudi 1.0, and its compaction keeps their records."""
    location = unpacked("hudi_tables/mor_v8_trips_8i3u1d", tmp_path)
    table = Table.open(location)
    rows = data_of(table.scan().to_arrow())
    table.upsert(rows.slice(0, 1))
    assert_healthy(table, hudi)
    keep = {"hoodie.write.table.version": "8", "hoodie.metadata.index.secondary.enable": "true"}
    compacted = {"hoodie.metadata.compact.max.delta.commits": "1"}
    hudi.write(location, rows.slice(1, 1), {**options_of(table), **keep, **compacted})
    table = Table.open(location)
    assert table.refresh().config.version == 8
    assert_healthy(table, hudi)
    table.upsert(rows.slice(2, 1))
    assert_healthy(table, hudi)
