"""Load the data files and file slices of a table with few storage requests."""

from __future__ import annotations

import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.timeline.compaction import encode_compaction_plan
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.load.listing import list_base_files, list_data_files
from lakehouse.core.operations.load.pending import log_compactions, pending_compactions, pending_writes
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.compaction import CompactionOperation, CompactionPlan
from lakehouse.model.files import BaseFile, LogFile

TIMES = [f"202601010000{second:02}000" for second in range(60)]
PROPERTIES_TEXT = {
    "hoodie.table.name": "t",
    "hoodie.table.version": "9",
    "hoodie.table.type": "MERGE_ON_READ",
    "hoodie.table.recordkey.fields": "id",
    "hoodie.timeline.layout.version": "2",
}


def base(partition: str, group: str = "g-0", instant: str = TIMES[0], token: str = "0-0-0") -> BaseFile:
    return BaseFile(partition=partition, file_id=group, write_token=token, instant=instant)


def log(partition: str, group: str = "g-0", instant: str = TIMES[2], token: str = "0-0-0", version: int = 1) -> LogFile:
    return LogFile(partition=partition, file_id=group, instant=instant, version=version, write_token=token)


def put_files(storage: MemoryStorage | CountingStorage, *files: BaseFile | LogFile) -> None:
    for file in files:
        storage.put(file.path, b"x")


def put_commit(
    storage: MemoryStorage | CountingStorage,
    requested: str,
    completed: str,
    *files: BaseFile | LogFile,
    operation: str = "UPSERT",
) -> None:
    stats = tuple(WriteStat(partition=file.partition, file_id=file.file_id, path=file.path) for file in files)
    data = table_layout(9).encode_commit(CommitMetadata(operation=operation, stats=stats))
    storage.put(f".hoodie/timeline/{requested}_{completed}.deltacommit", data)


@pytest.fixture
def storage() -> CountingStorage:
    """Return the storage of an empty merge-on-read table."""
    counted = CountingStorage(MemoryStorage())
    counted.put(PROPERTIES, render_properties(PROPERTIES_TEXT))
    return counted


def loaded(storage: CountingStorage) -> LoadedTable:
    table = load_table(Env(storage=storage))
    storage.reset()
    return table


def test_load_slices_assigns_logs_to_their_file_group(storage: CountingStorage) -> None:
    files = [base("p=1"), log("p=1"), log("p=2", "h-0")]
    put_files(storage, *files)
    put_commit(storage, TIMES[0], TIMES[1], files[0])
    put_commit(storage, TIMES[2], TIMES[3], *files[1:])
    table = loaded(storage)
    slices = load_slices(table)
    assert [(s.partition, s.base and s.base.name, s.logs) for s in slices] == [
        ("p=1", files[0].name, (LogFile(**_fields(files[1]), size_bytes=1),)),
        ("p=2", None, (LogFile(**_fields(files[2]), size_bytes=1),)),
    ]
    # One listing of the root, one of each directory in it; without duplicates no commit is read.
    assert storage.counts()["LIST"] == 3
    assert storage.counts()["GET"] == 0
    assert [file.name for file in list_base_files(table)] == [files[0].name]


def _fields(file: LogFile | BaseFile) -> dict[str, object]:
    assert isinstance(file, LogFile)
    names = ("partition", "file_id", "instant", "version", "write_token")
    return {name: getattr(file, name) for name in names}


def test_load_slices_lists_each_given_partition_once(storage: CountingStorage) -> None:
    put_files(storage, base("p=1"), log("p=1"), base("p=2"))
    table = loaded(storage)
    assert [file.path for file in list_data_files(table, ["p=1"])] == [log("p=1").path, base("p=1").path]
    assert storage.counts()["LIST"] == 1


def test_listing_skips_directories_that_keep_rejects(storage: CountingStorage) -> None:
    days = [f"region={region}/day={day}" for region in ("eu", "us") for day in (1, 2, 3)]
    put_files(storage, *(base(partition) for partition in days), *(log(partition) for partition in days))
    table = loaded(storage)
    checked: list[str] = []

    def keep(path: str) -> bool:
        checked.append(path)
        return path in ("region=eu", "region=eu/day=2")

    assert {file.partition for file in list_data_files(table, keep=keep)} == {"region=eu/day=2"}
    # Only the root, region=eu and its day 2 are listed; nothing below region=us is.
    assert storage.counts()["LIST"] == 3
    assert sorted(checked) == ["region=eu", "region=eu/day=1", "region=eu/day=2", "region=eu/day=3", "region=us"]
    everything = {file.path for file in list_data_files(table, keep=lambda _: True)}
    assert everything == {file.path for file in list_data_files(table)}
    assert {file.partition for file in list_data_files(table, days, keep=keep)} == {"region=eu/day=2"}


