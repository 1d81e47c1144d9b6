"""`lakehouse metadata show | validate | rebuild`: each difference between metadata and files is reported."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lakehouse.cli.main import main
from lakehouse.core.metadata.place import PARTITIONS_KEY
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import CorruptTableError
from lakehouse.model.metadata_report import MetadataCheck
from tests.support.indexes import table_with_metadata
from tests.support.tables import batch, row


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
