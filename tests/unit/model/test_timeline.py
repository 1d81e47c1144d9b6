"""The timeline as a value: transitions, orders and filters (TL-3)."""

from __future__ import annotations

import pytest

from lakehouse.errors import CorruptTableError
from lakehouse.model.instant import Action, Instant, State, Timeline


def done(requested: str, completed: str, action: Action = Action.COMMIT) -> Instant:
    """Return a completed instant."""
    return Instant(requested=requested, action=action, state=State.COMPLETED, completed=completed)


def pending(requested: str, action: Action = Action.COMMIT, state: State = State.REQUESTED) -> Instant:
    """Return a pending instant."""
    return Instant(requested=requested, action=action, state=state)


LATE = done("1", "9")
EARLY = done("2", "3", Action.REPLACECOMMIT)
OPEN = pending("4")


def test_timeline_orders_by_request_or_by_completion() -> None:
    timeline = Timeline((OPEN, EARLY, LATE))
    assert [i.requested for i in timeline] == ["1", "2", "4"]
    assert [i.requested for i in timeline.by_completion()] == ["2", "1"]


def test_timeline_filters_are_combined() -> None:
    timeline = Timeline((LATE, EARLY, OPEN))
    assert tuple(timeline.where(pending=True)) == (OPEN,)
    assert tuple(timeline.where(completed_after="3")) == (LATE,)
    assert tuple(timeline.where(completed_up_to="3")) == (EARLY,)
    assert tuple(timeline.where(requested_up_to="2", action=Action.COMMIT)) == (LATE,)
    assert tuple(timeline.where(action={Action.COMMIT}).where(state=State.REQUESTED)) == (OPEN,)
    assert tuple(timeline.writes()) == (LATE, EARLY)


def test_transition_allows_only_the_next_state() -> None:
    timeline = Timeline(()).transition(pending("5"), State.REQUESTED)
    timeline = timeline.transition(pending("5"), State.INFLIGHT)
    with pytest.raises(CorruptTableError, match="cannot go from 1"):
        timeline.transition(pending("5"), State.INFLIGHT)
    assert timeline.transition(pending("5"), State.COMPLETED, "6").find("5") == done("5", "6")
    with pytest.raises(CorruptTableError, match="cannot go from -1"):
        timeline.transition(pending("7"), State.INFLIGHT)
    with pytest.raises(CorruptTableError, match="cannot go from 0"):
        Timeline((OPEN,)).transition(OPEN, State.COMPLETED, "5")


@pytest.mark.parametrize("completed", [None, "4", "3"])
def test_transition_refuses_a_completion_before_the_request(completed: str | None) -> None:
    timeline = Timeline((pending("4", state=State.INFLIGHT),))
    with pytest.raises(CorruptTableError, match="not after its request"):
        timeline.transition(pending("4"), State.COMPLETED, completed)


def test_completed_compaction_becomes_a_commit() -> None:
    compaction = pending("4", Action.COMPACTION, State.INFLIGHT)
    moved = Timeline((compaction,)).transition(compaction, State.COMPLETED, "5")
    assert [(i.action, i.state) for i in moved] == [(Action.COMMIT, State.COMPLETED)]


def test_latest_time_includes_requests_and_completions() -> None:
    assert Timeline((LATE, OPEN)).latest_time() == "9"
    assert Timeline((EARLY, OPEN)).latest_time() == "4"
    assert Timeline(()).latest_time() == ""


def test_find_ignores_the_savepoint_of_a_commit() -> None:
    savepoint = done("1", "8", Action.SAVEPOINT)
    assert Timeline((savepoint, LATE)).find("1") == LATE
    assert Timeline((savepoint,)).find("1") is None


def test_instant_of_version_6_is_ordered_by_its_request_time() -> None:
    old = Instant(requested="5", action=Action.COMMIT, state=State.COMPLETED)
    assert old.completion == "5"
    assert Timeline((old, LATE)).by_completion() == (old, LATE)
