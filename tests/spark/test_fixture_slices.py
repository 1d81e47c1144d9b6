"""Merge-on-read tables of Apache Hudi, read by `to_spark` and `format("lakehouse")` with every kind of query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame

from lakehouse.core.table.table import Table
from lakehouse.spark import changed_rows
from tests.support.fixture_tables import FixtureTable, canonical_rows, load_fixture_tables, row_hash
from tests.support.spark import collected, used_relation

pytestmark = pytest.mark.spark

_QUERY = "hoodie.datasource.query.type"
_BEGIN, _END = "hoodie.datasource.read.begin.instanttime", "hoodie.datasource.read.end.instanttime"
TABLES = [
    pytest.param(table, id=table.name)
    for table in load_fixture_tables()
    if table.entry["table_type"] == "MERGE_ON_READ" and table.version in (6, 8, 9)
]


def assert_rows(fixture: FixtureTable, rows: pa.Table, entry: dict[str, Any], expected: pa.Table | None) -> None:
    assert rows.num_rows == entry["rows"]
    if not entry["rows"]:
        return
    if expected is None:
        assert row_hash(rows) == entry["sha256_data"]
        return
    # A range that is both a single step and the span of all steps occurs twice, and so do its rows.
    times, with_meta = expected.num_rows // rows.num_rows, fixture.has_meta_fields
    assert canonical_rows(rows, with_meta=with_meta) == canonical_rows(expected, with_meta=with_meta)[::times]


def chosen(rows: pa.Table | None, **values: str | None) -> pa.Table | None:
    for name, value in values.items():
        rows = None if rows is None else rows.filter(pc.equal(rows.column(name), value or "")).drop_columns([name])
    return rows


def source(spark: Any, table: Table, **options: str) -> DataFrame:
    return used_relation(spark, table.location, **options)


@pytest.mark.parametrize("fixture", TABLES)
def test_snapshot_and_read_optimized_rows_are_as_expected(
    spark: Any, fixture: FixtureTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table.open(str(fixture.unpack(tmp_path)))
    snapshots = [table.scan().to_spark(spark), source(spark, table)]
    # Let Spark's reader read the unchanged rows of small base files, too.
    monkeypatch.setattr(changed_rows, "LEAST_BYTES", 0)
    monkeypatch.setattr(changed_rows, "MOST_LOG_SHARE", 1e6)
    snapshots.append(table.scan().to_spark(spark))
    bases = [table.scan(read_optimized=True).to_spark(spark), source(spark, table, **{_QUERY: "read_optimized"})]
    found = collected([*snapshots, *bases])
    for rows in found[:3]:
        assert_rows(fixture, rows, fixture.entry["snapshot"], fixture.expected())
    for rows in found[3:]:
        assert_rows(fixture, rows, fixture.entry["read_optimized"], fixture.expected("ro"))


@pytest.mark.slow
@pytest.mark.parametrize("fixture", [table for table in TABLES if table.values[0].times or table.values[0].ranges])
def test_time_travel_and_incremental_rows_are_as_expected(spark: Any, fixture: FixtureTable, tmp_path: Path) -> None:
    table = Table.open(str(fixture.unpack(tmp_path)))
    past, changes = fixture.expected("asof"), fixture.expected("incr")
    frames: list[DataFrame] = []
    wanted: list[tuple[dict[str, Any], pa.Table | None]] = []
    for entry in fixture.times:
        frames.append(table.scan(as_of=entry["instant"]).to_spark(spark))
        wanted.append((entry, chosen(past, _as_of=entry["instant"])))
    for entry in fixture.ranges if fixture.has_meta_fields else ():
        start, end = entry["start_exclusive"], entry["end_inclusive"]
        frames.append(table.incremental(start or "earliest", end).to_spark(spark))
        wanted.append((entry, chosen(changes, _start=start, _end=end)))
        # The data source differs from to_spark by its options only, so the first and the last instant are enough.
        if entry in (fixture.ranges[0], fixture.ranges[-1]):
            frames.append(source(spark, table, **{_QUERY: "incremental", _BEGIN: start or "earliest", _END: end}))
            wanted.append(wanted[-1])
    found = collected(frames)
    for rows, (entry, expected) in zip(found, wanted, strict=True):
        assert_rows(fixture, rows, entry, expected)
