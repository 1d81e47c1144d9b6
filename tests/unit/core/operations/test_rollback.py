"""Roll back one write: deleted files, kept files, and refusals."""

from __future__ import annotations

import pytest

from lakehouse.core.format.timeline.rollback import decode_rollback_metadata, decode_rollback_plan, encode_rollback_plan
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.heartbeat import Heartbeat
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.commit import RollbackPlan
from lakehouse.model.instant import Action, Instant, State
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.tables import Shape, base_files, batch, check_storage, data_rows, log_files, make_table, row

TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")


def filled(kind: str = "COPY_ON_WRITE", commits: int = 3) -> Table:
    """Return a table whose row k1 holds the number of the last commit; each commit adds a row to partition b."""
    table = make_table(Shape(type=kind, rows_per_file=1_000))
    for number in range(commits):
        table.upsert(batch([row("k1", ts=number, v=str(number)), row(f"n{number}", p="b")]))
    return table


def times(table: Table) -> list[str]:
    return [instant.requested for instant, _ in table.commits()]


def actions(table: Table) -> list[str]:
    return [f"{instant.action}.{instant.state.name.lower()}" for instant in table.timeline]


def undone(plan: RollbackPlan | NothingToDo) -> list[str]:
    assert isinstance(plan, RollbackPlan), plan
    return sorted(path for request in plan.requests for path in request.files)


@pytest.mark.parametrize("kind", TYPES)
def test_rollback_of_the_newest_write_deletes_its_files_and_instants(kind: str) -> None:
    table = filled(kind)
    before, last = data_rows(table, as_of=times(table)[1]), table.commits()[-1]
    plan = table.rollback(last[0].requested)
    assert undone(plan) == sorted(stat.path for stat in last[1].stats)
    assert data_rows(table) == before
    assert actions(table)[-1] == "rollback.completed" and len(times(table)) == 2
    check_storage(table)
    table.upsert(batch([row("k1", ts=9, v="again")]))
    assert [r["v"] for r in data_rows(table) if r["id"] == "k1"] == ["again"]


def test_rollback_writes_timeline_files_like_hudi() -> None:
    table = filled("MERGE_ON_READ")
    last = table.commits()[-1]
    plan = table.rollback(last[0].requested)
    loaded = table.refresh()
    (rollback,) = loaded.timeline.where(action=Action.ROLLBACK)
    stored = loaded.store.read(rollback, State.REQUESTED)
    assert stored and decode_rollback_plan(stored, base_path=table.location) == plan
    assert loaded.store.read(rollback, State.INFLIGHT) == b""
    done = loaded.store.read(rollback, State.COMPLETED)
    assert done is not None
    metadata = decode_rollback_metadata(done, base_path=table.location)
    assert (metadata.target, metadata.action, metadata.start_time) == (
        last[0].requested,
        "deltacommit",
        rollback.requested,
    )
    assert sorted(path for paths in metadata.deleted.values() for path in paths) == undone(plan)


@pytest.mark.parametrize("kind", TYPES)
def test_rollback_dry_run_returns_the_plan_and_changes_nothing(kind: str) -> None:
    table = filled(kind)
    storage, last = table.refresh().env.storage, times(table)[-1]
    before = {file.path for file in storage.list("")}
    would = table.rollback(last, dry_run=True)
    assert {file.path for file in storage.list("")} == before
    assert table.rollback(last) == would


@pytest.mark.parametrize("kind", TYPES)
def test_rollback_has_nothing_to_do_when_repeated(kind: str) -> None:
    table = filled(kind)
    last = times(table)[-1]
    table.rollback(last)
    before = actions(table)
    outcome = table.rollback(last)
    assert isinstance(outcome, NothingToDo) and "rolled back already" in outcome.reason
    assert actions(table) == before


def test_writes_are_undone_one_after_the_other_down_to_the_first() -> None:
    table = filled()
    for requested in reversed(times(table)):
        table.rollback(requested)
    assert data_rows(table) == [] and base_files(table.refresh().env.storage) == []
    check_storage(table)


def test_a_write_is_undone_only_if_nothing_completed_after_it() -> None:
    table = filled()
    first, second, last = times(table)
    with pytest.raises(UserError, match=f"{last} completed after {second}"):
        table.rollback(second)
    with pytest.raises(UserError, match=f"no instant 20200101000000000; the newest completed write is {last}"):
        table.rollback("20200101000000000")
    table.savepoint(last)
    with pytest.raises(UserError, match=f"savepoint keeps {last}.*savepoint delete .*--instant {last}"):
        table.rollback(last)
    table.delete_savepoint(last)
    table.rollback(last)
    assert times(table) == [first, second]


def test_rollback_refuses_instants_that_are_not_writes() -> None:
    table = filled()
    table.rollback(times(table)[-1])
    (rollback,) = table.timeline.where(action=Action.ROLLBACK)
    with pytest.raises(UserError, match="is a rollback; only writes can be rolled back"):
        table.rollback(rollback.requested)


