"""The reader of the metadata table: when it is used, which instants it sees, what it requests, and damage."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.hfile.writer import write_hfile
from lakehouse.core.format.metadata.records import FILE_ROWS, encode_files
from lakehouse.core.format.metadata.schema import SCHEMA
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.metadata.read import layers
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.metadata.read.unusable import MetadataUnusableError, Unusable
from lakehouse.core.operations.load.metadata import from_metadata, metadata_of
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.operations.undo.rollback import rollback
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.metadata_files import listing as expected_listing
from tests.support.tables import Shape, batch, make_table, row

TIMELINE = f"{METADATA}/.hoodie/timeline"
FILES = f"{METADATA}/files"


def table_of(kind: str = "COPY_ON_WRITE", writes: int = 3) -> Table:
    table = make_table(Shape(type=kind, options={"hoodie.metadata.enable": "true"}))
    for number in range(writes):
        table.upsert(batch([row("k1", ts=number), row(f"n{number}", p="ab"[number % 2])]))
    return table


def loaded(table: Table) -> LoadedTable:
    return load_table(table.refresh().env)


def opened(table: LoadedTable) -> MetadataTable:
    found = metadata_of(table)
    assert found is not None
    return found


def listed(metadata: MetadataTable) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for entry in metadata.listing().to_pylist():
        found.setdefault(entry["partition"], {})[entry["name"]] = entry["size_bytes"]
    return found


def reason(table: LoadedTable) -> Unusable:
    assert metadata_of(table) is None
    assert table.metadata.cache.opened is not None
    found = table.metadata.cache.opened[1]
    assert isinstance(found, Unusable)
    return found


def paths_of(table: LoadedTable, prefix: str = FILES) -> list[str]:
    return [f"{prefix}/{name}" for name in table.env.storage.list_names(prefix) if "-0_" in name]


def test_listing_equals_that_of_the_referee() -> None:
    table = loaded(table_of())
    assert listed(opened(table)) == {
        partition or "": files for partition, files in expected_listing(table.env.storage).items()
    }


def found_of(metadata: MetadataTable) -> list[pa.Table]:
    files = metadata.listing()
    with_prefix = [
        metadata.ranges(["id"]),
        metadata.ranges_in(["id", "ts"], ["a", "b"]),
        metadata.partition_ranges(["id"]),
    ]
    return [files, metadata.listing(["a"]), metadata.ranges(["id"], files.slice(1, 2)), *with_prefix]


def test_layers_that_are_decoded_as_a_whole_give_the_rows_of_look_ups(monkeypatch: pytest.MonkeyPatch) -> None:
    table = loaded(table_of(writes=4))
    metadata = opened(table)
    whole = found_of(metadata)
    again = found_of(metadata)
    monkeypatch.setattr(layers, "DECODED_ROWS", 0)
    parts = found_of(opened(load_table(table.env)))
    assert all(rows.num_rows for rows in whole)
    for index, rows in enumerate(whole):
        assert rows.equals(parts[index]) and rows.equals(again[index])


def test_table_without_the_property_has_no_metadata_table() -> None:
    found = reason(loaded(make_table(Shape(options={"hoodie.metadata.enable": "false"}))))
    assert "list no metadata table" in found.reason and not found.is_fault


def test_metadata_table_that_is_being_built_is_not_used() -> None:
    table = table_of(writes=1)
    properties = {"hoodie.table.metadata.partitions": "", "hoodie.table.metadata.partitions.inflight": "files"}
    update_properties(table.refresh().env, properties)
    found = reason(loaded(table))
    assert "is being built" in found.reason and not found.is_fault


def test_metadata_table_whose_folder_is_missing_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    table = loaded(table_of(writes=1))
    for file in table.env.storage.list(METADATA):
        table.env.storage.delete(file.path)
    with caplog.at_level(logging.WARNING):
        assert reason(load_table(table.env)).is_fault
    assert "does not exist" in caplog.text


def test_metadata_table_that_is_behind_is_not_used() -> None:
    table = loaded(table_of())
    last = table.timeline.instants[-1].requested
    storage = table.env.storage
    for name in storage.list_names(TIMELINE):
        if name.startswith(last):
            storage.delete(f"{TIMELINE}/{name}")
    found = reason(load_table(table.env))
    assert found.is_fault and last in found.reason and "metadata rebuild" in found.reason


def test_metadata_table_is_opened_once_for_each_load() -> None:
    table = loaded(table_of(writes=1))
    assert opened(table) is opened(table)
    assert opened(table.reload()) is not None


def test_delta_commit_of_a_pending_action_is_invisible() -> None:
    written = table_of()
    table = loaded(written)
    before = listed(opened(table))
    written.upsert(batch([row("k1", ts=9), row("new", p="c")]))
    after = loaded(written)
    assert listed(opened(after)) != before
    last = after.timeline.instants[-1]
    completed = [name for name in after.env.storage.list_names(".hoodie/timeline") if name.startswith(last.requested)]
    for name in completed:
        if "_" in name:
            after.env.storage.delete(f".hoodie/timeline/{name}")
    crashed = load_table(after.env)
    assert listed(opened(crashed)) == before
    assert opened(crashed).partition_paths().to_pylist() == sorted(before)


def test_reader_does_not_see_actions_that_are_newer_than_its_timeline() -> None:
    written = table_of()
    table = loaded(written)
    before = listed(opened(loaded(written)))
    written.upsert(batch([row("k1", ts=9), row("new", p="c")]))
    # The data timeline was loaded before the write, the metadata timeline is loaded now.
    assert listed(opened(table)) == before
    assert listed(opened(table.reload())) != before


def test_rolled_back_action_is_invisible() -> None:
    written = table_of()
    before = listed(opened(loaded(written)))
    written.upsert(batch([row("k1", ts=9), row("new", p="c")]))
    table = loaded(written)
    assert listed(opened(table)) != before
    rollback(table, TransactionPolicy(), table.timeline.instants[-1].requested)
    assert listed(opened(table.reload())) == before


def test_requests_of_a_listing_are_bounded_and_files_are_read_once() -> None:
    env = loaded(table_of(writes=4)).env
    counting = CountingStorage(env.storage)
    table = load_table(replace(env, storage=counting))
    logs = len([path for path in paths_of(table) if ".log." in path])
    counting.reset()
    opened(table).listing()
    # The metadata timeline and the folder are listed; the base file and each log file are read once.
    assert counting.counts() == {"LIST": 2, "GET": logs + 1, "PUT": 0, "HEAD": 0, "DELETE": 0}
    counting.reset()
    opened(table).listing()
    opened(table).listing(["a"])
    opened(table).partition_paths()
    assert sum(counting.counts().values()) == 0
    table = table.reload()
    counting.reset()
    opened(table).listing(["a"])
    assert counting.counts() == {"LIST": 1, "GET": 0, "PUT": 0, "HEAD": 0, "DELETE": 0}


def test_new_commit_costs_its_own_log_file_only() -> None:
    written = table_of(writes=4)
    env = loaded(written).env
    counting = CountingStorage(env.storage)
    table = load_table(replace(env, storage=counting))
    opened(table).listing()
    written.upsert(batch([row("k1", ts=9)]))
    table = table.reload()
    counting.reset()
    assert listed(opened(table)) == listed(opened(loaded(written)))
    assert counting.counts()["GET"] == 1 and counting.counts()["LIST"] == 2


@pytest.mark.parametrize("damage", ["delete", "truncate", "garbage"])
def test_damaged_file_is_named_in_a_warning_and_the_caller_does_without(
    damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    original = loaded(table_of())
    env, expected = original.env, listed(opened(original))
    for path in paths_of(original):
        data = env.storage.get(path)
        if damage == "delete":
            env.storage.delete(path)
        else:
            env.storage.put(path, data[: len(data) // 2] if damage == "truncate" else bytes(len(data)))
        caplog.clear()
        table = load_table(env)
        with caplog.at_level(logging.WARNING):
            found = from_metadata(table, "files", listed)
        if found is None:
            assert len(caplog.records) == 1
            name = path.rpartition("/")[2]
            assert name in caplog.text or damage == "delete"
            assert metadata_of(table) is None
        else:
            # The empty first log file of a group has no records, so its loss changes nothing.
            assert found == expected and "00000000000000000.log" in path
        env.storage.put(path, data)
    assert listed(opened(load_table(env))) == expected


def test_each_damaged_byte_is_detected_or_leaves_the_listing_unchanged() -> None:
    original = loaded(table_of())
    env, expected = original.env, listed(opened(original))
    chosen = random.Random(7)
    detected = 0
    for path in paths_of(original):
        data = env.storage.get(path)
        # Blocks of Hudi's HFiles are compressed with a checksum; other bytes are text of headers and lengths.
        for at in sorted(chosen.sample(range(len(data)), min(60, len(data)))):
            env.storage.put(path, data[:at] + bytes([data[at] ^ (1 << chosen.randrange(8))]) + data[at + 1 :])
            try:
                found = listed(opened(load_table(env)))
            except MetadataUnusableError:
                detected += 1
            else:
                assert found == expected, (path, at)
        env.storage.put(path, data)
    assert detected > 20


def test_from_metadata_returns_none_for_a_partition_that_is_not_listed() -> None:
    table = loaded(table_of(writes=1))
    calls: list[Any] = []
    assert from_metadata(table, "record_index", calls.append) is None
    assert calls == []


def base_with(name: str) -> bytes:
    """Return a base file of `files` with one file."""
    rows = [("__all_partitions__", "z", 0, False), ("z", name, 5, False)]
    columns = [pa.array(column, field.type) for column, field in zip(zip(*rows, strict=True), FILE_ROWS, strict=True)]
    return write_hfile(encode_files(pa.table(columns, schema=FILE_ROWS)), schema=SCHEMA, created_ms=0, bounds=True)


def test_metadata_table_that_is_built_again_is_read_again() -> None:
    """File names of a build repeat, so a cached file must be recognised by the completion of its instant."""
    table = loaded(table_of(writes=1))
    storage, before = table.env.storage, listed(opened(table))
    (base,) = [path for path in paths_of(table) if path.endswith(".hfile")]
    contents = {name: base_with(name) for name in ("x.parquet", "y.parquet")}
    assert len({len(data) for data in contents.values()}) == 1
    completed = table.timeline.instants[-1].completion
    for digit, (name, data) in enumerate(contents.items()):
        storage.put(base, data)
        for file in storage.list_names(TIMELINE):
            if file.startswith("00000000000000000_"):
                content = storage.get(f"{TIMELINE}/{file}")
                storage.delete(f"{TIMELINE}/{file}")
        storage.put(f"{TIMELINE}/00000000000000000_{completed[:-1]}{digit}.deltacommit", content)
        table = table.reload()
        assert listed(opened(table)) == before | {"z": {name: 5}}


def test_record_in_the_wrong_file_group_is_a_contradiction() -> None:
    table = loaded(table_of())
    metadata = opened(table)
    (slice_,) = metadata.slices("files")
    with pytest.raises(MetadataUnusableError, match="its hash selects"):
        metadata._check_shards("files", slice_, metadata.records("files"), 1, 3)


def test_listing_of_some_partitions_equals_the_part_of_the_whole_listing() -> None:
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        table = loaded(table_of(kind, writes=5))
        whole = opened(table).listing()
        fresh = opened(load_table(table.env))
        for partitions in (["a"], ["b", "a"], ["none"], []):
            part = fresh.listing(partitions)
            expected = whole.filter(pc.is_in(whole["partition"], value_set=pa.array(partitions, pa.string())))
            assert part.sort_by("name").equals(expected.sort_by("name"))


def test_environment_of_the_reader_is_the_one_of_the_table() -> None:
    table = loaded(table_of(writes=1))
    assert isinstance(table.env, Env) and table.metadata.inner.storage.root.endswith(METADATA)


def test_temporary_file_of_a_crashed_write_is_no_file_group() -> None:
    written = table_of(writes=1)
    table = loaded(written)
    name = ".~files-0000-0_20250615150640274~log~1_0-110300957-231627593.31ec6b1b.tmp"
    table.env.storage.put(f"{FILES}/{name}", b"torn")
    again = load_table(table.env)
    groups = again.metadata.groups(["files"], again.metadata.timeline_store.load(), again.timeline)
    assert groups == {"files": ("files-0000-0",)}
    assert listed(opened(again)) == listed(opened(table))
