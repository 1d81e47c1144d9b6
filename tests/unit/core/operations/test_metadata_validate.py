"""`lakehouse metadata show | validate | rebuild`: each difference between metadata and files is reported."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.files.keys import changed_keys
from lakehouse.core.metadata.partitions import record_index
from lakehouse.core.metadata.partitions.column_stats import ColumnStatsPartition
from lakehouse.core.metadata.partitions.partition_stats import PartitionStatsPartition
from lakehouse.core.metadata.place import METADATA, PARTITIONS_KEY
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.metadata import validate
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import CorruptTableError, UserError
from lakehouse.model.metadata_report import MetadataCheck
from lakehouse.spec.options.indexing import BLOOM_FILTERS_ENABLE
from tests.support.indexes import table_with_metadata
from tests.support.metadata_check import check_metadata
from tests.support.tables import batch, row

RECORD_INDEXED = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "4",
}


def filled(folder: Path, **shape: object) -> Table:
    table = table_with_metadata(folder, **shape)
    table.insert(batch([row(f"k{n}", p="ab"[n % 2], v=f"v{n}", ts=n) for n in range(8)]))
    table.upsert(batch([row("k1", p="b", v="new", ts=99), row("k2", p="a", v=None, ts=99)]))
    table.delete(["k3"])
    table.services.create_index("v")
    table.services.index.run()
    table.upsert(batch([row("k4", p="a", v="later", ts=100)]))
    return table


def check_of(table: Table, partition: str) -> MetadataCheck:
    (check,) = [check for check in table.metadata.validate().checks if check.partition == partition]
    return check


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_that_writes_maintain_equals_the_files(type: str, tmp_path: Path) -> None:
    table = filled(tmp_path, type=type)
    if type == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    table.services.clean.run(force=True)
    report = table.metadata.validate()
    assert report.usable and report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
    names = {check.partition for check in report.checks}
    assert {"files", "column_stats", "partition_stats", "secondary_index_v"} <= names
    assert all(check.records for check in report.checks)


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_of_a_table_without_files_equals_the_files(type: str, tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path, type=type)
    assert table.metadata.validate().ok
    table.insert(batch([row("k1", p="a")]))
    table.delete(["k1"])
    assert table.metadata.validate().ok


def test_validation_writes_nothing(tmp_path: Path) -> None:
    table = filled(tmp_path)
    storage = table.refresh().env.storage
    before = {(file.path, file.size_bytes, file.modified_ms) for file in storage.list("")}
    table.metadata.validate()
    table.metadata.show()
    assert {(file.path, file.size_bytes, file.modified_ms) for file in storage.list("")} == before


def test_file_that_is_missing_from_storage_is_surplus_in_the_listing(tmp_path: Path) -> None:
    table = filled(tmp_path)
    storage = table.refresh().env.storage
    path = next(file.path for file in storage.list("a") if file.path.endswith(".parquet"))
    table.refresh()
    storage.delete(path)
    check = check_of(table, "files")
    assert (check.ok, check.surplus) == (False, 1) and path in check.examples[0]


def test_file_of_another_size_is_different_in_the_listing(tmp_path: Path) -> None:
    table = filled(tmp_path)
    storage = table.refresh().env.storage
    newest = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    path = sorted(newest)[0]
    storage.put(path, storage.get(path) + b"PAR1")
    check = check_of(table, "files")
    assert (check.ok, check.different) == (False, 1) and path in check.examples[0]
    assert "cannot be read" in check_of(table, "column_stats").error


def test_commit_that_did_not_record_its_change_is_reported(tmp_path: Path) -> None:
    table = filled(tmp_path)
    env, listed = table.refresh().env, table.config.raw[PARTITIONS_KEY]
    update_properties(env, {PARTITIONS_KEY: None})
    outcome = table.insert(batch([row("hidden", p="a", v="x")]))
    assert isinstance(outcome, Committed)
    update_properties(env, {PARTITIONS_KEY: listed})
    report = table.metadata.validate()
    assert not report.ok and not report.usable and outcome.instant.requested in report.reason
    assert main(["metadata", "validate", "--table", table.location]) == CorruptTableError.exit_code
    assert table.metadata.rebuild().files > 0
    assert table.metadata.validate().ok


def test_table_without_metadata_table_has_no_difference(tmp_path: Path) -> None:
    table = filled(tmp_path)
    update_properties(table.refresh().env, {PARTITIONS_KEY: None})
    report = table.metadata.validate()
    assert report.ok and not report.usable and "list no metadata table" in report.reason
    summary = table.metadata.show()
    assert not summary.usable and summary.partitions == ()


def test_summary_names_partitions_sizes_and_what_is_being_built(tmp_path: Path) -> None:
    table = filled(tmp_path)
    table.services.create_index("id", name="other")
    table.services.index.schedule()
    summary = table.metadata.show()
    by_name = {part.partition: part for part in summary.partitions}
    assert summary.usable and len(summary.pending) == 1
    assert by_name["files"].groups == 1 and by_name["files"].bytes > 0 and by_name["files"].reason == ""
    assert by_name["secondary_index_v"].indexes == "v"
    assert (
        by_name["secondary_index_other"].state == "building"
        and "being built" in by_name["secondary_index_other"].reason
    )


def test_commands_print_documents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = filled(tmp_path)
    at = ["--table", table.location, "--output", "json"]
    assert main(["metadata", "show", *at]) == 0
    assert json.loads(capsys.readouterr().out)["usable"] is True
    assert main(["metadata", "validate", *at]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is True and shown["checks"][0]["partition"] == "files"
    assert main(["metadata", "rebuild", *at]) == 0
    assert "files" in json.loads(capsys.readouterr().out)["partitions"]
    assert main(["metadata", "show", "--table", table.location]) == 0
    assert "secondary_index_v" in capsys.readouterr().out


def test_failed_rebuild_leaves_no_files_and_no_instant_and_the_next_one_completes(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("k1"), row("k2", p="b"), row("k1", p="b")]))
    with pytest.raises(UserError, match="record key 'k1' is in file group"):
        table.with_options(RECORD_INDEXED).metadata.rebuild()
    storage = table.refresh().env.storage
    assert [file.path for file in storage.list(f"{METADATA}/record_index")] == []
    assert not any("inflight" in name or "requested" in name for name in pending_of(storage))
    table.delete(batch([row("k1", p="b")]).select(["id", "p"]))
    table.with_options(RECORD_INDEXED).metadata.rebuild()
    check_metadata(table)
    assert check_of(table, "record_index").records == 2


def test_record_index_is_compared_and_built_one_file_group_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row(f"k{n}", p="ab"[n % 2]) for n in range(60)]))
    table = table.with_options(RECORD_INDEXED)
    sizes: list[int] = []
    changed_keys_of = changed_keys.changed_keys_of

    def measured(*args: Any) -> pa.Table:
        found = changed_keys_of(*args)
        if "file_id" in found.column_names:
            sizes.append(found.num_rows)
        return found

    monkeypatch.setattr(validate, "changed_keys_of", measured)
    monkeypatch.setattr(record_index, "changed_keys_of", measured)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    table.metadata.rebuild()
    assert sum(sizes) == 60 and len(sizes) == 4 and max(sizes) < 30
    sizes.clear()
    assert check_of(table, "record_index").records == 60
    assert sum(sizes) == 60 and len(sizes) == 4 and max(sizes) < 30
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_statistics_and_secondary_index_are_compared_part_by_part(
    type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_metadata(tmp_path, type=type)
    table.insert(batch([row(f"k{n:02d}", p="abc"[n % 3], v=f"v{n}", ts=n) for n in range(40)]))
    table.upsert(batch([row("k01", p="b", v="new", ts=99), row("k02", p="c", v=None, ts=99)]))
    table.services.create_index("v")
    table.services.index.run()
    built: list[tuple[str, int, int]] = []
    compared: list[tuple[str, int]] = []

    def measured(kind: Any) -> None:
        build = kind.build

        def of_some(self: Any, name: str, files: Any) -> pa.Table:
            partitions = len(set(files.newest.column("partition").to_pylist()))
            built.append((name, files.newest.num_rows, partitions))
            return build(self, name, files)

        monkeypatch.setattr(kind, "build", of_some)

    check = validate._check

    def checked(name: str, stored: pa.Table, expected: pa.Table, columns: tuple[str, ...]) -> MetadataCheck:
        compared.append((name, expected.num_rows))
        return check(name, stored, expected, columns)

    measured(ColumnStatsPartition)
    measured(PartitionStatsPartition)
    monkeypatch.setattr(validate, "_check", checked)
    monkeypatch.setattr(validate, "_FILES_AT_ONCE", 4)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    report = table.metadata.validate()
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
    files = [rows for name, rows, _ in built if name == "column_stats"]
    assert len(files) > 3 and max(files) == 4
    assert sum(rows for name, rows, _ in built if name == "partition_stats") == sum(files), (
        "each partition is built once"
    )
    assert {partitions for name, _, partitions in built if name == "partition_stats"} == {1}
    for name in ("column_stats", "partition_stats", "secondary_index_v"):
        parts = [rows for compared_name, rows in compared if compared_name == name and rows]
        assert len(parts) > 5 and max(parts) < sum(parts) / 2, (name, parts)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("partition", ["column_stats", "partition_stats", "secondary_index_v", "bloom_filters"])
def test_records_that_a_compaction_of_the_metadata_table_lost_are_missing(partition: str, tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path, options={BLOOM_FILTERS_ENABLE: "true"})
    table.insert(batch([row(f"k{n:02d}", p="abc"[n % 3], v=f"v{n}", ts=n) for n in range(12)]))
    table.services.create_index("v")
    table.services.index.run()
    table.upsert(batch([row("k01", p="b", v="new", ts=99)]))
    logs = sorted((Path(table.location) / METADATA / partition).glob(".*.log*"))
    newest = max(logs, key=lambda log: log.stat().st_size if "_0-0-0" not in log.name else 0)
    newest.unlink()
    check = check_of(Table.open(table.location), partition)
    assert not check.ok and (check.missing or check.error), check


def pending_of(storage: Storage) -> list[str]:
    """Return the files of pending instants of the metadata table."""
    names = storage.list_names(f"{METADATA}/.hoodie/timeline")
    done = {name.partition("_")[0] for name in names if "_" in name}
    return [name for name in names if name.partition(".")[0].partition("_")[0] not in done]
