"""Restore a table to a completed write: results, refusals and preconditions."""

from __future__ import annotations

import pytest

from lakehouse.core.format.avro.object_file import write_record
from lakehouse.core.format.timeline.restore import decode_restore_metadata, decode_restore_plan
from lakehouse.core.format.timeline.schemas import RESTORE_PLAN
from lakehouse.core.operations.commit.completion import REBUILD_KEY, drop_for_rebuild
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.undo.restore import Restored
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError, UnsupportedError, UserError
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.metadata_files import bounds, listing, partitions
from tests.support.tables import Alone, Shape, base_files, batch, check_storage, data_rows, make_table, row
from tests.unit.core.operations.test_rollback import TYPES, actions, filled, pending_write, times


def history(kind: str) -> tuple[Table, dict[str, list[dict[str, object]]]]:
    """Return a table with all kinds of instants, and the rows after each completed write."""
    table = filled(kind, commits=2)
    table.insert_overwrite(batch([row("o1", p="b", v="overwritten")]))
    if kind == "MERGE_ON_READ":
        table.upsert(batch([row("k1", ts=20, v="logged"), row("o1", p="b", ts=5, v="logged")]))
        table.services.compaction.run(force=True)
    table.upsert(batch([row("k1", ts=30, v="last"), row("z", p="new", v="last")]))
    table.delete(["o1"])
    if kind == "MERGE_ON_READ":
        table.services.compaction.schedule(force=True)
    table.delete_partitions(["new"])
    return table, {requested: data_rows(table, as_of=requested) for requested in times(table)}


@pytest.mark.parametrize("kind", TYPES)
def test_restore_to_each_write_in_turn_returns_its_rows(kind: str) -> None:
    table, rows = history(kind)
    for requested in reversed(times(table)[:-1]):
        outcome = table.restore(requested)
        assert isinstance(outcome, Restored) and outcome.target == requested
        assert data_rows(table) == rows[requested]
        # A compaction that was scheduled before the target stays pending.
        plans = [i.requested for i in table.timeline.where(action=Action.COMPACTION, pending=True)]
        check_storage(table, plans=plans)
        assert all(plan < requested for plan in plans)
    table.upsert(batch([row("k1", ts=99, v="goes on")]))
    assert [r["v"] for r in data_rows(table) if r["id"] == "k1"] == ["goes on"]


@pytest.mark.parametrize("kind", TYPES)
def test_restore_to_any_write_at_once_returns_its_rows(kind: str) -> None:
    for number in range(5):
        table, rows = history(kind)
        requested = times(table)[number]
        table.restore(requested)
        assert data_rows(table) == rows[requested]
        check_storage(table)
        assert [action for action in actions(table) if action.startswith("r")][-1] == "restore.completed"
        assert not table.timeline.where(action=Action.ROLLBACK)


def test_restore_writes_timeline_files_like_hudi() -> None:
    table, _ = history("MERGE_ON_READ")
    to = times(table)[1]
    plan = table.restore(to, dry_run=True)
    done = table.restore(to)
    assert isinstance(plan, Restored) and isinstance(done, Restored)
    assert plan.instant is None and plan.rollbacks == done.rollbacks
    loaded = table.refresh()
    (restore,) = loaded.timeline.where(action=Action.RESTORE)
    assert restore == done.instant
    stored, finished = loaded.store.read(restore, State.REQUESTED), loaded.store.read(restore, State.COMPLETED)
    assert stored is not None and finished is not None and loaded.store.read(restore, State.INFLIGHT) == b""
    planned = decode_restore_plan(stored)
    assert planned.target == to
    assert [action for _, action in planned.instants] == [
        "compaction", "replacecommit", "deltacommit", "deltacommit", "commit", "deltacommit", "replacecommit",
    ]  # fmt: skip
    metadata = decode_restore_metadata(finished, base_path=table.location)
    assert metadata.instants == planned.instants and metadata.start_time == restore.requested
    deleted = {
        i: sorted(p for r in done for ps in r.deleted.values() for p in ps) for i, done in metadata.rollbacks.items()
    }
    expected = {p.target: sorted(path for r in p.requests for path in r.files) for p in done.rollbacks}
    assert deleted == expected and sum(map(len, deleted.values())) > 5


