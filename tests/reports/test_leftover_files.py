"""Leftover files of writes that no instant names: archive, rebuild of the metadata table, validation, savepoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.instant import Action
from lakehouse.model.validation import Severity
from tests.support.archived import eager
from tests.support.hudi_rs import read
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row

LISTING = {"hoodie.metadata.enable": "false"}
KEYS = 6


def table_of(kind: str = "COPY_ON_WRITE", *, metadata: bool = False) -> Table:
    """Return an empty table of a type, with or without metadata table, that archives eagerly."""
    options = {} if metadata else LISTING
    return eager(make_table(Shape(type=kind, keys="non_partition", options=options)), **options)


def written(table: Table, commits: int = 1) -> list[str]:
    """Upsert all keys in some commits, and return their requested times."""
    times = []
    for _ in range(commits):
        outcome = table.upsert(batch([row(f"k{key}", v="new") for key in range(KEYS)]))
        assert isinstance(outcome, Committed)
        times.append(outcome.instant.requested)
    return times


def storage_of(table: Table) -> Storage:
    return table.refresh().env.storage


def leave(table: Table, *, rollback: bool = False) -> str:
    """Leave a base file of a failed write with three new keys, and return its path.

    A task of the write ended late: after its rollback, or after all files of its instant were deleted.
    """
    storage = storage_of(table)
    outcome = table.bulk_insert(batch([row(f"lost{key}", v="lost") for key in range(3)]))
    assert isinstance(outcome, Committed)
    (stat,) = outcome.metadata.stats
    data = storage.get(stat.path)
    table.rollback(outcome.instant.requested)
    storage.put(stat.path, data)
    if not rollback:
        for file in storage.list(".hoodie/timeline"):
            if file.name.split(".")[0].split("_")[0] > outcome.instant.requested:
                storage.delete(file.path)
    return stat.path


def assert_rows(table: Table, keys: int = KEYS) -> None:
    assert len(data_rows(table)) == keys


def archived(table: Table) -> Archived | NothingToDo:
    return table.services.archive.run(force=True)


def exposed(kind: str = "COPY_ON_WRITE", *, metadata: bool) -> tuple[Table, str]:
    """Return a table with a leftover file that is older than the timeline, as a late task leaves it, and its path."""
    table = table_of(kind, metadata=metadata)
    written(table, 2)
    path = leave(table)
    storage = storage_of(table)
    data = storage.get(path)
    storage.delete(path)
    written(table, 6)
    assert isinstance(archived(table), Archived)
    storage.put(path, data)
    return table, path


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "listing"])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_archive_stops_before_a_leftover_file_that_no_instant_explains(kind: str, metadata: bool) -> None:
    """apache/hudi#18783 and apache/hudi#14200: orphan files become visible after the archive."""
    table = table_of(kind, metadata=metadata)
    before = written(table, 3)
    path = leave(table)
    after = written(table, 6)
    planned = table.services.archive.plan(force=True)
    outcome = archived(table)
    assert isinstance(outcome, Archived) and isinstance(planned, ArchivePlan)
    assert [instant.requested for instant in outcome.instants] == before[:-1]
    assert planned.instants == outcome.instants
    assert path in outcome.kept and "clean orphans" in outcome.kept
    assert [instant.requested for instant in table.timeline.writes()] == [before[-1], *after]
    assert storage_of(table).find(path) is not None
    assert_rows(table)
    # Another run changes nothing.
    again = archived(table)
    assert isinstance(again, NothingToDo) and path in again.reason


def test_archive_continues_after_orphan_cleaning_deleted_the_leftover_file() -> None:
    """apache/hudi#18783: the way out that the archive names."""
    table = table_of()
    written(table, 3)
    path = leave(table)
    after = written(table, 6)
    assert isinstance(archived(table), Archived)
    env = table.refresh().env
    env.clock.sleep(30 * 24 * 3600)
    assert [orphan.path for orphan in table.services.orphans(remove=True)] == [path]
    outcome = archived(table)
    assert isinstance(outcome, Archived)
    assert [instant.requested for instant in table.timeline.writes()] == after[-2:]
    assert_rows(table)


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "listing"])
def test_archive_deletes_leftover_files_that_a_rollback_explains(metadata: bool) -> None:
    """apache/hudi#18783: a file that a slow request created after the rollback."""
    table = table_of(metadata=metadata)
    written(table, 3)
    path = leave(table, rollback=True)
    after = written(table, 6)
    assert isinstance(archived(table), Archived)
    assert [instant.requested for instant in table.timeline.writes()] == after[-2:]
    assert storage_of(table).find(path) is None
    assert_rows(table)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_rebuild_of_the_metadata_table_leaves_out_files_that_no_instant_names(kind: str) -> None:
    """apache/hudi#4519: files of failed writes in a new metadata table."""
    table, path = exposed(kind, metadata=True)
    rebuilt = table.metadata.rebuild()
    assert rebuilt.left_out == (path,) and rebuilt.undecided == ()
    assert_rows(table)
    assert table.metadata.validate().ok


