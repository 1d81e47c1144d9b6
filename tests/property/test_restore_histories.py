"""Random histories of writes and services, then a restore: the table equals its state at the restored instant.

The model has no tombstones. It differs from a merge-on-read table if a row with an older ordering value follows the
delete of its key while the base file still has the key. The examples depend on the name and the text of a test.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.undo.restore import Restored
from lakehouse.errors import UserError
from lakehouse.model.instant import Action, Instant
from tests.support.merged_run import SERVICES, MergedRun, merged_histories, merged_shapes
from tests.support.model import Run, Shape, Verb, histories, read, rows, shapes
from tests.support.tables import base_files, batch, check_storage, examples, log_files, make_table


def table_with_history(data: st.DataObject, kind: str, index: str) -> Run:
    """Return a table of this kind after a random history, with a model of its state after each commit."""
    if kind == "MERGE_ON_READ":
        shape: Shape = data.draw(merged_shapes(index=index))
        run: Run = MergedRun(make_table(shape), shape)
        history: list[Verb] = data.draw(merged_histories())
    else:
        shape = data.draw(shapes(index=index))
        run = Run(make_table(shape), shape)
        history = data.draw(histories())
    for verb in history:
        if isinstance(run, MergedRun) and verb.name in SERVICES:
            run.serve(verb.name)
        else:
            run.apply(verb)
    return run


def plans(run: Run) -> list[str]:
    """Return the instants of pending compaction and log compaction plans."""
    pending = run.table.timeline.where(action={Action.COMPACTION, Action.LOGCOMPACTION}, pending=True)
    return [instant.requested for instant in pending]


def check_restored(run: Run, target: Instant) -> None:
    """Check that the table equals its state at `target`, and that services still run on it."""
    expected = run.model.at(upto=target.completion)
    assert read(run.table) == expected
    kept = plans(run)
    assert all(plan < target.requested for plan in kept)
    check_storage(run.table, plans=kept)
    if run.shape.is_merge_on_read:
        while plans(run):
            run.table.services.compaction.run()
            run.table.services.log_compaction.run()
        run.table.services.compaction.run(force=True)
        assert read(run.table) == expected


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
@examples(12)
@given(data=st.data())
def test_restored_table_equals_its_state_at_the_target(kind: str, index: str, data: st.DataObject) -> None:
    run = table_with_history(data, kind, index)
    if not run.commits:
        return
    first: Instant = data.draw(st.sampled_from(run.commits))
    kept = data.draw(st.booleans())
    if kept:
        run.table.savepoint(first.requested)
    before = [instant for instant, _ in run.table.commits()]
    outcome = run.table.restore(first.requested)
    if isinstance(outcome, Restored):
        gone = {plan.target for plan in outcome.rollbacks}
        assert [i for i, _ in run.table.commits()] == [i for i in before if i.requested not in gone]
    check_restored(run, first)
    # Restore again to a remaining commit. A new write before it has to be undone as well.
    row = data.draw(rows(deletes=False))
    run.table.upsert(batch([row]))
    second: Instant = data.draw(st.sampled_from([i for i in run.commits if i.completion <= first.completion]))
    if kept and second.requested < first.requested:
        with pytest.raises(UserError, match=f"a savepoint keeps {first.requested}"):
            run.table.restore(second.requested)
    if kept:
        run.table.delete_savepoint(first.requested)
    run.table.restore(second.requested)
    check_restored(run, second)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@examples(12)
@given(data=st.data())
def test_rollback_of_the_newest_commit_restores_the_previous_state(kind: str, data: st.DataObject) -> None:
    run = table_with_history(data, kind, "SIMPLE")
    done = [instant for instant, _ in run.table.commits()]
    for plan in plans(run):
        forget(run, plan)
    while done:
        last = done.pop()
        run.table.rollback(last.requested)
        assert read(run.table) == run.model.at(upto=done[-1].completion if done else "0")
        for plan in plans(run):
            # The rollback of a compaction makes its plan pending again. The plan names files of the earlier writes.
            forget(run, plan)
    assert base_files(run.table.refresh().env.storage) == [] == log_files(run.table.refresh().env.storage)


def forget(run: Run, plan: str) -> None:
    """Remove a plan without an executor from the timeline."""
    loaded = run.table.refresh()
    instant = loaded.timeline.find(plan)
    assert instant is not None and not instant.is_completed
    loaded.store.remove_pending(instant)