@pytest.mark.parametrize("kind", TYPES)
def test_restore_dry_run_changes_nothing(kind: str) -> None:
    table, rows = history(kind)
    storage = table.refresh().env.storage
    before = {file.path: file.size_bytes for file in storage.list("")}
    assert isinstance(table.restore(times(table)[0], dry_run=True), Restored)
    assert {file.path: file.size_bytes for file in storage.list("")} == before
    assert data_rows(table) == rows[times(table)[-1]]


@pytest.mark.parametrize("kind", TYPES)
def test_restore_has_nothing_to_do_when_repeated(kind: str) -> None:
    table, _ = history(kind)
    to = times(table)[0]
    table.restore(to)
    before = actions(table)
    outcome = table.restore(to)
    assert isinstance(outcome, NothingToDo) and "newest completed write" in outcome.reason
    assert actions(table) == before


def test_restore_rolls_back_expired_writes_and_active_writes_only_with_force() -> None:
    table, rows = history("COPY_ON_WRITE")
    to = times(table)[-1]
    expired, _ = pending_write(table, active=False)
    assert isinstance(table.restore(to), Restored)
    assert table.timeline.find(expired) is None
    active, path = pending_write(table, active=True)
    with pytest.raises(RetryableError, match=f"the write {active} is active.*--force"):
        table.restore(to)
    assert isinstance(table.restore(to, force=True), Restored)
    assert path not in {base.path for base in base_files(table.refresh().env.storage)}
    assert data_rows(table) == rows[to]
    check_storage(table)


@pytest.mark.parametrize("kind", TYPES)
def test_restore_refuses_to_undo_a_savepointed_write(kind: str) -> None:
    table, rows = history(kind)
    older, kept = times(table)[0], times(table)[3]
    table.savepoint(kept)
    with pytest.raises(UserError, match=f"a savepoint keeps {kept}.*savepoint delete"):
        table.restore(older)
    table.restore(kept)
    assert data_rows(table) == rows[kept]
    assert [s.requested for s in table.savepoints()] == [kept]
    table.delete_savepoint(kept)
    table.restore(older)
    assert data_rows(table) == rows[older]


def test_restore_to_an_unknown_write_names_the_existing_ones() -> None:
    table, _ = history("COPY_ON_WRITE")
    with pytest.raises(UserError, match=f"no completed write 20200101000000000; the newest are .*{times(table)[-1]}"):
        table.restore("20200101000000000")


def clean(table: Table, paths: list[str]) -> str:
    """Delete files and complete a clean instant; return its requested time."""
    loaded = table.refresh()
    instant = loaded.store.request(loaded.timeline, Action.CLEAN, b"plan")
    started = loaded.store.start(instant, b"")
    loaded.env.storage.delete_many(paths)
    loaded.store.complete(started, loaded.store.load(), b"done", Alone())
    return instant.requested


@pytest.mark.parametrize("kind", TYPES)
def test_restore_is_refused_only_if_a_clean_removed_needed_files(kind: str) -> None:
    table, rows = history(kind)
    first, *_, last = times(table)
    before = table.refresh()
    newest = {stat.path for _, metadata in table.commits()[3:] for stat in metadata.stats}
    old = [base.path for base in base_files(before.env.storage) if base.instant == first and base.path not in newest]
    instant = clean(table, old)
    with pytest.raises(UserError, match=f"the restore to {first} needs . files that the clean {instant} or one before"):
        table.restore(first)
    with pytest.raises(UserError, match=f"a savepoint of {first} needs"):
        table.savepoint(first)
    above = times(table)[-2]
    table.restore(above)
    assert data_rows(table) == rows[above]
    assert last not in times(table)


def test_restore_drops_a_pending_clean_after_the_target_and_keeps_an_older_one() -> None:
    table = filled()
    loaded = table.refresh()
    older = loaded.store.request(loaded.timeline, Action.CLEAN, b"plan")
    table.upsert(batch([row("k1", ts=8)]))
    to = times(table)[-1]
    table.upsert(batch([row("k1", ts=9)]))
    loaded = table.refresh()
    loaded.store.start(loaded.store.request(loaded.timeline, Action.CLEAN, b"plan"), b"")
    table.restore(to)
    assert [i.requested for i in table.timeline.where(action=Action.CLEAN)] == [older.requested]