def test_first_metadata_table_of_a_table_leaves_out_files_that_no_instant_names() -> None:
    """apache/hudi#4519: the metadata table is enabled for a table that has files of failed writes."""
    table, path = exposed(metadata=False)
    options = {"hoodie.metadata.enable": "true"}
    enabled = Table.open(storage_of(table).root, env=table.refresh().env, options=options)
    assert enabled.metadata.rebuild().left_out == (path,)
    assert_rows(enabled)


def test_rebuild_leaves_out_files_that_the_commit_of_their_instant_does_not_list() -> None:
    """apache/hudi#4519: a task that ran twice left a file group of its own."""
    table = table_of(metadata=True)
    written(table)
    outcome = table.bulk_insert(batch([row("twice", v="v")]))
    assert isinstance(outcome, Committed)
    (stat,) = outcome.metadata.stats
    storage = storage_of(table)
    other = stat.path.replace(stat.file_id, "00000000-0000-4000-8000-000000000000-0")
    storage.put(other, storage.get(stat.path))
    assert table.metadata.rebuild().left_out == (other,)
    assert_rows(table, KEYS + 1)
    written(table, 6)
    assert isinstance(archived(table), Archived)
    assert table.metadata.rebuild().left_out == (other,)
    assert_rows(table, KEYS + 1)


def test_rebuild_keeps_files_older_than_an_archive_that_was_deleted() -> None:
    """apache/hudi#4519, the other way round: files of commits that no timeline knows any more are live."""
    table = table_of(metadata=True)
    table.bulk_insert(batch([row("first", v="v")]))
    written(table, 6)
    assert isinstance(archived(table), Archived)
    storage = storage_of(table)
    storage.delete_many([file.path for file in storage.list(".hoodie/timeline/history")])
    fresh = Table.open(storage.root, env=table.refresh().env)
    rebuilt = fresh.metadata.rebuild()
    assert rebuilt.left_out == () and len(rebuilt.undecided) >= 1
    assert "older than the archive" in str(rebuilt)
    assert_rows(fresh, KEYS + 1)


def test_rebuild_keeps_files_that_the_archive_of_an_upgraded_table_lacks() -> None:
    """Hudi drops every eleventh archived action when it downgrades a table; the class of apache/hudi#4519."""
    table, path = exposed(metadata=True)
    storage_of(table).put(".hoodie/archived/.commits_.archive.1_1-0-1", b"")
    rebuilt = table.metadata.rebuild()
    assert rebuilt.left_out == () and path in rebuilt.undecided


@pytest.mark.parametrize("metadata", [True, False], ids=["metadata", "listing"])
def test_validation_reports_a_leftover_file_that_is_older_than_the_timeline(metadata: bool) -> None:
    """apache/hudi#18783: reader-visible duplicates for which no check existed."""
    table, path = exposed(metadata=metadata)
    findings = [finding for finding in table.validate().findings if finding.path == path]
    assert [(finding.invariant, finding.severity) for finding in findings] == [("file.unnamed", Severity.CORRUPT)]
    storage_of(table).delete(path)
    assert table.validate().findings == ()


def test_validation_reports_that_readers_see_a_file_that_its_commit_does_not_list() -> None:
    """apache/hudi#14200: a clustering without markers left file groups that readers of a listing show."""
    table = table_of()
    written(table)
    outcome = table.bulk_insert(batch([row("twice", v="v")]))
    assert isinstance(outcome, Committed)
    (stat,) = outcome.metadata.stats
    storage = storage_of(table)
    other = stat.path.replace(stat.file_id, "00000000-0000-4000-8000-000000000000-0")
    storage.put(other, storage.get(stat.path))
    assert_rows(table, KEYS + 2)
    (finding,) = table.validate().findings
    assert (finding.invariant, finding.path) == ("file.unnamed", other)
    assert "no reader" not in finding.way_out