def pending_write(table: Table, *, active: bool) -> tuple[str, str]:
    """Create a pending write with one data file; return its requested time and the path of the file."""
    loaded = table.refresh()
    action = Action.DELTACOMMIT if loaded.config.is_merge_on_read else Action.COMMIT
    instant = loaded.store.request(loaded.timeline, action, b"")
    loaded.store.start(instant, b"")
    path = f"a/failed-0_0-9-9_{instant.requested}.parquet"
    loaded.env.storage.put(f".hoodie/.temp/{instant.requested}/{path}.marker.CREATE", b"")
    loaded.env.storage.put(path, b"PAR1 half a file")
    if active:
        heartbeat = Heartbeat(loaded.env, TransactionPolicy(heartbeat_interval_ms=10_000_000))
        heartbeat.start(instant.requested)
        heartbeat.stop()
    return instant.requested, path


@pytest.mark.parametrize("kind", TYPES)
def test_rollback_of_a_pending_write_allows_later_completed_writes(kind: str) -> None:
    table = filled(kind)
    requested, path = pending_write(table, active=False)
    lazy = Table.open(table.location, options={"hoodie.clean.failed.writes.policy": "LAZY"}, env=table.refresh().env)
    lazy.upsert(batch([row("later", p="c")]))
    rows = data_rows(table)
    assert undone(table.rollback(requested)) == [path]
    assert data_rows(table) == rows
    check_storage(table)


def test_rollback_of_an_active_write_needs_force() -> None:
    table = filled()
    requested, path = pending_write(table, active=True)
    with pytest.raises(RetryableError, match=f"the write {requested} is active.*--force"):
        table.rollback(requested)
    assert undone(table.rollback(requested, force=True)) == [path]
    check_storage(table)


def test_rollback_failed_rolls_back_expired_writes_and_keeps_active_ones() -> None:
    table = filled()
    expired, _ = pending_write(table, active=False)
    active, path = pending_write(table, active=True)
    outcome = table.rollback_failed()
    assert (outcome.rolled_back, outcome.alive) == ((expired,), (active,))
    assert [i.requested for i in table.timeline.where(pending=True)] == [active]
    assert path in {base.path for base in base_files(table.refresh().env.storage)}
    outcome = table.rollback_failed()
    assert (outcome.rolled_back, outcome.alive) == ((), (active,))


def test_rollback_of_a_completed_write_is_refused_while_a_write_is_pending() -> None:
    table = filled()
    requested, _ = pending_write(table, active=False)
    last = times(table)[-1]
    with pytest.raises(UserError, match=f"{requested} is pending and depends on {last}.*rollback failed"):
        table.rollback(last)
    table.rollback_failed()
    table.rollback(last)
    assert len(times(table)) == 2


def test_a_completed_compaction_goes_back_to_its_plan_and_runs_again() -> None:
    table = filled("MERGE_ON_READ")
    rows = data_rows(table)
    done = table.services.compaction.run(force=True)
    assert isinstance(done, Committed)
    requested, files = done.instant.requested, [stat.path for stat in done.metadata.stats]
    assert undone(table.rollback(requested)) == sorted(files)
    found = [i for i in table.timeline if i.requested == requested]
    assert found == [Instant(requested=requested, action=Action.COMPACTION, state=State.REQUESTED)]
    assert data_rows(table) == rows and log_files(table.refresh().env.storage)
    outcome = table.rollback(requested)
    assert isinstance(outcome, NothingToDo) and "is not being executed" in outcome.reason
    again = table.services.compaction.run()
    assert isinstance(again, Committed) and again.instant.requested == requested
    assert data_rows(table) == rows
    check_storage(table)


def test_rollback_is_refused_if_a_plan_contains_logs_of_the_write() -> None:
    table = filled("MERGE_ON_READ")
    last = times(table)[-1]
    planned = table.services.compaction.schedule(force=True)
    assert isinstance(planned, Instant)
    with pytest.raises(UserError, match=f"{planned.requested} is pending and depends on {last}"):
        table.rollback(last)


def test_rollback_of_a_write_after_a_plan_keeps_the_plan() -> None:
    table = filled("MERGE_ON_READ")
    rows = data_rows(table)
    planned = table.services.compaction.schedule(force=True)
    assert isinstance(planned, Instant)
    table.upsert(batch([row("k1", ts=9, v="late")]))
    table.rollback(times(table)[-1])
    assert data_rows(table) == rows
    assert isinstance(table.services.compaction.run(), Committed)
    assert data_rows(table) == rows
    check_storage(table)


@pytest.mark.parametrize("kind", TYPES)
def test_rollback_is_refused_if_a_clean_removed_the_previous_files(kind: str) -> None:
    table = filled(kind)
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
    newest, last = table.commits()[-1], times(table)[-1]
    storage = table.refresh().env.storage
    gone = sorted({base.path for base in base_files(storage)} - {stat.path for stat in newest[1].stats})
    storage.delete_many(path for path in gone if path.startswith("a/"))
    with pytest.raises(UserError, match=f"rollback of {last} needs . files that a clean removed, such as a/"):
        table.rollback(last)
    assert times(table)[-1] == last


def test_pending_rollback_of_hudi_for_a_completed_write_is_dropped() -> None:
    table = filled()
    loaded = table.refresh()
    last = table.commits()[-1]
    plan = table.rollback(last[0].requested, dry_run=True)
    assert isinstance(plan, RollbackPlan)
    loaded.store.request(loaded.timeline, Action.ROLLBACK, encode_rollback_plan(plan, base_path=table.location))
    rows = data_rows(table)
    table.upsert(batch([row("later", p="c")]))
    assert len(data_rows(table)) == len(rows) + 1
    assert not table.timeline.where(action=Action.ROLLBACK)
