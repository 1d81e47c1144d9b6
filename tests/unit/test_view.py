"""Which files are visible when (format: timeline.md 6)."""

from __future__ import annotations

from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.state.view import Replaced, duplicates, latest_slices, replacements, visible_timeline


def commit(requested: str, completed: str | None, action: Action = Action.COMMIT) -> Instant:
    """A completed write, or an inflight one."""
    state = State.COMPLETED if completed else State.INFLIGHT
    return Instant(requested=requested, action=action, state=state, completed=completed)


def file(instant: str, *, group: str = "g", partition: str = "p", token: str = "0-0-0") -> BaseFile:
    """A base file."""
    return BaseFile(partition=partition, file_id=group, write_token=token, instant=instant)


TIMELINE = Timeline((commit("1", "2"), commit("3", "8"), commit("4", "5"), commit("6", None)))
FILES = [file("1"), file("3"), file("4", group="h"), file("6"), file("1", partition="q")]


def shown(timeline: Timeline = TIMELINE, replaced: tuple[Replaced, ...] = (), **bounds: str) -> list[tuple[str, ...]]:
    """Partition, group and instant of what a query sees."""
    visible = visible_timeline(timeline, replaced, **bounds)
    return [(s.partition, s.file_id, s.base_instant) for s in latest_slices(FILES, visible)]


def test_the_newest_completed_file_of_each_group_is_seen() -> None:
    assert shown() == [("p", "g", "3"), ("p", "h", "4"), ("q", "g", "1")]


def test_time_travel_goes_by_request() -> None:
    assert shown(as_of="1") == [("p", "g", "1"), ("q", "g", "1")]
    assert shown(as_of="3") == [("p", "g", "3"), ("q", "g", "1")]
    assert shown(as_of="0") == []


def test_incremental_bounds_go_by_completion() -> None:
    assert shown(completed_up_to="5") == [("p", "g", "1"), ("p", "h", "4"), ("q", "g", "1")]


def test_files_before_the_active_timeline_are_archived_and_stay_visible() -> None:
    assert shown(Timeline((commit("4", "5"), commit("6", None)))) == [("p", "g", "3"), ("p", "h", "4"), ("q", "g", "1")]


def test_a_savepoint_left_behind_does_not_move_the_archive_boundary() -> None:
    savepoint = Instant(requested="1", action=Action.SAVEPOINT, state=State.COMPLETED, completed="2")
    assert ("p", "g", "3") in shown(Timeline((savepoint, commit("4", "5"))))


def test_without_any_write_nothing_is_visible() -> None:
    assert shown(Timeline(())) == []


def test_a_replaced_group_is_hidden_from_the_replacement_on() -> None:
    replace = commit("7", "9", Action.REPLACECOMMIT)
    timeline = Timeline((*TIMELINE, replace))
    hidden = (Replaced(partition="p", file_id="g", instant=replace),)
    assert shown(timeline, hidden) == [("p", "h", "4"), ("q", "g", "1")]
    assert ("p", "g", "3") in shown(timeline, hidden, as_of="6")
    assert ("p", "g", "3") in shown(timeline, hidden, completed_up_to="8")


def test_a_pending_replacement_hides_nothing() -> None:
    pending = commit("7", None, Action.REPLACECOMMIT)
    hidden = (Replaced(partition="p", file_id="g", instant=pending),)
    assert ("p", "g", "3") in shown(Timeline((*TIMELINE, pending)), hidden)


def test_of_two_tries_of_a_task_the_one_named_by_the_commit_counts() -> None:
    tries = [file("3", token="0-1-0"), file("3", token="0-1-1"), file("1")]
    visible = visible_timeline(TIMELINE, ())
    assert duplicates(tries) == {"3"}
    named = {("p", "g", "3"): tries[0].name}
    assert [s.base for s in latest_slices(tries, visible, named=named)] == [tries[0]]
    assert [s.base for s in latest_slices(tries, visible)] == [tries[1]]


def test_replacements_come_from_replacecommits_alone() -> None:
    metadata = CommitMetadata(operation="INSERT_OVERWRITE", replaced={"p": ("g", "h")})
    replace = commit("7", "9", Action.REPLACECOMMIT)
    found = replacements([(replace, metadata), (commit("1", "2"), metadata)])
    assert found == tuple(Replaced(partition="p", file_id=group, instant=replace) for group in ("g", "h"))