def test_savepoint_of_the_oldest_commit_is_refused_if_it_would_show_leftover_files() -> None:
    """apache/hudi#5837: commits with a savepoint do not count for the start of the timeline."""
    table = table_of()
    first, second = written(table, 2)
    path = leave(table)
    written(table, 2)
    table.savepoint(second)
    with pytest.raises(UserError, match=r"leftover file .*clean orphans"):
        table.savepoint(first)
    assert_rows(table)
    storage_of(table).delete(path)
    table.savepoint(first)
    assert_rows(table)


def test_cleanup_deletes_files_of_a_write_whose_instant_was_deleted_but_not_its_markers() -> None:
    """apache/hudi#14200: the instant of a failed write is gone, and its markers name files that are left."""
    table = table_of()
    written(table, 3)
    path = leave(table)
    storage, instant = storage_of(table), path.rpartition("_")[2].removesuffix(".parquet")
    storage.put(f".hoodie/.temp/{instant}/{path}.marker.CREATE", b"")
    after = written(table, 6)
    assert storage.find(path) is None and storage.list(".hoodie/.temp") == []
    assert isinstance(archived(table), Archived)
    assert [write.requested for write in table.timeline.writes()] == after[-2:]
    assert_rows(table)


def test_hudi_rs_reads_no_leftover_file_after_an_archive(tmp_path: Path) -> None:
    """apache/hudi#18783: orphans become duplicates for each reader that lists storage."""
    env = make_env(str(tmp_path))
    table = eager(make_table(Shape(keys="non_partition", options=LISTING), env=env), **LISTING)
    written(table, 3)
    leave(table)
    written(table, 6)
    archived(table)
    assert read(str(tmp_path)).num_rows == KEYS
    assert_rows(table)


def test_files_of_a_pending_first_write_are_hidden_after_later_writes() -> None:
    """apache/hudi#7738 and apache/hudi#7711: the first write failed, and the next ones completed."""
    table = table_of()
    storage = storage_of(table)
    outcome = table.bulk_insert(batch([row("lost", v="lost")]))
    assert isinstance(outcome, Committed)
    (completed,) = [file.path for file in storage.list(".hoodie/timeline") if file.name.endswith(".commit")]
    storage.delete(completed)
    written(table.with_options({"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}))
    assert_rows(table)
    table.rollback_failed()
    assert_rows(table)
    assert table.validate().findings == ()


def test_archive_deletes_a_late_file_of_a_failed_first_write_that_validation_reports() -> None:
    """apache/hudi#7711: files of the first write count as archived once its instant is gone."""
    table = table_of()
    path = leave(table, rollback=True)
    written(table, 6)
    assert ("file.unnamed", path) in {(finding.invariant, finding.path) for finding in table.validate().findings}
    assert isinstance(archived(table), Archived)
    assert storage_of(table).find(path) is None
    assert_rows(table)
    assert table.validate().findings == ()


def test_late_file_of_a_first_write_whose_rollback_is_archived_is_reported_and_left_out() -> None:
    """apache/hudi#18783: the archive took the rollback that explains the file."""
    table = table_of(metadata=True)
    path = leave(table, rollback=True)
    storage = storage_of(table)
    data = storage.get(path)
    storage.delete(path)
    written(table, 8)
    assert isinstance(archived(table), Archived)
    assert not table.timeline.where(action=Action.ROLLBACK)
    storage.put(path, data)
    (finding,) = table.validate().findings
    assert (finding.invariant, finding.path) == ("file.unnamed", path)
    assert table.metadata.rebuild().left_out == (path,)
    assert_rows(table)


def test_archive_run_lists_each_directory_of_data_files_once() -> None:
    """The cost of the answer to apache/hudi#18783: a run that would archive nothing lists no data file."""
    table = eager(make_table(Shape(options=LISTING)), **LISTING)
    for partition in "abc" * 2:
        table.upsert(batch([row(f"k{partition}", p=partition)]))
    env = table.refresh().env
    storage = FaultyStorage(env.storage)
    counted = eager(Table.open(env.storage.root, env=replace(env, storage=storage)), **LISTING)
    assert isinstance(archived(counted), Archived)
    assert isinstance(archived(counted), NothingToDo)
    listed = [step for step in storage.trace if step.startswith("list") and ".hoodie" not in step]
    assert sorted(listed) == ["list a", "list b", "list c", "list_dir "]
