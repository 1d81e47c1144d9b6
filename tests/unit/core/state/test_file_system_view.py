"""The file system view: visible files and slices at an instant (TL-6)."""

from __future__ import annotations

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.state.file_system_view import (
    DataFile,
    Replaced,
    all_slices,
    duplicates,
    latest_slices,
    read_optimized,
    replacements,
    visible_timeline,
)
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline

V6, V9 = table_layout(6), table_layout(9)


def commit(requested: str, completed: str | None, action: Action = Action.COMMIT) -> Instant:
    """Return a completed or inflight write."""
    state = State.COMPLETED if completed else State.INFLIGHT
    return Instant(requested=requested, action=action, state=state, completed=completed)


def file(instant: str, *, group: str = "g", partition: str = "p", token: str = "0-0-0") -> BaseFile:
    """Return a base file."""
    return BaseFile(partition=partition, file_id=group, write_token=token, instant=instant)


def log(instant: str, *, group: str = "g", version: int = 1, token: str = "0-0-0", size: int = 1) -> LogFile:
    """Return a log file of partition p."""
    return LogFile(partition="p", file_id=group, instant=instant, version=version, write_token=token, size_bytes=size)


def delta(requested: str, completed: str | None) -> Instant:
    """Return a delta commit."""
    return commit(requested, completed, Action.DELTACOMMIT)


def compaction(requested: str, completed: str | None = None) -> Instant:
    """Return a compaction; its completed instant is a commit."""
    if completed:
        return commit(requested, completed)
    return Instant(requested=requested, action=Action.COMPACTION, state=State.REQUESTED)


def newest(
    files: list[DataFile], timeline: Timeline, layout: TableLayout = V9, **bounds: str
) -> list[tuple[str, list[str]]]:
    """Return base instant and log instants of each newest slice; brackets mark a slice without base file."""
    slices = latest_slices(files, visible_timeline(timeline, (), **bounds), layout=layout)
    return [summary(s) for s in slices]


def summary(file_slice: FileSlice) -> tuple[str, list[str]]:
    start = file_slice.base_instant if file_slice.base else f"({file_slice.base_instant})"
    return start, [log.instant for log in file_slice.logs]


TIMELINE = Timeline((commit("1", "2"), commit("3", "8"), commit("4", "5"), commit("6", None)))
FILES = [file("1"), file("3"), file("4", group="h"), file("6"), file("1", partition="q")]


def shown(timeline: Timeline = TIMELINE, replaced: tuple[Replaced, ...] = (), **bounds: str) -> list[tuple[str, ...]]:
    """Return partition, group and instant of the files that a query sees."""
    visible = visible_timeline(timeline, replaced, **bounds)
    return [(s.partition, s.file_id, s.base_instant) for s in latest_slices(FILES, visible, layout=V9)]


def test_view_shows_the_newest_completed_file_of_each_group() -> None:
    assert shown() == [("p", "g", "3"), ("p", "h", "4"), ("q", "g", "1")]


def test_time_travel_is_bounded_by_requested_time() -> None:
    assert shown(as_of="1") == [("p", "g", "1"), ("q", "g", "1")]
    assert shown(as_of="3") == [("p", "g", "3"), ("q", "g", "1")]
    assert shown(as_of="0") == []


def test_incremental_read_is_bounded_by_completion_time() -> None:
    assert shown(completed_up_to="5") == [("p", "g", "1"), ("p", "h", "4"), ("q", "g", "1")]


def test_files_older_than_the_active_timeline_stay_visible() -> None:
    assert shown(Timeline((commit("4", "5"), commit("6", None)))) == [("p", "g", "3"), ("p", "h", "4"), ("q", "g", "1")]


def test_savepoint_does_not_move_the_archive_boundary() -> None:
    savepoint = Instant(requested="1", action=Action.SAVEPOINT, state=State.COMPLETED, completed="2")
    assert ("p", "g", "3") in shown(Timeline((savepoint, commit("4", "5"))))


def test_view_is_empty_without_writes() -> None:
    assert shown(Timeline(())) == []


def test_replaced_group_is_hidden_from_the_replacing_instant() -> None:
    replace = commit("7", "9", Action.REPLACECOMMIT)
    timeline = Timeline((*TIMELINE, replace))
    hidden = (Replaced(partition="p", file_id="g", instant=replace),)
    assert shown(timeline, hidden) == [("p", "h", "4"), ("q", "g", "1")]
    assert ("p", "g", "3") in shown(timeline, hidden, as_of="6")
    assert ("p", "g", "3") in shown(timeline, hidden, completed_up_to="8")


