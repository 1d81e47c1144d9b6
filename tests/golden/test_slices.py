"""Test that file slices of the fixture tables equal those of hudi-rs at each instant, and the rows of base files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hudi import HudiReadOptions, HudiTableBuilder

from lakehouse.core.env import Env
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.pending import pending_compactions
from lakehouse.core.operations.load.slices import load_all_slices, load_slices, load_visible
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.planning.compaction import plan_compaction
from lakehouse.core.state.file_system_view import read_optimized
from lakehouse.core.storage.local import LocalStorage
from lakehouse.model.compaction import CompactionOperation
from lakehouse.model.files import FileSlice, LogFile
from lakehouse.model.instant import Action
from lakehouse.spec.options.compaction import CompactionPolicy
from tests.support.fixture_tables import FixtureTable, canonical_rows, load_fixture_tables

SUPPORTED = [
    table
    for table in load_fixture_tables()
    if table.version in (6, 8, 9) and table.entry["base_file_format"] == "PARQUET"
]
TABLES = [pytest.param(table, id=table.name) for table in SUPPORTED]
WITH_LOGS = [pytest.param(table, id=table.name) for table in SUPPORTED if table.entry["table_type"] == "MERGE_ON_READ"]
COMPACTED = [
    pytest.param(table, id=table.name)
    for table in SUPPORTED
    if {"compaction-done", "compaction-pending"} & set(table.entry["features"])
]
Names = tuple[str, str, str | None, tuple[str, ...]]


def unpacked(fixture: FixtureTable, directory: Path) -> tuple[Path, LoadedTable]:
    path = fixture.unpack(directory)
    return path, load_table(Env(storage=LocalStorage(str(path))))


def ours(slices: tuple[FileSlice, ...]) -> list[Names]:
    return sorted(
        (s.partition, s.file_id, s.base.name if s.base else None, tuple(log.name for log in s.logs)) for s in slices
    )


def theirs(path: Path, as_of: str | None = None) -> list[Names]:
    # With a metadata table, hudi-rs does not return slices of file groups without a base file.
    shutil.rmtree(path / ".hoodie" / "metadata", ignore_errors=True)
    table = HudiTableBuilder.from_base_uri(str(path)).with_hudi_option("hoodie.metadata.enable", "false").build()
    options = HudiReadOptions() if as_of is None else HudiReadOptions().with_as_of_timestamp(as_of)
    result = []
    for s in table.get_file_slices(options):
        # hudi-rs also lists log files of later instants; it drops their blocks when it reads.
        logs = tuple(name for name in s.log_file_names if as_of is None or name.split("_")[1][:17] <= as_of)
        if logs or s.base_file_name:
            result.append((s.partition_path, s.file_id, s.base_file_name or None, logs))
    return sorted(result)


@pytest.mark.parametrize("fixture", TABLES)
def test_the_latest_slices_equal_those_of_hudi_rs_now_and_at_each_instant(
    fixture: FixtureTable, tmp_path: Path
) -> None:
    path, table = unpacked(fixture, tmp_path)
    assert ours(load_slices(table)) == theirs(path)
    for entry in fixture.times:
        assert ours(load_slices(table, as_of=entry["instant"])) == theirs(path, entry["instant"])


@pytest.mark.parametrize("fixture", WITH_LOGS)
def test_base_files_have_the_rows_of_a_read_optimized_read(fixture: FixtureTable, tmp_path: Path) -> None:
    path, table = unpacked(fixture, tmp_path)
    files = [s.base for s in read_optimized(load_slices(table)) if s.base]
    tables = [pq.ParquetFile(path / file.path).read() for file in files]
    assert sum(rows.num_rows for rows in tables) == fixture.entry["read_optimized"]["rows"]
    expected = fixture.expected("ro")
    if expected is not None and expected.num_rows:
        rows = pa.concat_tables(tables, promote_options="default")
        assert canonical_rows(rows, with_meta=True) == canonical_rows(expected, with_meta=True)


@pytest.mark.parametrize("fixture", WITH_LOGS)
def test_each_committed_file_is_in_exactly_one_slice(fixture: FixtureTable, tmp_path: Path) -> None:
    _, table = unpacked(fixture, tmp_path)
    visible = load_visible(table)
    slices = [s for group in load_all_slices(table, visible).by_group().values() for s in group]
    placed = [file for s in slices for file in (*([s.base] if s.base else []), *s.logs)]
    by_base = not table.config.layout.has_completion_times
    committed = [
        file
        for file in list_data_files(table)
        if visible.shows(file.instant) or (by_base and isinstance(file, LogFile) and file.instant in visible.compacting)
    ]
    assert sorted(file.path for file in placed) == sorted(file.path for file in committed)
    assert committed or not fixture.entry["snapshot"]["rows"]


def named(operation: CompactionOperation) -> tuple[str, str, str, str | None, tuple[str, ...]]:
    return (
        operation.partition,
        operation.file_id,
        operation.base_instant,
        operation.data_file,
        operation.log_files,
    )


@pytest.mark.parametrize("fixture", COMPACTED)
def test_compaction_plans_equal_those_of_hudi_at_the_same_time(fixture: FixtureTable, tmp_path: Path) -> None:
    path, table = unpacked(fixture, tmp_path)
    plans = sorted((path / ".hoodie" / "timeline").glob("*.compaction.requested"))
    assert plans
    for file in plans:
        hudis = decode_compaction_plan(file.read_bytes())
        time = file.name.partition(".")[0]
        plan = plan_compaction(load_slices(table, completed_up_to=time), (), CompactionPolicy())
        assert plan is not None
        assert sorted(map(named, plan.operations)) == sorted(map(named, hudis.operations))
        metrics = {operation.file_id: operation.metrics for operation in plan.operations}
        for operation in hudis.operations:
            ours_of = metrics[operation.file_id]
            assert ours_of.keys() == operation.metrics.keys()
            assert ours_of["TOTAL_LOG_FILES"] == operation.metrics["TOTAL_LOG_FILES"]
            assert ours_of["TOTAL_LOG_FILES_SIZE"] == operation.metrics["TOTAL_LOG_FILES_SIZE"]
        if table.timeline.where(action=Action.COMPACTION, pending=True):
            assert pending_compactions(table) == {(op.partition, op.file_id): time for op in hudis.operations}
