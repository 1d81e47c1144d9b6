"""The planner of index builds: declared, listed and missing partitions."""

from __future__ import annotations

from lakehouse.core.planning.indexing import (
    ListedPartitions,
    declared_partitions,
    in_build_order,
    index_due,
    plan_index,
)
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.indexing import IndexingPolicy

BASE = ListedPartitions(usable=("column_stats", "files"))


def at(number: int, action: Action = Action.COMMIT, state: State = State.COMPLETED) -> Instant:
    time = f"{20260101000000000 + number:017d}"
    completed = f"{20260101000000500 + number:017d}" if state is State.COMPLETED else None
    return Instant(requested=time, action=action, state=state, completed=completed)


def test_declared_partitions_come_from_options_and_definitions_in_build_order() -> None:
    policy = IndexingPolicy(bloom_filters=True, expressions="h=hour(at)")
    found = declared_partitions(policy, statistics=True, is_partitioned=True, defined=["column_stats"])
    assert found == ("column_stats", "bloom_filters", "partition_stats", "expr_index_h")
    defined = declared_partitions(
        IndexingPolicy(), statistics=False, is_partitioned=True, defined=["secondary_index_a", "column_stats"]
    )
    assert defined == ("record_index", "secondary_index_a")


def test_statistics_of_partitions_are_not_declared_without_partitions() -> None:
    assert declared_partitions(IndexingPolicy(), statistics=True, is_partitioned=False) == ("column_stats",)
    assert in_build_order(["secondary_index_x", "files"]) == ("files", "secondary_index_x")


def test_index_is_due_if_declared_partitions_are_not_usable() -> None:
    due = index_due(("column_stats", "record_index"), BASE, Timeline())
    assert (due.due, due.missing) == (True, ("record_index",)) and "record_index declared" in due.reason
    done = index_due(("column_stats",), BASE, Timeline())
    assert not done.due and done.reason == "all 1 declared indexes are built"
    assert not index_due((), BASE, Timeline()).due


def test_index_is_not_due_without_a_metadata_table() -> None:
    due = index_due(("record_index",), ListedPartitions(usable=()), Timeline())
    assert not due.due and "lakehouse metadata rebuild" in due.reason and due.missing == ()


def test_index_is_due_while_a_build_is_not_finished() -> None:
    pending = Timeline((at(1), at(2, Action.INDEXING, State.INFLIGHT)))
    due = index_due((), BASE, pending)
    assert due.due and f"{20260101000000002}" in due.reason
    left = ListedPartitions(usable=BASE.usable, building=("record_index",))
    assert index_due((), left, Timeline()).building == ("record_index",)


def test_plan_names_the_last_write_without_a_pending_write_before_it() -> None:
    pending = at(3, Action.DELTACOMMIT, State.INFLIGHT)
    timeline = Timeline((at(1), at(2, Action.CLEAN), pending, at(4), at(5, Action.INDEXING, State.REQUESTED)))
    plan = plan_index(["secondary_index_a", "record_index"], timeline)
    assert plan.names == ("record_index", "secondary_index_a")
    assert {info.up_to for info in plan.partitions} == {at(1).requested}
    assert plan_index(["record_index"], Timeline()).partitions[0].up_to == ""
    assert repr(plan).startswith("index plan: builds 2 index partitions")