def test_pending_replacement_hides_no_group() -> None:
    pending = commit("7", None, Action.REPLACECOMMIT)
    hidden = (Replaced(partition="p", file_id="g", instant=pending),)
    assert ("p", "g", "3") in shown(Timeline((*TIMELINE, pending)), hidden)


def test_view_shows_the_base_file_the_commit_names_of_two_attempts() -> None:
    tries = [file("3", token="0-1-0"), file("3", token="0-1-1"), file("1")]
    visible = visible_timeline(TIMELINE, ())
    assert duplicates(tries, layout=V9) == {"3"}
    named = {("p", "g", "3"): frozenset({tries[0].name})}
    assert [s.base for s in latest_slices(tries, visible, layout=V9, named=named)] == [tries[0]]
    assert [s.base for s in latest_slices(tries, visible, layout=V9)] == [tries[1]]


def test_replacements_come_from_replacecommits_only() -> None:
    metadata = CommitMetadata(operation="INSERT_OVERWRITE", replaced={"p": ("g", "h")})
    replace = commit("7", "9", Action.REPLACECOMMIT)
    found = replacements([(replace, metadata), (commit("1", "2"), metadata)])
    assert found == tuple(Replaced(partition="p", file_id=group, instant=replace) for group in ("g", "h"))


def test_log_belongs_to_the_newest_base_requested_before_it_completed() -> None:
    # 21 was requested before compaction 30 and completed after it was planned: its rows are not in the base file of 30.
    timeline = Timeline((delta("10", "11"), delta("20", "25"), delta("21", "35"), compaction("30", "40")))
    files = [file("10"), file("30"), log("20"), log("21")]
    assert newest(files, timeline) == [("30", ["21"])]
    slices = all_slices(files, visible_timeline(timeline, ()), layout=V9)[("p", "g")]
    assert [summary(s) for s in slices] == [("30", ["21"]), ("10", ["20"])]


def test_log_completed_at_the_requested_time_of_a_base_belongs_to_it() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", "30"), compaction("30", "40")))
    assert newest([file("10"), file("30"), log("20")], timeline) == [("30", ["20"])]


def test_pending_compaction_changes_no_slice() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", "25"), compaction("30"), delta("31", "33")))
    written = [file("10"), log("20"), log("31")]
    assert newest(written, timeline) == [("10", ["20", "31"])]
    assert newest([*written, file("30")], timeline) == [("10", ["20", "31"])]


def test_logs_of_pending_writes_are_not_visible() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", None)))
    assert newest([file("10"), log("20"), log("15")], timeline) == [("10", [])]
    assert newest([log("20")], timeline) == []


def test_slice_has_logs_only_before_the_first_compaction() -> None:
    timeline = Timeline((delta("10", "15"), delta("12", "13"), compaction("20", "22"), delta("21", "25")))
    logs = [log("12"), log("10"), log("21")]
    assert newest(logs, timeline) == [("(10)", ["10", "12", "21"])]
    slices = all_slices([*logs, file("20")], visible_timeline(timeline, ()), layout=V9)[("p", "g")]
    assert [summary(s) for s in slices] == [("20", ["21"]), ("(10)", ["10", "12"])]


def test_logs_are_ordered_by_request_then_numeric_version_then_token() -> None:
    timeline = Timeline((delta("10", "30"), delta("20", "21")))
    logs = [log("20"), log("10", version=10), log("10", version=9), log("10", version=9, token="0-0-1")]
    slices = latest_slices(logs, visible_timeline(timeline, ()), layout=V9)
    assert slices[0].logs == (logs[2], logs[3], logs[1], logs[0])


def test_time_travel_shows_logs_requested_up_to_the_bound() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", "35"), compaction("30", "40"), delta("50", "51")))
    files = [file("10"), file("30"), log("20"), log("50")]
    assert newest(files, timeline, as_of="25") == [("10", ["20"])]
    assert newest(files, timeline, as_of="30") == [("30", ["20"])]
    assert newest(files, timeline, completed_up_to="35") == [("10", ["20"])]
    assert newest(files, timeline) == [("30", ["20", "50"])]


