"""Indexes of tables of version 6 that are built while writers continue (V6-9.10)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services import index
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.table.table import Table
from tests.support.metadata_check import check_metadata
from tests.support.version_6 import assert_valid, batch, committed, created, properties, values

DECLARED = {
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.record.index.enable": "true",
    "hoodie.metadata.record.index.min.filegroup.count": "1",
}
KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
each_kind = pytest.mark.parametrize("kind", KINDS)


def opened(table: Table) -> Table:
    return Table.open(table.location, options=DECLARED)


def during_build(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Call `act` once between the snapshot of a build and its completion."""
    build, acts = index.build_base_files, [act]

    def built(*args: Any) -> Any:
        stats = build(*args)
        if acts:
            acts.pop()()
        return stats

    monkeypatch.setattr(index, "build_base_files", built)


@each_kind
def test_index_contains_the_changes_of_writes_during_its_build(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, kind)
    newest = committed(table.insert(batch(["a1", "a2", "b1"], 1, "x"))).requested
    opened(table).services.index.schedule(force=True)
    assert properties(table)["hoodie.table.metadata.partitions.inflight"] == "bloom_filters,record_index"
    opened(table).upsert(batch(["a1", "a3"], 2, "y"))

    def write() -> None:
        opened(table).delete(batch(["a2"], 3, "").select(["id", "p"]))
        opened(table).insert(batch(["b9"], 4, "new"))

    during_build(monkeypatch, write)
    outcome = opened(table).services.index.run(force=True)
    assert isinstance(outcome, Indexed) and outcome.partitions == ("bloom_filters", "record_index")
    listed = properties(table)["hoodie.table.metadata.partitions"].split(",")
    assert {"bloom_filters", "record_index", "files"} <= set(listed)
    files = [path.name for path in (Path(table.location) / ".hoodie/metadata/record_index").iterdir()]
    (base,) = [name for name in files if name.endswith(".hfile")]
    # The base file has the time at which the partition was created, as the logs of the writes since then.
    assert base.rpartition("_")[2].removesuffix(".hfile") == f"{newest}011"
    assert all(f"_{newest}011.log." in name for name in files if ".log." in name)
    check_metadata(opened(table))
    searched = Table.open(table.location, options=DECLARED | {"hoodie.index.type": "RECORD_INDEX"})
    searched.upsert(batch(["a3", "b9"], 5, "last"))
    assert values(table) == {"a1": "y", "a3": "last", "b1": "x", "b9": "last"}
    check_metadata(opened(table))
    assert_valid(table)


@each_kind
def test_build_is_dropped_if_a_write_left_no_records(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, kind)
    table.insert(batch(["a1"], 1, "x"))

    def write() -> None:
        requested = committed(opened(table).insert(batch(["c1"], 2, "y"))).requested
        delta = Path(table.location) / f".hoodie/metadata/.hoodie/{requested}.deltacommit"
        content = json.loads(delta.read_text())
        assert content["partitionToWriteStats"].pop("record_index")
        delta.write_text(json.dumps(content))

    during_build(monkeypatch, write)
    outcome = opened(table).services.index.run(force=True)
    assert isinstance(outcome, NothingToDo) and "left no records in record_index" in outcome.reason
    assert "record_index" not in "".join(properties(table).values())
    assert "hoodie.table.metadata.partitions.inflight" not in properties(table)
    table = Table.open(table.location)
    table.upsert(batch(["a1"], 3, "z"))
    check_metadata(table)
    assert values(table) == {"a1": "z", "c1": "y"}


def test_build_is_dropped_if_another_writer_compacted_the_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))

    def compact() -> None:
        folder = Path(table.location) / ".hoodie/metadata/record_index"
        (folder / "record-index-0000-0_0-0-0_99990101000000000001.hfile").write_bytes(b"")

    during_build(monkeypatch, compact)
    outcome = opened(table).services.index.run(force=True)
    assert isinstance(outcome, NothingToDo) and "another writer compacted record_index" in outcome.reason
    check_metadata(Table.open(table.location))


def test_killed_run_is_finished_by_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "b1"], 1, "x"))

    class Killed(BaseException):
        pass

    def kill(*_: Any) -> Any:
        raise Killed

    for step in ("complete_build", "complete_action", "list_as_usable"):
        with monkeypatch.context() as patch:
            patch.setattr(index, step, kill)
            with pytest.raises(Killed):
                opened(table).services.index.run(force=True)
        opened(table).upsert(batch(["a1", f"k{len(step)}"], len(step), step))
    outcome = opened(table).services.index.run(force=True)
    assert isinstance(outcome, Indexed)
    check_metadata(opened(table))
    assert_valid(table)
