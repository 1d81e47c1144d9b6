"""Actions are recorded in the metadata table: its listing is that of storage after each of them."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.metadata.place import METADATA
from lakehouse.core.operations.undo.rollback import rollback
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import UnsupportedError
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.metadata_files import check_listing, listing, partitions, records
from tests.support.tables import SCHEMA, Shape, batch, data_rows, make_table, row
from tests.unit.core.operations.test_rollback import TYPES, times

ENABLED = {"hoodie.metadata.enable": "true"}


def table_of(kind: str = "COPY_ON_WRITE", keys: str = "simple", **options: str) -> Table:
    return make_table(Shape(type=kind, keys=keys, options={**ENABLED, **options}))


def check(table: Table) -> None:
    check_listing(table.refresh().env.storage)


def test_new_table_lists_its_metadata_table_before_the_first_write() -> None:
    table = table_of()
    storage = table.refresh().env.storage
    assert "files" in partitions(storage)
    assert records(storage, "files")["__all_partitions__"]["filesystemMetadata"] == {}
    assert listing(storage) == {}


def test_action_completes_after_its_delta_commit_and_the_lock_is_checked_before_both() -> None:
    table = table_of()
    env = table.refresh().env
    traced = FaultyStorage(env.storage)
    Table.open(table.location, env=replace(env, storage=traced)).insert(batch([row("k1")]))
    steps = {
        r"get_tagged \.hoodie/lock": "check",
        r"create \.hoodie/metadata/\.hoodie/timeline/\d+_\d+\.deltacommit": "delta commit",
        r"create \.hoodie/timeline/\d+_\d+\.commit": "commit",
    }
    found = [name for step in traced.trace for pattern, name in steps.items() if re.fullmatch(pattern, step)]
    assert found[-4:] == ["check", "delta commit", "check", "commit"]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("keys", ["simple", "non_partition", "complex"])
def test_listing_equals_storage_after_each_write_and_service(kind: str, keys: str) -> None:
    table = table_of(kind, keys)
    table.insert(batch([row(f"k{n}", p="ab"[n % 2]) for n in range(6)]))
    check(table)
    table.upsert(batch([row("k1", p="b", ts=9, v="new"), row("k9", p="c")]))
    check(table)
    table.delete(batch([row("k2", p="a")]))
    check(table)
    table.insert_overwrite(batch([row("o1", p="a")]))
    check(table)
    for service in ("compaction", "clustering") if kind == "MERGE_ON_READ" else ("clustering",):
        getattr(table.services, service).run(force=True)
        check(table)
    if keys != "non_partition":
        table.delete_partitions([sorted(listing(table.refresh().env.storage))[0]])
        check(table)
    table.upsert(batch([row("k4", p="a", ts=11)]))
    check(table)
    rows = data_rows(table)
    for _ in range(3):
        table.with_options({"hoodie.clean.commits.retained": "1"}).services.clean.run(force=True)
        check(table)
        table.upsert(batch([row("late", p="a", ts=11)]))
        check(table)
    assert len(data_rows(table)) >= len(rows)


@pytest.mark.parametrize("kind", TYPES)
def test_rolled_back_write_leaves_no_record(kind: str) -> None:
    table = table_of(kind)
    table.insert(batch([row("k1"), row("k2", p="b")]))
    before = listing(table.refresh().env.storage)
    table.upsert(batch([row("k1", ts=5), row("k3", p="c")]))
    assert listing(table.refresh().env.storage) != before
    requested = times(table)[-1]
    rollback(table.refresh(), TransactionPolicy(), requested)
    check(table)
    storage = table.refresh().env.storage
    assert listing(storage) == before
    names = storage.list_names(f"{METADATA}/.hoodie/timeline")
    assert not [name for name in names if name.startswith(requested)]
    assert [name for name in names if name.endswith(".rollback")]


def test_write_is_refused_if_an_index_partition_cannot_be_maintained() -> None:
    table = table_of()
    table.insert(batch([row("k1")]))
    env = table.refresh().env
    env.storage.put(f"{METADATA}/strange_index/.strange-index-0000-0_00000000000000009.log.1_0-0-0", b"")
    update_properties(env, {"hoodie.table.metadata.partitions": "files,strange_index"})
    with pytest.raises(UnsupportedError, match=r"strange_index.*hoodie.metadata.auto.delete.partitions"):
        table.insert(batch([row("k2")]))
    assert len(data_rows(table)) == 1
    table.with_options({"hoodie.metadata.auto.delete.partitions": "true"}).insert(batch([row("k2")]))
    assert partitions(env.storage) == ("files",)
    assert env.storage.list(f"{METADATA}/strange_index") == []
    check(table)


def test_partition_without_files_is_taken_out_of_the_properties() -> None:
    table = table_of()
    table.insert(batch([row("k1")]))
    env = table.refresh().env
    env.storage.delete_many([file.path for file in env.storage.list(f"{METADATA}/files")])
    table.refresh().metadata.forget()
    table.insert(batch([row("k2")]))
    assert partitions(env.storage) == ()
    assert len(data_rows(table)) == 2


def test_commit_removes_abandoned_temporary_files_of_the_metadata_timeline(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", schema=SCHEMA)
    timeline = tmp_path / "t" / METADATA / ".hoodie" / "timeline"
    old, young = (timeline / f".2026010100000000{n}_20260101000000009~deltacommit.17-{n}.tmp" for n in (1, 2))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    table.insert(batch([row("k1")]))
    assert not old.exists() and young.exists()