def test_archived_files_are_visible_up_to_the_bound() -> None:
    timeline = Timeline((delta("40", "41"),))
    files = [file("10"), log("20"), file("30"), log("35"), log("40")]
    assert newest(files, timeline) == [("30", ["35", "40"])]
    assert newest(files, timeline, as_of="30") == [("30", [])]
    assert newest(files, timeline, as_of="25") == [("10", ["20"])]


def test_files_of_pending_clustering_are_hidden_if_it_is_the_oldest_instant() -> None:
    pending = Instant(requested="20", action=Action.CLUSTERING, state=State.INFLIGHT)
    assert newest([file("10"), file("20", group="new")], Timeline((pending, delta("30", "31")))) == [("10", [])]


def test_version_6_logs_belong_to_the_base_in_their_name() -> None:
    timeline = Timeline((delta("10", None), delta("11", None), delta("20", None), compaction("30")))
    timeline = Timeline(tuple(i if i.action is Action.COMPACTION else done(i) for i in timeline))
    files = [file("10"), log("10"), log("10", version=2), log("30")]
    # Log files named after a pending compaction hold writes since its plan.
    assert newest(files, timeline, layout=V6) == [("10", ["10", "10", "30"])]
    finished = Timeline((*(i for i in timeline if i.requested != "30"), done(commit("30", None))))
    assert newest([*files, file("30")], finished, layout=V6) == [("30", ["30"])]
    slices = all_slices([*files, file("30")], visible_timeline(finished, ()), layout=V6)[("p", "g")]
    assert [summary(s) for s in slices] == [("30", ["30"]), ("10", ["10", "10"])]


def test_version_6_groups_of_failed_writes_are_hidden() -> None:
    timeline = Timeline((done(delta("10", None)), delta("20", None)))
    files = [file("10"), log("20", group="new"), log("15", group="rolled-back")]
    assert newest(files, timeline, layout=V6) == [("10", [])]


def done(instant: Instant) -> Instant:
    """Return a completed instant of version 6, which has no completion time."""
    return Instant(requested=instant.requested, action=instant.action, state=State.COMPLETED)


def test_view_shows_the_logs_the_commit_names_of_two_attempts() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", "21")))
    # The first attempt rolled over to a second file.
    tries = [log("20", token="0-1-0"), log("20", version=2, token="0-1-0"), log("20", token="0-1-1"), file("10")]
    assert duplicates(tries, layout=V9) == {"20"}
    assert duplicates(tries[:2], layout=V9) == frozenset()
    assert duplicates(tries, layout=V6) == frozenset()
    named = {("p", "g", "20"): frozenset({tries[0].name, tries[1].name})}
    visible = visible_timeline(timeline, ())
    assert latest_slices(tries, visible, layout=V9, named=named)[0].logs == (tries[0], tries[1])


def test_change_logs_are_in_no_slice() -> None:
    timeline = Timeline((delta("10", "11"),))
    changes = LogFile(partition="p", file_id="g", instant="10", version=1, write_token="0-0-0", suffix=".cdc")
    assert changes.name == ".g_10.log.1_0-0-0.cdc"
    assert newest([log("10"), changes], timeline) == [("(10)", ["10"])]


def test_all_slices_include_replaced_groups() -> None:
    replace = commit("30", "31", Action.REPLACECOMMIT)
    timeline = Timeline((delta("10", "11"), delta("20", "21"), replace))
    visible = visible_timeline(timeline, [Replaced(partition="p", file_id="g", instant=replace)])
    files = [file("10"), log("20"), file("30", group="h")]
    assert [s.file_id for s in latest_slices(files, visible, layout=V9)] == ["h"]
    assert list(all_slices(files, visible, layout=V9)) == [("p", "g"), ("p", "h")]


def test_read_optimized_slices_have_no_logs() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", "21")))
    slices = latest_slices([file("10"), log("20"), log("20", group="h")], visible_timeline(timeline, ()), layout=V9)
    assert [summary(s) for s in read_optimized(slices)] == [("10", [])]


def test_slice_has_log_size_and_newest_instant() -> None:
    timeline = Timeline((delta("10", "11"), delta("20", "25"), delta("21", "22")))
    files = [file("10"), log("20", size=5), log("21", size=7)]
    (found,) = latest_slices(files, visible_timeline(timeline, ()), layout=V9)
    assert (found.total_log_bytes, found.latest_instant) == (12, "21")
    assert (read_optimized([found])[0].total_log_bytes, read_optimized([found])[0].latest_instant) == (0, "10")
