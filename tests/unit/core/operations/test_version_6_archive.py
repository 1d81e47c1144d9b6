"""The archive of version 6: log files of Avro records that Hudi 0.15 reads, bounds, and damaged files."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import fastavro
import pytest

from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.commits import writes_since
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.archived_actions import move_to_archive
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Instant, Timeline
from lakehouse.spec.options.policies import TransactionPolicy
from tests.support.shared import fixtures
from tests.support.version_6 import assert_valid, batch, created, values

FEW = {
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clean.commits.retained": "1",
    "hoodie.metadata.enable": "false",
}


def entries(path: Path) -> list[dict[str, Any]]:
    """Return the records of an archive file without the fields that are null, as another Avro library reads them."""
    data, result = path.read_bytes(), []
    for block in scan_blocks(io.BytesIO(data), requires_instant=False):
        assert list(block.headers.values()) == [block.schema]
        schema = fastavro.parse_schema(json.loads(block.schema or ""))
        source = io.BytesIO(data[block.offset : block.offset + block.length])
        version, count = (int.from_bytes(source.read(4)) for _ in range(2))
        assert version == 3 and 0 < count <= 10
        for _ in range(count):
            record: Any = fastavro.schemaless_reader(io.BytesIO(source.read(int.from_bytes(source.read(4)))), schema)
            result.append({name: value for name, value in record.items() if value is not None})
    return result


def archive_files(table: Table) -> list[Path]:
    return sorted((Path(table.location) / ".hoodie/archived").glob(".commits_*"))


def filled(tmp_path: Path, kind: str) -> Table:
    """Return a table with writes, a rollback, a replacecommit, cleans and, if merge-on-read, a compaction."""
    table = created(tmp_path, kind, options=FEW)
    for turn in range(7):
        table.upsert(batch(["a1", "b1"], turn, f"turn {turn}"))
        if turn == 1:
            table.insert_overwrite(batch(["b1", "b2"], turn, "over"))
            undone = table.upsert(batch(["a1"], 9, "undone"))
            assert isinstance(undone, Committed)
            table.rollback(undone.instant.requested)
        if turn in (2, 6) and kind == "MERGE_ON_READ":
            table.services.compaction.run(force=True)
        if turn in (3, 5):
            table.services.clean.run(force=True)
    return table


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_archive_has_one_entry_for_each_file_of_an_instant_as_hudi_writes_it(kind: str, tmp_path: Path) -> None:
    table = filled(tmp_path, kind)
    folder = Path(table.location) / ".hoodie"
    names = {path.name for path in folder.iterdir() if path.name[0].isdigit()}
    rows, writes = values(table), table.timeline.writes()
    outcome = table.services.archive.run(force=True)
    assert isinstance(outcome, Archived) and len(table.timeline.writes()) < 5
    gone = names - {path.name for path in folder.iterdir()}
    (path,) = archive_files(table)
    assert path.name == ".commits_.archive.1_1-0-1"
    held = entries(path)
    suffix = {"REQUESTED": ".requested", "INFLIGHT": ".inflight", "COMPLETED": ""}
    of_entries = {f"{e['commitTime']}.{e['actionType']}{suffix[e['actionState']]}" for e in held}
    # The inflight file of a commit has no action in its name.
    assert {name.replace(".commit.inflight", ".inflight") for name in of_entries} == gone and len(held) == len(gone)
    assert [e["commitTime"] for e in held] == sorted(e["commitTime"] for e in held)
    assert all(len(e["stateTransitionTime"]) == 17 and e["stateTransitionTime"] >= e["commitTime"] for e in held)
    fields = {(e["actionType"], e["actionState"]): sorted(f for f in e if "oodie" in f) for e in held}
    assert fields["replacecommit", "COMPLETED"] == ["hoodieReplaceCommitMetadata"]
    assert fields["rollback", "COMPLETED"] == ["hoodieRollbackMetadata"]
    assert fields["rollback", "INFLIGHT"] == []
    if kind == "COPY_ON_WRITE":
        assert fields["clean", "REQUESTED"] == fields["clean", "INFLIGHT"] == ["hoodieCleanerPlan"]
    else:
        assert fields["deltacommit", "REQUESTED"] == fields["deltacommit", "COMPLETED"] == ["hoodieCommitMetadata"]
        assert fields["compaction", "REQUESTED"] == ["hoodieCompactionPlan"]
        assert fields["compaction", "INFLIGHT"] == [] and fields["commit", "COMPLETED"] == ["hoodieCommitMetadata"]
    assert values(table) == rows and [i.requested for i in (*table.archived(), *table.timeline.writes())] == [
        i.requested for i in writes
    ]
    assert_valid(table)
    assert isinstance(table.services.archive.run(force=True), NothingToDo)


def test_next_archive_adds_a_file_and_commits_are_read_from_both(tmp_path: Path) -> None:
    table = created(tmp_path, options=FEW)
    for turn in range(7):
        table.upsert(batch(["a1"], turn, f"{turn}"), commit_metadata={"turn": str(turn)})
        if turn in (3, 6):
            table.services.compaction.run(force=True)
            table.services.archive.run(force=True)
    assert [path.name[-8:] for path in archive_files(table)] == [".1_1-0-1", ".2_1-0-1"]
    opened = Table.open(table.location)
    assert opened.commits_with("turn", "0") == opened.archived().instants[0]
    assert opened.commits_with("turn", "5") and opened.commits_with("turn", "7") is None
    assert values(table) == {"a1": "6"}


def unpacked(tmp_path: Path) -> Path:
    with zipfile.ZipFile(fixtures("hudi_v6/mor_v6_h015_archived.zip")) as archive:
        archive.extractall(tmp_path)
    return tmp_path / "mor_v6_h015_archived"


def test_archive_of_hudi_is_read_and_continued(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    table = Table.open(str(root), options=FEW)
    archived = [(i.requested, str(i.action)) for i in table.archived()]
    assert archived[0] == ("20261128074819260", "deltacommit") and archived[-1][0] == "20261128074841673"
    assert [action for _, action in archived].count("replacecommit") == 1 and len(archived) == 9
    store = table.refresh().store
    ((_, metadata),) = store.archived_commits([i for i in table.archived() if i.action == "replacecommit"])
    assert metadata.operation == "INSERT_OVERWRITE" and [len(ids) for ids in metadata.replaced.values()] == [1]
    plan = store.archived_timeline.actions(["20261128074822796"])["20261128074822796"].plan
    assert plan is not None and b"HoodieCompactionPlan" in plan
    rows = table.scan().to_arrow().drop_columns(["_hoodie_commit_time"]).num_rows
    table.upsert(table.scan().to_arrow().drop_columns([f"_hoodie_{name}" for name in META]))
    outcome = table.services.archive.run(force=True)
    assert isinstance(outcome, Archived) and table.scan().to_arrow().num_rows == rows
    assert len(archive_files(table)) == 4 and len(Table.open(str(root)).archived()) > 9
    assert_valid(table)


META = ("commit_time", "commit_seqno", "record_key", "partition_path", "file_name")


def test_incomplete_block_is_skipped_and_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    root = unpacked(tmp_path)
    last = root / ".hoodie/archived/.commits_.archive.3_1-0-1"
    data = last.read_bytes()
    last.write_bytes(data[:-50])
    assert len(Table.open(str(root)).archived()) == 8
    last.write_bytes(data.replace(b"HoodieArchivedMetaEntry", b"HoodieArchivedMetaEnt\xffy"))
    with pytest.raises(CorruptTableError, match=r"archive\.3_1-0-1 cannot be read.*restore it from a backup"):
        Table.open(str(root)).archived()


def test_write_that_completed_late_and_was_archived_is_among_the_writes_since(tmp_path: Path) -> None:
    table = created(tmp_path, options=FEW)
    for turn in range(4):
        table.upsert(batch(["a1"], turn, f"{turn}"))
    loaded = table.refresh()
    first, late, *_ = loaded.timeline.writes()
    before = Timeline(tuple(i for i in loaded.timeline if i.requested != late.requested))
    with table_lock(loaded.env, TransactionPolicy()) as lock:
        move_to_archive(loaded.store, [first, late], table.location, lock.check)
    now = table.refresh()
    assert [i.requested for i in writes_since(now, before, now.timeline)] == [late.requested]


def test_commit_that_completed_after_a_pending_write_began_stays(tmp_path: Path) -> None:
    table = created(tmp_path, options=FEW)
    for turn in range(6):
        table.upsert(batch(["a1"], turn, f"{turn}"))
    table.services.compaction.run(force=True)
    commits = table.timeline.writes().instants
    pending = Instant(requested=f"{int(commits[4].requested) + 1}", action=commits[4].action, state=commits[4].state)
    folder = Path(table.location) / ".hoodie"
    request = folder / f"{pending.requested}.deltacommit.requested"
    request.write_bytes(b"")
    # The pending write began before the third commit completed, although its time is greater.
    changed = (folder / f"{commits[2].requested}.deltacommit").stat().st_mtime
    os.utime(request, (changed - 0.001, changed - 0.001))
    # Its heartbeat is expired only after the time of the other writers.
    planned = table.with_options(FEW | {"hoodie.keep.max.commits": "3"}).services.archive.plan(force=True)
    assert [i.requested for i in getattr(planned, "instants", ())] == [i.requested for i in commits[:2]]
    assert "completed after the pending instant" in planned.kept  # type: ignore[union-attr]
