"""The metadata table of tables of version 6: its files, its instants and its records (V6-9)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.metadata.read.table import MetadataTable, open_for_reading
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError
from tests.support.metadata_check import check_metadata
from tests.support.version_6 import assert_valid, batch, committed, created, failing, properties, values

INDEXES = {
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "1",
}
KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
each_kind = pytest.mark.parametrize("kind", KINDS)


def metadata_root(table: Table) -> Path:
    return Path(table.location) / ".hoodie/metadata"


def names(table: Table) -> list[str]:
    """Return the files of the metadata timeline."""
    return sorted(path.name for path in (metadata_root(table) / ".hoodie").iterdir() if path.name[0].isdigit())


def files(table: Table, partition: str = "files") -> list[str]:
    found = (path.name for path in (metadata_root(table) / partition).iterdir())
    return sorted(name for name in found if not name.startswith(".hoodie") and not name.endswith(".crc"))


def content(table: Table, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((metadata_root(table) / ".hoodie" / name).read_text())
    return found


def test_new_table_has_the_partitions_of_hudi_0_15_with_its_instants(tmp_path: Path) -> None:
    table = created(tmp_path, options=INDEXES)
    stored = properties(table)
    assert stored["hoodie.table.metadata.partitions"] == "bloom_filters,column_stats,files,record_index"
    builds = [name for name in names(table) if name.endswith(".deltacommit")]
    assert builds == [f"0000000000000001{number}.deltacommit" for number in range(4)]
    assert [len(content(table, build)["partitionToWriteStats"]) for build in builds] == [1, 0, 0, 0]
    own = (metadata_root(table) / ".hoodie/hoodie.properties").read_text()
    assert "hoodie.table.version=6" in own and "hoodie.archivelog.folder=archived" in own
    assert "HoodieTableMetadataKeyGenerator" in own and "hoodie.record.merge.mode" not in own


@each_kind
def test_commit_appends_a_log_version_to_the_slice_and_has_a_profile(kind: str, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options=INDEXES)
    first = committed(table.insert(batch(["a1", "b1"], 1, "x"))).requested
    second = committed(table.upsert(batch(["a1"], 2, "y"))).requested
    versions = [name for name in files(table) if ".log." in name]
    assert [name.partition("_0-")[0] for name in versions] == [
        f".files-0000-0_00000000000000010.log.{version}" for version in (1, 2, 3)
    ]
    with (metadata_root(table) / "files" / versions[2]).open("rb") as source:
        assert {block.instant for block in scan_blocks(source)} == {second}
    inflight = content(table, f"{first}.deltacommit.inflight")
    assert inflight["operationType"] == "UPSERT_PREPPED"
    new, updates = inflight["partitionToWriteStats"]["files"]
    assert (new["fileId"], new["prevCommit"]) == ("", "null")
    assert (updates["fileId"], updates["prevCommit"]) == ("files-0000-0", "00000000000000010")
    (stat,) = content(table, f"{second}.deltacommit")["partitionToWriteStats"]["files"]
    assert stat["prevCommit"] == "00000000000000010" and stat["logVersion"] == 3
    assert sorted(stat["logFiles"]) == versions and stat["baseFile"].endswith("_00000000000000010.hfile")
    check_metadata(table)


@each_kind
def test_compaction_has_a_suffix_and_later_logs_its_time(kind: str, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options={**INDEXES, "hoodie.metadata.compact.max.delta.commits": "2"})
    commits = [committed(table.upsert(batch(["a1", f"a{n}"], n, "x"))).requested for n in range(2, 6)]
    compactions = [name.partition(".")[0] for name in names(table) if name.endswith(".commit")]
    assert compactions and {time[:17] for time in compactions} <= set(commits)
    assert {time[17:] for time in compactions} == {"001"}
    last = compactions[-1]
    assert any(name.endswith(f"_{last}.hfile") for name in files(table))
    assert f".files-0000-0_{last}.log.1" in {name.partition("_0-")[0] for name in files(table)}
    check_metadata(table)
    assert values(table) == {"a1": "x", "a2": "x", "a3": "x", "a4": "x", "a5": "x"}
    assert_valid(table)


@pytest.mark.parametrize("planned", [False, True])
def test_deletes_in_logs_leave_the_record_index(planned: bool, tmp_path: Path) -> None:
    table = created(tmp_path, options=INDEXES)
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    if planned:
        # The next log is in a slice that is named after the plan, apart from the rows that it deletes.
        table.upsert(batch(["a1"], 2, "y"))
        table.services.compaction.schedule(force=True)
    table.delete(batch(["a2"], 3, "").select(["id", "p"]))
    table.upsert(batch(["a3"], 4, "new"))
    check_metadata(table)
    if planned:
        table.services.compaction.run(force=True)
    table.upsert(batch(["a2"], 5, "again"))
    check_metadata(table)
    assert values(table).keys() == {"a1", "a2", "a3", "b1"}
    assert_valid(table)


@each_kind
@pytest.mark.parametrize("planned", [False, True])
def test_record_that_moves_to_another_partition_has_its_new_place(kind: str, planned: bool, tmp_path: Path) -> None:
    index = {"hoodie.index.type": "RECORD_INDEX", "hoodie.record.index.update.partition.path": "true"}
    table = created(tmp_path, kind, options=INDEXES | index)
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    if planned and kind == "MERGE_ON_READ":
        table.upsert(batch(["a2", "b1"], 2, "y"))
        table.services.compaction.schedule(force=True)
    moved = batch(["a1"], 3, "moved").set_column(1, "p", pa.array(["b"]))
    table.upsert(moved)
    check_metadata(table)
    rows = Table.open(table.location).scan(["id", "p", "v"]).to_arrow().to_pylist()
    assert {row["id"]: row["p"] for row in rows} == {"a1": "b", "a2": "a", "b1": "b"}
    table.upsert(batch(["a1"], 4, "back"))
    check_metadata(table)
    assert_valid(table)


def test_rollback_records_both_log_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path, options=INDEXES)
    table.insert(batch(["a1"], 1, "x"))
    failed = failing(monkeypatch, table, batch(["a1"], 2, "lost"))
    table.rollback_failed()
    (rollback,) = (i.requested for i in Table.open(table.location).timeline if i.action == "rollback")
    assert f"{rollback}.deltacommit" in names(table) and f"{failed}.deltacommit" not in names(table)
    check_metadata(table)
    table.upsert(batch(["a1"], 3, "y"))
    check_metadata(table)
    assert values(table) == {"a1": "y"}


@each_kind
def test_rollback_of_a_completed_write_removes_its_records(kind: str, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options=INDEXES)
    table.insert(batch(["a1"], 1, "x"))
    undone = committed(table.upsert(batch(["a1", "a2"], 2, "y"))).requested
    Table.open(table.location).rollback(undone)
    assert not [name for name in names(table) if name.startswith(f"{undone}.")]
    check_metadata(table)
    assert values(table) == {"a1": "x"}
    assert_valid(table)


@each_kind
def test_rebuild_and_drop(kind: str, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options={"hoodie.metadata.enable": "false"})
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    newest = committed(table.upsert(batch(["a1"], 2, "y"))).requested
    assert "hoodie.table.metadata.partitions" not in properties(table)
    enabled = Table.open(table.location, options={**INDEXES, "hoodie.metadata.enable": "true"})
    assert set(enabled.metadata.rebuild().partitions) == {"files", "column_stats", "bloom_filters", "record_index"}
    builds = [name for name in names(table) if name.endswith(".deltacommit")]
    assert builds == [f"{newest}01{number}.deltacommit" for number in range(4)]
    check_metadata(Table.open(table.location))
    Table.open(table.location).upsert(batch(["a2"], 3, "z"))
    check_metadata(Table.open(table.location))
    Table.open(table.location, options={"hoodie.metadata.enable": "false"}).metadata.rebuild()
    assert "hoodie.table.metadata.partitions" not in properties(table)
    assert not metadata_root(table).exists()
    assert values(table) == {"a1": "y", "a2": "z", "b1": "x"}


def test_index_per_partition_is_refused_by_name(tmp_path: Path) -> None:
    refused = "a record index for each partition is not maintained by other writers of tables of version 6"
    with pytest.raises(UnsupportedError, match=refused):
        created(tmp_path, options={"hoodie.metadata.record.level.index.enable": "true"})


@each_kind
def test_definitions_are_not_stored_and_follow_the_records(kind: str, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options=INDEXES)
    table.insert(batch(["a1"], 1, "x"))
    wider = batch(["a1", "b1"], 2, "y").append_column("n", pa.array([1, 2]))
    Table.open(table.location, options={"hoodie.write.set.null.for.missing.columns": "true"}).upsert(wider)
    Table.open(table.location).metadata.rebuild()
    Table.open(table.location).upsert(wider.slice(0, 1))
    assert not (Path(table.location) / ".hoodie/.index_defs").exists()
    assert "hoodie.table.index.defs.path" not in properties(table)
    listed = {index.name: index for index in Table.open(table.location).inspection.indexes().indexes}
    assert {"id", "p", "ts", "v", "n", "_hoodie_file_name"} <= set(listed["column_stats"].columns)
    check_metadata(Table.open(table.location))


def test_definitions_that_hudi_1_stored_are_updated(tmp_path: Path) -> None:
    table = created(tmp_path, options=INDEXES)
    path = Path(table.location) / ".hoodie/.index_defs/index.json"
    path.parent.mkdir()
    stored = {"indexType": "column_stats", "indexFunction": "column_stats", "sourceFields": ["id"], "version": "V1"}
    path.write_text(json.dumps({"indexDefinitions": {"column_stats": stored}}))
    table.insert(batch(["a1"], 1, "x").append_column("n", pa.array([1])))
    fields = json.loads(path.read_text())["indexDefinitions"]["column_stats"]["sourceFields"]
    assert fields[0] == "id" and "n" in fields


@each_kind
def test_rebuild_has_statistics_and_filters_of_older_files(kind: str, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options=INDEXES)
    table.insert(batch(["a1", "a2"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    described = names_with_records(table)
    table.metadata.rebuild()
    rebuilt = names_with_records(table)
    data_files = {path.name for path in (Path(table.location) / "a").iterdir() if "_20" in path.name}
    assert rebuilt == described and set(rebuilt) == data_files and len(data_files) >= 2


def names_with_records(table: Table) -> dict[str, int]:
    """Return the number of statistics of each data file, by name."""
    loaded = load_table(Env(storage=LocalStorage(table.location)))
    metadata = open_for_reading(loaded.metadata, loaded.timeline)
    assert isinstance(metadata, MetadataTable)
    rows = metadata.records("column_stats").group_by("name").aggregate([("key", "count")])
    return dict(zip(rows["name"].to_pylist(), rows["key_count"].to_pylist(), strict=True))


@each_kind
def test_file_has_statistics_of_all_columns_or_of_none(kind: str, tmp_path: Path) -> None:
    """Hudi 0.15 takes a missing row as null if a condition has another column, and skips the file."""
    options = INDEXES | {"hoodie.metadata.index.column.stats.column.list": "v"}
    table = created(tmp_path, kind, options=options)
    table.insert(batch(["a1"], 1, "x"))
    (described,) = names_with_records(table).values()
    # A list of columns has no effect: five meta columns, and id, p, ts, v.
    assert described == 9
    raw = batch(["b1"], 2, "y").append_column("raw", pa.array([b"y"]))
    Table.open(table.location).insert(raw)
    assert list(names_with_records(table).values()) == [described]
    Table.open(table.location).metadata.rebuild()
    assert names_with_records(table) == {}
    report = Table.open(table.location).metadata.validate()
    assert report.ok
    assert values(table) == {"a1": "x", "b1": "y"}


def test_statistics_are_deleted_when_a_column_gets_another_name(tmp_path: Path) -> None:
    table = created(tmp_path, options=INDEXES)
    table.insert(batch(["a1"], 1, "x"))
    assert names_with_records(table)
    Table.open(table.location).alter().rename_column("v", "w").execute()
    assert names_with_records(table) == {}
    renamed = batch(["a1", "b1"], 2, "y").rename_columns(["id", "p", "ts", "w"])
    Table.open(table.location).upsert(renamed)
    assert names_with_records(table) == {}
    rows = Table.open(table.location).scan(["id", "w"]).to_arrow().to_pylist()
    assert {row["id"]: row["w"] for row in rows} == {"a1": "y", "b1": "y"}