def pending_restore(table: Table, plan: bytes) -> Instant:
    """Return a requested restore on the timeline, as a crash leaves it."""
    loaded = table.refresh()
    return loaded.store.request(loaded.timeline, Action.RESTORE, plan)


def test_restore_is_refused_while_another_restore_is_pending() -> None:
    table, _ = history("COPY_ON_WRITE")
    to, other = times(table)[0], times(table)[1]
    plan = {"instantsToRollback": [], "version": 2, "savepointToRestoreTimestamp": to}
    pending = pending_restore(table, write_record(RESTORE_PLAN, plan))
    assert table.describe().pending_restore == pending.requested
    with pytest.raises(UserError, match=f"restore {pending.requested} to {to} is not finished.*--to {to}"):
        table.restore(other)


def test_restore_refuses_a_pending_restore_without_target() -> None:
    table, _ = history("COPY_ON_WRITE")
    pending = pending_restore(table, write_record(RESTORE_PLAN, {"instantsToRollback": [], "version": 1}))
    with pytest.raises(UnsupportedError, match=f"{pending.requested} does not name its target"):
        table.restore(times(table)[0])


def test_writers_services_and_savepoints_wait_for_a_pending_restore() -> None:
    table, rows = history("MERGE_ON_READ")
    to, last = times(table)[0], times(table)[-1]
    plan = {"instantsToRollback": [], "version": 2, "savepointToRestoreTimestamp": to}
    pending_restore(table, write_record(RESTORE_PLAN, plan))
    lazy = Table.open(table.location, options={"hoodie.clean.failed.writes.policy": "LAZY"}, env=table.refresh().env)
    for verb in (
        lambda: table.upsert(batch([row("x")])),
        lambda: lazy.upsert(batch([row("x")])),
        lambda: table.delete_partitions(["a"]),
        lambda: table.services.compaction.run(force=True),
        lambda: table.services.compaction.schedule(force=True),
        lambda: table.rollback(last),
        table.rollback_failed,
        lambda: table.savepoint(last),
    ):
        with pytest.raises(RetryableError, match=rf"to {to} is not finished; .*restore run --table .* --to {to}"):
            verb()
    assert data_rows(table) == rows[last], "readers are not blocked"


def test_restore_builds_the_metadata_table_again() -> None:
    table = filled()
    before = partitions(table.refresh().env.storage)
    assert "files" in before and "column_stats" in before
    to = times(table)[0]
    table.restore(to)
    storage = table.refresh().env.storage
    assert partitions(storage) == before
    assert REBUILD_KEY not in table.refresh().config.raw
    check_storage(table)
    assert {name for name, _ in bounds(storage)} == {name for names in listing(storage).values() for name in names}


def test_next_write_builds_the_metadata_table_after_a_crash_of_a_restore() -> None:
    table = filled()
    before, loaded = partitions(table.refresh().env.storage), table.refresh()
    with table_lock(loaded.env, TransactionPolicy()) as lock:
        drop_for_rebuild(loaded, lock)
    assert partitions(loaded.env.storage) == ()
    table.refresh()
    table.upsert(batch([row("k1", ts=99)]))
    assert partitions(loaded.env.storage) == before
    check_storage(table)


def test_compaction_runs_again_after_a_restore() -> None:
    table, rows = history("MERGE_ON_READ")
    to = times(table)[3]
    table.restore(to)
    assert isinstance(table.services.compaction.run(force=True), Committed)
    assert data_rows(table) == rows[to]
    check_storage(table)


def test_change_reads_ignore_undone_writes_after_a_restore() -> None:
    table, _ = history("COPY_ON_WRITE")
    to = table.commits()[0][0]
    table.restore(to.requested)
    assert table.changes(to.completion) == ()
    table.upsert(batch([row("k1", ts=50, v="after")]))
    assert [r["v"] for r in table.incremental(to.completion).to_arrow().to_pylist()] == ["after"]


def test_restore_deletes_change_logs_of_undone_writes() -> None:
    table = make_table(Shape(options={"hoodie.table.cdc.enabled": "true"}))
    table.upsert(batch([row("k1", v="0")]))
    table.upsert(batch([row("k1", ts=2, v="1")]))
    storage, to = table.refresh().env.storage, times(table)[0]
    assert any(file.path.endswith(".cdc") for file in storage.list(""))
    table.restore(to)
    assert not any(file.path.endswith(".cdc") for file in storage.list(""))
