"""Invariants of compaction and log compaction: rows stay the same, no log remains and planning is repeatable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Instant, State
from tests.support.merged_run import meeting_rows, merged_shapes
from tests.support.model import Model, Row, Verb, apply_verb
from tests.support.naive import counted
from tests.support.tables import SCHEMA, Shape, check_storage, examples, make_table

#: All columns except the file name. A compaction keeps the commit time and sequence number of each row.
KEPT = ("_hoodie_commit_time", "_hoodie_commit_seqno", "_hoodie_record_key", "_hoodie_partition_path", *SCHEMA.names)


def filled(shape: Shape, batches: list[list[Row]]) -> Table:
    """Return a table with one commit for each batch of upserts and one for a delete."""
    table, model = make_table(shape), Model(shape)
    for number, rows in enumerate(batches):
        apply_verb(table, model, Verb(name="upsert", rows=tuple(rows), way=number), unique=True)
    apply_verb(table, model, Verb(name="delete", rows=tuple(batches[0][:2])), unique=True)
    return table


def kept(table: Table, **scan: bool) -> object:
    return counted(table.scan(list(KEPT), **scan).to_arrow().to_pylist(), KEPT)  # type: ignore[arg-type]


def with_logs(table: Table) -> bool:
    return any(partition.log_files for partition in table.describe().partitions)


batches = st.lists(st.lists(meeting_rows(), min_size=4, max_size=12), min_size=2, max_size=4)


@pytest.mark.parametrize("logs_only", [False, True])
@examples(12)
@given(shape=merged_shapes(), rows=batches)
def test_compaction_keeps_all_rows_and_leaves_no_log_file(logs_only: bool, shape: Shape, rows: list[list[Row]]) -> None:
    table = filled(shape, rows)
    before, had_logs = kept(table), with_logs(table)
    outcome = table.services.log_compaction.run() if logs_only else table.services.compaction.run(force=True)
    assert kept(table) == before
    if logs_only:
        assert with_logs(table) == had_logs
        table.services.compaction.run(force=True)
    else:
        assert isinstance(outcome, Committed) == had_logs
    assert not with_logs(table)
    assert kept(table) == kept(table, read_optimized=True) == before
    check_storage(table, unique=False)


@examples(12)
@given(shape=merged_shapes(), rows=batches)
def test_compaction_plan_is_repeatable_and_equals_the_scheduled_plan(shape: Shape, rows: list[list[Row]]) -> None:
    table = filled(shape, rows)
    proposed = table.services.compaction.plan(force=True)
    assert table.services.compaction.plan(force=True) == proposed
    planned = table.services.compaction.schedule(force=True)
    assert isinstance(planned, Instant) != isinstance(proposed, NothingToDo)
    if isinstance(planned, Instant):
        data = table.refresh().store.read(planned, State.REQUESTED)
        assert data is not None
        stored = decode_compaction_plan(data)
        assert stored.operations == proposed.operations
        assert not isinstance(table.services.compaction.schedule(force=True), Instant), (
            "a pending plan holds its file groups"
        )
