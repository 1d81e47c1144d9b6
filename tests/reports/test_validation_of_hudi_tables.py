"""Validation passes on tables as Hudi wrote them, and still finds damage in them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse import Table as OwnTable
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.metadata.validation import Validated
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError
from tests.support.shared import fixtures

#: What Hudi does in the table, and why validation used to fail.
TABLES = {
    "hudi_tables/mor_v8_trips_8i3u1d": "a compaction of Hudi 1.0 writes no base file for a group without records",
    "hudi_tables/mor_v9_committime_05": "the statistics of a log file with deletes only count no values",
    "hudi_tables/mor_v9_nonpartitioned_rollback": "an insert added a key again, and the record index has one place",
    "hudi_metadata/tables/mor_consistent_dual_write": "logs of completed writes have the time of a pending resize",
    "hudi_metadata/tables/mor_crashed_ahead": "a write that crashed left a delta commit and a log with deletes only",
    "hudi_metadata/tables/mor_v6": "Hudi 1.2 appends logs in version 6",
    "hudi_v6/cow_v6_h015_mdt_services": "Hudi 0.15 stores no index definitions, and keeps statistics of cleaned files",
}


def unpacked(name: str, directory: Path) -> Table:
    with zipfile.ZipFile(fixtures(f"{name}.zip")) as archive:
        archive.extractall(directory)
    (properties,) = [path for path in directory.rglob("hoodie.properties") if path.parent.parent.name != "metadata"]
    return Table.open(str(properties.parents[1]))


@pytest.mark.parametrize("name", TABLES)
def test_validation_service_passes_on_a_table_as_hudi_wrote_it(name: str, tmp_path: Path) -> None:
    """apache/hudi#12159, apache/hudi#9437, apache/hudi#12773: what a validator must not report."""
    table = unpacked(name, tmp_path)
    report = table.metadata.validate()
    assert report.ok, [(check.partition, check.error, check.examples) for check in report.checks if not check.ok]
    assert report.checks
    assert not table.validate(deep=True).corrupt
    assert isinstance(table.services.validation.run(force=True), Validated)


def test_validation_service_warns_of_a_metadata_table_that_is_gone(tmp_path: Path) -> None:
    """apache/hudi#12159: Hudi 1.2 and hudi-rs list the files of such a table, so no reader is affected."""
    table = unpacked("hudi_tables/mor_v9_layout_log_compaction", tmp_path)
    outcome = table.services.validation.run(force=True)
    assert isinstance(outcome, Validated)
    assert any("does not exist" in warning for warning in outcome.warnings)
    assert not table.metadata.validate().ok


def test_missing_base_file_of_a_compaction_is_found_in_a_table_of_hudi_1_0(tmp_path: Path) -> None:
    """apache/hudi#18029: a record index without records of its base file must not pass."""
    table = unpacked("hudi_tables/mor_v8_trips_8i3u1d", tmp_path)
    (base,) = (Path(table.location) / ".hoodie/metadata/files").glob("files-0000-0_23-*.hfile")
    base.unlink()
    report = table.metadata.validate()
    assert not report.ok
    with pytest.raises(CorruptTableError, match="metadata table"):
        table.services.validation.run(force=True)


def test_lost_data_file_is_found_in_a_table_of_hudi_1_0(tmp_path: Path) -> None:
    """apache/hudi#12159: the listing of the metadata table has a file that is gone."""
    table = unpacked("hudi_tables/mor_v8_trips_8i3u1d", tmp_path)
    logs = [path for path in Path(table.location).glob("*/.*.log.*") if not path.name.startswith("._")]
    max(logs, key=lambda path: path.name.split("_")[1]).unlink()
    checks = {check.partition: check for check in table.metadata.validate().checks}
    assert checks["files"].surplus == 1


def test_statistics_without_definition_are_compared_by_the_columns_of_their_records(tmp_path: Path) -> None:
    """apache/hudi#14108: Hudi stores index definitions since 1.0, and an upgrade of an older table adds none."""
    table = OwnTable.create(
        str(tmp_path / "t"), name="t", record_key=["id"], options={"hoodie.metadata.index.column.stats.enable": "true"}
    )
    table.upsert(pa.table({"id": ["a", "b"], "v": [1, 2]}))
    definitions = tmp_path / "t" / ".hoodie/.index_defs/index.json"
    stored = json.loads(definitions.read_text())
    assert stored["indexDefinitions"].pop("column_stats")
    definitions.write_text(json.dumps(stored))
    table = OwnTable.open(str(tmp_path / "t"))
    checks = {check.partition: check for check in table.metadata.validate().checks}
    assert checks["column_stats"].ok and checks["column_stats"].records >= 5
    (file,) = (tmp_path / "t").glob("*.parquet")
    pq.write_table(pq.read_table(file).slice(0, 1), file)
    assert table.metadata.validate().checks != tuple(checks.values())


def test_equal_completion_times_of_an_upgraded_table_are_a_warning(tmp_path: Path) -> None:
    """apache/hudi#13145: an upgrade takes completion times from modification times, which a copy makes equal."""
    table = unpacked("hudi_v6/mor_v9_h120_upgraded_with_pending_compaction", tmp_path)
    timeline = Path(table.location) / ".hoodie/timeline"
    first, second = sorted(path for path in timeline.iterdir() if "_" in path.name and "deltacommit" in path.name)[:2]
    completion = second.name.partition("_")[2].partition(".")[0]
    first.rename(timeline / f"{first.name.partition('_')[0]}_{second.name.partition('_')[2]}")
    findings = Table.open(table.location).validate().findings
    assert {f.severity for f in findings if f.problem.endswith(completion)} == {"warning"}


def test_equal_completion_times_of_other_tables_are_corrupt(tmp_path: Path) -> None:
    """apache/hudi#13145: writers of Hudi 1.x never complete two actions at one time."""
    table = OwnTable.create(str(tmp_path / "t"), name="t", record_key=["id"])
    for key in "ab":
        table.upsert(pa.table({"id": [key]}))
    timeline = tmp_path / "t" / ".hoodie/timeline"
    first, second = sorted(path for path in timeline.iterdir() if "_" in path.name and path.name.endswith(".commit"))
    second.rename(timeline / f"{second.name.partition('_')[0]}_{first.name.partition('_')[2]}")
    findings = OwnTable.open(table.location).validate().findings
    assert "timeline.unique" in {f.invariant for f in findings if f.severity == "corrupt"}


def test_rebuilt_metadata_table_lists_logs_of_a_pending_resize(tmp_path: Path) -> None:
    """apache/hudi#18029: a rebuild must not lose the logs to which completed writes copied rows for the new buckets."""
    table = unpacked("hudi_metadata/tables/mor_consistent_dual_write", tmp_path)
    before = metadata_of(table.refresh())
    assert before is not None
    listed = before.listing().sort_by("name")
    table.metadata.rebuild()
    after = metadata_of(table.refresh())
    assert after is not None and after.listing().sort_by("name").equals(listed)
    assert table.metadata.validate().ok