def test_listing_includes_files_at_the_root_for_any_keep(storage: CountingStorage) -> None:
    put_files(storage, base(""), log(""))
    found = list_data_files(loaded(storage), keep=lambda _: False)
    assert {file.path for file in found} == {base("").path, log("").path}


def test_load_slices_skips_logs_of_a_repeated_task_that_the_commit_does_not_name(storage: CountingStorage) -> None:
    tries = [log("p", token="0-0-0"), log("p", token="0-0-1"), log("p", token="0-0-1", version=2)]
    put_files(storage, *tries)
    put_commit(storage, TIMES[2], TIMES[3], *tries[1:])
    table = loaded(storage)
    (found,) = load_slices(table)
    assert [file.name for file in found.logs] == [tries[1].name, tries[2].name]
    assert storage.counts()["GET"] == 1


def test_listing_raises_corrupt_table_error_for_a_log_file_in_a_copy_on_write_table(storage: CountingStorage) -> None:
    properties = parse_properties(storage.get(PROPERTIES)) | {"hoodie.table.type": "COPY_ON_WRITE"}
    storage.put(PROPERTIES, render_properties(properties))
    put_files(storage, log("p"))
    with pytest.raises(CorruptTableError, match="in a copy-on-write table"):
        load_slices(loaded(storage))


def test_pending_writes_excludes_a_pending_compaction(storage: CountingStorage) -> None:
    for state in ("requested", "inflight"):
        storage.put(f".hoodie/timeline/{TIMES[4]}.compaction.{state}", b"")
        storage.put(f".hoodie/timeline/{TIMES[5]}.logcompaction.{state}", b"")
        storage.put(f".hoodie/timeline/{TIMES[6]}.deltacommit.{state}", b"")
    assert [instant.requested for instant in pending_writes(loaded(storage))] == [TIMES[6]]


def test_pending_compactions_maps_file_groups_to_instants(storage: CountingStorage) -> None:
    def put_plan(instant: str, action: str, *groups: tuple[str, str]) -> None:
        operations = tuple(
            CompactionOperation(
                partition=partition, file_id=group, base_instant=TIMES[0], data_file=None, log_files=("log",)
            )
            for partition, group in groups
        )
        data = encode_compaction_plan(CompactionPlan(operations=operations))
        storage.put(f".hoodie/timeline/{instant}.{action}.requested", data)

    put_plan(TIMES[4], "compaction", ("p=1", "g-0"), ("p=2", "h-0"))
    storage.put(f".hoodie/timeline/{TIMES[4]}.compaction.inflight", b"")
    put_plan(TIMES[5], "logcompaction", ("", "i-0"))
    put_plan(TIMES[6], "compaction", ("p=1", "done-0"))
    storage.put(f".hoodie/timeline/{TIMES[6]}_{TIMES[7]}.commit", b"")
    assert pending_compactions(loaded(storage)) == {
        ("p=1", "g-0"): TIMES[4],
        ("p=2", "h-0"): TIMES[4],
        ("", "i-0"): TIMES[5],
    }


@pytest.mark.parametrize("state", ["requested", "inflight"])
def test_pending_compactions_raises_corrupt_table_error_without_plan(storage: CountingStorage, state: str) -> None:
    storage.put(f".hoodie/timeline/{TIMES[4]}.compaction.{state}", b"")
    with pytest.raises(CorruptTableError, match=f"compaction {TIMES[4]} is pending but has no plan"):
        pending_compactions(loaded(storage))


def test_log_compactions_excludes_other_delta_commits(storage: CountingStorage) -> None:
    put_commit(storage, TIMES[0], TIMES[1], log("p"))
    put_commit(storage, TIMES[2], TIMES[3], log("p"), operation="LOG_COMPACT")
    assert log_compactions(loaded(storage)) == {TIMES[2]}
