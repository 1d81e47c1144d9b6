"""Test snapshot, time travel and incremental reads of tables that Apache Hudi wrote, and the refused tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.table.table import Table, TableScan
from lakehouse.errors import UnsupportedError
from tests.support.fixture_tables import FixtureTable, canonical_rows, load_fixture_tables, row_hash
from tests.support.spark import collected

TABLES = load_fixture_tables()
READ = [pytest.param(table, id=table.name) for table in TABLES if table.is_supported]
REFUSED = [pytest.param(table, id=table.name) for table in TABLES if not table.is_supported]
LOGS = [table for table in TABLES if table.is_supported and table.entry["table_type"] == "MERGE_ON_READ"]
MERGED = [pytest.param(table, id=table.name) for table in LOGS]
WITH_RANGES = [pytest.param(table, id=table.name) for table in TABLES if table.is_supported and table.ranges]
WITHOUT_META = [
    pytest.param(table, id=table.name) for table in TABLES if table.is_supported and not table.has_meta_fields
]

#: The reference reader could not read earlier instants of this table, so the manifest has only its snapshot.
WITHOUT_PAST = ("mor_v9_layout_log_only_mdt",)


def opened(fixture: FixtureTable, directory: Path) -> Table:
    return Table.open(str(fixture.unpack(directory)))


def assert_rows(fixture: FixtureTable, rows: pa.Table, entry: dict[str, Any], expected: pa.Table | None) -> None:
    """Compare rows with the expected rows, for a readable diff, and with the hashes in the manifest."""
    assert rows.num_rows == entry["rows"]
    if not entry["rows"]:
        return
    with_meta = fixture.has_meta_fields
    if expected is not None:
        # The expected rows of a range are duplicated if it is both a step and the range of all steps.
        times = expected.num_rows // rows.num_rows
        expected_rows = canonical_rows(expected, with_meta=with_meta)[::times]
        assert canonical_rows(rows, with_meta=with_meta) == expected_rows
    assert row_hash(rows) == entry["sha256_data"]
    assert not with_meta or row_hash(rows, with_meta=True) == entry["sha256_with_meta"]


def chosen(rows: pa.Table | None, **values: str | None) -> pa.Table | None:
    """Return the expected rows with these values of the marker columns, without those columns; "" means no start."""
    if rows is None:
        return None
    for name, value in values.items():
        rows = rows.filter(pc.equal(rows.column(name), value or "")).drop_columns([name])
    return rows


def reads(fixture: FixtureTable, table: Table) -> list[tuple[TableScan, dict[str, Any], pa.Table | None]]:
    """Return (scan, manifest entry, expected rows) of each read in the manifest."""
    result = [(table.scan(), fixture.entry["snapshot"], fixture.expected())]
    if "read_optimized" in fixture.entry:
        result.append((table.scan(read_optimized=True), fixture.entry["read_optimized"], fixture.expected("ro")))
    past, between = fixture.expected("asof"), fixture.expected("incr")
    for entry in fixture.times:
        result.append((table.scan(as_of=entry["instant"]), entry, chosen(past, _as_of=entry["instant"])))
    for entry in fixture.ranges:
        start, end = entry["start_exclusive"], entry["end_inclusive"]
        scan = table.incremental(start or "earliest", end)
        result.append((scan, entry, chosen(between, _start=start, _end=end)))
    return result


def test_the_manifest_has_supported_tables_of_every_version_and_kind() -> None:
    supported = [table for table in TABLES if table.is_supported]
    assert {table.version for table in supported} == {6, 8, 9}
    assert {table.entry["table_type"] for table in supported} == {"COPY_ON_WRITE", "MERGE_ON_READ"}
    refused = {table.name for table in TABLES if not table.is_supported}
    assert refused == {"cow_v5_multipart", "cow_v9_lance_nonpartitioned", "cow_v3_stock_ticks", "mor_v3_stock_ticks"}


@pytest.mark.parametrize("fixture", READ)
def test_snapshot_has_the_expected_rows(fixture: FixtureTable, tmp_path: Path) -> None:
    rows = opened(fixture, tmp_path).scan().to_arrow()
    assert_rows(fixture, rows, fixture.entry["snapshot"], fixture.expected())


@pytest.mark.parametrize("fixture", MERGED)
def test_read_optimized_read_has_the_expected_rows(fixture: FixtureTable, tmp_path: Path) -> None:
    rows = opened(fixture, tmp_path).scan(read_optimized=True).to_arrow()
    assert_rows(fixture, rows, fixture.entry["read_optimized"], fixture.expected("ro"))


@pytest.mark.parametrize("fixture", READ)
def test_time_travel_to_each_instant_has_the_expected_rows(fixture: FixtureTable, tmp_path: Path) -> None:
    table, past = opened(fixture, tmp_path), fixture.expected("asof")
    for entry in fixture.times:
        rows = table.scan(as_of=entry["instant"]).to_arrow()
        assert_rows(fixture, rows, entry, chosen(past, _as_of=entry["instant"]))
    written = sum(fixture.entry["completed_actions"].get(a, 0) for a in ("commit", "deltacommit", "replacecommit"))
    assert len(fixture.times) == (0 if fixture.name in WITHOUT_PAST else written)


@pytest.mark.parametrize("fixture", WITH_RANGES)
def test_incremental_read_of_each_range_has_the_expected_rows(fixture: FixtureTable, tmp_path: Path) -> None:
    table, changes = opened(fixture, tmp_path), fixture.expected("incr")
    for entry in fixture.ranges:
        start, end = entry["start_exclusive"], entry["end_inclusive"]
        rows = table.incremental(start or "earliest", end).to_arrow()
        assert_rows(fixture, rows, entry, chosen(changes, _start=start, _end=end))
    assert len(fixture.ranges) > 1


@pytest.mark.parametrize("fixture", REFUSED)
def test_unsupported_tables_are_refused_with_the_reason(fixture: FixtureTable, tmp_path: Path) -> None:
    if fixture.version not in (6, 8, 9):
        reason = f"table version {fixture.version} is not supported; versions 6, 8, 9 are"
    else:
        reason = "base file format LANCE is not supported; PARQUET is"
    with pytest.raises(UnsupportedError, match=reason):
        opened(fixture, tmp_path)


@pytest.mark.parametrize("fixture", WITHOUT_META)
def test_tables_without_meta_columns_have_no_incremental_read(fixture: FixtureTable, tmp_path: Path) -> None:
    table = opened(fixture, tmp_path)
    with pytest.raises(UnsupportedError, match=r"hoodie\.populate\.meta\.fields=false"):
        table.incremental("20200101000000000").to_arrow()


@pytest.mark.spark
def test_spark_reads_tables_without_logs_like_arrow(spark: Any, tmp_path: Path) -> None:
    """Spark reads the tables with log files in tests/spark/test_fixture_slices.py."""
    compared = 0
    for fixture in (table for table in TABLES if table.is_supported and table not in LOGS):
        all_reads = reads(fixture, opened(fixture, tmp_path / fixture.name))
        results = collected([scan.to_spark(spark) for scan, _, _ in all_reads])
        for rows, (_, entry, expected) in zip(results, all_reads, strict=True):
            assert_rows(fixture, rows, entry, expected)
            compared += 1
    assert compared > 50
