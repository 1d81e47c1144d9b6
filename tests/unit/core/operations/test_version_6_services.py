"""Services and late writers on tables of version 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.format.log.blocks import BlockType
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.read.partition_statistics import load_statistics
from lakehouse.core.state.partition_statistics import partition_statistics
from lakehouse.core.storage.local import temporary_name
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, Instant
from tests.support.version_6 import (
    MANY_WRITERS,
    SORTED,
    assert_valid,
    batch,
    blocks,
    committed,
    created,
    failing,
    logs,
    values,
)


def test_log_of_a_group_with_a_pending_clustering_is_named_after_its_slice(tmp_path: Path) -> None:
    table = created(tmp_path, options=SORTED)
    base = committed(table.insert(batch(["a1", "a2"], 1, "x")))
    table.services.clustering.schedule(force=True)
    table.upsert(batch(["a1"], 2, "y"))
    (log,) = logs(table)
    assert base.requested in log
    assert values(table) == {"a1": "y", "a2": "x"}
    table.services.clustering.run(force=True)
    assert values(table) == {"a1": "y", "a2": "x"}
    assert_valid(table)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("verb", ["upsert", "insert_overwrite"])
def test_clustering_skips_groups_of_a_write_that_began_before_its_plan(
    kind: str, verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, kind, options=SORTED | MANY_WRITERS)
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    from lakehouse.core.operations.write import write

    original, calls = write.complete_commit, [lambda: schedule_as_if_the_writer_had_crashed(table)]

    def complete(*arguments: Any) -> Any:
        if calls:
            calls.pop()()
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(write, "complete_commit", complete)
        committed(getattr(table, verb)(batch(["a1"], 2, "y")))
    wanted = {"a1": "y", "a2": "x", "b1": "x"} if verb == "upsert" else {"a1": "y", "b1": "x"}
    assert values(table) == wanted
    Table.open(table.location, options=SORTED).services.clustering.run()
    assert values(table) == wanted
    assert_valid(table)


def schedule_as_if_the_writer_had_crashed(table: Table) -> None:
    """Plan a clustering while a write is pending whose heartbeat is missing, as after a long pause."""
    beats = list((Path(table.location) / ".hoodie/.heartbeat").iterdir())
    contents = {path: path.read_bytes() for path in beats}
    for path in beats:
        path.unlink()
    planned = Table.open(table.location, options=SORTED | MANY_WRITERS).services.clustering.schedule(force=True)
    assert isinstance(planned, Instant)
    for path, content in contents.items():
        path.write_bytes(content)


def test_rollback_deletes_the_unfinished_log_file_of_a_killed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1"], 1, "x"))
    failing(monkeypatch, table, batch(["a1"], 2, "y"))
    (log,) = logs(table)
    path = Path(table.location) / "a" / log
    unfinished = path.with_name(temporary_name(log, "a59c1f6d"))
    path.rename(unfinished)
    foreign = path.with_name(temporary_name(log.rpartition("_")[0] + "_0-1-1", "a59c1f6e"))
    foreign.write_bytes(b"of another write")
    table.rollback_failed()
    assert not unfinished.exists() and foreign.exists()
    assert values(table) == {"a1": "x"}


@pytest.mark.parametrize(("kind", "files"), [("COPY_ON_WRITE", 1), ("MERGE_ON_READ", 3)])
def test_ttl_deletes_the_partition_that_was_not_changed_last(kind: str, files: int, tmp_path: Path) -> None:
    table = created(tmp_path, kind, options={"lakehouse.ttl.max.partitions": "1"})
    table.insert(batch(["a1", "a2", "b1"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    table.delete(batch(["a2"], 3, "").select(["id", "p"]))
    statistics = partition_statistics(load_statistics(table.services_as_loaded.table.refresh()))
    assert [(s.partition, s.files, s.rows) for s in statistics] == [("a", files, 1), ("b", 1, 1)]
    times = sorted(instant.requested for instant, _ in table.commits())
    assert [(s.created, s.modified) for s in statistics] == [(times[0], times[-1]), (times[0], times[0])]
    assert isinstance(table.services.ttl.run(), Committed)
    assert len(values(table)) == 1
    assert_valid(table)


def test_column_of_a_write_that_completes_after_a_newer_one_is_not_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = MANY_WRITERS | {"hoodie.write.num.retries.on.conflict.failures": "1"}
    table = created(tmp_path, "COPY_ON_WRITE")
    table.insert(batch(["a1", "b1"], 1, "x"))
    from lakehouse.core.operations.write import write

    original, calls = write.complete_commit, [lambda: table.with_options(shared).upsert(batch(["b1"], 2, "y"))]

    def complete(*arguments: Any) -> Any:
        if calls:
            calls.pop()()
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(write, "complete_commit", complete)
        wider = batch(["a1"], 2, "z").append_column("more", pa.array([7]))
        committed(table.with_options(shared).upsert(wider))
    rows = Table.open(table.location).scan(["id", "v", "more"]).to_arrow().sort_by("id").to_pylist()
    assert rows == [{"id": "a1", "v": "z", "more": 7}, {"id": "b1", "v": "y", "more": None}]
    assert_valid(table)


def test_restore_leaves_no_pending_rollback(tmp_path: Path) -> None:
    table = created(tmp_path)
    target = committed(table.insert(batch(["a1"], 1, "x")))
    table.upsert(batch(["a1"], 2, "undone"))
    table.restore(target.requested)
    assert [(i.action, i.is_completed) for i in Table.open(table.location).timeline] == [
        (Action.DELTACOMMIT, True),
        (Action.RESTORE, True),
    ]
    assert values(table) == {"a1": "x"}


def test_long_lived_reader_reads_a_commit_whose_name_was_used_before(tmp_path: Path) -> None:
    table = created(tmp_path)
    table.insert(batch(["a1", "a2"], 1, "x"))
    table.upsert(batch(["a1"], 2, "y"))
    compacted = committed(table.services.compaction.run(force=True))
    reader = Table.open(table.location)
    assert reader.scan().to_arrow().num_rows == 2
    writer = Table.open(table.location)
    writer.rollback(compacted.requested)
    assert reader.scan().to_arrow().num_rows == 2
    writer.services.compaction.run(instant=compacted.requested)
    assert sorted(reader.scan(["v"]).to_arrow()["v"].to_pylist()) == ["x", "y"]


def test_command_block_stays_when_a_cleanup_finds_the_marker_of_its_removed_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path)
    target = committed(table.insert(batch(["a1"], 1, "x")))
    table.upsert(batch(["a1"], 2, "undone"))
    from lakehouse.core.operations.undo import restore

    with monkeypatch.context() as patch:
        patch.setattr(restore, "clean_up", lambda *_, **__: None)
        table.restore(target.requested)
    (command,) = [name for name in logs(table) if blocks(table, name)[0].kind is BlockType.COMMAND]
    table.rollback_failed()
    assert command in logs(table) and not list((Path(table.location) / ".hoodie/.temp").rglob("*.marker.APPEND"))
    table.upsert(batch(["a1"], 3, "z"))
    assert command in logs(table) and values(table) == {"a1": "z"}
