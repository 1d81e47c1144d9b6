"""Test that partition statistics computed from commits of other writers equal a listing of their tables."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME, parse_partition_metadata
from lakehouse.core.format.partition_statistics import TableStatistics
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.state.partition_statistics import fold, partition_statistics
from lakehouse.core.storage.local import LocalStorage
from tests.support.fixture_tables import FixtureTable, load_fixture_tables

PARQUET = [table for table in load_fixture_tables() if table.entry["base_file_format"] == "PARQUET"]
TABLES = [pytest.param(table, id=table.name) for table in PARQUET if table.version in (8, 9)]
OLD = next(table for table in PARQUET if table.version == 6)


def loaded(fixture: FixtureTable, directory: Path) -> tuple[Path, LoadedTable]:
    path = fixture.unpack(directory)
    return path, load_table(Env(storage=LocalStorage(str(path))))


def listed(table: LoadedTable) -> dict[str, tuple[int, int]]:
    """Return the bytes and the number of files of the latest slices by partition."""
    size: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for s in load_slices(table):
        size[s.partition] += (s.base.size_bytes if s.base else 0) + s.total_log_bytes
        files[s.partition] += (s.base is not None) + len(s.logs)
    return {partition: (size[partition], files[partition]) for partition in size}


def by_partition(statistics: TableStatistics) -> dict[str, tuple[int, int]]:
    return {s.partition: (s.size_bytes, s.files) for s in partition_statistics(statistics)}


@pytest.mark.parametrize("fixture", TABLES)
def test_statistics_of_other_writers_commits_equal_a_listing(fixture: FixtureTable, tmp_path: Path) -> None:
    path, table = loaded(fixture, tmp_path)
    expected = listed(table)
    assert by_partition(load_statistics(table)) == expected
    # Computed only from the commits, one by one; the timelines of these tables contain all commits.
    folded = TableStatistics()
    for pair in table.store.commits(table.timeline.writes().by_completion()):
        folded = fold(folded, [pair], table.timeline)
    assert by_partition(folded) == expected
    for statistics in partition_statistics(folded):
        slices = load_slices(table, [statistics.partition])
        if not any(s.logs for s in slices):
            assert statistics.rows == sum(pq.read_metadata(path / s.base.path).num_rows for s in slices if s.base)
        made = path / statistics.partition / PARTITION_METADATA_NAME
        if made.exists():
            assert parse_partition_metadata(made.read_bytes())[0] == statistics.created


def test_statistics_of_tables_without_completion_times_are_read_from_a_listing(tmp_path: Path) -> None:
    _, table = loaded(OLD, tmp_path)
    expected = listed(table)
    assert expected and by_partition(load_statistics(table)) == expected
