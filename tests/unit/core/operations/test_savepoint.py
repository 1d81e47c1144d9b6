"""Savepoints: kept files, refused operations, and their place on the timeline."""

from __future__ import annotations

import pytest

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.state.file_system_view import latest_slices, visible_timeline
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.model.restore import Savepoint
from lakehouse.spec.contracts.tables import KeptCommit
from tests.support.tables import batch, check_storage, data_rows, row
from tests.unit.core.operations.test_rollback import TYPES, actions, filled, times


@pytest.mark.parametrize("kind", TYPES)
def test_savepoint_names_the_files_that_a_reader_of_its_instant_needs(kind: str) -> None:
    table = filled(kind)
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
        table.upsert(batch([row("k1", ts=9, v="later")]))
    to = times(table)[1]
    rows = data_rows(table, as_of=to)
    made = table.savepoint(to, user="ann", comment="before the backfill")
    assert isinstance(made, Savepoint) and (made.metadata.user, made.metadata.comment) == ("ann", "before the backfill")
    assert made.instant.requested == to and made.instant.completed
    kept = {f"{partition}/{name}" for partition, names in made.metadata.files.items() for name in names}
    storage = table.refresh().env.storage
    others = [f.path for f in storage.list("") if f.name.endswith(".parquet") or ".log." in f.name]
    storage.delete_many(path for path in others if path not in kept)
    assert data_rows(table, as_of=to) == rows
    table.restore(to)
    assert data_rows(table) == rows


def test_savepoint_without_instant_keeps_the_newest_write() -> None:
    table = filled()
    made = table.savepoint(user="ann")
    assert isinstance(made, Savepoint) and made.requested == times(table)[-1]
    assert table.savepoints() == (made,)
    assert table.describe().savepoints == (KeptCommit(instant=made.requested, files=2, by="ann", comment=""),)


def test_savepoint_does_not_block_readers_and_writers() -> None:
    table = filled()
    last = times(table)[-1]
    table.savepoint(last)
    assert actions(table) == ["commit.completed"] * 3 + ["savepoint.completed"]
    found = table.timeline.find(last)
    assert found is not None and found.action is Action.COMMIT
    table.upsert(batch([row("k1", ts=9, v="on")]))
    assert [r["v"] for r in data_rows(table) if r["id"] == "k1"] == ["on"]
    assert table.timeline.savepoints() == {last}
    check_storage(table)


def test_savepoint_has_nothing_to_do_when_repeated() -> None:
    table = filled()
    made = table.savepoint(user="ann")
    outcome = table.savepoint(user="bob")
    assert isinstance(outcome, NothingToDo) and "already" in outcome.reason
    assert table.savepoints() == (made,)


def test_savepoint_dry_runs_change_nothing() -> None:
    table = filled()
    would = table.savepoint(dry_run=True)
    assert isinstance(would, Savepoint) and table.savepoints() == ()
    made = table.savepoint()
    assert isinstance(made, Savepoint) and made.metadata.files == would.metadata.files
    assert table.delete_savepoint(made.requested, dry_run=True).requested == made.requested
    assert table.savepoints() == (made,)


def test_deleted_savepoint_leaves_its_commit_and_no_savepoint_file() -> None:
    table = filled()
    made = table.savepoint()
    assert isinstance(made, Savepoint)
    table.delete_savepoint(made.requested)
    assert table.savepoints() == () and len(times(table)) == 3
    assert not [f for f in table.refresh().env.storage.list(".hoodie/timeline") if "savepoint" in f.name]
    with pytest.raises(UserError, match=f"no savepoint keeps {made.requested}; savepoints: none"):
        table.delete_savepoint(made.requested)


def test_savepoint_refuses_instants_that_are_not_completed_writes() -> None:
    table = filled()
    with pytest.raises(UserError, match="no completed write 20200101000000000; the newest are"):
        table.savepoint("20200101000000000")


def test_savepoint_raises_a_retryable_error_during_a_pending_clean() -> None:
    table = filled()
    loaded = table.refresh()
    clean = loaded.store.request(loaded.timeline, Action.CLEAN, b"plan")
    with pytest.raises(RetryableError, match=f"the clean {clean.requested} is pending"):
        table.savepoint()
    assert not table.timeline.where(action=Action.SAVEPOINT)


def _completed(second: int, action: Action = Action.COMMIT) -> Instant:
    return Instant(requested=f"{second:017d}", action=action, state=State.COMPLETED, completed=f"{second:016d}5")


@pytest.mark.parametrize(
    ("kept", "others", "shown"),
    [
        # Commit 3, between a savepointed commit and commit 5, is archived.
        ((1,), (5, 6), {1, 2, 3, 5, 6}),
        ((1,), (), {1}),
        # After a restore to commit 5, commits 1 and 5 have savepoints, and commit 3 is archived.
        ((1, 5), (), {1, 2, 3, 5}),
        ((), (5,), {1, 2, 3, 5}),
        ((5,), (3, 6), {1, 2, 3, 5, 6}),
    ],
)
def test_savepointed_commit_does_not_define_the_archive_boundary(
    kept: tuple[int, ...], others: tuple[int, ...], shown: set[int]
) -> None:
    instants = [_completed(second) for second in (*kept, *others)]
    instants += [_completed(second, Action.SAVEPOINT) for second in kept]
    visible = visible_timeline(Timeline(tuple(instants)), ())
    files = [
        BaseFile(partition="p", file_id=f"g{second}", write_token="0-0-0", instant=f"{second:017d}")
        for second in (1, 2, 3, 5, 6)
    ]
    found = {int(file_slice.file_id[1:]) for file_slice in latest_slices(files, visible, layout=table_layout(9))}
    assert found == shown
