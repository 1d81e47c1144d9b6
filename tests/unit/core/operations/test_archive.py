"""The archive service: archived and kept instants, refusals, recovery, and reads of archived commits."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.format.timeline.archive import manifest_name
from lakehouse.core.operations.commit.archive_actions import read_actions
from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.read.scan import Scan, stored_data_schema, with_stored_schemas
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.write import write
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.archived_actions import move_to_archive
from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import CorruptTableError, RetryableError, UserError
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.instant import Action, Instant
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.table.service_settings import service_settings
from tests.support.archived import assert_same, eager, every_write, seen
from tests.support.tables import SCHEMA, Shape, batch, data_rows, make_env, make_table, row

MANY = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
HISTORY = ".hoodie/timeline/history"


def written(table: Table, numbers: range, **metadata: str) -> list[str]:
    """Write some commits and return their requested times."""
    times = []
    for number in numbers:
        rows = [row(f"k{i}", p="ab"[i % 2], ts=number, v=f"{number}") for i in range(number % 3, 4)]
        outcome = table.upsert(batch(rows), commit_metadata=metadata)
        assert isinstance(outcome, Committed)
        times.append(outcome.instant.requested)
    return times


def archived(table: Table, *, force: bool = True) -> Archived:
    outcome = table.services.archive.run(force=force)
    assert isinstance(outcome, Archived), outcome
    return outcome


def names(table: Table, directory: str = ".hoodie/timeline") -> list[str]:
    files, _ = table.refresh().env.storage.list_dir(directory)
    return [file.name for file in files]


def test_archive_due_plan_and_run_name_the_same_instants_and_plan_writes_nothing() -> None:
    table = eager(make_table())
    times = written(table, range(3))
    due = table.services.archive.due()
    assert (due.due, due.commits, due.actions) == (False, 3, 0) and "up to 3 are kept" in due.reason
    assert isinstance(table.services.archive.run(), NothingToDo)
    times += written(table, range(3, 6))
    before = names(table)
    planned, due = table.services.archive.plan(), table.services.archive.due()
    assert isinstance(planned, ArchivePlan) and names(table) == before and names(table, HISTORY) == []
    assert due.due and due.actions == 4 and planned.newest in due.reason
    outcome = archived(table, force=False)
    assert outcome.instants == planned.instants
    assert [i.requested for i in outcome.instants] == times[:4] == [i.requested for i in table.archived()]
    assert [i.requested for i in table.timeline] == times[4:]
    assert all(not name.startswith(tuple(times[:4])) for name in names(table))
    assert names(table, HISTORY) == [f"{times[0]}_{times[3]}_0.parquet", "_version_", "manifest_1"]


def test_archive_merges_levels_and_removes_old_manifests() -> None:
    table = eager(make_table())
    for number in range(9):
        written(table, range(number * 2, number * 2 + 2))
        table.services.archive.run(force=True)
    history = table.refresh().store.archived_timeline
    assert history is not None
    levels = sorted(file.level for file in history.files())
    assert levels and max(levels) >= 2 and all(levels.count(level) < 2 for level in levels)
    there = names(table, HISTORY)
    assert {file.name for file in history.files()} <= set(there)
    assert len([name for name in there if name.startswith("manifest_")]) <= 3 + 4
    assert len(table.archived()) == 16 and len(every_write(table)) == 18


def test_archive_raises_a_retryable_error_during_a_pending_restore() -> None:
    table = eager(make_table())
    times = written(table, range(6))
    loaded = table.refresh()
    loaded.env.storage.create(f".hoodie/timeline/{times[-1][:-1]}9.restore.requested", b"")
    with pytest.raises(RetryableError, match="restore"):
        table.services.archive.run()


def test_checkpoint_and_schema_are_read_from_archived_commits() -> None:
    table = eager(make_table(), **{"hoodie.write.set.null.for.missing.columns": "true"})
    first = written(table, range(1), checkpoint="first")
    last = written(table, range(1, 2), checkpoint="last")
    wider = SCHEMA.append(pa.field("more", pa.int32()))
    table.upsert(batch([row("k0", more=1)], wider))
    times = written(table, range(2, 6))
    schema = table.schema
    archived(table)
    assert [i.requested for i in table.timeline] == times[-2:]
    assert table.last_commit_extra("checkpoint") == "last" and table.last_commit_extra("unknown") is None
    found = [table.commits_with("checkpoint", value) for value in ("first", "last", "else")]
    assert [i and i.requested for i in found] == [first[0], last[0], None]
    assert table.commits_with("checkpoint", "first", archived=False) is None
    assert table.schema.equals(schema)
    assert "more" in table.scan(as_of=times[0]).to_arrow().column_names
    assert "more" not in table.scan(as_of=last[0]).to_arrow().column_names


def test_stored_schema_of_archived_files_is_read_after_a_type_change() -> None:
    table = eager(make_table(schema=None))
    narrow = pa.schema([f.with_type(pa.int32()) if f.name == "at" else f for f in SCHEMA])
    first = table.insert(batch([row("old", p="old", at=1)], narrow))
    assert isinstance(first, Committed)
    written(table, range(5))
    archived(table)
    scan = table.scan().plan()
    assert isinstance(scan, Scan) and stored_data_schema(scan, first.instant.requested) is None
    stored = stored_data_schema(with_stored_schemas(table.refresh(), scan), first.instant.requested)
    assert stored is not None and stored.field("at").type == pa.int32()
    assert table.schema.field("at").type == pa.int64()
    assert data_rows(table, ["id", "at"], where="id = 'old'") == [{"id": "old", "at": 1}]


def test_replacecommit_is_archived_only_after_its_replaced_files_are_deleted() -> None:
    table = eager(make_table())
    written(table, range(3))
    table.insert_overwrite(batch([row("z", p="a", v="new")]))
    written(table, range(3, 7))
    rows = data_rows(table)
    outcome = archived(table)
    assert Action.REPLACECOMMIT not in {i.action for i in outcome.instants} and "replaced" in outcome.kept
    assert data_rows(table) == rows
    table.services.clean.run(force=True)
    outcome = archived(table)
    assert Action.REPLACECOMMIT in {i.action for i in outcome.instants}
    assert data_rows(table) == rows


def test_replacecommit_is_not_archived_while_a_replaced_file_still_exists() -> None:
    table = eager(make_table())
    written(table, range(3))
    storage = table.refresh().env.storage
    old = {file.path: storage.get(file.path) for file in storage.list("a")}
    table.insert_overwrite(batch([row("z", p="a", v="new")]))
    written(table, range(3, 7))
    table.services.clean.run(force=True)
    leftover = next(path for path in old if path.endswith(".parquet"))
    storage.put(leftover, old[leftover])
    rows = data_rows(table)
    outcome = archived(table)
    assert "still there" in outcome.kept and data_rows(table) == rows
    storage.delete(leftover)
    assert Action.REPLACECOMMIT in {i.action for i in archived(table).instants} and data_rows(table) == rows


def test_archive_deletes_leftover_files_of_a_rolled_back_write() -> None:
    table = eager(make_table())
    written(table, range(2))
    undone = table.upsert(batch([row("undone", v="undone")]))
    assert isinstance(undone, Committed)
    storage = table.refresh().env.storage
    stray = next(stat.path for stat in undone.metadata.stats)
    data = storage.get(stray)
    table.rollback(undone.instant.requested)
    storage.put(stray, data)  # The rolled back writer continued late.
    written(table, range(2, 6))
    rows = data_rows(table)
    archived(table)
    assert stray not in {file.path for file in storage.list("")}
    assert data_rows(table) == rows


def test_archive_keeps_files_of_a_compaction_that_ran_again_after_a_rollback() -> None:
    shape = Shape(type="MERGE_ON_READ", index="BUCKET", buckets=1, keys="non_partition")
    table = eager(make_table(shape), **{"hoodie.compact.inline.max.delta.commits": "1"})
    table.upsert(batch([row("a", v="1"), row("b", v="1")]))
    table.upsert(batch([row("a", v="2", ts=2)]))
    first = table.services.compaction.run(force=True)
    assert isinstance(first, Committed)
    table.rollback(first.instant.requested)
    again = table.services.compaction.run()
    assert isinstance(again, Committed) and again.instant.requested == first.instant.requested
    for number in range(3, 9):
        table.upsert(batch([row("c", v=f"{number}", ts=number)]))
    table.services.clean.run(force=True)
    rows = data_rows(table)
    # The rollback is newer than the compaction, so an archive run may move only the compaction.
    taken = [i for i in table.refresh().timeline if i.requested <= first.instant.requested]
    with table_lock(table.refresh().env, TransactionPolicy()) as lock:
        move_to_archive(table.refresh().store, taken, table.refresh().env.storage.root, lock.check)
    assert any(i.action is Action.ROLLBACK for i in table.timeline)
    assert data_rows(table) == rows
    archived(table)
    assert data_rows(table) == rows


def test_archive_stops_before_an_active_writer_that_was_rolled_back() -> None:
    table = eager(make_table())
    times = written(table, range(6))
    heartbeat, between = Heartbeat(table.refresh().env, TransactionPolicy()), f"{int(times[2]) + 1}"
    heartbeat.start(between)
    outcome = table.services.archive.plan()
    assert isinstance(outcome, ArchivePlan) and f"writer of {between}" in outcome.kept
    assert [i.requested for i in outcome.instants] == times[:3]
    heartbeat.discard()
    outcome = table.services.archive.plan()
    assert isinstance(outcome, ArchivePlan) and len(outcome.instants) == 4


@pytest.mark.parametrize("beyond", [False, True])
def test_savepointed_commits_are_not_archived_and_the_savepoint_can_be_deleted(beyond: bool) -> None:
    table = eager(make_table(), **{"hoodie.archive.beyond.savepoint": str(beyond).lower()})
    times = written(table, range(3))
    table.savepoint(times[1])
    times += written(table, range(3, 7))
    before = seen(table, ranges=False)
    archived(table)
    remaining = [i.requested for i in table.timeline.writes()]
    assert remaining == (times[1:2] + times[-1:] if beyond else times[1:])
    assert_same(seen(table, ranges=False), before)
    if beyond:
        with pytest.raises(UserError, match="after it are archived"):
            table.restore(times[1])
    table.delete_savepoint(times[1])
    assert_same(seen(table, ranges=False), before)
    table.services.archive.run(force=True)
    assert [i.requested for i in table.timeline.writes()] == times[-1 if beyond else -2 :]
    assert_same(seen(table, ranges=False), before)


def test_restore_and_savepoint_refuse_an_archived_write() -> None:
    table = eager(make_table())
    times = written(table, range(6))
    archived(table)
    for act in (table.restore, table.savepoint):
        with pytest.raises(UserError, match=f"{times[1]} is archived"):
            act(times[1])
    assert table.restore(times[4], dry_run=True)


def test_restore_refuses_to_undo_writes_of_an_interrupted_archive() -> None:
    table = eager(make_table())
    times = written(table, range(6))
    loaded = table.refresh()
    history, both = loaded.store.archived_timeline, loaded.timeline.instants[:4]
    assert history is not None
    history.append(read_actions(loaded, both), times[0], times[3], lambda: None)
    assert len(every_write(table)) == 6
    with pytest.raises(UserError, match=f"archived, such as {times[2]}"):
        table.restore(times[1])
    assert table.restore(times[4], dry_run=True)
    assert [i.requested for i in archived(table).instants] == times[:4]
    assert len(every_write(table)) == 6


def test_commits_that_the_metadata_table_has_not_compacted_are_not_archived() -> None:
    rarely = {"hoodie.metadata.compact.max.delta.commits": "90"}
    table = eager(make_table(), **rarely)
    times = written(table, range(6))
    outcome = table.services.archive.plan()
    assert isinstance(outcome, NothingToDo) and "metadata table" in outcome.reason
    times += written(eager(table), range(6, 7))
    # The compaction contains the first six commits, and two commits stay.
    assert [i.requested for i in archived(eager(table, **rarely)).instants] == times[:5]


def test_write_detects_a_conflict_with_a_commit_that_was_archived_meanwhile() -> None:
    """The other write is pending when the write begins; it is completed and archived before the write commits."""
    table = eager(make_table(), **MANY, **{"hoodie.write.num.retries.on.conflict.failures": "0"})
    written(table, range(2))
    outcomes: list[object] = []

    def other_write(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
        def ours(candidate_of_ours: PreparedCommit, _: TransactionPolicy) -> Committed | Conflict:
            patch.undo()
            outcomes.append(complete_commit(candidate, policy))
            loaded = table.refresh()
            history, gone = loaded.store.archived_timeline, list(loaded.timeline.writes())
            assert history is not None
            history.append(read_actions(loaded, gone), gone[0].requested, gone[-1].requested, lambda: None)
            loaded.store.remove_archived(gone, lambda: None)
            return complete_commit(candidate_of_ours, policy)

        patch.setattr(write, "complete_commit", ours)
        with pytest.raises(RetryableError, match="another writer won"):
            table.upsert(batch([row("k0", p="a", v="ours")]))
        assert isinstance(outcomes[0], Committed)
        return outcomes[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "complete_commit", other_write)
        table.upsert(batch([row("k0", p="a", v="other", ts=9)]))
    table.upsert(batch([row("k1", p="b", v="later")]))
    assert len(table.archived()) == 3
    assert data_rows(table, ["id", "v"], where="id = 'k0'") == [{"id": "k0", "v": "other"}]


def test_archive_replaces_the_leftovers_of_an_interrupted_archive(tmp_path: Path) -> None:
    table = eager(make_table())
    times = written(table, range(6))
    storage = table.refresh().env.storage
    storage.put(f"{HISTORY}/{times[0]}_{times[3]}_0.parquet", b"broken")
    storage.put(f"{HISTORY}/{manifest_name(7)}", b"{")
    storage.put(f"{HISTORY}/_version_", b"3")
    storage.put(f"{HISTORY}/{manifest_name(3)}", b'{"files": []}')
    before = seen(table, ranges=False)
    archived(table)
    assert_same(seen(table, ranges=False), before)
    assert len(table.archived()) == 4 and storage.get(f"{HISTORY}/_version_") == b"4"


def test_actions_are_found_in_a_file_whose_name_is_not_in_order() -> None:
    # An upgrade by Hudi names a file after the first and the last action of its batch, with the newest actions first.
    table = eager(make_table())
    written(table, range(8))
    archived(table)
    store, storage = table.refresh().store, table.refresh().env.storage
    history = store.archived_timeline
    assert isinstance(history, ArchivedTimeline)
    actions = history.each(i.requested for i in history.instants())
    middle = len(actions) // 2
    batch_of_hudi = [*actions[middle:], *actions[:middle]]
    (file,) = [name for name in names(table, HISTORY) if name.endswith(".parquet")]
    storage.delete_many([f"{HISTORY}/{name}" for name in names(table, HISTORY)])
    first, last = batch_of_hudi[0].instant.requested, batch_of_hudi[-1].instant.requested
    assert first > last and file != f"{first}_{last}_0.parquet"
    history.append(batch_of_hudi, first, last, lambda: None)
    again = Table.open(storage.root, env=table.refresh().env).refresh().store.archived_timeline
    times = [action.instant.requested for action in actions]
    assert [i.requested for i in again.instants(requested_from=times[-1])] == times[-1:]
    assert [i.requested for i in again.instants(requested_up_to=times[0])] == times[:1]
    assert sorted(again.actions(times)) == times
    # A merge of the file has the right times in its name.
    table = eager(Table.open(storage.root, env=table.refresh().env))
    written(table, range(8, 12))
    archived(table)
    merged = [name for name in names(table, HISTORY) if name.endswith("_1.parquet")]
    assert [name.split("_")[0] for name in merged] == times[:1]


def test_damaged_archive_raises_an_error() -> None:
    table = eager(make_table())
    written(table, range(6))
    archived(table)
    storage = table.refresh().env.storage
    storage.delete(f"{HISTORY}/_version_")
    assert len(Table.open(table.location, env=table.refresh().env).archived()) == 4
    storage.put(f"{HISTORY}/{manifest_name(1)}", b"{}")
    written(table, range(6, 10))
    for call in (table.archived, lambda: archived(table)):
        with pytest.raises(CorruptTableError):
            call()
    storage.delete(f"{HISTORY}/{manifest_name(1)}")
    storage.put(f"{HISTORY}/_version_", b"1")
    with pytest.raises(CorruptTableError, match="manifest"):
        ArchivedTimeline(storage, HISTORY).files()


def test_archive_commands_print_plans_and_archived_instants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location = str(tmp_path / "table")
    table = eager(make_table(env=make_env(location)))
    times = written(table, range(5))
    options = [
        word
        for key, value in {"keep.min.commits": 1, "keep.max.commits": 3, "clean.commits.retained": 1}.items()
        for word in ("--option", f"hoodie.{key}={value}")
    ]

    def printed(*words: str) -> object:
        assert main([*words, "--table", location, "--output", "json", *options[: 0 if "show" in words else None]]) == 0
        return json.loads(capsys.readouterr().out)

    assert printed("archive", "due")["due"] is True  # type: ignore[index]
    for verb in (("archive", "plan"), ("archive", "run", "--dry-run")):
        assert [found["requested"] for found in printed(*verb)["instants"]] == times[:3]  # type: ignore[index]
    assert printed("timeline", "show", "--archived")["instants"] == []  # type: ignore[index]
    report = str(tmp_path / "report.json")
    assert main(["archive", "run", "--table", location, "--report", report, *options]) == 0
    assert json.loads(Path(report).read_text())["status"] == "committed"
    capsys.readouterr()
    shown = printed("timeline", "show", "--archived")["instants"]  # type: ignore[index]
    assert [found["requested"] for found in shown] == times[:3]
    assert printed("archive", "plan")["instants"] == []  # type: ignore[index]
    assert main(["archive", "rum"]) != 0
    assert open_storage(location).root == location


def test_archive_section_of_a_spec_sets_the_options() -> None:
    found = service_settings("archive", {"min_commits": 5, "max_commits": 9, "beyond_savepoint": True})
    assert found.options == {
        "hoodie.keep.min.commits": "5",
        "hoodie.keep.max.commits": "9",
        "hoodie.archive.beyond.savepoint": "true",
    }


def test_log_completed_after_a_compaction_plan_keeps_its_slice_after_archive() -> None:
    """A compaction of a file group is scheduled while a delta commit of that group is pending."""
    shape = Shape(type="MERGE_ON_READ", index="BUCKET", buckets=1, keys="non_partition")
    table = eager(make_table(shape), **{"hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL"})
    table.upsert(batch([row("a", v="1"), row("b", v="1")]))
    table.upsert(batch([row("a", v="2", ts=2)]))
    late: list[object] = []

    def compacted(candidate: PreparedCommit, *rest: object) -> Committed | Conflict:
        patch.undo()
        late.append(table.services.compaction.schedule(force=True))
        return complete_commit(candidate, *rest)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "complete_commit", compacted)
        table.upsert(batch([row("b", v="late", ts=3)]))
    table.services.compaction.run()
    rows = data_rows(table, ["id", "v"])
    assert rows == [{"id": "a", "v": "2"}, {"id": "b", "v": "late"}]
    for number in range(4, 8):
        table.upsert(batch([row("a", v=f"{number}", ts=number)]))
        table.services.compaction.run(force=True) if number == 6 else None
    before = seen(table, ranges=False)
    archived(table)
    assert isinstance(late[0], Instant) and table.timeline.find(late[0].requested) is None
    assert_same(seen(table, ranges=False), before)
